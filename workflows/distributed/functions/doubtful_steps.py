"""The steps of a stopped flow of a durable function that may have run when a worker died: nobody recorded how
they ended.

What must always hold: the code alone knows which steps come next, so it runs up to there, without effects. If
it cannot be run, because it does something else than it recorded, nobody knows the steps, and the flow says
no more than `incomplete`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from eventbus import PayloadError
from workflows.functions.calls.step_call import StepCall
from workflows.functions.endings import Diverged
from workflows.records.entries import Entry

if TYPE_CHECKING:
    from workflows.functions.context import FlowContext
    from workflows.functions.function_run import FunctionRun


class Prepare(Protocol):
    """Makes a run of the flow's code, and its context."""

    def __call__(self, *, has_effects: bool) -> tuple[FunctionRun, FlowContext[Any]]:
        """Raise PayloadError for an input that does not fit."""
        ...


async def find_doubtful(prepare: Prepare, now_ms: int) -> list[Entry] | None:
    """Return an entry for each step that may have run; None if that cannot be found out."""
    try:
        run, context = prepare(has_effects=False)
    except PayloadError:
        return None
    ending = await run.run(run.durable.function(context))
    if isinstance(ending, Diverged):
        return None
    return [_lost(call, now_ms) for call in run.due_steps]


def _lost(call: StepCall[Any], now_ms: int) -> Entry:
    return Entry(
        kind="cut", place=call.position, name=call.name, undo=call.undo, started_ms=now_ms, is_lost=True
    )
