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
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any

import msgspec

from eventbus.lowlevel import describe
from workflows.definition.codecs import Codecs
from workflows.definition.context import FlowFacts, StepContext
from workflows.definition.nesting import start_id
from workflows.definition.workflow import Workflow
from workflows.errors import COMPLETED, Rollback
from workflows.execution.attempt import Attempt, Ended
from workflows.execution.environment import Environment, InlineTools
from workflows.execution.hook_runner import run_completed, run_failed
from workflows.execution.rollback import RollbackResult, Saga, Undo, failures_of, verdict_on
from workflows.execution.step_runner import ask, is_wanted, judge, rule_of, run_step
from workflows.inline.step import InlineStep
from workflows.records.ids import member_id
from workflows.records.records import (
    Cause,
    StepRecord,
    decode_step,
    describe_flow,
    error_text,
    read_flow,
    revive_flow,
)
from workflows.records.report import FlowReport, FlowState, RollbackReport

__all__ = ["InlineFlow", "Stop"]


class Stop(msgspec.Struct, frozen=True, kw_only=True):
    """The reason why a flow stops. `is_cut` tells to cancel active steps instead of letting them finish."""

    cause: Cause
    step: str = ""
    failure: str = ""
    job: str = ""
    reason: str = ""
    is_cut: bool = True


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
    ) -> None:
        """Prepare the flow: `input` is JSON that fits the workflow's type, `timeout` is in seconds."""
        self.workflow = workflow
        self.codecs: Codecs = Codecs(workflow)
        self.facts = facts
        self.state: FlowState = "pending"
        self.rollback: Rollback = "none"
        self.records: dict[str, StepRecord] = {}
        self.outcomes: list[RollbackResult] = []
        self.stop_mark: Stop | None = None
        self._input = input
        self._around = environment
        self.rollback_errors: list[RollbackResult] = []
        self._tools = InlineTools(environment.provider, self.records)
        self._timeout = timeout
        self._members = {
            node.step: InlineStep(workflow.steps[node.step], node.needs) for node in workflow.plan.nodes
        }
        self._followers: dict[str, list[InlineStep]] = {}
        for member in self._members.values():
            for need in member.needs:
                self._followers.setdefault(need, []).append(member)
        self._ended: list[InlineStep] = []
        self._pauses: set[asyncio.Future[Any]] = set()
        self._attempts: set[Attempt] = set()
        self._output = ""
        self._failure = ""

    async def settle(self) -> None:
        """Run the flow to its end. Cancelling this call cancels the running functions and undoes nothing."""
        timer = None
        if self._timeout is not None:
            timer = asyncio.get_running_loop().call_later(self._timeout, self.stop, Stop(cause="timeout"))
        try:
            if self.stop_mark is None:
                self.state = "running"
                await self._run_steps()
            if self.stop_mark is None:
                await self._complete()
            if self.stop_mark is not None:
                await self._unwind(self.stop_mark)
        finally:
            if timer is not None:
                timer.cancel()

    @property
    def output(self) -> str:
        """The output as JSON text; empty unless the flow completed."""
        return self._output

    @property
    def failure(self) -> str:
        """The record of the failure; empty unless the flow failed or was cancelled."""
        return self._failure

    def outcome(self) -> Any:
        """Return the output or raise the flow's error, as a caller in another process would get it."""
        if self.state == "completed":
            return self.codecs.output.decode(self._output)
        raise revive_flow(
            self.state, self._failure, self.workflow.name, self.facts.flow_id, self.workflow.errors
        )

    def stop(self, stop: Stop) -> bool:
        """Stop the flow early; return False if `stop` is not its outcome: it was stopping or had ended.

        The first stop becomes the flow's error. A later cancel or timeout still cuts active steps until the
        rollbacks begin, because a step that hangs must not hold up the flow.
        """
        if self.state in ("rolling_back", "completed", "failed", "cancelled"):
            return False
        is_first = self.stop_mark is None
        self.stop_mark = self.stop_mark or stop
        for pause in self._pauses:
            pause.cancel()
        for member in self._members.values():
            if member.state == "waiting":
                member.state = "cancelled"
            if member.nested is not None:
                reason = stop.reason or f"flow {self.facts.flow_id} stopped"
                member.nested.stop(Stop(cause="cancelled", reason=reason, is_cut=stop.is_cut))
        if stop.is_cut:
            for attempt in self._attempts:
                attempt.cut()
        return is_first

    def report(self) -> FlowReport:
        """Return the report of the flow so far."""
        return FlowReport(
            flow_id=self.facts.flow_id,
            workflow=self.workflow.name,
            state=self.state,
            rollback=self.rollback,
            steps={name: member.report(self.codecs) for name, member in self._members.items()},
            order=[member.step.name for member in self._ended if member.state == "completed"],
            rollbacks=[
                RollbackReport(step=path, error=error_text(failure)) for path, failure in self.outcomes
            ],
        )

    # The steps.

    async def _run_steps(self) -> None:
        async with asyncio.TaskGroup() as group:
            self._start_ready(group, self._members.values())

    def _start_ready(self, group: asyncio.TaskGroup, members: Iterable[InlineStep]) -> None:
        for member in members:
            if member.state == "waiting" and all(need in self.records for need in member.needs):
                member.state = "active"  # before its task runs, so that no other step starts it too
                group.create_task(self._work(member, group))

    async def _work(self, member: InlineStep, group: asyncio.TaskGroup) -> None:
        """Run one step until it completed, failed for good, or was ended by its flow's stop."""
        if member.step.workflow is None:
            await self._work_plain(member)
        else:
            await self._work_nested(member, member.step.workflow)
        name = member.step.name
        self._ended.append(member)
        if member.record is not None:
            self.records[name] = member.record  # before its followers start, because they read it
            self._start_ready(group, self._followers.get(name, ()))
        elif member.state == "failed":
            job = self._job_of(member)
            self.stop(Stop(cause="failed", step=name, failure=member.failure, job=job, is_cut=False))

    async def _work_plain(self, member: InlineStep) -> None:
        rule = rule_of(self.workflow, member.step)
        while self.stop_mark is None:
            member.start()
            ended = await self._run(
                partial(self._call_step, member), what=member.step.where, limit=member.step.timeout
            )
            if ended.is_cut:
                member.end_cut(is_lost=ended.is_lost)
                return
            if ended.error is None:
                member.complete(decode_step(ended.value))
                return
            delay = member.fail(rule, ended.error, self.workflow)
            if delay is None or self.stop_mark is not None:
                return
            member.state = "delayed"
            await self._pause(delay)
        member.state = "cancelled"

    async def _call_step(self, member: InlineStep) -> str:
        return await run_step(member.step, self._step_context(member), self._around.call_sync)

    async def _work_nested(self, member: InlineStep, inner: Workflow[Any, Any]) -> None:
        """Run a sub-workflow as a step, once, because its own steps have their attempts."""
        if self.stop_mark is not None:
            member.end_cut(is_lost=False)
            return
        ended = await self._run(
            partial(self._nested_input, member, inner), what=member.step.where, limit=member.step.timeout
        )
        if ended.is_cut or (self.stop_mark is not None and ended.error is None):
            member.end_cut(is_lost=ended.is_lost)
        elif ended.error is not None:
            member.fail(rule_of(self.workflow, member.step), ended.error, self.workflow)
        elif ended.value is None:
            member.complete(StepRecord(skipped=True))
        else:
            await self._run_nested(member, inner, ended.value)

    async def _nested_input(self, member: InlineStep, inner: Workflow[Any, Any]) -> bytes | None:
        """Return the input of a sub-workflow; None if the step is skipped."""
        start_id(self._job_of(member), inner)  # raises if workflows nest too deep
        context, step = self._step_context(member), member.step
        if not await is_wanted(step, context):
            return None
        if step.input is not None:
            return Codecs(inner).input.encode(await ask(step.input, context))
        Codecs(inner).input.decode(self._input)  # raises PayloadError if it does not fit
        return self._input

    async def _run_nested(self, member: InlineStep, inner: Workflow[Any, Any], given: bytes) -> None:
        flow_id = start_id(self._job_of(member), inner)
        facts = msgspec.structs.replace(self.facts, flow_id=flow_id, run=1)
        member.nested = nested = InlineFlow(inner, given, facts, self._around, timeout=inner.timeout)
        await nested.settle()
        if nested.state == "completed":
            member.complete(StepRecord(result=msgspec.Raw(nested.output.encode())))
        elif self.stop_mark is not None and nested.state == "cancelled":
            member.end_cut(is_lost=False)
        else:
            member.fail_with(nested.failure)

    async def _run(
        self, call: Callable[[], Awaitable[Any]], *, what: str, limit: float | None = None
    ) -> Ended:
        """Run one attempt of at most `limit` seconds; a stop may cut it."""
        attempt = Attempt(call, what=what, timeout=limit)
        self._attempts.add(attempt)
        try:
            return await attempt.run()
        finally:
            self._attempts.discard(attempt)

    async def _pause(self, delay: float) -> None:
        """Wait before the next attempt; a stop ends the wait."""
        pause = asyncio.ensure_future(self._around.sleep(delay))
        self._pauses.add(pause)
        try:
            await asyncio.wait({pause})
        finally:
            self._pauses.discard(pause)
            pause.cancel()
        if not pause.cancelled():
            pause.result()  # raises the error of a `sleep` that a user supplied

    # The end.

    async def _complete(self) -> None:
        """Run the `completed` hook, which makes the output; its final error stops the flow."""
        attempts = 0
        while self.stop_mark is None:
            ended = await self._run(partial(self._call_completed, attempts + 1), what="the completed hook")
            if self.stop_mark is not None:
                return  # the flow was stopped meanwhile, so the hook's output does not count
            if ended.error is None:
                self._output = ended.value
                self.state = "completed"
                return
            attempts += 1
            delay, error = judge(self.workflow.retry, attempts, ended.error, self.workflow)
            if delay is None:
                failure = describe(error, attempts=attempts, declared=self.workflow.errors)
                self.stop(Stop(cause="failed", step=COMPLETED, failure=failure, job=self.facts.flow_id))
                return
            await self._pause(delay)

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
        inherited = [failure for member in self._ended for failure in member.rollback_failures()]
        self.rollback_errors = failures_of([*inherited, *self.outcomes])
        self.rollback = verdict_on([*inherited, *self.outcomes])
        self._failure = describe_flow(
            stop.cause,
            flow_id=self.facts.flow_id,
            workflow=self.workflow.name,
            step=stop.step,
            error=stop.failure,
            job=stop.job,
            timeout=self._timeout or 0.0,
            reason=stop.reason,
            rollback=self.rollback,
            rollback_errors=self.rollback_errors,
        )
        error = read_flow(self._failure, self.workflow.errors)
        await run_failed(self.workflow, self._hook_context(1), error, self._around.call_sync)
        self.state = "cancelled" if stop.cause == "cancelled" else "failed"

    def undos(self, prefix: str = "") -> Sequence[Undo]:
        """Return the rollbacks of this flow and of its completed sub-workflows, the last step first."""
        undos: list[Undo] = []
        for member in reversed(self._ended):
            path = prefix + member.step.name
            if member.nested is not None and member.state == "completed":
                undos += member.nested.undos(f"{path}/")
            elif member.wants_undo:
                undos.append(
                    Undo(
                        path=path,
                        step=member.step,
                        workflow=self.workflow,
                        record=member.record,
                        ctx=partial(
                            self._context, member.step.name, self.workflow.steps, self._job_of(member)
                        ),
                    )
                )
        return undos

    # The contexts of functions.

    def _job_of(self, member: InlineStep) -> str:
        return member_id(self.facts.flow_id, self.facts.run, member.step.name)

    def _step_context(self, member: InlineStep) -> StepContext[Any]:
        name = member.step.name
        reach = self.workflow.plan.ancestors(name)
        return self._context(name, reach, self._job_of(member), member.attempts + 1)

    def _hook_context(self, attempt: int) -> StepContext[Any]:
        return self._context("", self.workflow.steps, self.facts.flow_id, attempt)

    def _context(self, step: str, reach: Any, job_id: str, attempt: int) -> StepContext[Any]:
        return StepContext(
            self._tools,
            self.codecs,
            self.facts,
            input=self.codecs.input.decode(self._input),
            step=step,
            job_id=job_id,
            attempt=attempt,
            traceparent=self._around.traceparent,
            records=self.records,
            reach=reach,
        )
