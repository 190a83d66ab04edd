"""A flow that runs in this process, without a server: the same definition, the same rules.

It is for tests, dry runs and small programs. Not here: durability. The flow ends with the process, and then
nothing is undone.

What must always hold, as in a distributed flow:
- values pass as JSON through the same codecs, and errors as the same records, so that neither a step nor the
  caller can tell how the flow runs;
- after the first final failure (`Stop`) no step starts, waits for retries end, and active steps finish their
  attempt; a cancel or timeout also cancels active functions, and a value that one still returns is recorded;
- rollbacks begin only when no step is active; each completed step is undone once, in reverse order of
  completion; after that the `failed` hook runs once;
- only the first stop counts, and no stop counts once the flow is rolling back.

    pending -> running -> completed
                       -> rolling_back -> failed | cancelled
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import anyio
import msgspec

from eventbus import UsageError
from eventbus.lowlevel import Attempt, Job, Outcome, describe, mark_awaited, outside_job
from workflows.definition.codecs import Codecs
from workflows.definition.context import StepContext
from workflows.definition.flow_tools import CallSync, FlowFacts
from workflows.definition.signal import Signal, check_known, signal_by
from workflows.definition.step import Step
from workflows.definition.workflow import Workflow
from workflows.errors import COMPLETED, Rollback
from workflows.execution.environment import Environment, InlineTools
from workflows.execution.graph_run import GraphRun
from workflows.execution.graph_state import GraphState
from workflows.execution.graph_surroundings import StepChild
from workflows.execution.hook_runner import run_completed, run_failed
from workflows.execution.rollback import RollbackResult, Saga, UndoPlan, plan_graph
from workflows.execution.slots import FlowSlots
from workflows.execution.step_attempt import MemoryHost
from workflows.execution.step_run import StepRun
from workflows.execution.step_runner import judge
from workflows.execution.stop import Stop
from workflows.execution.surroundings import Child
from workflows.inline.inline_children import InlineChildren
from workflows.inline.inner import InnerFlow, Opening, OpenInner
from workflows.inline.memory_recorder import MemoryRecorder
from workflows.records.ids import member_id, split_item
from workflows.records.records import StepRecord, error_text, read_flow, revive_flow
from workflows.records.report import (
    FlowReport,
    FlowState,
    FlowStatus,
    RollbackReport,
    StepReport,
    nested_progress,
)


class InlineFlow:
    """One inline flow: await `settle` once, then call `outcome`."""

    def __init__(
        self,
        workflow: Workflow[Any, Any],
        input: bytes,  # noqa: A002  (as the workflow calls it)
        facts: FlowFacts,
        environment: Environment,
        *,
        timeout: float | None,
        open_inner: OpenInner,
        is_open: bool = False,
    ) -> None:
        """Prepare the flow: `input` is JSON that fits the workflow's type, `timeout` is in seconds. With
        `is_open` signals may come while it runs.
        """
        self.workflow = workflow
        self.codecs: Codecs = Codecs(workflow)
        self.facts = facts
        self.state: FlowState = "pending"
        self.rollback: Rollback = "none"
        self.outcomes: list[RollbackResult] = []
        self.stop_mark: Stop | None = None
        self._state = GraphState(workflow)
        self._recorder = _StepMemory(self._stop_failed)
        self._children = _StepFlows(self)
        self._open_inner = open_inner
        self._surroundings = InlineSurroundings(
            workflow, self.codecs, input, facts, environment, self._recorder, self._state, is_open=is_open
        )
        self._graph = GraphRun(self._state, self._recorder, self._children, self._surroundings)
        self._around = environment
        self._timeout = timeout
        self._text = ""

    async def settle(self) -> None:
        """Run the flow to its end. Cancelling this call cancels the running functions and undoes nothing."""
        timer = None
        if self._timeout is not None:
            timer = asyncio.get_running_loop().call_later(self._timeout, self.stop, Stop(cause="timeout"))
        try:
            if self.stop_mark is None:
                self.state = "running"
                await self._graph.run()
            if self.stop_mark is None:
                self._check_signals()
            if self.stop_mark is None:
                await self._complete()
            if self.stop_mark is not None:
                await self._unwind(self.stop_mark)
        finally:
            if timer is not None:
                timer.cancel()
            with anyio.CancelScope(shield=True):  # no function of the flow may outlive this call
                await self._children.close()

    def _check_signals(self) -> None:
        """Raise UsageError if a step waits for a signal that nobody can send."""
        for run in self._state.sleeping:
            pause = run.step.pause
            raise UsageError(
                f"{run.step.where} waits for signal {pause.name if pause is not None else ''!r}, which does "
                f"not come to flow {self.facts.flow_id}; give it: run_inline(..., signals=[(signal, "
                "payload)]), or to the flow of a sub-workflow none can be given: run that workflow alone"
            )

    def ended(self) -> tuple[str, str]:
        """Return its state, and its outcome as JSON text, after its end."""
        return self.state, self._text

    def outcome(self) -> Any:
        """Return the output or raise the flow's error, as a caller in another process would get it."""
        if self.state == "completed":
            return self.codecs.output.decode(self._text)
        known = self.workflow
        error = revive_flow(self.state, self._text, known.name, self.facts.flow_id, known.errors)
        mark_awaited(error)
        raise error

    def stop(self, stop: Stop) -> bool:
        """Stop the flow early; return False if `stop` is not its outcome: it was stopping or had ended.

        The first stop becomes the flow's error. A later cancel or timeout still cuts active steps until the
        rollbacks begin, because a step that hangs must not hold up the flow.
        """
        if self.state in ("rolling_back", "completed", "failed", "cancelled"):
            return False
        is_first = self.stop_mark is None
        self.stop_mark = self.stop_mark or stop
        self._graph.halt()
        for run in self._state.steps.values():
            if run.state == "waiting" and not run.child:
                run.state = "cancelled"
        self._children.cancel_all(self._reason_of(stop), is_cut=stop.is_cut)
        if stop.is_cut:
            self._graph.cut()
        return is_first

    def cancel(self, reason: str, *, is_cut: bool = True) -> None:
        """Stop it as a part of another flow."""
        self.stop(Stop(cause="cancelled", reason=reason, is_cut=is_cut))

    def progress(self) -> Any:
        """Return the progress of its steps, None if none has told any."""
        return nested_progress(self.report())

    @property
    def shown_state(self) -> FlowState:
        """The state for reports: a flow that stops is rolling back, also while its last steps end; one that
        only waits is waiting.
        """
        if self.state != "running":
            return self.state
        if self.stop_mark is not None:
            return "rolling_back"
        state = self._state
        waits = bool(state.sleeping or state.delayed) and not state.is_active
        is_elsewhere = any(run.is_apart and run.items is None for run in state.steps.values())
        return "waiting" if waits and not is_elsewhere else "running"

    @property
    def is_stopping(self) -> bool:
        """Whether it was cancelled or has failed."""
        return self.stop_mark is not None

    def status(self) -> FlowStatus:
        """Return its state, and that of its rollbacks."""
        return FlowStatus(self.shown_state, self.rollback)

    def stop_for(self, reason: str) -> bool:
        """Cancel it; return False if that is not its outcome."""
        return self.stop(Stop(cause="cancelled", reason=reason))

    def check_signal(self, signal: Signal[Any] | str) -> Signal[Any]:
        """Return a signal that is given by itself or by its name. Raises DefinitionError for one that no step
        waits for.
        """
        known = self.workflow.signals
        found = signal_by(signal, known)
        check_known(found.name, known, f"workflow {self.workflow.name!r}")
        return found

    def send(self, signal: Signal[Any], payload: Any) -> None:
        """Take a signal that is sent while it runs, or before. Raises PayloadError."""
        self._recorder.take(signal.name, signal.encode(payload))

    def report(self) -> FlowReport:
        """Return the report of the flow so far."""
        return FlowReport(
            flow_id=self.facts.flow_id,
            workflow=self.workflow.name,
            state=self.shown_state,
            rollback=self.rollback,
            steps={name: self._report_of(run) for name, run in self._state.steps.items()},
            order=[
                run.step.name for run in self._state.ended if run.state == "completed" and run.owner is None
            ],
            rollbacks=[
                RollbackReport(step=path, error=error_text(failure)) for path, failure in self.outcomes
            ],
        )

    def _report_of(self, run: StepRun) -> StepReport:
        report = run.report(self.codecs, progress=self._progress_of(run))
        goes_on = bool(run.child) and run.state == "waiting"  # its flow undoes itself
        return msgspec.structs.replace(report, state="active") if goes_on else report

    def _progress_of(self, run: StepRun) -> Any:
        return self._children.progress(run.child) if run.child else self._graph.progress.read(run.step.name)

    def open_child(self, child: Child) -> InnerFlow:
        """Return the flow of a sub-workflow."""
        assert child.workflow is not None, "jobs run in the flow itself here"  # noqa: S101
        return self._open_inner(
            Opening(
                definition=child.workflow,
                id=child.id,
                given=child.given,
                timeout=child.timeout,
                outer=self.facts,
            )
        )

    def _stop_failed(self, run: StepRun) -> None:
        name, job = run.step.name, self._surroundings.job_of(run.step.name)
        self.stop(Stop(cause="failed", step=name, failure=run.failure, job=job, is_cut=False))

    def _reason_of(self, stop: Stop) -> str:
        return stop.reason or f"flow {self.facts.flow_id} stopped"

    # The end.

    async def _complete(self) -> None:
        """Run the `completed` hook, which makes the output; its final error stops the flow."""
        attempts = 0
        while self.stop_mark is None:
            call = partial(self._call_completed, attempts + 1)
            ended = await self._graph.attempt(call, what="the completed hook")
            if ended.is_cut and self.stop_mark is None:
                raise self._graph.cancellation or asyncio.CancelledError
            if self.stop_mark is not None:
                return  # the flow was stopped meanwhile, so the hook's output does not count
            if ended.error is None:
                self._text = ended.value
                self.state = "completed"
                return
            attempts += 1
            delay, error = judge(self.workflow.retry, attempts, ended.error, self.workflow)
            if delay is None:
                failure = describe(error, attempts=attempts, declared=self.workflow.errors)
                self.stop(Stop(cause="failed", step=COMPLETED, failure=failure, job=self.facts.flow_id))
                return
            await self._graph.pauses.wait(delay)

    async def _call_completed(self, attempt: int) -> str:
        return await run_completed(self.workflow, self._hook_context(attempt), self._around.call_sync)

    async def _unwind(self, stop: Stop) -> None:
        """Run the saga, record the failure, and call the `failed` hook."""
        await self._end_children(stop)
        self.state = "rolling_back"
        plan, facts = await self.plan_undo(), self.facts
        saga = Saga(
            plan,
            flow_id=facts.flow_id,
            call_sync=self._around.call_sync,
            sleep=self._around.sleep,
            facts={"correlation_id": facts.correlation_id},
        )
        self.outcomes = await saga.run()
        self.rollback, self._text = plan.end(
            stop, self.outcomes, flow_id=facts.flow_id, workflow=self.workflow.name, timeout=self._timeout
        )
        error = read_flow(self._text, self.workflow.errors)
        await run_failed(self.workflow, self._hook_context(1), error, self._around.call_sync)
        self.state = "cancelled" if stop.cause == "cancelled" else "failed"

    async def plan_undo(self, prefix: str = "") -> UndoPlan:
        """Return what is to be undone of it and of its completed sub-workflows, the last step first."""
        runs, context = reversed(self._state.ended), self._surroundings.context_of
        return await plan_graph(
            runs, self.workflow, self._state.records, context, self._children.add_inner, prefix
        )

    async def _end_children(self, stop: Stop) -> None:
        """Stop the flows of sub-workflows, and take over their ends."""
        ends = await self._children.stop(self._reason_of(stop), is_cut=stop.is_cut)
        for run in self._state.steps.values():
            end = ends.get(run.child)
            if run.state == "waiting" and end is not None:
                self._take_over(run, end)
            elif run.state == "waiting":
                run.state = "cancelled"

    def _take_over(self, run: StepRun, end: Outcome) -> None:
        if end.state == "completed":
            run.complete(StepRecord(result=msgspec.Raw((end.text or "null").encode())))
        elif end.state == "cancelled":
            run.end_cut(is_lost=False)
        else:
            run.fail_with(end.text or "")
        self._state.ended.append(run)

    def _hook_context(self, attempt: int) -> StepContext[Any]:
        return self._surroundings.context_of("", attempt)


