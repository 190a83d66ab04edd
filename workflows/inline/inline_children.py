"""The flows that an inline flow starts: they run in this event loop, beside it.

What must always hold: a child is started once, however often the code starts again; no child outlives its
flow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from eventbus.lowlevel import Outcome
from workflows.definition.flow_definition import AnyDefinition
from workflows.definition.workflow import Workflow
from workflows.execution.attempt import let_go, wait_ended
from workflows.execution.rollback import UndoPlan
from workflows.execution.surroundings import Child
from workflows.inline.inner import InnerFlow


class InlineChildren:
    """The children of one inline flow; `open_child` makes the flow of a child."""

    are_here = True

    def __init__(self, open_child: Callable[[Child], InnerFlow]) -> None:
        self._open_child = open_child
        self._flows: dict[str, InnerFlow] = {}
        self._ends: dict[str, asyncio.Task[Outcome]] = {}

    def check(self, workflow: AnyDefinition) -> None:
        """Raise DefinitionError for a workflow that cannot run."""
        if isinstance(workflow, Workflow):
            workflow.check()

    def follow(self, child: Child) -> asyncio.Future[Outcome]:
        """Start a child, unless it runs; return the future of its end."""
        end = self._ends.get(child.id)
        if end is None:
            flow = self._flows[child.id] = self._open_child(child)
            end = self._ends[child.id] = asyncio.create_task(_settle(child.id, flow), name=child.id)
        return end

    def follow_lost(self, child_id: str) -> asyncio.Future[Outcome]:
        """Return the future of the end of a child; of one that lost its race before it was started it is
        `unknown`.
        """
        if (end := self._ends.get(child_id)) is not None:
            return end
        never: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        never.set_result(Outcome(child_id, "unknown", ""))
        return never

    async def cancel(self, child_id: str, reason: str) -> None:
        """Stop a child, if it was started and has not ended."""
        if child_id in self._flows and not self._ends[child_id].done():
            self._flows[child_id].cancel(reason)

    def cancel_all(self, reason: str, *, is_cut: bool = True) -> None:
        """Stop all children; without `is_cut` their active steps finish first."""
        for flow in self._flows.values():
            flow.cancel(reason, is_cut=is_cut)

    async def stop(self, reason: str, *, is_cut: bool = True) -> dict[str, Outcome]:
        """Stop all children as `cancel_all` does, and return their ends, by id."""
        self.cancel_all(reason, is_cut=is_cut)
        ends = await asyncio.gather(*self._ends.values())
        return {end.job: end for end in ends}

    async def wait(self, ids: Sequence[str], *others: asyncio.Task[Any]) -> None:
        """Wait until one of these has ended, or one of the others is done."""
        ends: set[asyncio.Task[Any]] = {self._ends[each] for each in ids}
        await asyncio.wait({*ends, *others}, return_when=asyncio.FIRST_COMPLETED)

    def progress(self, child_id: str) -> Any:
        """Return the progress of a child."""
        return self._flows[child_id].progress() if child_id in self._flows else None

    def outcomes(self, ids: Sequence[str]) -> list[Outcome]:
        """Return the outcomes of those of these children that have ended."""
        return [self._ends[each].result() for each in ids if each in self._ends and self._ends[each].done()]

    async def add_inner(self, plan: UndoPlan, child_id: str, state: str, text: str, path: str) -> None:
        """Add a child to the plan of its flow, as `execution.rollback.AddInner` says; one that was never
        started adds nothing.
        """
        if (flow := self._flows.get(child_id)) is None:
            return
        if state == "completed":
            plan.add(await flow.plan_undo(f"{path}/"))
        else:
            plan.inherit(path, text or flow.ended()[1])

    async def close(self) -> None:
        """End what runs at once, like the end of the process."""
        open_ones = [end for end in self._ends.values() if not end.done()]
        for end in open_ones:
            end.cancel()
        try:
            await wait_ended(open_ones)
        finally:
            for end in self._ends.values():
                let_go(end)  # marks its error as retrieved, so that asyncio does not log it


async def _settle(child_id: str, flow: InnerFlow) -> Outcome:
    await flow.settle()
    return Outcome(child_id, *flow.ended())
