"""Starting a flow: what its key does, and what a caller is told if the flow may not have been started."""

from __future__ import annotations

from eventbus import DefinitionError, EmitError, NoWorker
from eventbus.lowlevel import JOIN, REUSE, SUPERSEDE, shown

__all__ = ["check_flag", "meeting_of", "not_started"]


def not_started(error: EmitError, flow_id: str, *, is_keyed: bool) -> EmitError:
    """Return `error` with the remedy for a caller of flows: how to find out whether the flow was started."""
    if isinstance(error, NoWorker):
        return error  # which says what to do
    again = "execute it again: with its idempotency_key that gives the one flow there is"
    if error.enqueued is False:
        remedy = "execute it again"
    elif is_keyed:
        remedy = again
    else:
        remedy = f"`await flows.handle({flow_id!r}).status()` tells, and raises UnknownJob if it was not"
    return EmitError(f"{error}; {remedy}", event=error.event, job_id=error.job_id, enqueued=error.enqueued)


def check_flag(flag: object, option: str) -> bool:
    """Return `flag` if it is True or False. Raises DefinitionError otherwise."""
    if not isinstance(flag, bool):
        raise DefinitionError(f"expected {option} to be True or False, got: {shown(flag)}")
    return flag


def meeting_of(key: str | None, *, reuse_failure: bool, supersede: bool) -> int:
    """Return what a new flow does when its key has a flow already. Raises DefinitionError for options that exclude each other."""
    if supersede and reuse_failure:
        raise DefinitionError("expected either supersede or reuse_failure, got both")
    if supersede and key is None:
        raise DefinitionError("supersede needs an idempotency_key")
    return SUPERSEDE if supersede else REUSE if reuse_failure else JOIN