class _StepMemory(MemoryRecorder):
    """Records the steps of a flow, and tells of one that failed for good."""

    doubts: Collection[str] = ()
    has_news = False

    def __init__(self, note_failed: Callable[[StepRun], None]) -> None:
        super().__init__(remembers=False)
        self._note_failed = note_failed

    async def stop_failed(self, run: StepRun, *, is_last: bool) -> None:
        """Stop the flow, whether other steps are active or not."""
        del is_last
        self._note_failed(run)


class _StepFlows(InlineChildren):
    """The flows of sub-workflows, which run beside their flow."""

    def __init__(self, flow: InlineFlow) -> None:
        super().__init__(flow.open_child)
        self._flow = flow

    async def find_ended(self, ids: Sequence[str]) -> dict[str, Outcome]:
        """Return nothing: there was no activation before this one."""
        del ids
        return {}

    def add(self, child: StepChild) -> asyncio.Future[Outcome]:
        """Start the flow of a sub-workflow."""
        timeout = None if child.workflow is None else child.workflow.timeout
        return self.follow(
            Child(
                id=child.id,
                position=child.step.name,
                given=child.given,
                workflow=child.workflow,
                timeout=timeout,
            )
        )

    def end_of(self, child: str) -> asyncio.Future[Outcome]:
        """Return the future of the end of a flow."""
        return self.follow_lost(child)

    async def is_stopping(self) -> bool:
        """Tell whether the flow around them stops."""
        return self._flow.is_stopping


