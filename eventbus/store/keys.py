"""The keys in the server: their names are built here, and `KINDS` lists them all.

A key is `<prefix>:2:{<shard>}:<kind>[:<name>]`, where 2 is the edition of the store: no key of another
edition can meet one of this. The braces are the hash tag that puts all keys of a shard into one slot, so that
one script call may touch any of them. Names are escaped, so that no name can break the hash tag or collide
with the key of another name.

What must always hold: no other Python module spells a key. A Lua script builds its keys only from
the root, which it cuts out of `KEYS[1]`, and from kinds that `KINDS` lists. A test reads the scripts
and checks this.
"""

from __future__ import annotations

import hashlib
from urllib.parse import quote

EDITION = 2
"""The edition of the store: the shape of its keys and records. It is part of every key."""

TIME_DIGITS = 13
"""What an entry of `completed` begins with: the ms when the job ended."""

#: kind -> (type, content, the scripts that write it, when it is removed)
KINDS: dict[str, tuple[str, str, str, str]] = {
    # one per shard
    "queues": (
        "hash",
        "the book; `*`: edition, flags, offset of the shard's time, shards; queue -> flags (`book.lua`)",
        "open_shard, add, turn, rescue, announce, sweep, ungroup, pause, limit",
        "never",
    ),
    "none": ("none", "nothing; each call names it, so that a cluster sees two keys", "nobody", "never"),
    "workers": (
        "zset",
        "worker -> end of the leases of all that it holds, ms",
        "turn, renew, rescue, deregister",
        "never",
    ),
    "fleet": (
        "zset",
        "worker -> its last announcement, ms (`roster.lua`)",
        "announce, deregister, sweep",
        "never",
    ),
    "served": (
        "zset",
        "queue -> when a worker of it announced itself last, or when it got work that nobody serves, ms",
        "announce, sweep, add and all that wakes",
        "never",
    ),
    "due": (
        "zset",
        (
            "`q:queue` -> when its first delayed job is due, or before; `hand:worker/job` -> when the worker "
            "must have read of it; `wake:job` -> when its wait ends; `turn:queue`, `lane:key/queue` -> when "
            "a rate lets jobs start again; `schedules:` -> the first of the schedules; `kind:tree` -> "
            "timeouts, chores; ms"
        ),
        "add, graph, checkpoint, turn, signal, rescue, cancel, sweep, fire, schedule",
        "never",
    ),
    "schedules": (
        "zset",
        "schedule -> when it is due, ms; `+inf` for one that is paused or at its end",
        "schedule, fire",
        "never",
    ),
    "rooted": ("set", "queues that have roots of trees", "add, graph, checkpoint", "never"),
    "grouped": ("set", "queues that have groups", "announce, group", "never"),
    "limited": ("set", "queues for which something is ordered", "pause, limit, announce, ungroup", "never"),
    "order": ("string", "the counter of orders in `ready+`, and of chores", "add, turn, rescue", "never"),
    "dead": (
        "hash",
        "queue -> how many entries of `ready` and `suspects` stand for nothing",
        "cancel, turn",
        "never",
    ),
    "clock": (
        "hash",
        (
            "heard: last call of any worker, ms; grace: no rescue before, ms, and the lease that it is for; "
            "`declared:owner`: the highest version of a program that declares schedules"
        ),
        "renew, rescue, schedule",
        "never",
    ),
    "watched": (
        "hash",
        (
            "scope (a queue without its group, or `*`) -> until when its changes are watched, ms; "
            "`#`: the number of the last change (`changes.lua`)"
        ),
        "watch; each that tells a change",
        "30 s after its last watcher",
    ),
    "changes": (
        "stream",
        "changes of jobs and queues, the newest 50,000; written only while somebody watches",
        "each that changes a job",
        "10 min after its last watcher",
    ),
    "cuts": (
        "hash",
        "queue -> how many entries were ever cut from the head of `completed`",
        "turn, sweep",
        "never",
    ),
    "emitters": (
        "zset",
        (
            "emitter that awaits outcomes, and the number of its attendance -> the time up to which it has "
            "got all of them"
        ),
        "add, graph, look, attend",
        "with its last emitter",
    ),
    "replies": ("stream", "outcomes for one emitter", "turn, rescue, attend", "10 min after its emitter"),
    "wake": ("zset", "queue -> when it got work, for one pool", "add, turn, rescue", "2 min after its pool"),
    "idle": (
        "zset",
        "worker of one pool that has nothing to do -> until when that counts, ms",
        "turn, settle_one, announce, add, leave",
        "1 min after its last worker",
    ),
    "control": (
        "zset",
        "messages to one worker, and jobs handed to it",
        "post, cancel, signal, add",
        "2 min",
    ),
    "serving": (
        "zset",
        "worker -> its last announcement, ms, of one pool",
        "announce, leave",
        "2 min after its last worker",
    ),
    "worker": (
        "hash",
        (
            "when one worker was last heard, and its event loop's lag, ms; what it says of itself: name, "
            "host, pid, version, started, announced, queues, versions, concurrency"
        ),
        "renew, announce",
        "10 min after it",
    ),
    "held": (
        "hash",
        (
            "job -> its hold by one worker: when it was claimed, mark, place in that call, token; `#`: "
            "registration; `#lane`: its last call; `#:blame`: how many jobs its end is blamed on, while it "
            "is rescued"
        ),
        "turn, add, settle_one, renew, checkpoint, cancel, rescue, deregister",
        "10 min after its worker",
    ),
    "history": (
        "string",
        "how long the history of queues is kept by minute and by hour, ms; missing: nobody keeps one",
        "tally",
        "a week after the last tally",
    ),
    "tally": (
        "string",
        "the number of the last call by which one worker added to the history",
        "tally",
        "10 min after it",
    ),
    "gauges": (
        "string",
        "the worker that reads the lengths of all queues for metrics",
        "PresenceStore.take_reading",
        "40 s after its last reading",
    ),
    # one per queue and version of its jobs
    "definition": (
        "string",
        "what that version is, JSON, for people who look without the program",
        "PresenceStore.define",
        "90 days after a worker of it told it last",
    ),
    "touch": ("string", "nothing: a write to wait for a replica with", "Store.add", "10 min after the last"),
    "scratch": ("any", "what `eventbus check` tries commands on", "Checkup", "1 ms"),
    "operations": (
        "zset",
        "bulk operation -> when it began, ms; the newest 1,000 (`operation.lua`)",
        "operation",
        "never",
    ),
    "unfinished": (
        "zset",
        "bulk operation that has not ended -> until when a runner holds it, ms",
        "operation",
        "when it ends",
    ),
    "operation": (
        "hash",
        "one bulk operation: what is done to which jobs, by whom, why, how far it is",
        "operation",
        "7 days after its end",
    ),
    "audit": (
        "stream",
        "who did what; the newest 10,000 entries of 90 days",
        "audit",
        "90 days after the last",
    ),
    "refusals": (
        "stream",
        "who was refused what, how often within the hour; the newest 1,000 entries of 90 days",
        "audit",
        "90 days after the last",
    ),
    # one per queue
    "ready": (
        "list",
        "waiting jobs of priority 0, the next one first; `job!n` for one that was taken out n times",
        "add, turn, signal, rescue, cancel",
        "with its last job",
    ),
    "ready+": (
        "zset",
        "waiting job of another priority -> priority and order",
        "add, turn, signal, rescue, cancel",
        "with its last job",
    ),
    "suspects": (
        "list",
        "waiting jobs that are blamed for three stalls or more, as in `ready`",
        "rescue, turn, cancel",
        "with its last job",
    ),
    "delayed": (
        "zset",
        "delayed job -> due time, ms, and its place among those of that millisecond, in 2048ths",
        "add, turn, signal",
        "with its last job",
    ),
    "completed": ("list", "end, 13 digits of ms, and the job, oldest first", "turn", "by retention"),
    "failed": (
        "zset",
        "job -> end, ms; in `unknown` those without a queue, 7 days",
        "turn, rescue",
        "by retention",
    ),
    "cancelled": ("zset", "job -> end, ms", "turn, cancel, add, rescue", "by retention"),
    "leaving": (
        "zset",
        "job that has ended and goes by itself -> when it may go, ms (`leaving.lua`)",
        "turn, cancel, add, rescue, remove",
        "with its last job",
    ),
    "parked": ("zset", "job -> when it was parked, as in `delayed`", "turn", "with its last job"),
    "groups": ("set", "groups of the queue", "announce, group", "never"),
    "limits": (
        "hash",
        (
            "what is ordered for the queue (`orders.lua`): paused since, ms; by whom, why; "
            "ordered and declared limit; declared retention; home of a shelf"
        ),
        "pause, limit, announce, ungroup",
        "when it is removed",
    ),
    "slots": (
        "hash",
        (
            "`=`: the limit of the queue; ``: how many of its jobs run, "
            "and its starts by time (`slots.lua`); `:key`: the same of one limit key; `#`: entries of lanes"
        ),
        "turn, renew, rescue, checkpoint, leave, limit, announce, add",
        "when it is removed",
    ),
    "lane": (
        "list",
        "of queue and limit key: waiting jobs that have it, as in `ready`",
        "add, turn, rescue, ungroup",
        "with its last job",
    ),
    "turns": (
        "list",
        "limit keys that have waiting jobs, the next one first",
        "add, turn, ungroup",
        "with its last job",
    ),
    "resting": (
        "set",
        "limit keys that have waiting jobs, none of which may start now",
        "turn, ungroup",
        "with its last job",
    ),
    "minutes": (
        "hash",
        (
            "of queue and hour: minute -> how many jobs ended how, waits and gauges; "
            "minute + 60 -> runs (`cells.lua`)"
        ),
        "tally, rescue, cancel, turn",
        "by the setting `history`, 48 h",
    ),
    "hours": (
        "hash",
        "of queue and day: hour -> the same as of a minute; hour + 24 -> runs",
        "tally, rescue, cancel, turn",
        "by the setting `history`, 90 days",
    ),
    "pools": ("zset", "pool -> last announcement, ms", "announce, leave", "2 min after its last worker"),
    "roots": ("zset", "open root -> when it was added, ms", "add, graph, restart", "with its last root"),
    # one per schedule
    "schedule": (
        "hash",
        "where one schedule stands: gen, next slot, last job, counts, why it is paused",
        "schedule, fire",
        "when it is removed",
    ),
    "plan": ("string", "what one schedule is, JSON", "schedule", "when it is removed"),
    # one per job or idempotency key
    "job": ("string", "the record (`plain.lua`)", "add, turn, rescue, retry", "by retention"),
    "more": ("hash", "what is unusual about the job", "add, graph, turn, rescue, cancel", "with the record"),
    "body": ("string", "envelope over 256 bytes", "add", "with the record"),
    "result": (
        "string",
        "result or error over 256 bytes; of an open job what its outcome will be",
        "turn, rescue, cancel, add",
        "with the record",
    ),
    "outcome": ("string", "outcome of a keyed job, if over 8 KiB", "turn, rescue", "key_ttl after the end"),
    "progress": ("string", "last progress, JSON", "note", "with the record"),
    "log": (
        "list",
        "errors of ended attempts, and stalls, with their times and workers; the newest 50",
        "turn, rescue",
        "with the record",
    ),
    "lines": (
        "list",
        "log lines that the job keeps: when, ms, token, number, text; the newest 100, 64 KiB",
        "note",
        "with the record",
    ),
    "waiters": (
        "set",
        "emitters whose emissions joined the job, at most 1,000",
        "add, look, graph",
        "with the record",
    ),
    "needs": (
        "set",
        "what the job still waits for; '' for a sweep; `#job`: one whose end is enough",
        "graph, checkpoint, turn",
        "when empty",
    ),
    "feeds": ("list", "who waits for the job", "graph, checkpoint", "with the record"),
    "members": ("list", "members of the tree, as they were added", "graph, checkpoint", "with the record"),
    "done": ("list", "members that completed, in that order", "turn", "with the record"),
    "leaves": ("list", "members that begin the tree once it is open", "graph, checkpoint", "when it is open"),
    "journal": ("list", "what has happened in the job, in order", "turn", "with the record"),
    "live": ("hash", "name -> text that the job replaces whole", "turn", "with the record"),
    "inbox": (
        "hash",
        (
            "signal that the job has not taken -> order, name, payload; `#`: how many ever came; "
            "`#b`: bytes of those there"
        ),
        "signal, turn",
        "with the record",
    ),
    "checkpoints": ("hash", "what the job saved, by name", "checkpoint", "with the record"),
    "raw": ("any", "what stood in the place of a damaged record", "turn, rescue", "7 days"),
    "rawmore": ("any", "what stood beside a damaged record", "turn, rescue", "7 days"),
    "key": (
        "hash",
        (
            "pointer: job, print of the payload, state and small outcome; until: end of a throttle's window, "
            "ms; next, nextprint: the job that comes after it; seen: the last emission of each emitter that "
            "merged or superseded"
        ),
        "add, turn",
        "key_ttl after the end, not before `until`",
    ),
}


