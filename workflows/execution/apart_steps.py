"""The steps of a graph that run apart: spread and limited steps, steps that were paused when they were to
begin, and the flows of sub-workflows. The items of a spread each step are such steps, too.

    waiting -> active (its condition and input are asked for here) -> recorded as `child` -> added -> apart
    apart -> completed | skipped | failed, once the end of the child is taken over and recorded

Where there is no elsewhere (inline flows), only sub-workflows run so: as flows of this process.

What must always hold: the id of the child follows from the flow, its run and the step; the end of a child
that was stopped together with its flow is not taken over here, but by whoever undoes the flow.

Crash windows: those of `distributed.child_jobs`, and `dies-before-child-recorded` (condition and input are
asked for again).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from eventbus import StoreCorrupt
from eventbus.lowlevel import Outcome, describe, hide_in_record
from workflows.definition.codecs import flow_codecs
from workflows.definition.context import StepContext, codecs_of
from workflows.definition.flow_definition import AnyDefinition
from workflows.definition.nesting import start_id
from workflows.definition.step import Step
from workflows.definition.workflow import Workflow
from workflows.execution.graph_surroundings import GraphChildren, GraphRecorder, GraphSurroundings, StepChild
from workflows.execution.step_run import StepRun
from workflows.execution.step_runner import ask, is_wanted
from workflows.records.entries import Entry
from workflows.records.ids import split_item
from workflows.records.records import StepRecord, read_step

_MANY = 20
"""With more open children than this the flow stays here as long as they end one after the other: each wait
has its price.
"""


class ApartSteps:
    """The steps of one activation that run apart. Call `load` before the graph runs."""

    def __init__(
        self,
        workflow: Workflow[Any, Any],
        recorder: GraphRecorder,
        children: GraphChildren,
        around: GraphSurroundings,
        records: Mapping[str, StepRecord],
        known: Mapping[str, Entry],
    ) -> None:
        """`records` are those of the graph; `known` are the children that have begun, and whose ends are not
        taken over, by step.
        """
        self._workflow = workflow
        self._recorder = recorder
        self._children = children
        self._around = around
        self._records = records
        self._known = dict(known)
        self._ended: dict[str, Outcome] = {}
        self.open: set[str] = {entry.child for entry in known.values()}
        """The ids of these children."""

    async def load(self) -> None:
        """Find out which children have ended meanwhile. Raises ServerAway."""
        self._ended = await self._children.find_ended(list(self.open)) if self.open else {}

    def runs(self, step: Step[Any, Any]) -> bool:
        """Tell whether another job or flow runs a step, or an item: always, or because it was paused when it
        was to begin.
        """
        if self._children.are_here:
            return step.workflow is not None
        return self._workflow.runs_apart(step) or step.name in self._known

    def follow(self, run: StepRun) -> asyncio.Future[Outcome] | None:
        """Return the future of the end of a child that has begun; None if a child must be made."""
        begun = self._known.get(run.step.name)
        if begun is None:
            return None
        run.start()
        run.child, run.started_ms = begun.child, begun.started_ms
        found = self._ended.pop(run.child, None)
        if found is None:
            return self._children.end_of(run.child)
        if found.state == "unknown":  # recorded and not added
            return None
        end: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        end.set_result(found)
        return end

    def make_job(self, run: StepRun) -> StepChild:
        """Return the job of a step, or of an item."""
        step = run.step
        items = run.owner.items if run.owner is not None else None
        item = None if items is None else items.texts[split_item(step.name)[1]]
        job_id = self._around.job_of(step.name)
        return StepChild(id=job_id, step=step, job_id=job_id, item=item)

    async def make_flow(self, run: StepRun) -> StepChild | StepRecord:
        """Return the flow of a sub-workflow, or the record of its step if that is skipped."""
        around, step, inner = self._around, run.step, run.step.workflow
        assert inner is not None  # noqa: S101  (the caller's condition)
        job_id = around.job_of(step.name)
        flow_id = start_id(job_id, inner)  # raises if workflows nest too deep
        with around.span(
            "step", step=step.name, job_id=job_id, attempt=1, links=self.links(step)
        ) as traceparent:
            context = around.context(
                step.name, job_id=job_id, attempt=1, traceparent=traceparent, records=self._records
            )
            if not await is_wanted(step, context):
                return StepRecord(skipped=True, traceparent=traceparent)
            given = await input_of(step, inner, context, around.given)
        return StepChild(
            id=flow_id, step=step, job_id=job_id, workflow=inner, given=given, traceparent=traceparent
        )

    async def record(self, run: StepRun, child: StepChild) -> None:
        """Record the beginning of a child."""
        run.child = child.id
        if run.step.name not in self._known:
            entry = Entry(kind="child", place=run.step.name, child=child.id, started_ms=run.started_ms)
            entry.traceparent = child.traceparent
            await self._recorder.append([entry])
            self._known[run.step.name] = entry

    def add(self, child: StepChild) -> asyncio.Future[Outcome]:
        """Add a child that is recorded; return the future of its end."""
        self.open.add(child.id)
        return self._children.add(child)

    def lingers(self, run: StepRun) -> bool:
        """Tell whether the flow stays here as long as children end: there are many, or they are here, too."""
        items = run.owner.items if run.owner is not None else None
        is_wide = len(self.open) > _MANY or (items is not None and items.open > _MANY)
        return is_wide or self._children.are_here

    async def take_over(self, run: StepRun, outcome: Outcome) -> bool:
        """Take over the end of a child; return False if it was stopped together with the flow."""
        if outcome.state == "cancelled" and await self._children.is_stopping():
            return False
        self.open.discard(run.child)
        if outcome.state != "completed":
            run.fail_with(hide_in_record(outcome.text or ""))
            return True
        try:
            run.complete(record_of_child(run.step, self._known[run.step.name], outcome.text or ""))
        except StoreCorrupt as error:
            run.fail_with(describe(error, attempts=0))
        return True

    def links(self, step: Step[Any, Any]) -> list[str]:
        """Return the traces of the steps before a step."""
        records = self._records
        return [records[earlier].traceparent for earlier in step.after if earlier in records]


async def input_of(step: Step[Any, Any], inner: AnyDefinition, ctx: StepContext[Any], given: bytes) -> bytes:
    """Return the input of the flow that a step starts, as JSON; `given` is that of the flow around it.

    Raises what the input function of the step raises, and PayloadError for an input that does not fit.
    """
    codec = flow_codecs(inner, codecs_of(ctx).max_bytes).input
    if step.input is not None:
        return codec.encode(await ask(step.input, ctx))
    codec.decode(given)  # raises PayloadError if the outer input does not fit
    return given


def record_of_child(step: Step[Any, Any], begun: Entry, text: str) -> StepRecord:
    """Return the record of a step from the result of the flow or job that ran it. Raises StoreCorrupt."""
    if step.workflow is None:
        return read_step(begun.child, text)
    return StepRecord(result=msgspec.Raw((text or "null").encode()), traceparent=begun.traceparent)
