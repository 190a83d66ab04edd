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
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from eventbus import UsageError
from eventbus.lowlevel import (
    Attempt,
    describe,
    mark_awaited,
    outside_job,
)
from workflows.definition.codecs import Codecs, flow_codecs
from workflows.definition.context import FlowFacts, StepContext
from workflows.definition.flow_definition import AnyDefinition
from workflows.definition.nesting import start_id
from workflows.definition.signal import Signal
from workflows.definition.step import Step
from workflows.definition.workflow import Workflow
from workflows.errors import COMPLETED, Rollback
from workflows.execution.environment import Environment, InlineTools
from workflows.execution.graph_run import GraphRun
from workflows.execution.hook_runner import run_completed, run_failed
from workflows.execution.progress_notes import ProgressNotes
from workflows.execution.rollback import RollbackResult, Saga, Undo, Undoable, failures_of, verdict_on
from workflows.execution.signal_desk import SignalDesk
from workflows.execution.step_attempt import MemoryHost, StepAttempt
from workflows.execution.step_run import StepRun
from workflows.execution.step_runner import ask, is_wanted, judge, rule_of, run_step
from workflows.inline.inbox import InlineInbox
from workflows.inline.inner import InnerFlow, Opening, OpenInner, failed_undos_in
from workflows.inline.stop import Stop
from workflows.records.ids import member_id, split_item
from workflows.records.records import StepRecord, describe_flow, error_text, read_flow, revive_flow
from workflows.records.report import FlowReport, FlowState, FlowStatus, RollbackReport, nested_progress

__all__ = ["InlineFlow", "Stop"]


