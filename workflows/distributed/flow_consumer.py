"""The consumer of a workflow's flows: it runs their root jobs.

    a bare flow starts                  the root adds its steps and waits for them
    all awaited steps have completed    the `completed` hook runs; it returns the flow's output
    the flow was stopped                the saga runs, then the `failed` hook; the flow ends with its error

What must always hold: a root that knows of its stop acknowledges it first, so that neither the flow's timeout
nor a cancel changes the outcome afterwards; each rollback is saved before the next one begins, and so is the
`failed` hook; another worker that takes over continues after the last saved entry.

Crash windows: `dies-before-acknowledging`, `dies-in-rollback` (it runs again), `dies-after-rollback-saved`
(it does not), `dies-after-failed-hook` (saved: not again), `dies-in-completed-hook` (it runs again).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import msgspec

from eventbus import StoreCorrupt
from eventbus.lowlevel import (
    Failure,
    Job,
    Retention,
    Settle,
    TreePage,
    WorkerServices,
    attach_baggage,
    begin_apart,
    cancel,
    complete,
    describe,
    fail,
    get_logger,
    give_back,
    later,
    log_failure,
    park,
    retry,
)
from workflows.definition.job_tree import last_members, members_of
from workflows.distributed.step_consumer import facts_of, read_message
from workflows.distributed.undo_plan import UndoPlan, UnknownHere, read_undo_plan
from workflows.distributed.worker_runtime import AWAY_MS, Flow, ServerAway, WorkerRuntime
from workflows.errors import COMPLETED
from workflows.execution.hook_runner import run_completed, run_failed
from workflows.execution.rollback import (
    RollbackResult,
    Saga,
    Undo,
    failures_of,
    verdict_on,
)
from workflows.execution.step_runner import judge
from workflows.records.checkpoints import FAILED_HOOK, GRAPH, read_undone, undone_name
from workflows.records.ids import flow_queue, parse_member, steps_queue
from workflows.records.records import (
    Cause,
    decode_message,
    describe_flow,
    is_declared,
    read_flow,
    read_flow_failure,
)

__all__ = ["FlowConsumer"]

_log = get_logger("workflows")

_KEY_TTL_MS = 7 * 86_400_000  # idempotency keys of flows are kept for at least a week


class FlowConsumer:
    """Runs the roots of one workflow's flows, in every version that this process knows."""

    group = ""

    def __init__(self, workflow: str, runtime: WorkerRuntime, services: WorkerServices) -> None:
        self.queue: str = flow_queue(workflow)
        self.base: str = self.queue
        self.follows: Sequence[str] = (self.queue, steps_queue(workflow))
        self.concurrency: int = services.settings.concurrency
        kept = services.retention
        self.retention: Retention = msgspec.structs.replace(kept, key_ttl=max(kept.key_ttl, _KEY_TTL_MS))
        self._workflow = workflow
        self._runtime = runtime

    def settled(self, job_id: str, state: str, text: str) -> None:
        """Do nothing: only jobs in the server wait for a flow."""

    def surround(self) -> None:
        """Start with an empty context: `run` and the calls of the flow's functions set theirs."""
        begin_apart()

    def timeout_of(self, job: Job) -> float | None:
        """Return None: each function has its own timeout, and the server keeps the flow's timeout."""
        del job

    async def run(self, job: Job) -> Settle | None:
        """Take the flow's next action: add its steps, complete it, or roll it back."""
        try:
            message = read_message(job)
        except StoreCorrupt as error:
            if job.stop:
                return await self._give_up(job, error)
            raise
        # Only a bare or stopped flow has checkpoints to read: a normal completion saves this call.
        page = (
            await self._runtime.ask(self._runtime.jobs.look(job.id, limit=0))
            if message.bare or job.stop
            else None
        )
        version = message.version or (page.saved.get(GRAPH, "") if page is not None else "")
        if version and not message.version:
            self._runtime.note_version(job.id, message.run, version)
        workflow = self._runtime.find(self._workflow, version)
        if workflow is None:
            return park(f"not known here: version {version} of workflow {self._workflow}")
        if message.baggage:
            attach_baggage(message.baggage)
        flow = Flow(self._runtime, workflow, job.id, message)
        if page is not None and job.stop:
            try:
                return await self._undo(job, flow, page)
            except UnknownHere as error:
                return park(f"not known here: {error}")
            except _LeaseLost:
                return None
        if page is not None and workflow.steps and GRAPH not in page.saved:
            return await self._add_steps(job, flow)
        return await self._complete(job, flow)

    def decide(self, job: Job, error: BaseException) -> Settle:
        """Retry the `completed` hook while attempts are left; otherwise the flow fails and is rolled back.

        An error during the rollback phase is not the hook's: that phase is tried again, without limit, until
        the flow can be read and its outcome saved.
        """
        attempts = job.attempts + 1
        if isinstance(error, ServerAway):
            return later(describe(error, attempts=job.attempts), AWAY_MS)
        workflow = self._runtime.find(self._workflow, self._version_of(job))
        if job.stop:  # back off up to a minute
            return retry(describe(error, attempts=attempts), min(1000 * 2 ** min(attempts, 6), 60_000))
        if workflow is None:
            return fail(describe(error, attempts=attempts))
        delay, error = judge(workflow.retry, attempts, error, workflow)
        text = describe(error, attempts=attempts, declared=workflow.errors)
        return fail(text) if delay is None else retry(text, round(delay * 1000))

    def facts(self, job: Job) -> Mapping[str, Any]:
        """Return the fields that `ctx.log` of a hook has too."""
        return {"workflow": self._workflow, "flow_id": job.id, **facts_of(job)}

    def failed(self, job: Job, settle: Settle) -> None:
        """Log an error of the `completed` hook, a saga that is tried again, or the end of the flow."""
        facts = dict(self.facts(job))
        if not job.stop and settle.state != "cancelled":
            workflow = self._runtime.find(self._workflow, self._version_of(job))
            if workflow is not None:
                facts |= {"hook": "completed", "max_attempts": workflow.retry.attempts}
            is_last = settle.state == "failed"
            log_failure(
                _log,
                "hook failed" if is_last else "attempt failed, trying again",
                settle.text,
                facts,
                retry_in=None if is_last else settle.delay_ms / 1000,
                is_answer=is_declared(settle.text),
            )
        elif settle.state == "delayed":
            log_failure(
                _log, "flow not undone, trying again", settle.text, facts, retry_in=settle.delay_ms / 1000
            )
        elif job.stop:
            self._tell_ended(job, settle, facts)

    def _tell_ended(self, job: Job, settle: Settle, facts: dict[str, Any]) -> None:
        """Log the end of the flow, without a traceback: its step or its rollbacks have logged theirs."""
        del facts["attempt"]
        failure = read_flow_failure(settle.text)
        is_answer = settle.state == "cancelled"
        if failure is not None:
            facts["cause"] = job.stop
            if failure.step:
                facts["step"] = failure.step
            facts["rollback"] = failure.rollback
            is_answer = (is_answer or is_declared(settle.text)) and failure.rollback != "incomplete"
        line = "flow cancelled" if settle.state == "cancelled" else "flow failed"
        log_failure(_log, line, settle.text, facts, is_answer=is_answer)

    def _version_of(self, job: Job) -> str:
        try:
            return self._runtime.version_of(job.id, decode_message(job.body))
        except (msgspec.MsgspecError, UnicodeError):
            return ""

    async def _add_steps(self, job: Job, flow: Flow) -> Settle | None:
        workflow = flow.workflow
        members = members_of(workflow, job.id, flow.message)
        awaited = last_members(workflow, job.id, flow.message)
        word = await self._runtime.ask(
            self._runtime.jobs.spawn(
                job, members, tree=job.id, awaited=awaited, saved={GRAPH: workflow.version}
            )
        )
        # None: the root waits for its steps or has lost its lease, so there is nothing to settle.
        return give_back() if word == "stopping" else None

    async def _complete(self, job: Job, flow: Flow) -> Settle:
        # The last steps first: if not all results can be loaded, the hook has those nearest to it.
        steps = [node.step for node in reversed(flow.workflow.plan.nodes)]
        hook = flow.workflow.completed_hook
        records, unloaded = await flow.read_records(steps) if hook is not None else ({}, steps)
        with self._span("completed", job, flow) as traceparent:
            context = flow.context(
                "",
                job_id=job.id,
                attempt=job.attempts + 1,
                traceparent=traceparent,
                records=records,
                reach=steps,
                unloaded=unloaded,
            )
            return complete(await run_completed(flow.workflow, context, self._runtime.call_sync))

    # After a stop.

    async def _undo(self, job: Job, flow: Flow, page: TreePage) -> Settle:
        """Roll the flow back, call the `failed` hook, and settle the flow with its error."""
        # If a workflow is unknown here, this raises: the root is parked before it acknowledges its stop.
        stopped = await read_undo_plan(self._runtime, flow)
        # From here on the server accepts no other outcome: neither a cancel nor the timeout changes it.
        if not await self._runtime.jobs.checkpoint(job, acknowledges=True):
            raise _LeaseLost
        done = read_undone(page.saved)
        saga = Saga(
            stopped.undos,
            flow_id=job.id,
            call_sync=self._runtime.call_sync,
            sleep=asyncio.sleep,
            save=_Saver(self._runtime, job, len(done)).save,
            done=done,
            around=_Spans(flow).around,
            facts={"correlation_id": flow.facts.correlation_id, **flow.trace},
        )
        outcomes = await saga.run()
        text = await self._describe(job, flow, page, stopped, outcomes)
        if FAILED_HOOK not in page.saved:
            await self._tell_failed(job, flow, stopped, text)
        return cancel(text) if job.stop == "cancelled" else fail(text, counts=False)

    async def _give_up(self, job: Job, error: StoreCorrupt) -> Settle | None:
        """End a stopped flow whose message cannot be read: nobody can roll it back, and it must end."""
        _log.error("flow not undone, its message cannot be read", flow_id=job.id, error=str(error))
        if not await self._runtime.ask(self._runtime.jobs.checkpoint(job, acknowledges=True)):
            return None
        text = describe(error, attempts=job.attempts)
        return cancel(text) if job.stop == "cancelled" else fail(text, counts=False)

    async def _tell_failed(self, job: Job, flow: Flow, stopped: UndoPlan, text: str) -> None:
        if flow.workflow.failed_hook is None:
            return
        with self._span("failed", job, flow) as traceparent:
            context = flow.context(
                "",
                job_id=job.id,
                attempt=1,
                traceparent=traceparent,
                records=stopped.records,
                reach=flow.workflow.steps,
                unloaded=stopped.unloaded,
            )
            error = read_flow(text, flow.workflow.errors)
            await run_failed(flow.workflow, context, error, self._runtime.call_sync)
        # Saved after the call, so the hook runs at least once, and only a crash in between repeats it.
        if not await self._runtime.jobs.checkpoint(job, {FAILED_HOOK: ""}):
            raise _LeaseLost

    async def _describe(
        self, job: Job, flow: Flow, page: TreePage, stopped: UndoPlan, outcomes: list[RollbackResult]
    ) -> str:
        """Return the record of the flow's error: its cause, and the outcomes of the rollbacks."""
        every = [*stopped.inherited, *outcomes]
        is_doubtful = stopped.is_doubtful or "damaged" in page.root  # some completed steps may be missing
        rollback = "incomplete" if is_doubtful else verdict_on(every)
        cause: Cause = {"failed": "failed", "timeout": "timeout"}.get(job.stop, "cancelled")  # type: ignore[assignment]
        step, error = await self._find_error(job, page) if cause == "failed" else ("", "")
        return describe_flow(
            cause,
            flow_id=job.id,
            workflow=flow.workflow.name,
            step=step,
            error=error,
            job=page.root.get("stopper", ""),
            timeout=flow.message.timeout or 0.0,
            reason=_reason(page.root.get("text", "")) if cause == "cancelled" else "",
            rollback=rollback,
            rollback_errors=failures_of(every),
        )

    async def _find_error(self, job: Job, page: TreePage) -> tuple[str, str]:
        stopper = page.root.get("stopper", "")
        if stopper == job.id:
            return COMPLETED, page.root.get("text", "")
        (outcome,) = await self._runtime.jobs.outcomes([stopper])
        # A completed step stops its flow if the flow's keys are damaged; only the root's text says so.
        own = outcome.text if outcome.state != "completed" else ""
        return parse_member(stopper).step, own or page.root.get("text", "")

    def _span(self, what: str, job: Job, flow: Flow) -> AbstractContextManager[str]:
        return flow.span(what, job_id=job.id, attempt=job.attempts + 1)


class _LeaseLost(Exception):
    """Another worker continues the flow."""


class _Saver:
    """Saves the outcome of each rollback under the root's lease."""

    def __init__(self, runtime: WorkerRuntime, job: Job, count: int) -> None:
        """Number the outcomes from `count`, the number of those that are saved already."""
        self._runtime = runtime
        self._job = job
        self._count = count

    async def save(self, path: str, failure: str) -> None:
        """Save one outcome. Raises _LeaseLost if another worker has the flow now."""
        self._count += 1
        if not await self._runtime.jobs.checkpoint(self._job, {undone_name(self._count, path): failure}):
            raise _LeaseLost


class _Spans:
    """Opens a span around each attempt of a rollback, linked to the span of its step."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow

    def around(self, undo: Undo, attempt: int) -> AbstractContextManager[str]:
        return self._flow.span(
            "rollback",
            workflow=undo.workflow.name,
            step=undo.path,
            job_id=self._flow.flow_id,
            attempt=attempt,
            links=[undo.record.traceparent] if undo.record is not None else [],
        )


def _reason(text: str) -> str:
    try:
        return msgspec.json.decode(text, type=Failure).message
    except (msgspec.MsgspecError, UnicodeError):
        return ""
