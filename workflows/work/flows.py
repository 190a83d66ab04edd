"""The consumer of a workflow's flows: their root jobs.

    first activation of a bare flow: adds its steps, waits for them
    all that the root waited for has completed: the `completed` hook, and its output is the flow's
    the flow was stopped: the saga, then the `failed` hook, and its error is the flow's

What must hold: a root that knows of its stop says so first (it acknowledges), so that from then on neither
the flow's timeout nor a cancel changes anything; each rollback is saved before the next one begins,
and so is the `failed` hook; whoever takes over goes on behind what was saved.

Crash windows: `dies-before-acknowledging`, `dies-in-rollback` (it runs again), `dies-after-rollback-saved`
(it does not), `dies-after-failed-hook` (saved: not again), `dies-in-completed-hook` (it runs again).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import msgspec

from eventbus.lowlevel import (
    Failure,
    Host,
    Job,
    Member,
    Retention,
    Settle,
    TreePage,
    cancel,
    complete,
    describe,
    fail,
    give_back,
    park,
    retry,
)
from workflows.definition import Workflow
from workflows.ending import run_completed, run_failed
from workflows.errors import COMPLETED
from workflows.names import flow_queue, member_id, parse_member, steps_queue
from workflows.records import Cause, FlowMessage, decode_message, describe_flow, read_flow
from workflows.rollback import (
    Outcome,
    Saga,
    Undo,
    failures_of,
    read_undone,
    undone_name,
    verdict_on,
)
from workflows.steps import judge
from workflows.telemetry import work_span
from workflows.work.site import Flow, Site
from workflows.work.steps import read_message
from workflows.work.stopped import Stopped, UnknownHere, read_stopped

__all__ = ["FlowConsumer", "members_of"]

_GRAPH = "graph"
_HOOK = "hook:failed"
_KEY_TTL_MS = 7 * 86_400_000  # keys of flows are kept a week at least


class FlowConsumer:
    """Runs the roots of one workflow's flows, in every version that this process knows."""

    group = ""

    def __init__(self, workflow: str, site: Site, host: Host) -> None:
        self.queue = self.base = flow_queue(workflow)
        self.follows: Sequence[str] = (self.queue, steps_queue(workflow))
        self.concurrency = host.settings.concurrency
        kept = host.retention
        self.retention: Retention = msgspec.structs.replace(kept, key_ttl=max(kept.key_ttl, _KEY_TTL_MS))
        self._workflow = workflow
        self._site = site

    def settled(self, job_id: str, state: str, text: str) -> None:
        """Nothing follows a flow but what waits for it in the server."""

    def timeout_of(self, job: Job) -> float | None:
        """None: each function has a timeout of its own, the flow's is kept in the server."""
        del job

    async def run(self, job: Job) -> Settle | None:
        """Do what the flow needs next."""
        message = read_message(job)
        page = await self._site.jobs.look(job.id, limit=0) if message.bare or job.stop else None
        version = message.version or (page.saved.get(_GRAPH, "") if page is not None else "")
        if version and not message.version:
            self._site.note_version(job.id, message.run, version)
        workflow = self._site.find(self._workflow, version)
        if workflow is None:
            return park(f"not known here: version {version} of workflow {self._workflow}")
        flow = Flow(self._site, workflow, job.id, message)
        if page is not None and job.stop:
            try:
                return await self._undo(job, flow, page)
            except UnknownHere as error:
                return park(f"not known here: {error}")
            except _LeaseLost:
                return None
        if page is not None and workflow.steps and _GRAPH not in page.saved:
            return await self._add_steps(job, flow)
        return await self._complete(job, flow)

    def decide(self, job: Job, error: BaseException) -> Settle:
        """Retry the `completed` hook, while attempts are left; else the flow stops, and is undone.

        What fails while it is undone is no hook's error: it is tried again until it can be read and saved.
        """
        attempts = job.attempts + 1
        workflow = self._site.find(self._workflow, self._version_of(job))
        if job.stop:
            return retry(describe(error, attempts=attempts), min(1000 * 2 ** min(attempts, 6), 60_000))
        if workflow is None:
            return fail(describe(error, attempts=attempts))
        delay, error = judge(workflow.retry, attempts, error)
        text = describe(error, attempts=attempts, declared=workflow.errors)
        return fail(text) if delay is None else retry(text, round(delay * 1000))

    def _version_of(self, job: Job) -> str:
        try:
            return self._site.version_of(job.id, decode_message(job.body))
        except (msgspec.MsgspecError, UnicodeError):
            return ""

    async def _add_steps(self, job: Job, flow: Flow) -> Settle | None:
        workflow = flow.workflow
        members = members_of(workflow, job.id, flow.message, priority=flow.message.priority)
        last = workflow.plan.without(flow.message.kept).last
        awaited = [member_id(job.id, flow.message.run, each) for each in last]
        word = await self._site.jobs.spawn(
            job, members, tree=job.id, awaited=awaited, saved={_GRAPH: workflow.version}
        )
        return give_back() if word == "stopping" else None

    async def _complete(self, job: Job, flow: Flow) -> Settle:
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
            return complete(await run_completed(flow.workflow, context, self._site.call_sync))

    # After a stop.

    async def _undo(self, job: Job, flow: Flow, page: TreePage) -> Settle:
        """Undo what was done, tell the `failed` hook, and settle the flow with its error."""
        stopped = await read_stopped(self._site, flow)
        if not await self._site.jobs.checkpoint(job, acknowledges=True):
            raise _LeaseLost
        done = read_undone(page.saved)
        saga = Saga(
            stopped.undos,
            flow_id=job.id,
            call_sync=self._site.call_sync,
            sleep=asyncio.sleep,
            save=_Saver(self._site, job, len(done)).save,
            done=done,
            around=_Spans(flow).around,
        )
        outcomes = await saga.run()
        text = await self._describe(job, flow, page, stopped, outcomes)
        if _HOOK not in page.saved:
            await self._tell_failed(job, flow, stopped, text)
        return cancel(text) if job.stop == "cancelled" else fail(text, counts=False)

    async def _tell_failed(self, job: Job, flow: Flow, stopped: Stopped, text: str) -> None:
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
            await run_failed(flow.workflow, context, error, self._site.call_sync)
        if not await self._site.jobs.checkpoint(job, {_HOOK: ""}):
            raise _LeaseLost

    async def _describe(
        self, job: Job, flow: Flow, page: TreePage, stopped: Stopped, outcomes: list[Outcome]
    ) -> str:
        """Return the record of the flow's error: its cause, and what became of the rollbacks."""
        every = [*stopped.inherited, *outcomes]
        rollback = "incomplete" if stopped.is_doubtful else verdict_on(every)
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
        (outcome,) = await self._site.jobs.outcomes([stopper])
        return parse_member(stopper).step, outcome.text or page.root.get("text", "")

    def _span(self, what: str, job: Job, flow: Flow) -> AbstractContextManager[str]:
        return work_span(
            what,
            workflow=flow.workflow.name,
            flow_id=job.id,
            traceparent=flow.message.traceparent,
            tracestate=flow.message.tracestate,
            attempt=job.attempts + 1,
        )


