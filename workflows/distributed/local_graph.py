"""A local flow: the steps of its graph run in the worker that claimed its root job.

    first activation -> steps, each recorded -> completed
    a long retry is due later               -> sleeps, and goes on in another activation
    only other jobs run steps of it         -> waits for them without a slot (`apart_steps`), and goes on so
    only steps that wait are left           -> sleeps, until the first time has come or a signal comes
    a step failed for good                  -> the root fails, so it is stopped and claimed again to roll back
    the flow was stopped meanwhile          -> active steps are cut and recorded; claimed again to roll back
    the worker stops                        -> active steps end; given back

What must always hold: no step begins before all that it needs is recorded; a step that was recorded does not
run again; the number of failed attempts is recorded before the next attempt begins; a step that was
interrupted by the end of its worker stays in doubt (`doubts`) until it completes or fails in another run.

Crash windows: `dies-in-step` (the step runs again), `dies-between-siblings` (recorded ones do not run again),
`dies-before-record` (the step runs again), `dies-after-last-record` (only the `completed` hook runs),
`dies-in-pause` (the next attempt is counted on), `dies-in-wait` (the wait goes on, until the time that is
recorded), `signal-meets-suspend` (one that came since the last look wakes the flow at once),
`dies-before-signal-taken` (it is there again for the next activation).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from eventbus import StoreUnavailable
from eventbus.lowlevel import (
    Attempt,
    Job,
    Outcome,
    Settle,
    WorkerHost,
    fail,
    get_logger,
    give_back,
    log_failure,
    trace_facts,
    trace_id_of,
)
from workflows.definition.context import StepContext
from workflows.definition.flow_tools import CallSync, FlowFacts
from workflows.definition.job_tree import child_job
from workflows.definition.step import Step
from workflows.distributed.activation import Activation
from workflows.distributed.child_jobs import ChildJobs
from workflows.distributed.functions.flow_recorder import FlowRecorder
from workflows.distributed.nested_flows import effective_timeout, flow_root
from workflows.distributed.paused_steps import may_pause
from workflows.distributed.undo.doubts import find_doubts
from workflows.distributed.worker_runtime import Flow, needing_server
from workflows.execution.graph_entries import restore_graph
from workflows.execution.graph_run import GraphRun
from workflows.execution.graph_state import GraphState
from workflows.execution.graph_surroundings import StepChild
from workflows.execution.slots import FlowSlots
from workflows.execution.step_run import StepRun
from workflows.execution.step_runner import ATTEMPT, CORRELATION_ID, FLOW_ID, JOB_ID, STEP, TRACE_ID, rule_of
from workflows.execution.surroundings import FlowStops
from workflows.records.entries import Entry
from workflows.records.graph_history import GraphHistory
from workflows.records.ids import split_item
from workflows.records.records import StepRecord, is_declared

_log = get_logger("workflows.step")

_PATIENCE = 0.7
"""Of cancelled functions, in seconds: twice this and the record of their end fit into the executor's own
patience.
"""

_LOOK_SECONDS = 1.0  # while steps run it looks for signals at least so often


class LocalGraph:
    """One activation of a local flow."""

    def __init__(self, flow: Flow, activation: Activation, history: GraphHistory) -> None:
        self._flow = flow
        self._activation = activation
        self._state: GraphState = restore_graph(
            flow.workflow, history, flow.message.kept, activation.clock.now_ms
        )
        self._journal = GraphJournal(flow, activation, history)
        self._children = StepChildren(flow, activation)
        self._around = WorkerSurroundings(flow, activation)
        self._graph = GraphRun(
            self._state,
            self._journal,
            self._children,
            self._around,
            known=history.open_children,
            patience=_PATIENCE,
        )
        self._children.quiet = self._graph.pauses.settle_down

    async def run(self) -> Settle | None:
        """Run steps until none can go on here, and return what becomes of the flow; None if it waits in the
        server.

        Raises FlowStops, LeaseLost, ServerAway, the error of the `completed` hook, and StoreError.
        """
        graph, state = self._graph, self._state
        self._set_flow_facts()
        try:
            await self._run_steps()
            if graph.has_heard_stop:
                return give_back()
            if state.failed is not None:
                return fail(state.failed.failure)
            if state.is_complete:
                return await self._flow.complete(self._activation.job, self._state.records)
            if self._around.may_start() and not graph.is_halted:
                return await self._wait()
            return give_back()
        finally:
            await self._children.close()

    @property
    def has_failed(self) -> bool:
        """Whether a step has failed for good; that is logged already."""
        return self._state.failed is not None

    async def _run_steps(self) -> None:
        with needing_server(StoreUnavailable):  # of an append: functions keep their errors
            await self._journal.begin()
            await self._graph.run()

    async def _wait(self) -> Settle | None:
        """Let the flow wait without a slot: for what runs apart, for times and for signals."""
        waits = [*self._state.delayed, *self._state.sleeping]
        until_ms = min((run.due_ms for run in waits if run.due_ms), default=None)
        listens = any(run.listens for run in waits)
        if self._graph.apart.open:
            return await self._children.suspend(self._graph.apart.open, until_ms=until_ms, listens=listens)
        return self._activation.sleep(until_ms=until_ms, listens=listens) if waits else give_back()

    def _set_flow_facts(self) -> None:
        """Set the fields of log events that all attempts share: their contexts are copies of this one."""
        flow = self._flow
        FLOW_ID.set(flow.flow_id)
        CORRELATION_ID.set(flow.facts.correlation_id)
        if flow.message.traceparent:
            TRACE_ID.set(trace_id_of(flow.message.traceparent))


class GraphJournal(FlowRecorder):
    """Records in the journal of the flow what must come first there: the first entry of the run, and what is
    in doubt since a worker died.
    """

    def __init__(self, flow: Flow, activation: Activation, history: GraphHistory) -> None:
        super().__init__(flow.runtime, activation, remembers=False)
        self._flow = flow
        self._is_begun = history.is_begun
        job, now_ms = activation.job, activation.clock.now_ms
        self._news: dict[str, Entry] = {}
        if job.stalls > 0:
            self._news = find_doubts(flow, history, created_ms=job.created_ms, now_ms=now_ms)
        self._doubts = {name for name, step in history.steps.items() if step.last.is_lost}
        self._doubts.update(self._news)

    @property
    def doubts(self) -> Collection[str]:
        """The steps that may have run in an activation that ended with its worker."""
        return self._doubts

    @property
    def has_news(self) -> bool:
        """Whether a doubt waits for the next entry, with which it is recorded."""
        return bool(self._news)

    async def begin(self) -> None:
        """Record the version of a flow that has none, before a step runs: no worker with another one may go
        on then.
        """
        if not self._is_begun and not self._flow.message.version:
            await super().append([self._flow.first_entry()])
            self._is_begun = True

    async def append(
        self, entries: Sequence[Entry], *, live: Mapping[str, str] | None = None, taken: Sequence[str] = ()
    ) -> None:
        """Append entries behind what must be recorded before them. Raises what `Activation.append` raises."""
        begins = [] if self._is_begun else [self._flow.first_entry()]
        self._is_begun = True
        doubts = self._take_doubts(entries[-1])
        try:
            await super().append([*begins, *doubts, *entries], taken=taken, live=live)
        except FlowStops:
            raise
        except BaseException:
            # The next entry brings them: without the first entry, the run would not count that one.
            self._is_begun, self._news = not begins, {doubt.place: doubt for doubt in doubts}
            raise

    async def stop_failed(self, run: StepRun, *, is_last: bool) -> None:
        """Stop the flow at once if others are still active; else its job fails when the run ends."""
        if not is_last:
            await self._activation.stop_failed(run.failure)

    async def listen(self) -> None:
        """Look for signals when the server tells of one, or in a second. A server that is away is asked
        again.
        """
        await super().listen()
        try:
            await self.refresh()
        except StoreUnavailable:
            pass  # the next call waits for it

    def _take_doubts(self, entry: Entry) -> list[Entry]:
        """Return the entries about other steps in doubt that are to be recorded beside `entry`, which may be
        in doubt, too.
        """
        if entry.place in self._doubts and entry.kind in ("cut", "try"):
            entry.is_lost = True
        elif entry.kind != "child":
            self._doubts.discard(entry.place)
        others = [doubt for name, doubt in self._news.items() if name != entry.place]
        self._news = {}
        return others


class StepChildren(ChildJobs):
    """The jobs and flows that run steps of one activation elsewhere."""

    are_here = False

    def __init__(self, flow: Flow, activation: Activation) -> None:
        super().__init__(flow.runtime, activation)
        self._flow = flow

    def add(self, child: StepChild) -> asyncio.Future[Outcome]:
        """Add a child, in one call with others of this moment."""
        flow, step = self._flow, child.step
        if child.workflow is not None:
            return self.add_member(
                flow_root(
                    flow.message,
                    child.workflow,
                    child.id,
                    starter=(flow.flow_id, child.job_id),
                    given=child.given,
                    timeout=effective_timeout(child.workflow.timeout, flow.runtime.services.settings.lease),
                    traceparent=child.traceparent,
                    up="ignore",
                )
            )
        message = flow.child_message() if child.item is None else flow.item_message(child.item)
        limited = split_item(step.name)[0] if step.has_queue else ""
        return self.add_member(child_job(flow.workflow.name, child.id, message, step=limited))

    async def is_stopping(self) -> bool:
        """Ask the server whether the flow is being stopped. Raises ServerAway."""
        flow = self._flow
        page = await flow.runtime.ask(flow.runtime.jobs.look(flow.flow_id, limit=0))
        return bool(page.root.get("stop"))


class WorkerSurroundings:
    """What a worker does for the steps of one activation."""

    def __init__(self, flow: Flow, activation: Activation) -> None:
        runtime, workflow = flow.runtime, flow.workflow
        self.job: Job = activation.job
        self.host: WorkerHost = runtime.services.host
        self.given: bytes = bytes(flow.message.input)
        self.facts: FlowFacts = flow.facts
        self.job_of: Callable[[str], str] = flow.job_of
        self.span: Callable[..., AbstractContextManager[str]] = flow.span
        self.call_sync: CallSync = runtime.call_sync
        self.aliases: dict[str, str] = runtime.services.aliases
        self._flow = flow
        own = FlowSlots(runtime.slots_of(workflow.name))
        limits = runtime.limits_of(workflow)
        shared = {places: FlowSlots(places) for every in limits.values() for places in every}
        self._slots: Sequence[FlowSlots] = (own,)
        self._limited = {name: (*(shared[places] for places in every), own) for name, every in limits.items()}

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
        flow = self._flow
        return flow.context(
            step,
            job_id=job_id,
            attempt=attempt,
            traceparent=traceparent,
            records=records,
            reach=flow.runtime.reach_of(flow.workflow, split_item(step)[0]),
            own=own,
        )

    def begin(self, step: str, job_id: str, attempt: int) -> None:
        """Set the fields of log events of this attempt, which has a task and a context of its own."""
        STEP.set(step)
        JOB_ID.set(job_id)
        ATTEMPT.set(attempt)

    def trace_of(self, job_id: str) -> Mapping[str, str]:
        """Return the fields of log events that identify the span of an attempt."""
        return trace_facts(trace_id_of(self._flow.message.traceparent), job_id=job_id)

    def tell(self, run: StepRun) -> None:
        """Log a failed attempt: a warning while attempts are left, then an error; not for declared errors."""
        flow, step = self._flow, run.step
        is_last = run.state == "failed"
        facts: dict[str, Any] = {
            "workflow": flow.workflow.name,
            "flow_id": flow.flow_id,
            "step": step.name,
            "job_id": flow.job_of(step.name),
            "attempt": run.attempts,
            "correlation_id": flow.facts.correlation_id,
            "max_attempts": rule_of(flow.workflow, step).attempts,
        }
        log_failure(
            _log,
            "step failed" if is_last else "attempt failed, trying again",
            run.failure,
            {**facts, **run.trace},
            retry_in=None if is_last else run.delay,
            is_answer=is_declared(run.failure),
        )

    def slots_of(self, step: str) -> Sequence[FlowSlots]:
        """Return the slots of the limits of a step and of its pool, and last one of the worker's for steps;
        those of the items of one step are its own.
        """
        return self._limited.get(split_item(step)[0], self._slots) if self._limited else self._slots

    def may_start(self) -> bool:
        """Tell whether the worker still takes work."""
        return not self._flow.runtime.services.is_stopping()

    def ask_paused(self, step: Step[Any, Any]) -> Awaitable[bool] | None:
        """Return None if no step is paused, else whether this one is. The list of a step's items is made all
        the same.
        """
        paused = self._flow.runtime.paused
        if paused.is_silent or step.is_each or not may_pause(step):
            return None
        return paused.holds(self._flow.workflow.name, step.name)

    async def sleep(self, delay: float) -> None:
        """Wait in this process."""
        await asyncio.sleep(delay)

    def holds(self, delay: float, *, listens: bool = False) -> bool:
        """Tell whether the wait is short. A signal wakes the flow's job, so that it is no reason to stay,
        unless the time is almost over.
        """
        return delay <= (_ALMOST_OVER if listens else _SHORT)


_SHORT = 1.0
"""Seconds that a flow waits in its worker for the next attempt of a step."""

_ALMOST_OVER = 0.02
"""Seconds that it waits there for a signal."""
