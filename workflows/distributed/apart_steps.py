"""The steps of a local flow that other jobs run: spread and limited steps, steps that were paused when they
were to begin (`paused_steps`), and the flows of sub-workflows. The items of a spread each step are such
steps, too.

    waiting -> active (its condition and input are asked for here) -> recorded as `child` -> added -> apart
    apart -> completed | skipped | failed, once the end of the child is taken over and recorded

What must always hold: the id of the child follows from the flow, its run and the step; the end of a child
that was stopped together with its flow is not taken over here, but by the activation that undoes the flow.

Crash windows: those of `children`, and `dies-before-child-recorded` (condition and input are asked for
again).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from eventbus import StoreCorrupt
from eventbus.lowlevel import Member, Outcome, describe, hide_in_record
from workflows.definition.context import StepContext
from workflows.definition.job_tree import child_job
from workflows.definition.nesting import start_id
from workflows.definition.step import Step
from workflows.distributed.activation import Activation
from workflows.distributed.children import Children
from workflows.distributed.nested_flows import make_nested
from workflows.distributed.worker_runtime import Flow
from workflows.execution.graph_run import GraphRun
from workflows.execution.step_run import StepRun
from workflows.execution.step_runner import is_wanted, rule_of
from workflows.records.entries import Entry
from workflows.records.graph_history import GraphHistory
from workflows.records.ids import split_item
from workflows.records.records import StepRecord, read_step

__all__ = ["ApartSteps", "record_of_child"]

_MANY = 20
"""With more open children than this the flow stays here as long as they end one after the other: each wait
has its price.
"""


class ApartSteps:
    """The steps of one activation that run apart. Call `load` before the graph runs."""

    def __init__(
        self,
        flow: Flow,
        activation: Activation,
        history: GraphHistory,
        graph: GraphRun,
        append: Callable[[Sequence[Entry]], Awaitable[None]],
    ) -> None:
        """`append` records entries, and raises what `Activation.append` raises."""
        self._flow = flow
        self._activation = activation
        self._known = history.open_children
        self._graph = graph
        self._append = append
        self._ended: dict[str, Outcome] = {}
        self._traces: dict[str, str] = {}
        self.children: Children = Children(flow.runtime, activation, quiet=graph.settle_down)
        self.open: set[str] = {entry.child for entry in self._known.values()}
        """The ids of the children that have begun and whose ends are not taken over."""

    async def load(self) -> None:
        """Find out which children have ended meanwhile. Raises ServerAway."""
        self._ended = await self.children.find_ended(list(self.open))

    def has_begun(self, step: str) -> bool:
        """Tell whether a child of a step, or of an item, has begun and its end is not taken over."""
        return step in self._known

    async def run(self, run: StepRun) -> None:
        """Start the child of a step or wait for it, and take over its end. The run is `waiting` if that comes
        later.

        Raises FlowStops, LeaseLost, ServerAway.
        """
        begun = self._known.get(run.step.name)
        outcome = None
        if begun is not None:
            run.start()
            run.child, run.started_ms = begun.child, begun.started_ms
            outcome = self._ended.pop(run.child, None)
        if outcome is None or outcome.state == "unknown":
            end = self.children.end_of(run.child) if begun is not None and outcome is None else None
            if end is None:
                member = await self._prepare(run)
                if member is None:
                    return
                end = self.children.add(member)
            self.open.add(run.child)
            outcome = await self._graph.wait_apart(run, end, lingers=self._is_wide(run))
        if outcome is None or outcome.state == "unknown":
            run.state = "waiting"
            return
        await self._take_over(run, outcome)

    async def _prepare(self, run: StepRun) -> Member | None:
        """Return the child of a step, which is recorded by then; None if the step has ended without one."""
        flow, step = self._flow, run.step
        run.start()
        run.started_ms = self._activation.now_ms
        if step.workflow is None:
            member: Member = self._make_job(run)
        else:
            ended = await self._graph.attempt(
                partial(self._make_nested, run), what=step.where, limit=step.timeout
            )
            if ended.is_cut or (ended.error is None and self._graph.is_halted):
                run.end_cut(is_lost=ended.is_lost)
                return None
            if ended.error is not None:
                run.fail(rule_of(flow.workflow, step), ended.error, flow.workflow)
                return None
            if isinstance(ended.value, StepRecord):
                run.complete(ended.value)
                return None
            member = ended.value
            run.child = member.id
        if step.name not in self._known:
            entry = Entry(kind="child", place=step.name, child=run.child, started_ms=run.started_ms)
            entry.traceparent = self._traces.get(step.name, "")
            await self._append([entry])
            self._known[step.name] = entry
        return member

    def _make_job(self, run: StepRun) -> Member:
        """Return the job of a step, or of an item."""
        flow, (name, index) = self._flow, split_item(run.step.name)
        run.child = flow.job_of(run.step.name)
        items = run.owner.items if run.owner is not None else None
        message = flow.child_message() if items is None else flow.item_message(items.texts[index])
        limited = name if run.step.has_queue else ""
        return child_job(flow.workflow.name, run.child, message, step=limited)

    def _is_wide(self, run: StepRun) -> bool:
        """Tell whether so many children are open, or follow, that the flow stays here as long as they end."""
        items = run.owner.items if run.owner is not None else None
        return len(self.open) > _MANY or (items is not None and items.open > _MANY)

    async def _make_nested(self, run: StepRun) -> Member | StepRecord:
        """Return the flow of a sub-workflow, or the record of its step if that is skipped."""
        flow, step, inner = self._flow, run.step, run.step.workflow
        assert inner is not None  # noqa: S101  (the caller's condition)
        records, job_id = self._graph.records, flow.job_of(step.name)
        flow_id = start_id(job_id, inner)
        links = [records[earlier].traceparent for earlier in step.after if earlier in records]
        with flow.span("step", step=step.name, job_id=job_id, attempt=1, links=links) as traceparent:
            context: StepContext[Any] = flow.context(
                step.name,
                job_id=job_id,
                attempt=1,
                traceparent=traceparent,
                records=records,
                reach=flow.runtime.reach_of(flow.workflow, step.name),
            )
            self._traces[step.name] = traceparent
            if not await is_wanted(step, context):
                return StepRecord(skipped=True, traceparent=traceparent)
            return await make_nested(flow, step, inner, context, flow_id, up="ignore")

    async def _take_over(self, run: StepRun, outcome: Outcome) -> None:
        if outcome.state == "cancelled" and await self._is_stopping():
            run.state = "waiting"
            self._graph.halt()
            return
        self.open.discard(run.child)
        if outcome.state != "completed":
            run.fail_with(hide_in_record(outcome.text or ""))
            return
        try:
            run.complete(record_of_child(run.step, self._known[run.step.name], outcome.text or ""))
        except StoreCorrupt as error:
            run.fail_with(describe(error, attempts=0))

    async def _is_stopping(self) -> bool:
        flow = self._flow
        page = await flow.runtime.ask(flow.runtime.jobs.look(flow.flow_id, limit=0))
        return bool(page.root.get("stop"))


def record_of_child(step: Step[Any, Any], begun: Entry, text: str) -> StepRecord:
    """Return the record of a step from the result of the flow or job that ran it. Raises StoreCorrupt."""
    if step.workflow is None:
        return read_step(begun.child, text)
    return StepRecord(result=msgspec.Raw((text or "null").encode()), traceparent=begun.traceparent)
