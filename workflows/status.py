"""From the record of a root job to the state of its flow: the one place that maps them."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from workflows.errors import Rollback
from workflows.report import FlowState, FlowStatus

__all__ = ["status_of"]

_STATES: dict[str, FlowState] = {
    "completed": "completed",
    "failed": "failed",
    "cancelled": "cancelled",
    "delayed": "pending",
    "parked": "waiting",
}


class _Failure(msgspec.Struct):
    """As much of a flow's failure as its state needs; what is absent is the default."""

    type: str = ""
    rollback: Rollback = "none"


def status_of(root: Mapping[str, str]) -> FlowStatus:
    """Return the state of the flow whose root job has these fields."""
    state = root.get("state", "")
    if root.get("stop") and state not in ("completed", "failed", "cancelled"):
        return FlowStatus("rolling_back")
    if root.get("pending"):
        return FlowStatus("pending")
    if state == "delayed" and root.get("attempts"):
        return FlowStatus("running")  # its last function is tried again
    found = _STATES.get(state, "running")
    return FlowStatus(found, _rollback(root) if found in ("failed", "cancelled") else "none")


def _rollback(root: Mapping[str, str]) -> Rollback:
    """What the flow said of its rollbacks; without a word of it (its workers died in the saga) not all ran."""
    try:
        said = msgspec.json.decode(root.get("text", ""), type=_Failure)
    except (msgspec.MsgspecError, UnicodeError):
        said = _Failure()
    if said.type in ("StepError", "FlowTimeout", "FlowCancelled"):
        return said.rollback
    return "incomplete" if root.get("stop") else "none"
