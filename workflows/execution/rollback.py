"""The saga: it runs the rollbacks of a stopped flow's completed steps, in reverse order, durably.

All kinds of flows share it, distributed and inline: each gives its plan. Not here: how a kind makes its plan
from its journal (`distributed.undo.spread_undo`, `distributed.undo.local_undo`, `functions.rollbacks`,
`machines.undo`, `inline`), and storing the checkpoints (`save`).

What must always hold:
- rollbacks run one at a time, in the given order, each with its own retry rule and timeout;
- `save` is awaited after each rollback and before the next one, so that an interrupted saga continues where
  it stopped. Crash window: a rollback that ran but was not saved runs again, so rollbacks run at least once,
  like steps;
- a rollback that fails for good is recorded, and the others still run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Protocol, TypeAlias

import msgspec

from eventbus import Retry
from eventbus.lowlevel import Failure, describe, get_logger, log_failure, note_around
from workflows.definition.context import StepContext, codecs_of, keeping_lines_in
from workflows.definition.flow_tools import CallSync
from workflows.definition.step import Step
from workflows.definition.workflow import Workflow
from workflows.errors import Rollback
from workflows.execution.attempt import AttemptRun, Ended
from workflows.execution.step_run import StepRun
from workflows.execution.step_runner import call, judge
from workflows.execution.stop import Stop
from workflows.records.indeterminate import unknown_text
from workflows.records.records import StepRecord, describe_flow, read_flow_failure

_log = get_logger("workflows")

RollbackResult: TypeAlias = tuple[str, str]
"""The path of a rollback, and the record of its error as JSON text; empty on success."""

MakeContext: TypeAlias = Callable[[int], StepContext[Any]]
"""Returns the context of attempt number n of a rollback."""


class Undoable(Protocol):
    """One rollback to run, of a step of whatever kind of workflow."""

    @property
    def path(self) -> str:
        """The name of the step, in reports and errors."""
        ...

    @property
    def owner(self) -> str:
        """The name of the workflow."""
        ...

    @property
    def traceparent(self) -> str:
        """The traceparent of what is undone; empty if it has none."""
        ...

    @property
    def rule(self) -> Retry:
        """The retry rule of the rollback."""
        ...

    @property
    def timeout(self) -> float | None:
        """The seconds that one attempt may take; None for no limit."""
        ...

    @property
    def errors(self) -> Sequence[type[Exception]]:
        """The declared errors of the workflow."""
        ...

    async def perform(self, number: int, call_sync: CallSync, job_id: str) -> None:
        """Make attempt number `number`. Raises what the rollback raises.

        `job_id` is the job that runs here, whatever the flow of the step: it keeps the log lines of the
        rollback.
        """
        ...


class Undo(msgspec.Struct, frozen=True, kw_only=True):
    """The rollback of a step of a graph. `path` is the step's name, or `outer/inner` for a sub-workflow's
    step.

    `record` is the record of the step. It is None if the step did not complete, or if that is unknown; the
    rollback then gets None as the result. `ctx` makes the context of each attempt.
    """

    path: str
    step: Step[Any, Any]
    workflow: Workflow[Any, Any]
    record: StepRecord | None
    ctx: MakeContext

    @property
    def owner(self) -> str:
        """The name of the workflow."""
        return self.workflow.name

    @property
    def traceparent(self) -> str:
        """The traceparent of the step; empty if it has none."""
        return "" if self.record is None else self.record.traceparent

    @property
    def rule(self) -> Retry:
        """The retry rule of the rollback: its own, or else the workflow's, for errors of any kind: it must be
        done.
        """
        return self.step.undo_retry or msgspec.structs.replace(self.workflow.retry, only=(), never=())

    @property
    def timeout(self) -> float | None:
        """The seconds that one attempt may take; None for no limit."""
        return self.step.undo_timeout

    @property
    def errors(self) -> Sequence[type[Exception]]:
        """The declared errors of the workflow."""
        return self.workflow.errors

    async def perform(self, number: int, call_sync: CallSync, job_id: str) -> None:
        """Call the rollback with the result of its step. Raises what it raises, and PayloadError."""
        step, ctx, record = self.step, keeping_lines_in(job_id, self.ctx(number)), self.record
        result = None
        if record is not None and record.has_result:
            codec = codecs_of(ctx).result(step.name)
            note_around(step.name, record.result, codec.type)
            result = codec.decode(memoryview(record.result))
        assert step.undo is not None, "only steps with a rollback are listed"  # noqa: S101
        await call(step.undo, ctx, result, is_async=step.undo_is_async, call_sync=call_sync, kind="rollback")


class UnknownHere(Exception):
    """This process does not know a workflow, a task or a rollback that it needs, or not in the needed
    version.
    """


class UndoPlan(msgspec.Struct):
    """What a stopped flow has to undo, and the facts that its error tells besides."""

    undos: list[Undoable] = []
    """The rollbacks to run, in order."""
    done: Mapping[str, str] = {}
    """Outcomes that were saved before, by path: the record of the error, empty on success."""
    inherited: list[RollbackResult] = []
    """Steps that were not undone: unknown ones, and failed rollbacks inside sub-workflows that stopped."""
    records: dict[str, StepRecord] = {}
    unloaded: list[str] = []
    """Completed steps whose results were left out because of their size."""
    is_doubtful: bool = False
    """Whether more may have taken effect than anybody knows."""

    def add(self, inner: UndoPlan) -> None:
        """Undo a flow that completed inside this one as well, next."""
        self.undos += inner.undos
        self.inherited += inner.inherited
        self.is_doubtful = self.is_doubtful or inner.is_doubtful

    def inherit(self, path: str, text: str) -> None:
        """Take over what the flow that ran at `path` could not undo: it did not complete, and `text` is the
        record of its error.
        """
        failure = read_flow_failure(text)
        if failure is None:  # no saga has told: only the error of plain work leaves nothing open
            self.is_doubtful = self.is_doubtful or not _is_plain_failure(text)
            return
        self.is_doubtful = self.is_doubtful or failure.rollback == "incomplete" or failure.stalls > 0
        self.inherited += [(f"{path}/{name}", bytes(raw).decode()) for name, raw in failure.rollback_errors]

    def end(
        self,
        stop: Stop,
        outcomes: Sequence[RollbackResult],
        *,
        flow_id: str,
        workflow: str,
        timeout: float | None,
    ) -> tuple[Rollback, str]:
        """Return the verdict on all rollbacks, of which `outcomes` ran, and the record of the flow's error.

        `timeout` are the seconds that the flow had.
        """
        every = [*self.inherited, *outcomes]
        verdict = "incomplete" if self.is_doubtful else _verdict_on(every)
        text = describe_flow(
            stop.cause,
            flow_id=flow_id,
            workflow=workflow,
            step=stop.step,
            error=stop.failure,
            job=stop.job,
            timeout=timeout or 0.0,
            reason=stop.reason,
            rollback=verdict,
            rollback_errors=failures_of(every),
        )
        return verdict, text


def _is_plain_failure(text: str) -> bool:
    try:
        return msgspec.json.decode(text, type=Failure).stalls == 0
    except (msgspec.MsgspecError, UnicodeError):
        return False


AddInner: TypeAlias = Callable[[UndoPlan, str, str, str, str], Awaitable[None]]
"""Adds to a plan the flow that another one started: its id, its state, the record of its error, and the path
of the step or of the call that ran it. A completed one is undone as if the outer one had done what it did;
one that did not complete has undone its own, and the plan inherits what it could not undo. Raises
UnknownHere, StoreError.
"""


async def plan_graph(
    runs: Iterable[StepRun],
    workflow: Workflow[Any, Any],
    records: dict[str, StepRecord],
    context: Callable[[str, int], StepContext[Any]],
    add_inner: AddInner,
    prefix: str = "",
) -> UndoPlan:
    """Return the plan of a graph of which these steps have ended, the last one first; `prefix` begins their
    paths.

    `context(step, n)` makes the context of attempt n of a rollback. Raises what `add_inner` raises.
    """
    plan = UndoPlan(records=records)
    for run in runs:
        name = run.step.name
        path = prefix + name
        if run.step.workflow is not None:
            if run.child and run.state != "skipped":
                state = "completed" if run.state == "completed" else "failed"
                await add_inner(plan, run.child, state, run.failure, path)
        elif run.wants_undo:
            ctx = partial(context, name)
            plan.undos.append(Undo(path=path, step=run.step, workflow=workflow, record=run.record, ctx=ctx))
        elif run.is_doubtful:
            plan.inherited.append((path, unknown_text(1, run.failure)))
    return plan


class Saga:
    """Runs the rollbacks of a plan. Await `run` only once."""

    def __init__(
        self,
        plan: UndoPlan,
        *,
        flow_id: str,
        call_sync: CallSync,
        sleep: Callable[[float], Awaitable[Any]],
        save: Callable[[str, str], Awaitable[Any]] | None = None,
        save_try: Callable[[str, int], Awaitable[Any]] | None = None,
        tried: Mapping[str, int] | None = None,
        around: Callable[[Undoable, int], AbstractContextManager[str]] | None = None,
        facts: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare the rollbacks of `plan`, without those that are done.

        `save_try(path, n)` stores that attempt n failed and another one follows; `tried` is what it stored.

        `around(undo, n)` surrounds attempt number n, and yields its traceparent. `save(path, failure)` stores
        one outcome; `sleep(seconds)` waits between attempts; `facts` are fields of log events besides the
        flow's id.
        """
        self._plan = plan
        self._flow_id = flow_id
        self._call_sync = call_sync
        self._sleep = sleep
        self._save = save
        self._save_try = save_try
        self._tried = tried or {}
        self._around = around
        self._facts = facts or {}

    async def run(self) -> list[RollbackResult]:
        """Run the rollbacks that are not done, and return the outcomes of all in order.

        Cancelling this call cancels the running rollback, whose outcome is then not saved.
        """
        outcomes: list[RollbackResult] = []
        for undo in self._plan.undos:
            failure = self._plan.done.get(undo.path)
            if failure is None:
                failure = await self._run(undo)
                if self._save is not None:  # before the next one, so that a crash repeats only this rollback
                    await self._save(undo.path, failure)
            outcomes.append((undo.path, failure))
        if outcomes:
            failed = len(failures_of(outcomes))
            succeeded = len(outcomes) - failed
            _log.info("rollback ended", flow_id=self._flow_id, succeeded=succeeded, failed=failed)
        return outcomes

    async def _run(self, undo: Undoable) -> str:
        """Run one rollback with its retries; return the record of its last error, empty on success."""
        rule = undo.rule
        attempts = self._tried.get(undo.path, 0)
        while True:
            ended = await self._attempt(undo, attempts + 1)
            if ended.error is None:
                return ""
            attempts += 1
            delay, error = judge(rule, attempts, ended.error, is_undo=True)
            failure = describe(error, attempts=attempts, declared=undo.errors)
            self._tell(undo, failure, attempt=attempts, attempts=rule.attempts, delay=delay)
            if delay is None:
                return failure
            if self._save_try is not None:  # before the pause, so that whoever takes over counts on
                await self._save_try(undo.path, attempts)
            await self._sleep(delay)

    def _tell(
        self, undo: Undoable, failure: str, *, attempt: int, attempts: int, delay: float | None
    ) -> None:
        """Log a failed attempt; a declared error too, because a rollback has no caller to answer."""
        facts = {"workflow": undo.owner, "flow_id": self._flow_id, "step": undo.path}
        log_failure(
            _log,
            "rollback failed" if delay is None else "rollback failed, trying again",
            failure,
            {**facts, "attempt": attempt, "max_attempts": attempts, **self._facts},
            retry_in=delay,
        )

    async def _attempt(self, undo: Undoable, number: int) -> Ended:
        attempt = AttemptRun(
            lambda: self._call(undo, number), what=f"the rollback of step {undo.path!r}", timeout=undo.timeout
        )
        return await attempt.run()

    async def _call(self, undo: Undoable, number: int) -> None:
        with self._around(undo, number) if self._around is not None else nullcontext(""):
            await undo.perform(number, self._call_sync, self._flow_id)


def failures_of(outcomes: Sequence[RollbackResult]) -> list[RollbackResult]:
    """Return the outcomes of the rollbacks that failed for good."""
    return [(path, failure) for path, failure in outcomes if failure]


def _verdict_on(outcomes: Sequence[RollbackResult]) -> Rollback:
    """Return the summary of all rollbacks of a flow."""
    if not outcomes:
        return "none"
    return "incomplete" if failures_of(outcomes) else "complete"
