"""Every key in the server, built in one place.

A key is `<prefix>:{<shard>}:<kind>[:<name>]`. The braces are the hash tag that puts
all keys of a shard into one slot, so that one script call may touch any of them.
Names are escaped, so none can leave its tag or meet another's key.

What must hold: no other Python module writes a key by hand; a Lua script builds keys
only from `KEYS[1]`, the shard's root, and a kind listed in `KINDS` (a test reads the
scripts and checks both).
"""

from __future__ import annotations

import hashlib
from urllib.parse import quote

__all__ = ["KINDS", "Keys", "escape", "key_digest"]

#: kind -> (type, content, who writes it, when it goes)
KINDS: dict[str, tuple[str, str, str, str]] = {
    # one per shard
    "active": ("zset", "job -> end of its lease, ms", "turn, renew, rescue", "never"),
    "delayed": ("zset", "job -> due time, ms", "add, turn", "never"),
    "deadlines": (
        "zset",
        "`kind:tree` -> due time, ms: timeouts of trees, and chores, the rest of work on them",
        "graph, checkpoint, turn, rescue, cancel, add, sweep",
        "never",
    ),
    "rooted": ("set", "queues that have roots of trees", "graph, checkpoint", "never"),
    "grouped": ("set", "queues that have groups", "announce, group", "never"),
    "order": ("string", "the counter of the orders that jobs take", "add, turn, rescue", "never"),
    "clock": (
        "hash",
        "heard: last call of any worker, ms; grace: no rescue before, ms",
        "renew, rescue",
        "never",
    ),
    "replies": ("stream", "outcomes for one emitter", "turn, rescue", "10 min after its emitter"),
    "wake": ("zset", "queue -> when it got work, for one pool", "add, turn, rescue", "2 min after its pool"),
    "control": ("zset", "messages to one worker", "post, cancel, add", "2 min"),
    "worker": (
        "hash",
        "when one worker was last heard, and its event loop's lag, ms",
        "renew",
        "10 min after it",
    ),
    "last": ("string", "one worker's last call and what it was answered", "turn", "10 min after its worker"),
    "touch": ("string", "nothing: a write to wait for a replica with", "Store.add", "10 min after the last"),
    "scratch": ("any", "what `eventbus check` tries commands on", "Checkup", "1 ms"),
    # one per queue
    "ready": ("zset", "waiting job -> priority and order", "add, turn, rescue", "with its last job"),
    "completed": ("zset", "job -> end, ms", "turn", "by retention"),
    "failed": (
        "zset",
        "job -> end, ms; in `unknown` those without a queue, 7 days",
        "turn, rescue",
        "by retention",
    ),
    "cancelled": ("zset", "job -> end, ms", "turn, cancel, add, rescue", "by retention"),
    "parked": ("zset", "job -> when it was parked, ms", "turn", "with its last job"),
    "groups": ("set", "groups of the queue", "announce, group", "never"),
    "pools": ("zset", "pool -> last announcement, ms", "announce", "2 min after its last worker"),
    "roots": ("zset", "open root -> when it was added, ms", "graph, restart", "with its last root"),
    # one per job or idempotency key
    "job": ("hash", "the record; no field over 64 bytes", "add, turn, rescue", "by retention"),
    "body": ("string", "envelope larger than a field", "add", "with the record"),
    "result": (
        "string",
        "result or error larger than a field; the cancellation that was asked of a running job",
        "turn, rescue, cancel, add",
        "with the record",
    ),
    "outcome": ("string", "outcome of a keyed job, if over 8 KiB", "turn, rescue", "key_ttl after the end"),
    "progress": ("string", "last progress, JSON", "note", "with the record"),
    "log": ("list", "errors of ended attempts, and stalls; the newest 50", "turn, rescue", "with the record"),
    "waiters": ("hash", "further emission -> its emitter", "add, look", "with the record"),
    "needs": ("set", "what the job still waits for; '' for a sweep", "graph, checkpoint, turn", "when empty"),
    "feeds": ("list", "who waits for the job", "graph, checkpoint", "with the record"),
    "members": ("list", "members of the tree, as they were added", "graph, checkpoint", "with the record"),
    "done": ("list", "members that completed, in that order", "turn", "with the record"),
    "leaves": ("list", "members that begin the tree once it is open", "graph, checkpoint", "when it is open"),
    "checkpoints": ("hash", "what the job saved, by name", "checkpoint", "with the record"),
    "raw": ("any", "what stood in the place of a damaged record", "turn, rescue", "7 days"),
    "key": (
        "hash",
        "pointer: job, print of the payload, state and small outcome",
        "add, turn",
        "key_ttl after the end",
    ),
}


def escape(name: str) -> str:
    """Return `name` with everything but letters, digits and `._-~@` percent-encoded (UTF-8)."""
    return quote(name, safe="@")


def key_digest(key: str) -> str:
    """Return what stands for an idempotency key in key names and records, at most 64 bytes.

    Short keys stay readable; longer ones become a SHA-256 digest, told apart by a
    leading `#` that an escaped key cannot have.
    """
    plain = escape(key)
    if len(plain) <= 48:
        return plain
    return "#" + hashlib.sha256(key.encode()).hexdigest()[:40]


class Keys:
    """The keys of one shard."""

    def __init__(self, prefix: str, shard: str) -> None:
        self.root = f"{escape(prefix)}:{{{escape(shard)}}}"

    def shard_key(self, kind: str) -> str:
        """A key that the shard has once: `active`, `delayed` or `clock`."""
        return f"{self.root}:{kind}"

    def of(self, kind: str, name: str) -> str:
        """A key of one queue, job, worker, pool or emitter; `kind` is one of `KINDS`."""
        return f"{self.root}:{kind}:{name}"

    def replies(self, emitter: str) -> str:
        """Stream; outcomes for one emitter; written by settling workers, trimmed by the emitter."""
        return self.of("replies", emitter)

    def wake(self, pool: str) -> str:
        """Sorted set; queues with work for the workers of one pool."""
        return self.of("wake", pool)

    def control(self, worker: str) -> str:
        """Sorted set; messages to one worker."""
        return self.of("control", worker)