class InlineSurroundings:
    """What this process does for the steps of a flow that runs in it. Nothing is limited, and nobody pauses a
    step.
    """

    def __init__(
        self,
        workflow: Workflow[Any, Any],
        codecs: Codecs,
        given: bytes,
        facts: FlowFacts,
        environment: Environment,
        recorder: MemoryRecorder,
        state: GraphState,
        *,
        is_open: bool,
    ) -> None:
        self.job: Job = outside_job(facts.flow_id)
        self.host: MemoryHost = MemoryHost(recorder.live)
        self.given = given
        self.facts = facts
        self.call_sync: CallSync = environment.call_sync
        self.aliases: dict[str, str] = {}
        self._workflow = workflow
        self._codecs = codecs
        self._around = environment
        self._recorder = recorder
        self._state = state
        self._tools = InlineTools(environment.provider, state.records, environment.middleware)
        self._is_open = is_open

    def job_of(self, step: str) -> str:
        """Return the id that the job of a step would have."""
        name, index = split_item(step)
        return member_id(self.facts.flow_id, self.facts.run, name, index + 1)

    def context(
        self,
        step: str,
        *,
        job_id: str,
        attempt: int,
        traceparent: str,
        records: Mapping[str, StepRecord],
        own: Attempt | None = None,
    ) -> StepContext[Any]:
        """Make the context of an attempt of a step."""
        reach = self._workflow.plan.ancestors(split_item(step)[0])
        return self._context(step, job_id, attempt, traceparent, records, reach, own)

    def context_of(self, step: str, attempt: int) -> StepContext[Any]:
        """Make the context of a rollback, or without a step of a hook: it reaches all results."""
        job_id = self.job_of(step) if step else self.facts.flow_id
        traceparent, records = self._around.traceparent, self._state.records
        return self._context(step, job_id, attempt, traceparent, records, self._workflow.steps, None)

    def _context(
        self,
        step: str,
        job_id: str,
        attempt: int,
        traceparent: str,
        records: Mapping[str, StepRecord],
        reach: Collection[str],
        own: Attempt | None,
    ) -> StepContext[Any]:
        return StepContext(
            self._tools,
            self._codecs,
            self.facts,
            input=self._codecs.input.decode(self.given),
            step=step,
            job_id=job_id,
            attempt=attempt,
            traceparent=traceparent,
            records=records,
            reach=reach,
            own=own or Attempt(self.host, self.job, ""),
        )

    def span(self, what: str, **facts: Any) -> AbstractContextManager[str]:
        """Return no span, but the traceparent around the flow."""
        del what, facts
        return nullcontext(self._around.traceparent)

    def begin(self, step: str, job_id: str, attempt: int) -> None:
        """Do nothing: a function sets its own facts."""

    def trace_of(self, job_id: str) -> Mapping[str, str]:
        """Return nothing: failed attempts are not logged."""
        del job_id
        return {}

    def tell(self, run: StepRun) -> None:
        """Do nothing: the caller gets the error."""

    def slots_of(self, step: str) -> Sequence[FlowSlots]:
        """Return none."""
        del step
        return ()

    def may_start(self) -> bool:
        """Return True: no worker stops."""
        return True

    def ask_paused(self, step: Step[Any, Any]) -> None:
        """Return None."""

    async def sleep(self, delay: float) -> None:
        """Wait as the caller of the flow wants it; the clock of the flow moves on by as much."""
        until_ms = self._recorder.clock.now_ms + round(delay * 1000)
        await self._around.sleep(delay)
        self._recorder.clock.move_to(until_ms)

    def holds(self, delay: float, *, listens: bool = False) -> bool:
        """Tell whether something will end the wait."""
        return not listens or self._is_open or delay < math.inf
