"""The counter of flows: how many ended in this process, and how. It counts only if the program has an
OpenTelemetry SDK.

Not here: flows that end without a worker, because they are cancelled or time out before one has begun them.

What must always hold: a run of a flow counts once, when its worker has decided how it ends. The decision
counts twice if that worker dies before the server has heard of it, as every effect of a job may.
"""

from __future__ import annotations

from eventbus.lowlevel import Metric, Settle, instruments
from workflows.records.records import FlowFailure

FLOWS_ENDED = Metric(
    "workflows.flow.ended",
    "counter",
    "{flow}",
    "Flows that ended in a worker, by how they ended.",
    ("workflows.workflow", "eventbus.outcome"),
)


def note_completed(workflow: str, settle: Settle | None) -> Settle | None:
    """Count a flow whose root is settled as completed; return the settle."""
    if settle is not None and settle.state == "completed":
        _count(workflow, "completed")
    return settle


def note_stopped(workflow: str, settle: Settle, failure: FlowFailure | None) -> None:
    """Count a flow that failed or was cancelled; it is `incomplete` if a rollback failed."""
    is_incomplete = failure is not None and failure.rollback == "incomplete"
    _count(workflow, "incomplete" if is_incomplete else settle.state)


def _count(workflow: str, outcome: str) -> None:
    made = instruments()
    if made is not None:
        attributes = {"workflows.workflow": workflow, "eventbus.outcome": outcome}
        made.counter(FLOWS_ENDED).add(1, attributes)
