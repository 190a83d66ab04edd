"""A change: one thing that happened to a job or a queue. The one place that lists the kinds of changes."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from eventbus.model.states import JobState

SHOWN_BYTES = 200
"""The bytes of a text in a change; the server cuts those that it tells by the same bound."""

ChangeKind: TypeAlias = Literal[
    "added",
    "delayed",
    "promoted",
    "released",
    "claimed",
    "progress",
    "retried",
    "suspended",
    "returned",
    "parked",
    "stalled",
    "completed",
    "failed",
    "cancelled",
    "removed",
    "drained",
    "paused",
    "resumed",
    "missed",
    "error",
]
"""What may happen to a job or a queue. `missed` says that changes before it are lost to whoever watches;
`error` is of a worker.
"""

CHANGE_KINDS: tuple[ChangeKind, ...] = (
    "added", "delayed", "promoted", "released", "claimed", "progress", "retried", "suspended", "returned",
    "parked", "stalled", "completed", "failed", "cancelled", "removed", "drained", "paused", "resumed",
    "missed",
)  # fmt: skip


class _Error(msgspec.Struct):
    type: str
    message: str = ""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One change of a job or a queue. Times are Unix times in ms of the server's clock, 0 where there is
    none.

    `position` is text to go on from: `watch(..., since=change.position)` begins with the change behind this
    one. `state` is the state of the job after it, None where it has none. `worker` is the worker that ran the
    job. `attempt` is, of `claimed`, the number of the attempt that begins, and of `retried` that of the one
    that ended in an error. `due_ms` is when a delayed job is due. `note` is the error, the progress or the
    reason, cut after 200 bytes. `error` is what a worker met outside of any job, for listeners of its
    process.
    """

    what: ChangeKind
    queue: str = ""
    job_id: str = ""
    at_ms: int = 0
    state: JobState | None = None
    worker: str = ""
    attempt: int = 0
    due_ms: int = 0
    note: str = ""
    position: str = ""
    error: BaseException | None = None


def shorten(text: str) -> str:
    """Return the type and the message of an error that is JSON text, or any other text; at most 200 bytes."""
    try:
        error = msgspec.json.decode(text, type=_Error)
    except msgspec.MsgspecError:
        pass
    else:
        text = f"{error.type}: {error.message}"
    return clip(text)


def clip(text: str) -> str:
    """Return a text that is no error, such as progress; at most 200 bytes."""
    return text.encode()[:SHOWN_BYTES].decode(errors="ignore")
