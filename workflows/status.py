"""From the record of a root job to the state of its flow: the one place that maps them."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from workflows.errors import Rollback
from workflows.report import FlowStatus

__all__ = ["status_of"]


class _Failure(msgspec.Struct):
    """As much of a flow's failure as its state needs; what is absent is the default."""

    type: str = ""
    rollback: Rollback = "none"


def status_of(root: Mapping[str, str]) -> FlowStatus:
    """Return the state of the flow whose root job has these fields."""
    state = root.get("state", "")
    if state == "completed":
        return FlowStatus("completed")
    if state == "failed" or state == "cancelled":  # noqa: PLR1714  (narrows the type)
        return FlowStatus(state, _rollback(root))
    if root.get("stop"):
        return FlowStatus("rolling_back")
    is_due = int(root.get("due", 0)) <= int(root.get("now", 0)) or root.get("attempts")
    if root.get("pending") or not is_due:
        return FlowStatus("pending")
    return FlowStatus("waiting" if state == "parked" else "running")


def _rollback(root: Mapping[str, str]) -> Rollback:
    """What the flow said of its rollbacks; without a word of it (its workers died in the saga) not all ran."""
    try:
        said = msgspec.json.decode(root.get("text", ""), type=_Failure)
    except (msgspec.MsgspecError, UnicodeError):
        said = _Failure()
    if said.type in ("StepError", "FlowTimeout", "FlowCancelled"):
        return said.rollback
    return "incomplete" if root.get("stop") else "none"
