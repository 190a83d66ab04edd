"""The fields of a job's record: what each has, and which Lua files write it.

A plain job has `queue`, `state`, `order`, `created` and `body` or a key of its own for it, and when it has ended `ended`
and `result`. Every other field says something unusual, and is absent where nothing unusual is to say.

What must always hold: a script writes, reads and removes no other field. A test reads the Lua files and compares, in
both directions; the property models compare the fields of every record after every call.
"""

from __future__ import annotations

__all__ = ["FIELDS"]

#: field -> (what it has, the Lua files that write it)
FIELDS: dict[str, tuple[str, str]] = {
    # every job
    "queue": ("the queue that it belongs to", "enqueue plain plant record"),
    "state": (
        "`waiting` also while a worker holds it (`holds.lua`); `waiting-children`, `delayed`, `parked`, or how it ended",
        "announce checkpoint claim_odd delays enqueue finish leaves plain plant ready refusing settle settle_rows stopping",
    ),
    "order": ("its score in `ready`: priority and order", "enqueue plain plant ready"),
    "created": ("when it was added, ms", "enqueue plain plant"),
    "body": (
        "payload with envelope, up to 64 bytes; empty for what its root was given",
        "enqueue plain plant restart",
    ),
    "ended": ("when it ended, ms", "finish refusing settle stopping"),
    "result": ("result or error, JSON, up to 64 bytes", "finish settle stopping"),
    # what an emission asked for
    "reply": ("the emitter that gets its outcome", "enqueue graph plain"),
    "due": ("when it is or was due, ms", "delays enqueue plant restart settle_rows"),
    "lifo": ("1: it goes to the head of its priority", "enqueue"),
    "key": ("the digest of its idempotency key", "enqueue graph"),
    "joined": ("how many emissions joined it", "joining"),
    # what happened to it
    "attempts": ("attempts that ended", "settle_rows"),
    "stalls": ("stalls", "stalls verdict"),
    "cancel": ("who cancelled it: a call, or the root of its tree", "cancelling stopping"),
    "why": ("why it was parked, the first 64 bytes", "settle_rows"),
    "token": (
        "who holds it or did so last: of members, roots, and jobs that waited for children",
        "checkpoint claim",
    ),
    "claimed": ("when it was claimed last, ms: of the same jobs", "claim"),
    "v": ("the format of a later release: it is parked unread", ""),
    # members and roots of trees
    "root": ("the root of the tree that it is a member of", "plant record"),
    "tree": ("1: it is a root, also a nested one", "plant record"),
    "on": ("what becomes of it when a child fails: ignore, remove or wake; absent for fail", "plant telling"),
    "up": ("what its failure does to those who need it, if not what they say", "plant"),
    "pending": ("1: of a root whose last chunk was not added yet", "graph"),
    "stop": ("why the tree stops: failed, cancelled or timeout", "record stopping"),
    "stopper": ("who stopped the tree: a member, a call, or `timeout`", "stopping"),
    "gentle": ("1: what runs in the stopped tree may end its attempt", "stopping"),
    "swept": ("how many members the sweep of the stopped tree has seen", "stopping trees"),
    "knows": ("when it was claimed knowing that its tree stops, ms", "claim"),
    "acked": ("1: it acknowledged the stop, and what it settles is the end", "checkpoint"),
    "broken": ("a child that failed while it ran", "telling"),
    "told": ("how many of those who need it were told of its end", "telling"),
    "run": ("the number of its run, from the second on", "restart"),
    "restarter": ("the call that ran it again", "restart"),
}
