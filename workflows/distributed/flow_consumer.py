"""The consumer of a workflow's flows: it runs their root jobs.

    a bare flow starts                  the root adds its steps and waits for them
    a signal came for a spread flow     the root gives it to the step that waits for it
    all awaited steps have completed    the `completed` hook runs; it returns the flow's output
    the flow was stopped                the saga runs, then the `failed` hook; the flow ends with its error

What must always hold: a root that knows of its stop acknowledges it first, so that neither the flow's timeout
nor a cancel changes the outcome afterwards; each rollback is saved before the next one begins, and so is the
`failed` hook; another worker that takes over continues after the last saved entry.

Crash windows: `dies-before-acknowledging`, `dies-in-rollback` (it runs again), `dies-after-rollback-saved`
(it does not), `dies-after-failed-hook` (saved: not again), `dies-in-completed-hook` (it runs again).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from eventbus import JobFailure, StoreCorrupt
from eventbus.lowlevel import (
    Job,
    Retention,
    Settle,
    WorkerServices,
    attach_baggage,
    begin_apart,
    cancel,
    complete,
    describe,
    fail,
    get_logger,
    give_back,
    hide_around,
    later,
    log_failure,
    park,
    retry,
)
from workflows.definition.job_tree import last_members, members_of
from workflows.distributed.activation import Activation
from workflows.distributed.flow_counter import note_completed, note_stopped
from workflows.distributed.local_graph import LocalGraph
from workflows.distributed.pauses.signal_router import SignalRouter
from workflows.distributed.step_consumer import facts_of, read_message, step_queues
from workflows.distributed.undo.graph_undo import read_undo_plan
from workflows.distributed.undo.local_undo import note_stop
from workflows.distributed.undo.unwinding import CheckpointKeeper, JournalKeeper, Unwinding
from workflows.distributed.undo_plan import UnknownHere
from workflows.distributed.worker_runtime import AWAY_MS, Flow, ServerAway, WorkerRuntime
from workflows.execution.graph_entries import misfit
from workflows.execution.hook_runner import run_completed
from workflows.execution.step_runner import WORKFLOW, judge
from workflows.execution.surroundings import FlowStops, LeaseLost
from workflows.graphs.graph import encode_graph
from workflows.records.checkpoints import GRAPH
from workflows.records.failures import describe_failed_flow
from workflows.records.graph_history import GraphHistory, read_graph
from workflows.records.ids import flow_queue
from workflows.records.records import (
    FlowMessage,
    decode_message,
    is_declared,
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
        # Only the end of a member makes others ready; to ask after them has its price.
        spreads = any(
            runtime.registry.workflow(workflow, version).has_members
            for version in runtime.registry.versions(workflow)
        )
        steps = step_queues(runtime.registry.limited(workflow), workflow)
        self.follows: Sequence[str] = (self.queue, *steps) if spreads else ()
        newest = runtime.registry.workflow(workflow)
        self.concurrency: int = newest.concurrency or services.settings.concurrency
        self.limit: str = "" if newest.limit is None else newest.limit.to_wire()
        kept = services.retention_for(newest.keep_completed, newest.keep_failed)
        self.retention: Retention = msgspec.structs.replace(kept, key_ttl=max(kept.key_ttl, _KEY_TTL_MS))
        self.definitions: Mapping[str, str] = {
            version: encode_graph(graph)
            for version in runtime.registry.versions(workflow)
            if (graph := runtime.registry.graph(workflow, version)) is not None
        }
        self._workflow = workflow
        self._runtime = runtime
        self._told: set[str] = set()
        """Flows whose step has just failed."""

    def settled(self, job_id: str, state: str, text: str) -> None:
        """Do nothing: only jobs in the server wait for a flow."""

    def surround(self) -> None:
        """Start with an empty context, but for the name of the workflow: `run` and the calls of functions set
        theirs.
        """
        begin_apart()
        WORKFLOW.set(self._workflow)

    def timeout_of(self, job: Job) -> float | None:
        """Return None: each function has its own timeout, and the server keeps the flow's timeout."""
        del job

    async def run(self, job: Job) -> Settle | None:
        """Take the flow's next action: add its steps, complete it, or roll it back."""
        activation = Activation(self._runtime.jobs, job)
        hide_around(job.body)
        try:
            message = read_message(job)
            if message.bare:
                await self._runtime.ask(activation.load())
            history = read_graph(activation.entries, message)
            mode = history.mode or (
                "spread" if self._spreads(history.version or message.version) else "local"
            )
            if mode == "local":
                history.mode = mode  # also if the flow is stopped before its journal begins
                return note_completed(self._workflow, await self._run_local(activation, message, history))
            return note_completed(self._workflow, await self._run_spread(activation, message, history))
        except StoreCorrupt as error:
            if job.stop:
                return await self._give_up(job, error)
            raise

    def _spreads(self, version: str) -> bool:
        workflow = self._runtime.find(self._workflow, version)
        return workflow is not None and workflow.spreads

    async def _run_local(
        self, activation: Activation, message: FlowMessage, history: GraphHistory
    ) -> Settle | None:
        """Run the steps of a flow here, or roll it back."""
        job = activation.job
        flow = self._find(job, message, message.version or history.version)
        if isinstance(flow, Settle):
            return flow
        if other := misfit(history, flow.workflow):
            return park(f"not known here: {other}")
        if not job.stop:
            local = LocalGraph(flow, activation, history)
            settle = await local.run()
            if local.has_failed and settle is not None and settle.state == "failed":
                self._told.add(job.id)
            return settle
        try:
            page = await self._runtime.ask(self._runtime.jobs.look(job.id, limit=0))
            await note_stop(activation, flow, history, page.root)
            plan = await read_undo_plan(self._runtime, flow, history)
            keeper = JournalKeeper(activation, history, page)
            return await Unwinding(job, flow, page, plan, keeper).run()
        except UnknownHere as error:
            return park(f"not known here: {error}")
        except LeaseLost:
            return None

    async def _run_spread(
        self, activation: Activation, message: FlowMessage, history: GraphHistory
    ) -> Settle | None:
        """Add the steps of a flow as jobs, complete it after them, or roll it back."""
        job = activation.job
        # Only a bare or stopped flow has checkpoints to read: a normal completion saves this call.
        page = (
            await self._runtime.ask(self._runtime.jobs.look(job.id, limit=0))
            if message.bare or job.stop
            else None
        )
        added = page.saved.get(GRAPH, "") if page is not None else ""
        flow = self._find(job, message, message.version or added or history.version)
        if isinstance(flow, Settle):
            return flow
        if page is not None and job.stop:
            try:
                # If a workflow is unknown here, this raises: the root is parked before it acknowledges its
                # stop.
                plan = await read_undo_plan(self._runtime, flow, history)
                return await Unwinding(job, flow, page, plan, CheckpointKeeper(job, flow, page)).run()
            except UnknownHere as error:
                return park(f"not known here: {error}")
            except LeaseLost:
                return None
        if page is not None and flow.workflow.steps and not added:
            return await self._add_steps(job, flow, history)
        if page is not None and flow.workflow.listens:
            try:
                word = await SignalRouter(activation, flow).run()
            except FlowStops:
                return give_back()
            except LeaseLost:
                return None
            if word != "completed":
                return give_back() if word == "stopping" else None
        return await self._complete(job, flow)

    def _find(self, job: Job, message: FlowMessage, version: str) -> Flow | Settle:
        """Return the flow with its workflow, or the settle that parks it."""
        if version and not message.version:
            self._runtime.note_version(job.id, message.run, version)
        workflow = self._runtime.find(self._workflow, version)
        if workflow is None:
            return park(f"not known here: version {version} of workflow {self._workflow}")
        if message.baggage:
            attach_baggage(message.baggage)
        return Flow(self._runtime, workflow, job.id, message)

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

    def failure(self, job: Job, text: str) -> JobFailure | None:
        """Return what hooks are told of a flow that has failed, None if it is still to be undone."""
        return describe_failed_flow(self._workflow, job, text)

    def failed(self, job: Job, settle: Settle) -> None:
        """Log an error of the `completed` hook, a saga that is tried again, or the end of the flow."""
        facts = dict(self.facts(job))
        if job.id in self._told:
            self._told.discard(job.id)  # the failure of its step is logged already
        elif not job.stop and settle.state != "cancelled":
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
        note_stopped(self._workflow, settle, failure)
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

    async def _add_steps(self, job: Job, flow: Flow, history: GraphHistory) -> Settle | None:
        workflow = flow.workflow
        if not history.is_begun:
            # From here on the steps are jobs, also if a worker with another definition has the flow next.
            try:
                await Activation(self._runtime.jobs, job).append([flow.first_entry(is_spread=True)])
            except FlowStops:
                return give_back()
            except LeaseLost:
                return None
        members = members_of(workflow, job.id, flow.message)
        awaited = last_members(workflow, job.id, flow.message)
        word = await self._runtime.ask(
            self._runtime.jobs.spawn(
                job,
                members,
                tree=job.id,
                awaited=awaited,
                saved={GRAPH: workflow.version},
                # A retry that kept all steps awaits nothing: no signal would come that ends its wait.
                heard=job.heard if workflow.listens and awaited else None,
            )
        )
        # None: the root waits for its steps or has lost its lease, so there is nothing to settle.
        return give_back() if word == "stopping" else None

    async def _complete(self, job: Job, flow: Flow) -> Settle:
        # The last steps first: if not all results can be loaded, the hook has those nearest to it.
        steps = [node.step for node in reversed(flow.workflow.plan.nodes)]
        hook = flow.workflow.completed_hook
        records, unloaded = await flow.read_records(steps) if hook is not None else ({}, steps)
        with flow.span("completed", job_id=job.id, attempt=job.attempts + 1) as traceparent:
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

    async def _give_up(self, job: Job, error: StoreCorrupt) -> Settle | None:
        """End a stopped flow whose message cannot be read: nobody can roll it back, and it must end."""
        _log.error("flow not undone, its message cannot be read", flow_id=job.id, error=str(error))
        if not await self._runtime.ask(self._runtime.jobs.checkpoint(job, acknowledges=True)):
            return None
        text = describe(error, attempts=job.attempts)
        return cancel(text) if job.stop == "cancelled" else fail(text, counts=False)