class InlineFlow:
    """One inline flow: await `settle` once, then call `outcome`. It is the driver of its own steps."""

    def __init__(
        self,
        workflow: Workflow[Any, Any],
        input: bytes,  # noqa: A002  (as the workflow calls it)
        facts: FlowFacts,
        environment: Environment,
        *,
        timeout: float | None,
        inbox: InlineInbox,
        open_inner: OpenInner,
    ) -> None:
        """Prepare the flow: `input` is JSON that fits the workflow's type, `timeout` is in seconds."""
        self.workflow = workflow
        self.codecs: Codecs = Codecs(workflow)
        self.facts = facts
        self.state: FlowState = "pending"
        self.rollback: Rollback = "none"
        self.outcomes: list[RollbackResult] = []
        self.stop_mark: Stop | None = None
        self.inbox = inbox
        self._graph = GraphRun(workflow, self, desk=SignalDesk(inbox))
        self._nested: dict[str, InnerFlow] = {}
        self._open_inner = open_inner
        self._progress = ProgressNotes()
        self._host = MemoryHost()
        self._job = outside_job(facts.flow_id)
        self._input = input
        self._around = environment
        self._tools = InlineTools(environment.provider, self._graph.records, environment.middleware)
        self._timeout = timeout
        self._text = ""
        self._is_doubtful = False

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

    def _check_signals(self) -> None:
        """Raise UsageError if a step waits for a signal that nobody can send."""
        for run in self._graph.sleeping:
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
        for run in self._graph.steps.values():
            if run.state == "waiting":
                run.state = "cancelled"
        reason = stop.reason or f"flow {self.facts.flow_id} stopped"
        for nested in self._nested.values():
            nested.cancel(reason, is_cut=stop.is_cut)
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
        is_asleep = bool(self._graph.sleeping or self._graph.delayed) and not self._graph.is_active
        return "waiting" if is_asleep else "running"

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
        """Return a signal that is given by itself or by its name. Raises DefinitionError."""
        return self.inbox.check(signal)

    def send(self, signal: Signal[Any], payload: Any) -> None:
        """Take a signal that is sent while it runs. Raises PayloadError."""
        self.inbox.send(signal, payload)

    def report(self) -> FlowReport:
        """Return the report of the flow so far."""
        return FlowReport(
            flow_id=self.facts.flow_id,
            workflow=self.workflow.name,
            state=self.shown_state,
            rollback=self.rollback,
            steps={
                name: run.report(self.codecs, progress=self._progress_of(name))
                for name, run in self._graph.steps.items()
            },
            order=[
                run.step.name for run in self._graph.ended if run.state == "completed" and run.owner is None
            ],
            rollbacks=[
                RollbackReport(step=path, error=error_text(failure)) for path, failure in self.outcomes
            ],
        )

    def _progress_of(self, step: str) -> Any:
        nested = self._nested.get(step)
        return self._progress.read(step) if nested is None else nested.progress()

    # The steps: the methods of a StepDriver.

    async def attempt(self, run: StepRun) -> StepRecord:
        """Run the function of a step."""
        step, progress = run.step, self._progress.begin(run.step.name)
        own = StepAttempt(
            self._host,
            self._job,
            step.saved_as,
            where=step.where,
            run=run.attempt,
            progress=progress,
        )
        try:
            return await run_step(step, self._step_context(run, own), self._around.call_sync)
        finally:
            own.end()
            self._progress.end(progress)

    async def record(self, run: StepRun) -> None:
        """Stop the flow if the step has failed. Nothing is kept, not even what the step saved."""
        if run.record is not None or run.state == "failed":
            self._host.clear(run.step.saved_as)
        if run.state == "failed" and run.record is None:
            name, job = run.step.name, self._job_of(run)
            self.stop(Stop(cause="failed", step=name, failure=run.failure, job=job, is_cut=False))

    async def sleep(self, delay: float) -> None:
        """Wait as the caller of the flow wants it."""
        await self._around.sleep(delay)

    def holds(self, delay: float) -> bool:  # noqa: ARG002
        """Return True, because nobody else would go on with the flow."""
        return True

    def enter(self, run: StepRun) -> bool:  # noqa: ARG002
        """Return True: the steps of inline flows are not limited."""
        return True

    async def wait_slot(self, run: StepRun) -> None:
        """Return at once, for the same reason."""

    def leave(self, run: StepRun) -> None:
        """Do nothing, for the same reason."""

    def may_start(self) -> bool:
        """Tell whether the flow goes on."""
        return self.stop_mark is None

    def ask_paused(self, step: Step[Any, Any]) -> None:
        """Return None: pauses are for workers."""

    def runs_apart(self, step: Step[Any, Any]) -> bool:
        """Tell whether the step is a sub-workflow."""
        return step.workflow is not None

    async def run_apart(self, run: StepRun) -> None:
        """Run a sub-workflow as a step, once, because its own steps have their attempts."""
        inner = run.step.workflow
        assert inner is not None  # noqa: S101  (the caller's condition)
        if self.stop_mark is not None:
            run.state = "cancelled"
            return
        run.start()
        ended = await self._graph.attempt(
            partial(self._nested_input, run, inner), what=run.step.where, limit=run.step.timeout
        )
        if ended.is_cut or (self.stop_mark is not None and ended.error is None):
            run.end_cut(is_lost=ended.is_lost)
        elif ended.error is not None:
            run.fail(rule_of(self.workflow, run.step), ended.error, self.workflow)
        elif ended.value is None:
            run.complete(StepRecord(skipped=True))
        else:
            await self._run_nested(run, inner, ended.value)

    async def _nested_input(self, run: StepRun, inner: AnyDefinition) -> bytes | None:
        """Return the input of a sub-workflow; None if the step is skipped."""
        start_id(self._job_of(run), inner)  # raises if workflows nest too deep
        context, step = self._step_context(run), run.step
        if not await is_wanted(step, context):
            return None
        codec = flow_codecs(inner).input
        if step.input is not None:
            return codec.encode(await ask(step.input, context))
        codec.decode(self._input)  # raises PayloadError if it does not fit
        return self._input

    async def _run_nested(self, run: StepRun, inner: AnyDefinition, given: bytes) -> None:
        nested = self._nested[run.step.name] = self._open_inner(
            Opening(
                definition=inner,
                id=start_id(self._job_of(run), inner),
                given=given,
                timeout=inner.timeout,
                outer=self.facts,
            )
        )
        await nested.settle()
        state, text = nested.ended()
        if state == "completed":
            run.complete(StepRecord(result=msgspec.Raw(text.encode())))
        elif self.stop_mark is not None and state == "cancelled":
            run.end_cut(is_lost=False)
        else:
            run.fail_with(text)
        run.inherited, is_doubtful = failed_undos_in(state, text)
        self._is_doubtful = self._is_doubtful or is_doubtful

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
            await self._graph.pause(delay)

    async def _call_completed(self, attempt: int) -> str:
        return await run_completed(self.workflow, self._hook_context(attempt), self._around.call_sync)

    async def _unwind(self, stop: Stop) -> None:
        """Run the saga, record the failure, and call the `failed` hook."""
        self.state = "rolling_back"
        saga = Saga(
            self.undos(),
            flow_id=self.facts.flow_id,
            call_sync=self._around.call_sync,
            sleep=self._around.sleep,
            facts={"correlation_id": self.facts.correlation_id},
        )
        self.outcomes = await saga.run()
        inherited = [failure for run in self._graph.ended for failure in run.rollback_failures()]
        outcomes = [*inherited, *self.outcomes]
        self.rollback = "incomplete" if self._is_doubtful else verdict_on(outcomes)
        self._text = describe_flow(
            stop.cause,
            flow_id=self.facts.flow_id,
            workflow=self.workflow.name,
            step=stop.step,
            error=stop.failure,
            job=stop.job,
            timeout=self._timeout or 0.0,
            reason=stop.reason,
            rollback=self.rollback,
            rollback_errors=failures_of(outcomes),
        )
        error = read_flow(self._text, self.workflow.errors)
        await run_failed(self.workflow, self._hook_context(1), error, self._around.call_sync)
        self.state = "cancelled" if stop.cause == "cancelled" else "failed"

    def undos(self, prefix: str = "") -> Sequence[Undoable]:
        """Return the rollbacks of this flow and of its completed sub-workflows, the last step first."""
        undos: list[Undoable] = []
        for run in reversed(self._graph.ended):
            name = run.step.name
            if name in self._nested and run.state == "completed":
                undos += self._nested[name].undos(f"{prefix}{name}/")
            elif run.wants_undo:
                context = partial(self._context, name, self.workflow.steps, self._job_of(run))
                undos.append(
                    Undo(
                        path=prefix + name,
                        step=run.step,
                        workflow=self.workflow,
                        record=run.record,
                        ctx=context,
                    )
                )
        return undos

    # The contexts of functions.

    def _job_of(self, run: StepRun) -> str:
        name, index = split_item(run.step.name)
        return member_id(self.facts.flow_id, self.facts.run, name, index + 1)

    def _step_context(self, run: StepRun, own: Attempt | None = None) -> StepContext[Any]:
        name = run.step.name
        reach = self.workflow.plan.ancestors(split_item(name)[0])
        return self._context(name, reach, self._job_of(run), run.attempts + 1, own)

    def _hook_context(self, attempt: int) -> StepContext[Any]:
        return self._context("", self.workflow.steps, self.facts.flow_id, attempt)

    def _context(
        self, step: str, reach: Any, job_id: str, attempt: int, own: Attempt | None = None
    ) -> StepContext[Any]:
        return StepContext(
            self._tools,
            self.codecs,
            self.facts,
            input=self.codecs.input.decode(self._input),
            step=step,
            job_id=job_id,
            attempt=attempt,
            traceparent=self._around.traceparent,
            records=self._graph.records,
            reach=reach,
            own=own or Attempt(self._host, self._job, ""),
        )
