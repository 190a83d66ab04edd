"""The record of a job: its bytes, and every field that a script reads or writes.

A record is one string, `job:<id>`. What is unusual about a job stands beside it, in the hash `more:<id>`. The
Lua files `lib/plain.lua` and `lib/codec.lua` own the bytes; `decode` reads them here, without the scripts,
for tests and audits.

What must always hold: a script writes, reads and removes no other field. A test reads the Lua files and
compares, in both directions; the property models compare the fields of every record after every call.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["CORE", "FLAGS", "MORE", "STATES", "decode"]

STATES: dict[int, str] = {
    0: "waiting",
    1: "completed",
    2: "failed",
    3: "cancelled",
    4: "delayed",
    5: "parked",
    6: "waiting-children",
    8: "waiting",
    9: "waiting",
    10: "completed",
}
"""The low half of the first byte -> the state; a job that somebody holds is `waiting` there, too.

A record of 8 names who holds the job. One of 9 or 10 is a brief root (`rooting.lua`).
"""

_BRIEF = (9, 10)

FLAGS: dict[str, int] = {
    "MORE": 1,
    "BODY": 2,
    "RESULT": 4,
    "JOURNAL": 8,
    "STOP": 16,
    "MEMBER": 32,
    "LIMIT": 64,
    "SIDE": 128,
}
"""The flags of the second byte; `plain.lua` says what each means."""

_LATER = 64
"""A limit key of so many bytes or more is for later releases."""

#: the fields of the record -> what each has
CORE: dict[str, str] = {
    "state": (
        "`waiting` also while a worker holds it (`holds.lua`); "
        "`waiting-children`, `delayed`, `parked`, or how it ended"
    ),
    "flags": "the second byte",
    "created": "when it was added, ms",
    "attempts": "attempts that ended; 255: the field beside it has their number",
    "queue": "the queue that it belongs to",
    "reply": "the emitter that gets its outcome",
    "root": "the root of the tree that it is a member of",
    "limit": "the limit key, up to 48 bytes",
    "body": "payload with envelope, up to 256 bytes; empty for what its root was given",
    "size": "the length of a body that has a key of its own",
    "claimed": "of members and roots that are held: when they were claimed, ms",
    "token": "of members and roots that are held: who holds them",
    "ended": "when it ended, ms",
    "lasted": "how long the run that ended it took, ms",
    "worker": "who ran it at the end; empty if nobody did",
    "result": "result or error, JSON, up to 256 bytes",
    "is_root": "it is a brief root: `tree` is 1 and `on` is wake, and neither stands beside it",
    "is_later": "it has what a later release knows: it is parked",
}

#: the fields beside the record -> (what each has, the Lua files that write it)
MORE: dict[str, tuple[str, str]] = {
    # what an emission asked for
    "due": (
        "when it is or was due, ms",
        "delays edit enqueuing replacing planting restart retry settle_rows signal succession",
    ),
    "priority": ("its priority, if not 0", "edit enqueuing planting restart retry"),
    "lifo": ("1: it goes to the head of its priority", "enqueuing retry"),
    "key": ("the digest of its idempotency key", "enqueuing graph restart retry"),
    "after": ("of the next job of a key: the job that it waits for", "enqueuing"),
    "ripe": (
        "of the next job of a key: when it may begin, if that one has ended, ms",
        "edit enqueuing replacing",
    ),
    "keep": (
        "how long it is kept once it has ended, over its queue: `completed,failed`, ms",
        "enqueuing remove restart retry",
    ),
    "joined": ("how many emissions joined it", "joining"),
    # what happened to it
    "attempts": ("attempts that ended, from 255 on", "fields"),
    "stalls": ("stalls", "blame verdict"),
    "spared": ("stalls that it was not blamed for", "blame"),
    "alone": ("how often it was blamed by itself, though its worker ran others", "blame"),
    "crowd": ("its cap, from the third blame on: how many suspects may be watched together with it", "blame"),
    "fatal": ("how long it had run at most when it was blamed last, ms", "blame"),
    "room": (
        "of a suspect with a cap of 1: until when, ms, and the worker that makes room for it",
        "suspects",
    ),
    "cancel": ("who cancelled it: a call, or the root of its tree", "cancelling stopping"),
    "why": ("why it was parked or set apart, the first 64 bytes", "records settle_rows"),
    "entry": (
        "how often it was taken out of a list: part of its entry",
        "edit promotion replacing restart retry stopping",
    ),
    "edited": ("the call that changed it last while it waited", "edit replacing"),
    "retrier": ("the call that let it wait again after its end", "retry"),
    "stopped": ("the call that cancelled its last run", "restart retry"),
    "removed": ("the call that removed it, while it stays for a while", "remove"),
    "began": (
        "of a job that was tried or waits: when it was claimed last, ms",
        "blame checkpoint settle_rows",
    ),
    "first": (
        (
            "of a job that was tried, rescued, given back or put off: when it was claimed first, ms; "
            "absent in records of older releases"
        ),
        "blame checkpoint retry settle_rows",
    ),
    "inbox": ("1: it was sent signals", "retry signal"),
    "listens": ("1: it sleeps or waits, and a signal wakes it", "mixed_waits settle_rows"),
    "hears": ("while it runs: the token of who runs it and is told of its signals", "listen"),
    "wakes": ("when the wait for children ends, whether they have ended or not, ms", "mixed_waits"),
    "gathers": ("of a job that says in several calls what it awaits: the name of this wait", "mixed_waits"),
    "waited": ("the token by which it began to wait for children, until it is claimed again", "checkpoint"),
    # members and roots of trees
    "tree": ("1: it is a root, also a nested one", "checkpoint codec enqueuing planting records restart"),
    "on": (
        "what becomes of it when a child fails: ignore, remove or wake; absent for fail",
        "checkpoint codec enqueuing planting restart telling",
    ),
    "up": ("what its failure does to those who need it, if not what they say", "planting"),
    "pending": ("1: of a root whose last chunk was not added yet", "graph"),
    "stop": ("why the tree stops: failed, cancelled or timeout", "records stopping"),
    "stopper": ("who stopped the tree: a member, a call, or `timeout`", "stopping"),
    "lost": ("its stalls before its tree stopped", "stopping"),
    "gentle": ("1: what runs in the stopped tree may end its attempt", "stopping"),
    "swept": ("how many members the sweep of the stopped tree has seen", "stopping trees"),
    "knows": ("when it was claimed knowing that its tree stops, ms", "unusual"),
    "acked": ("1: it acknowledged the stop, and what it settles is the end", "checkpoint"),
    "broken": ("a child that failed while it ran", "telling"),
    "told": ("how many of those who need it were told of its end", "telling"),
    "run": ("the number of its run, from the second on", "restart"),
    "restarter": ("the call that ran it again", "restart"),
}


def decode(text: bytes, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the fields of a record as text, those that are absent or 0 left out, with those of `more`.

    Raises `ValueError` for bytes that are no record of this release.
    """
    kind, code = divmod(text[0], 16)
    if kind != 2 or code not in STATES or text[1] & ~sum(FLAGS.values()):
        raise ValueError(f"no record of this release: {text!r}")
    reader = _Reader(text, 2)
    fields: dict[str, str | int] = {"state": STATES[code]}
    fields["created"], fields["attempts"] = reader.number(6), reader.number(1)
    if code in _BRIEF:
        fields |= {"is_root": 1, "tree": 1, "on": "wake"}
    if code in (1, 2, 3, 10):
        fields["ended"], fields["lasted"] = reader.number(6), reader.number(4)
        fields["worker"], fields["result"] = reader.text(1), reader.text(2)
    if code == 8:
        fields["claimed"], fields["token"] = reader.number(6), reader.text(1)
    fields["queue"], fields["reply"] = reader.text(1), reader.text(1)
    if text[1] & FLAGS["MEMBER"]:
        fields["root"] = reader.text(2)
    if text[1] & FLAGS["LIMIT"]:
        fields["limit"] = reader.text(1)
        if len(str(fields["limit"])) >= _LATER:
            raise ValueError(f"no record of this release: {text!r}")
    if text[1] & FLAGS["BODY"]:
        fields["size"] = reader.number(4)
    fields["body"] = reader.rest()
    if fields.get("size") and fields["body"]:
        raise ValueError(f"a record with two bodies: {text!r}")
    return {name: str(value) for name, value in fields.items() if value} | dict(more or {})


class _Reader:
    """Reads a record from its front."""

    def __init__(self, text: bytes, at: int) -> None:
        self._text = text
        self._at = at

    def number(self, width: int) -> int:
        return int.from_bytes(self._take(width))

    def text(self, width: int) -> str:
        return self._take(self.number(width)).decode("utf-8", "surrogateescape")

    def rest(self) -> str:
        return self._take(len(self._text) - self._at).decode("utf-8", "surrogateescape")

    def _take(self, count: int) -> bytes:
        part = self._text[self._at : self._at + count]
        if len(part) < count:
            raise ValueError(f"a record that is cut off: {self._text!r}")
        self._at += count
        return part
