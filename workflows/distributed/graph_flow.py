"""One activation of a flow of steps: a local one, whose steps run here, or a spread one, all of jobs.

    local    its steps run here (`local_graph`)
    spread   a bare flow starts                  the root adds its steps and waits for them
             a signal came                       the root gives it to the step that waits for it
             all awaited steps have completed    the `completed` hook runs; it returns the flow's output

What must always hold: a flow stays what it began as, local or spread, whatever the definition says later.

Crash windows: `dies-in-completed-hook` (it runs again), and those of `local_graph` and of `undo.unwinding`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import msgspec

from eventbus.lowlevel import Job, Settle, TreePage, describe, fail, get_logger, give_back, log_failure, retry
from workflows.definition.job_tree import last_members, members_of
from workflows.definition.workflow import Workflow
from workflows.distributed.activation import Activation
from workflows.distributed.local_graph import LocalGraph
from workflows.distributed.pauses.signal_router import SignalRouter
from workflows.distributed.step_consumer import step_queues
from workflows.distributed.undo.local_undo import note_stop, read_local_plan
from workflows.distributed.undo.spread_undo import read_spread_plan
from workflows.distributed.undo.unwinding import undo_entry
from workflows.distributed.worker_runtime import Flow, WorkerRuntime
from workflows.errors import COMPLETED
from workflows.execution.graph_entries import misfit
from workflows.execution.hook_runner import run_failed
from workflows.execution.rollback import Undoable, UndoPlan, UnknownHere
from workflows.execution.step_runner import judge
from workflows.execution.stop import Stop
from workflows.execution.surroundings import LeaseLost
from workflows.records.checkpoints import FAILED_HOOK, GRAPH, read_undone, undone_name
from workflows.records.entries import Entry
from workflows.records.graph_history import GraphHistory, read_graph
from workflows.records.ids import flow_queue, parse_member
from workflows.records.records import FlowMessage, decode_message, is_declared, read_flow

_log = get_logger("workflows")

_FAILED = "failed"


class GraphDriver:
    """Opens the flows of one workflow of steps."""

    def __init__(self, name: str, runtime: WorkerRuntime) -> None:
        registry = runtime.registry
        self.newest: Workflow[Any, Any] = registry.workflow(name)
        # Only the end of a member makes others ready; to ask after them has its price.
        spreads = any(registry.workflow(name, version).has_members for version in registry.versions(name))
        self.follows: Sequence[str] = (
            (flow_queue(name), *step_queues(registry.limited(name), name)) if spreads else ()
        )
        self._name = name
        self._runtime = runtime
        self._told: set[str] = set()
        """Flows whose step has just failed."""

    async def open(self, job: Job, message: FlowMessage) -> LocalFlow | SpreadFlow:
        """Return the flow of a root job. Raises UnknownHere, ServerAway, StoreCorrupt."""
        runtime, activation = self._runtime, Activation(self._runtime.jobs, job)
        if message.bare:
            await runtime.ask(activation.load())
        history = read_graph(activation.entries, message)
        if not history.mode:
            known = runtime.find(self._name, history.version or message.version)
            history.mode = "spread" if known is not None and known.spreads else "local"
        if history.mode == "local":
            flow = self._find(job, message, message.version or history.version)
            if other := misfit(history, flow.workflow):
                raise UnknownHere(other)
            return LocalFlow(flow, activation, history, self._told)
        # Only a bare or stopped flow has checkpoints to read: a normal completion saves this call.
        has_saved = message.bare or job.stop
        page = await runtime.ask(runtime.jobs.look(job.id, limit=0)) if has_saved else None
        added = page.saved.get(GRAPH, "") if page is not None else ""
        flow = self._find(job, message, message.version or added or history.version)
        return SpreadFlow(flow, activation, history, must_begin=page is not None and not added)

    def _find(self, job: Job, message: FlowMessage, version: str) -> Flow:
        """Return the flow with its workflow. Raises UnknownHere."""
        if version and not message.version:
            self._runtime.note_version(job.id, message.run, version)
        workflow = self._runtime.find(self._name, version)
        if workflow is None:
            raise UnknownHere(f"version {version} of workflow {self._name}")
        return Flow(self._runtime, workflow, job.id, message)

    def judge(self, job: Job, error: BaseException) -> Settle:
        """Retry the `completed` hook while attempts are left; otherwise the flow fails and is rolled back."""
        attempts, workflow = job.attempts + 1, self._workflow_of(job)
        if workflow is None:
            return fail(describe(error, attempts=attempts))
        delay, error = judge(workflow.retry, attempts, error, workflow)
        text = describe(error, attempts=attempts, declared=workflow.errors)
        return fail(text) if delay is None else retry(text, round(delay * 1000))

    def log_failed(self, job: Job, settle: Settle, facts: Mapping[str, Any]) -> None:
        """Log an error of the `completed` hook; the failure of a step is logged already."""
        if job.id in self._told:
            self._told.discard(job.id)
            return
        workflow, is_last = self._workflow_of(job), settle.state == "failed"
        if workflow is not None:
            facts = {**facts, "hook": "completed", "max_attempts": workflow.retry.attempts}
        log_failure(
            _log,
            "hook failed" if is_last else "attempt failed, trying again",
            settle.text,
            dict(facts),
            retry_in=None if is_last else settle.delay_ms / 1000,
            is_answer=is_declared(settle.text),
        )

    def _workflow_of(self, job: Job) -> Workflow[Any, Any] | None:
        try:
            version = self._runtime.version_of(job.id, decode_message(job.body))
        except (msgspec.MsgspecError, UnicodeError):
            version = ""
        return self._runtime.find(self._name, version)


class _GraphFlow(ABC):
    """What a claimed flow of steps is, wherever its steps run."""

    def __init__(self, flow: Flow, activation: Activation, history: GraphHistory) -> None:
        self.activation = activation
        self.message: FlowMessage = flow.message
        self.workflow_name: str = flow.workflow.name
        self._flow = flow
        self._history = history

    def undo_span(self, undo: Undoable, attempt: int) -> AbstractContextManager[str]:
        """Open the span around an attempt of a rollback, linked to the span of its step."""
        job_id, links = self._flow.flow_id, [undo.traceparent]
        return self._flow.span(
            "rollback", workflow=undo.owner, step=undo.path, job_id=job_id, attempt=attempt, links=links
        )

    async def tell_failed(self, plan: UndoPlan, text: str) -> None:
        """Call the `failed` hook with the flow's error, unless an earlier activation has."""
        flow, job = self._flow, self.activation.job
        if self._has_told or flow.workflow.failed_hook is None:
            return
        with flow.span("failed", job_id=job.id, attempt=job.attempts + 1) as traceparent:
            context = flow.context(
                "",
                job_id=job.id,
                attempt=1,
                traceparent=traceparent,
                records=plan.records,
                reach=flow.workflow.steps,
                unloaded=plan.unloaded,
            )
            error = read_flow(text, flow.workflow.errors)
            await run_failed(flow.workflow, context, error, flow.runtime.call_sync)
        # Saved after the call, so the hook runs at least once, and only a crash in between repeats it.
        await self._save_told()

    @property
    @abstractmethod
    def _has_told(self) -> bool:
        """Whether the `failed` hook has run."""

    @abstractmethod
    async def _save_told(self) -> None:
        """Save that the `failed` hook has run. Raises LeaseLost."""