class _LeaseLost(Exception):
    """Somebody else goes on with the flow."""


class _Saver:
    """Keeps what became of each rollback, under the root's lease."""

    def __init__(self, site: Site, job: Job, count: int) -> None:
        """`count` of them are kept already."""
        self._site = site
        self._job = job
        self._count = count

    async def save(self, path: str, failure: str) -> None:
        """Raises _LeaseLost when it is not this worker's to keep."""
        self._count += 1
        if not await self._site.jobs.checkpoint(self._job, {undone_name(self._count, path): failure}):
            raise _LeaseLost


class _Spans:
    """A span around each attempt of a rollback, linked to that of its step."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow

    def around(self, undo: Undo, attempt: int) -> AbstractContextManager[str]:
        return work_span(
            "rollback",
            workflow=undo.workflow.name,
            flow_id=self._flow.flow_id,
            step=undo.path,
            traceparent=self._flow.message.traceparent,
            tracestate=self._flow.message.tracestate,
            attempt=attempt,
            links=[undo.record.traceparent] if undo.record is not None else [],
        )


def members_of(
    workflow: Workflow[Any, Any],
    flow_id: str,
    message: FlowMessage,
    *,
    priority: int = 0,
    delay: float = 0.0,
) -> list[Member]:
    """The jobs of a flow's steps; those that a retry by hand kept are there already."""
    queue, run = steps_queue(workflow.name), message.run
    plan = workflow.plan.without(message.kept) if message.kept else workflow.plan
    return [
        Member(
            member_id(flow_id, run, node.step),
            queue,
            needs=[member_id(flow_id, run, each) for each in node.needs],
            priority=priority,
            delay=0.0 if node.needs else delay,
        )
        for node in plan.nodes
    ]


def _reason(text: str) -> str:
    try:
        return msgspec.json.decode(text, type=Failure).message
    except (msgspec.MsgspecError, UnicodeError):
        return ""
