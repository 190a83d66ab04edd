"""The driver of a local flow: the steps of a graph run in the worker that claimed the flow's root job.

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
import math
from collections.abc import Awaitable, Mapping, Sequence
from functools import partial
from typing import Any

from eventbus import ProviderStopped, StoreUnavailable
from eventbus.lowlevel import (
    Settle,
    complete,
    fail,
    get_logger,
    give_back,
    log_failure,
    trace_facts,
    trace_id_of,
)
from workflows.definition.step import Step
from workflows.distributed.activation import Activation
from workflows.distributed.apart_steps import ApartSteps
from workflows.distributed.graph_entries import entry_of, restore_graph
from workflows.distributed.paused_steps import may_pause
from workflows.distributed.pauses.local_inbox import LocalInbox
from workflows.distributed.undo.doubts import find_doubts
from workflows.distributed.worker_runtime import Flow, ServerAway
from workflows.execution.graph_run import GraphRun
from workflows.execution.hook_runner import run_completed
from workflows.execution.progress_notes import ProgressNotes
from workflows.execution.signal_desk import SignalDesk
from workflows.execution.slots import FlowSlots
from workflows.execution.step_attempt import StepAttempt, cleared
from workflows.execution.step_run import StepRun
from workflows.execution.step_runner import (
    ATTEMPT,
    CORRELATION_ID,
    FLOW_ID,
    JOB_ID,
    STEP,
    TRACE_ID,
    rule_of,
    run_step,
)
from workflows.execution.surroundings import FlowStops, LeaseLost
from workflows.records.entries import Entry
from workflows.records.graph_history import GraphHistory
from workflows.records.ids import split_item
from workflows.records.records import StepRecord, is_declared

__all__ = ["LocalGraph"]

_log = get_logger("workflows.step")

_SHORT = 1.0
"""Seconds that a flow waits in its worker for the next attempt of a step."""


_PAUSED = 5.0
"""Seconds after which a flow asks again for a step that was paused between two attempts."""


class LocalGraph:
    """One activation of a local flow; the driver of its steps."""

    def __init__(self, flow: Flow, activation: Activation, history: GraphHistory) -> None:
        self._flow = flow
        self._activation = activation
        self._is_begun = history.is_begun
        self._has_heard_stop = False
        self._slots = FlowSlots(flow.runtime.slots_of(flow.workflow.name))
        limits = flow.runtime.limits_of(flow.workflow)
        shared = {places: FlowSlots(places) for every in limits.values() for places in every}
        self._limits = {name: [shared[places] for places in every] for name, every in limits.items()}
        job, self._host = activation.job, flow.runtime.services.host
        self._progress = ProgressNotes(partial(self._host.note_progress, job))
        self._may_have_saved = job.stalls > 0
        """Whether any step may have saved something in an activation that recorded nothing of it."""
        now_ms = activation.now_ms
        desk = SignalDesk(LocalInbox(flow, activation, self._append)) if flow.workflow.listens else None
        self._graph: GraphRun = restore_graph(flow, history, self, now_ms=now_ms, desk=desk)
        self._apart = ApartSteps(flow, activation, history, self._graph, self._append)
        self._new_doubts: dict[str, Entry] = {}
        if job.stalls > 0:
            created_ms = job.created_ms
            self._new_doubts = find_doubts(flow, history, created_ms=created_ms, now_ms=now_ms)
        self._doubts = {name for name, step in history.steps.items() if step.last.is_lost}
        self._doubts.update(self._new_doubts)

    async def run(self) -> Settle | None:
        """Run steps until none can go on here, and return what becomes of the flow; None if the lease is
        lost.

        Raises the error of the `completed` hook, and StoreError.
        """
        graph = self._graph
        self._set_flow_facts()
        try:
            await self._run_steps()
            if self._has_heard_stop:
                return give_back()
            if graph.failed is not None:
                return fail(graph.failed.failure)
            if graph.is_complete:
                return await self._complete()
            if self.may_start() and not graph.is_halted:
                return await self._wait()
        except FlowStops:
            return give_back()
        except LeaseLost:
            return None
        finally:
            await self._apart.children.close()
        return give_back()

    async def _wait(self) -> Settle | None:
        """Let the flow wait without a slot: for what runs apart, for times and for signals."""
        waits = [*self._graph.delayed, *self._graph.sleeping]
        until_ms = min((run.due_ms for run in waits if run.due_ms), default=None)
        listens = any(run.listens for run in waits)
        if self._apart.open:
            return await self._apart.children.suspend(self._apart.open, until_ms=until_ms, listens=listens)
        return self._activation.sleep(until_ms=until_ms, listens=listens) if waits else give_back()

    async def _begin(self) -> None:
        """Record the version of a flow that has none, before a step runs: no worker with another one may go
        on then.
        """
        if not self._is_begun and not self._flow.message.version:
            await self._activation.append([self._flow.first_entry()])
            self._is_begun = True

    async def _run_steps(self) -> None:
        try:
            await self._begin()
            await self._apart.load()
            await self._graph.run()
        except (StoreUnavailable, ProviderStopped) as error:  # of an append: functions keep their errors
            raise ServerAway(str(error)) from error

    @property
    def has_failed(self) -> bool:
        """Whether a step has failed for good; that is logged already."""
        return self._graph.failed is not None

    def close(self) -> None:
        """Let go of the run, which refers to this driver: else both would wait for the collector of
        cycles.
        """
        del self._graph, self._apart

    async def _complete(self) -> Settle:
        flow, job = self._flow, self._activation.job
        with flow.span("completed", job_id=job.id, attempt=job.attempts + 1) as traceparent:
            context = flow.context(
                "",
                job_id=job.id,
                attempt=job.attempts + 1,
                traceparent=traceparent,
                records=self._graph.records,
                reach=flow.workflow.steps,
            )
            return complete(await run_completed(flow.workflow, context, flow.runtime.call_sync))

    # The methods of a StepDriver.

    async def attempt(self, run: StepRun) -> StepRecord:
        """Run the function of a step."""
        flow, step = self._flow, run.step
        run.started_ms = self._activation.now_ms
        job_id = flow.job_of(step.name)
        self._set_facts(step.name, job_id, run.attempts + 1)
        aliases = flow.runtime.services.aliases
        aliases[job_id] = flow.flow_id
        progress = self._progress.begin(step.name)
        own = StepAttempt(
            self._host,
            self._activation.job,
            step.saved_as,
            where=step.where,
            run=run.attempt,
            progress=progress,
        )
        try:
            return await self._attempt(run, job_id, own)
        finally:
            own.end()
            run.has_saved = run.has_saved or own.has_saved
            self._progress.end(progress)
            aliases.pop(job_id, None)

    async def _attempt(self, run: StepRun, job_id: str, own: StepAttempt) -> StepRecord:
        flow, step, records = self._flow, run.step, self._graph.records
        with flow.span(
            "step",
            step=step.name,
            job_id=job_id,
            attempt=run.attempts + 1,
            links=[records[earlier].traceparent for earlier in step.after if earlier in records],
        ) as traceparent:
            run.trace = trace_facts(trace_id_of(flow.message.traceparent), job_id=job_id)
            context = flow.context(
                step.name,
                job_id=job_id,
                attempt=run.attempts + 1,
                traceparent=traceparent,
                records=records,
                reach=flow.runtime.reach_of(flow.workflow, split_item(step.name)[0]),
                own=own,
            )
            return await run_step(step, context, flow.runtime.call_sync)

    def _set_flow_facts(self) -> None:
        """Set the fields of log events that all attempts share: their contexts are copies of this one."""
        flow = self._flow
        FLOW_ID.set(flow.flow_id)
        CORRELATION_ID.set(flow.facts.correlation_id)
        if flow.message.traceparent:
            TRACE_ID.set(trace_id_of(flow.message.traceparent))

    def _set_facts(self, step: str, job_id: str, attempt: int) -> None:
        """Set the other fields for this attempt, which has a task and a context of its own."""
        STEP.set(step)
        JOB_ID.set(job_id)
        ATTEMPT.set(attempt)

    def runs_apart(self, step: Step[Any, Any]) -> bool:
        """Tell whether another job or flow runs this step: always, or because the step was paused when it was
        to begin.
        """
        return self._flow.workflow.runs_apart(step) or self._apart.has_begun(step.name)

    def ask_paused(self, step: Step[Any, Any]) -> Awaitable[bool] | None:
        """Return None if no step is paused, else whether this one is. The list of a step's items is made all
        the same.
        """
        paused = self._flow.runtime.paused
        if paused.is_silent or step.is_each or not may_pause(step):
            return None
        return paused.holds(self._flow.workflow.name, step.name)

    async def run_apart(self, run: StepRun) -> None:
        """Let another job or flow run a step; one that is paused between two attempts waits here, where they
        are counted.
        """
        has_tried = run.state == "delayed" or run.has_saved or run.step.name in self._doubts
        if has_tried and not self.runs_apart(run.step):
            return await self._put_back(run)
        try:
            await self._apart.run(run)
        except FlowStops:  # what runs may end its attempt
            self._has_heard_stop = True
            self._graph.halt()
            run.state = "waiting"
        return None

    async def _put_back(self, run: StepRun) -> None:
        """Let the flow ask again later whether a step is still paused. Only what nobody knows yet needs an
        entry.
        """
        run.state, run.delay = "delayed", _PAUSED
        run.due_ms = self._activation.now_ms + round(_PAUSED * 1000)
        if self._new_doubts:
            run.failure = run.told = ""
            await self.record(run)

    async def record(self, run: StepRun) -> None:
        """Append the end of a step, or its failed attempt, to the journal."""
        now_ms = self._activation.now_ms
        if run.state == "sleeping":
            run.started_ms = now_ms
        run.took_ms = max(now_ms - run.started_ms, 0)
        is_told = run.child and run.step.workflow is None  # by the worker that ran it
        if run.state in ("failed", "delayed") and run.failure and not is_told:
            self._tell(run)
        if run.state in ("delayed", "sleeping") and run.delay < math.inf:
            run.due_ms = now_ms + round(run.delay * 1000)
        try:
            await self._append(
                [entry_of(run)], taken=[run.signal] if run.signal else (), live=self._cleared_by(run)
            )
        except FlowStops:  # recorded. What runs may end its attempt; who wants it cut cancels this activation
            self._has_heard_stop = True
            self._graph.halt()
            return
        if run.state == "failed" and run.record is None and self._graph.is_active:
            await self._activation.stop_failed(run.failure)

    def _cleared_by(self, run: StepRun) -> Mapping[str, str] | None:
        """Return what a step saved and needs no more, if this is its end."""
        has_ended = run.record is not None or (run.state == "failed" and not run.step.keeps_saved)
        may_have = run.has_saved or (self._may_have_saved and run.attempt is not None)
        return cleared(run.step.saved_as) if has_ended and may_have else None

    async def _append(
        self,
        entries: Sequence[Entry],
        *,
        taken: Sequence[str] = (),
        live: Mapping[str, str] | None = None,
    ) -> None:
        """Append entries behind what must be recorded before them. Raises what `Activation.append` raises."""
        begins = [] if self._is_begun else [self._flow.first_entry()]
        self._is_begun = True
        doubts = self._take_doubts(entries[-1])
        try:
            await self._activation.append([*begins, *doubts, *entries], taken=taken, live=live)
        except FlowStops:
            raise
        except BaseException:
            # The next entry brings them: without the first entry, the run would not count that one.
            self._is_begun, self._new_doubts = not begins, {each.place: each for each in doubts}
            raise

    def _take_doubts(self, entry: Entry) -> list[Entry]:
        """Return the entries about other steps in doubt that are to be recorded beside `entry`, which may be
        in doubt, too.
        """
        if entry.place in self._doubts and entry.kind in ("cut", "try"):
            entry.is_lost = True
        elif entry.kind != "child":
            self._doubts.discard(entry.place)
        others = [each for name, each in self._new_doubts.items() if name != entry.place]
        self._new_doubts = {}
        return others

    async def sleep(self, delay: float) -> None:
        """Wait in this process."""
        await asyncio.sleep(delay)

    def holds(self, delay: float) -> bool:
        """Tell whether the wait is short."""
        return delay <= _SHORT

    def enter(self, run: StepRun) -> bool:
        """Take one of the worker's slots for steps; before it, those of the step's own limit and of
        its pool.
        """
        limits = self._limits_of(run)
        return self._slots.enter() if not limits else self._enter_all((*limits, self._slots)) is None

    async def wait_slot(self, run: StepRun) -> None:
        """Wait for a slot, and for those of the step's limits. A cancelled call takes none.

        It holds none of them while it waits for another one: whoever has that one may need what is held here.
        """
        every = (*self._limits_of(run), self._slots)
        busy: FlowSlots | None = every[0]
        while busy is not None:
            await busy.wait()
            busy = self._enter_all(every, held=busy)

    def _enter_all(self, every: Sequence[FlowSlots], held: FlowSlots | None = None) -> FlowSlots | None:
        """Take a slot of each but `held`, which has been taken. Return one that has none; then all are given
        back.
        """
        taken = [] if held is None else [held]
        for slots in every:
            if slots is held:
                continue
            if not slots.enter():
                for other in taken:
                    other.leave()
                return slots
            taken.append(slots)
        return None

    def leave(self, run: StepRun) -> None:
        """Give the slot back."""
        self._slots.leave()
        for slots in self._limits_of(run):
            slots.leave()

    def _limits_of(self, run: StepRun) -> Sequence[FlowSlots]:
        """Return the slots of the limits of a step; those of the items of one step are its own."""
        return self._limits.get(split_item(run.step.name)[0], ()) if self._limits else ()

    def may_start(self) -> bool:
        """Tell whether the worker still takes work."""
        return not self._flow.runtime.services.is_stopping()

    def _tell(self, run: StepRun) -> None:
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