class LocalFlow(_GraphFlow):
    """A flow whose steps run here: its journal has all."""

    def __init__(self, flow: Flow, activation: Activation, history: GraphHistory, told: set[str]) -> None:
        super().__init__(flow, activation, history)
        self._told = told

    async def advance(self) -> Settle | None:
        """Run the steps of the flow here."""
        local = LocalGraph(self._flow, self.activation, self._history)
        settle = await local.run()
        if local.has_failed and settle is not None and settle.state == "failed":
            self._told.add(self.activation.job.id)
        return settle

    async def plan_undo(self, page: TreePage) -> UndoPlan:
        """Return the plan that the journal gives, after what the first activation must record of the stop."""
        flow, history = self._flow, self._history
        await note_stop(self.activation, flow, history, page.root)
        plan = await read_local_plan(flow, history)
        plan.done = history.undone
        plan.is_doubtful = plan.is_doubtful or "damaged" in page.root
        return plan

    async def find_failure(self, page: TreePage) -> Stop:
        """Return the failure of the step that made the flow fail."""
        history, root = self._history, page.root
        step = history.stopper or (history.failed.step if history.failed is not None else COMPLETED)
        known = history.steps.get(step)
        own = known.last.failure if known is not None and known.last.kind == "failed" else ""
        job, stopper = self.activation.job, root.get("stopper", "")
        by = self._flow.job_of(step) if stopper == job.id and step != COMPLETED else stopper
        return Stop(cause="failed", step=step, failure=own or root.get("text", ""), job=by)

    async def save_undo(self, path: str, failure: str) -> None:
        """Append the outcome of one rollback."""
        await self.activation.append([undo_entry(path, failure, self.activation.clock.now_ms)])

    @property
    def _has_told(self) -> bool:
        return _FAILED in self._history.hooks

    async def _save_told(self) -> None:
        await self.activation.append([Entry(kind="hook", place=_FAILED)])