def escape(name: str) -> str:
    """Return `name` with everything but letters, digits and `._-~@` percent-encoded (UTF-8)."""
    return quote(name, safe="@")


EVENT_KEY = "#"
"""The digest of the key that all emissions of an event have which merge without a key of their own. No key
has it.
"""


def key_digest(key: str) -> str:
    """Return the text that stands for an idempotency key in key names and records, at most 64 bytes.

    A short key stays readable. A longer one becomes `#` and the start of its SHA-256 digest; no escaped
    key contains a `#`.
    """
    plain = escape(key)
    if len(plain) <= 48:
        return plain
    return "#" + hashlib.sha256(key.encode()).hexdigest()[:40]


def payload_digest(payload: bytes) -> str:
    """Return what a key's pointer keeps of its payload: enough to see that another one came with the same
    key.
    """
    return hashlib.sha1(payload, usedforsecurity=False).hexdigest()[:16]


class Keys:
    """The keys of one shard."""

    def __init__(self, prefix: str, shard: str) -> None:
        self.root: str = f"{escape(prefix)}:{EDITION}:{{{escape(shard)}}}"
        self.first_edition: str = f"{escape(prefix)}:{{{escape(shard)}}}"
        """The root of the keys that the first edition of the store would have."""
        self.declared: tuple[str, str] = (self.shard_key("queues"), self.shard_key("none"))
        """The keys that each call of a script declares: the book, and one that never exists.

        A cluster needs two keys to see that a slot is on the move: it then refuses the whole call.
        """

    def shard_key(self, kind: str) -> str:
        """Return a key that the shard has once, such as `workers`, `due` or `clock`."""
        return f"{self.root}:{kind}"

    def of(self, kind: str, name: str) -> str:
        """Return the key of one queue, job, worker, pool or emitter; `kind` is one of `KINDS`."""
        return f"{self.root}:{kind}:{name}"

    def definition(self, queue: str, version: str) -> str:
        """Return the key of what one version of a queue's jobs is, as the workers of the queue say."""
        return self.of("definition", f"{queue}/{version}")

    def replies(self, emitter: str) -> str:
        """Return the key of one emitter's stream of outcomes. Workers add to it, the emitter trims it."""
        return self.of("replies", emitter)

    def wake(self, pool: str) -> str:
        """Return the key of the sorted set of queues that have work for one pool."""
        return self.of("wake", pool)

    def control(self, worker: str) -> str:
        """Return the key of the sorted set of messages to one worker."""
        return self.of("control", worker)