class SpreadFlow(_GraphFlow):
    """A flow whose steps are jobs: their records say what is done, checkpoints of the root what is undone."""

    def __init__(
        self, flow: Flow, activation: Activation, history: GraphHistory, *, must_begin: bool
    ) -> None:
        super().__init__(flow, activation, history)
        self._must_begin = must_begin
        self._saved: Mapping[str, str] = {}
        self._undone = 0

    async def advance(self) -> Settle | None:
        """Add the steps of a flow as jobs, give a signal to its step, or complete the flow after them."""
        flow = self._flow
        if flow.workflow.steps and self._must_begin:
            return await self._add_steps()
        if flow.message.bare and flow.workflow.listens:
            word = await SignalRouter(self.activation, flow).run()
            if word != "completed":
                return give_back() if word == "stopping" else None
        # The last steps first: if not all results can be loaded, the hook has those nearest to it.
        steps = [node.step for node in reversed(flow.workflow.plan.nodes)]
        has_hook = flow.workflow.completed_hook is not None
        records, unloaded = await flow.read_records(steps) if has_hook else ({}, steps)
        return await flow.complete(self.activation.job, records, unloaded)

    async def _add_steps(self) -> Settle | None:
        flow, job = self._flow, self.activation.job
        if not self._history.is_begun:
            # From here on the steps are jobs, also if a worker with another definition has the flow next.
            await self.activation.append([flow.first_entry(is_spread=True)])
        awaited = last_members(flow.workflow, job.id, flow.message)
        word = await flow.runtime.ask(
            flow.runtime.jobs.spawn(
                job,
                members_of(flow.workflow, job.id, flow.message),
                tree=job.id,
                awaited=awaited,
                saved={GRAPH: flow.workflow.version},
                # A retry that kept all steps awaits nothing: no signal would come that ends its wait.
                heard=job.heard if flow.workflow.listens and awaited else None,
            )
        )
        # None: the root waits for its steps or has lost its lease, so there is nothing to settle.
        return give_back() if word == "stopping" else None

    async def plan_undo(self, page: TreePage) -> UndoPlan:
        """Return the plan that the records of the steps give."""
        plan = await read_spread_plan(self._flow)
        self._saved, plan.done = page.saved, read_undone(page.saved)
        self._undone = len(plan.done)
        plan.is_doubtful = plan.is_doubtful or "damaged" in page.root  # some completed steps may be missing
        return plan

    async def find_failure(self, page: TreePage) -> Stop:
        """Return the failure of the step whose job stopped the flow."""
        job, text = page.root.get("stopper", ""), page.root.get("text", "")
        if job == self.activation.job.id:
            return Stop(cause="failed", step=COMPLETED, failure=text, job=job)
        (outcome,) = await self._flow.runtime.jobs.outcomes([job])
        # A completed step stops its flow if the flow's keys are damaged; only the root's text says so.
        own = outcome.text if outcome.state != "completed" else ""
        return Stop(cause="failed", step=parse_member(job).step, failure=own or text, job=job)

    async def save_undo(self, path: str, failure: str) -> None:
        """Save the outcome of one rollback."""
        self._undone += 1
        await self._save({undone_name(self._undone, path): failure})

    @property
    def _has_told(self) -> bool:
        return FAILED_HOOK in self._saved

    async def _save_told(self) -> None:
        await self._save({FAILED_HOOK: ""})

    async def _save(self, saved: dict[str, str]) -> None:
        if not await self._flow.runtime.jobs.checkpoint(self.activation.job, saved):
            raise LeaseLost
