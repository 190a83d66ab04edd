"""The run of a step graph in one process: which step may start, what follows from its end, and when nothing
can go on.

    waiting -> active -> completed | skipped -> its followers
                      -> delayed -> active
                      -> failed -> the run halts; if the step's failure is ignored: its followers
                      -> cancelled | unknown
            -> sleeping -> completed | failed   (a step that only waits, for a time or a signal)
            -> its items, each as a step -> completed | failed   (a step that runs for each item of a list)

Inline flows and the flows of workers both run their steps with it. Where they run differs in three things:
where ends are recorded (`GraphRecorder`), what runs a step elsewhere (`GraphChildren`), and what the place
does for attempts (`GraphSurroundings`).

What must always hold:
- no step starts before all that it needs is recorded (`append` has returned);
- the number of failed attempts is recorded before the next attempt begins;
- a step that only waits holds no slot; what it waits for is recorded before the wait begins; a signal that
  comes at the instant at which the time is over ends the wait;
- once the run halts, no step starts and pauses end; active steps finish their attempt, or are cut; `run`
  returns after the last one has ended;
- a cancelled `run` cuts all active steps, records what they still returned, and raises CancelledError at its
  end.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any

import msgspec

from eventbus import Later
from eventbus.lowlevel import Outcome
from workflows.definition.pause import Pause, late
from workflows.definition.workflow import Workflow
from workflows.execution.apart_steps import ApartSteps
from workflows.execution.attempt import PATIENCE, AttemptRun, Ended, outlast
from workflows.execution.graph_entries import entry_of
from workflows.execution.graph_state import GraphState
from workflows.execution.graph_surroundings import GraphChildren, GraphRecorder, GraphSurroundings, StepChild
from workflows.execution.pauses import Pauses
from workflows.execution.progress_notes import ProgressNotes
from workflows.execution.signal_desk import SignalDesk
from workflows.execution.slots import enter_all, leave_all, wait_all
from workflows.execution.step_attempt import StepAttempt, cleared
from workflows.execution.step_run import Items, StepRun, begin_items
from workflows.execution.step_runner import rule_of, run_step
from workflows.execution.surroundings import FlowStops
from workflows.records.entries import Entry
from workflows.records.records import StepRecord

_PAUSED = 5.0
"""Seconds after which a flow asks again for a step that was paused between two attempts."""


class GraphRun:
    """The steps of one run. Await `run` once."""

    def __init__(
        self,
        state: GraphState,
        recorder: GraphRecorder,
        children: GraphChildren,
        around: GraphSurroundings,
        *,
        known: Mapping[str, Entry] | None = None,
        patience: float = PATIENCE,
    ) -> None:
        """Go on with `state`. `known` are the children whose ends are not taken over, by step. `patience` in
        seconds is that of each attempt.
        """
        self.workflow: Workflow[Any, Any] = state.workflow
        self.state = state
        self.progress: ProgressNotes = ProgressNotes(partial(around.host.note_progress, around.job))
        """What active steps have told of themselves."""
        self.apart: ApartSteps = ApartSteps(
            state.workflow, recorder, children, around, state.records, known or {}
        )
        self.is_halted: bool = state.failed is not None
        self.has_heard_stop: bool = False
        """Whether the recorder told that the flow stops."""
        self.cancellation: asyncio.CancelledError | None = None
        """How `run` was cancelled, if it was."""
        self._recorder = recorder
        self._around = around
        self._desk: SignalDesk | None = None
        if state.workflow.listens:
            self._desk = SignalDesk(recorder, state.workflow.name, around.facts)
        self.pauses: Pauses = Pauses(around)
        if self.is_halted:
            self.pauses.end()
        self._patience = patience
        self._tasks: set[asyncio.Task[None]] = set()
        self._halted: asyncio.Future[None] | None = None
        self._attempts: dict[AttemptRun, None] = {}  # in the order of their beginnings
        self._error: BaseException | None = None

    async def run(self) -> None:
        """Run steps until none can go on here. Raises CancelledError, and what the recorder and the children
        raise, but for FlowStops.
        """
        state = self.state
        await self.apart.load()
        ready = self._take_ready(state.steps.values())
        self._start([*state.sleeping, *state.delayed])
        # A step that is alone runs without a task of its own.
        while len(ready) == 1 and not self._tasks:
            self.pauses.busy = 1
            ready = await self._guarded(ready[0])
            self.pauses.busy = 0
        self._start(ready)
        while self._tasks:
            try:
                await asyncio.wait(self._tasks)
            except asyncio.CancelledError as error:
                self._note_cancelled(error)
                self.cut()
        if self.is_halted:
            state.settle_items()
        if self._error is not None:
            raise self._error
        if self.cancellation is not None:
            raise self.cancellation

    def halt(self) -> None:
        """Let no further step start, and end all pauses."""
        self.is_halted = True
        if self._halted is not None and not self._halted.done():
            self._halted.set_result(None)
        self.pauses.end()

    def cut(self) -> None:
        """Cancel the functions of active steps; values that they still return count."""
        for attempt in self._attempts:
            attempt.cut()

    async def attempt(
        self,
        call: Callable[[], Awaitable[Any]],
        *,
        what: str,
        limit: float | None = None,
        run: StepRun | None = None,
    ) -> Ended:
        """Run one attempt of at most `limit` seconds, of the step `run` if it is one's; `cut` ends it."""
        attempt = AttemptRun(call, what=what, timeout=limit, patience=self._patience)
        if run is not None:
            run.attempt = attempt
        self._attempts[attempt] = None
        try:
            # Steps that start together all begin, also if one of them fails at once.
            ended = await attempt.run(cut_on_cancel=True, at_once=not self._tasks)
        finally:
            del self._attempts[attempt]
        if attempt.cancellation is not None:
            self._note_cancelled(attempt.cancellation)
        return ended

    # What starts, and what follows from an end.

    def _note_cancelled(self, error: asyncio.CancelledError) -> None:
        self.cancellation = error
        self.halt()

    def _may_go_on(self) -> bool:
        return not self.is_halted and self._around.may_start()

    def _take_ready(self, runs: Iterable[StepRun]) -> list[StepRun]:
        """Return the steps that can start now, and mark them, so that no other step starts them, too."""
        if not self._may_go_on():
            return []
        for run in (ready := [run for run in runs if run.is_ready(self.state.records)]):
            run.state = "active"
        return ready

    def _start(self, ready: Iterable[StepRun]) -> None:
        for run in ready:
            task = asyncio.get_running_loop().create_task(self._run_in_task(run))
            self.pauses.busy += 1
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run_in_task(self, run: StepRun) -> None:
        try:
            self._start(await self._guarded(run))
        finally:
            self.pauses.busy -= 1
            self.pauses.release()

    async def _guarded(self, run: StepRun) -> list[StepRun]:
        """Run a step to its end; return its followers that can start. An error ends the whole run."""
        try:
            return await self._work(run)
        except asyncio.CancelledError as error:
            self._note_cancelled(error)
            self.cut()
        except BaseException as error:  # noqa: BLE001  (what the recorder raises)
            self._error = self._error or error
            self.halt()
            self.cut()
        return []

    async def _work(self, run: StepRun) -> list[StepRun]:
        if run.step.pause is not None:
            await self._work_pause(run)
        elif run.step.is_each:
            ready = await self._work_each(run)
            if run.state == "active":  # its items go on
                return ready
        elif self.apart.runs(run.step):
            await self._work_apart(run)
        else:
            await self._work_plain(run)
        if run.state in ("delayed", "waiting", "sleeping"):  # it goes on, or begins, in another activation
            return []
        self.state.ended.append(run)
        # Otherwise the job that ran it ignored its failure.
        is_failed = run.state == "failed" and run.record is None
        if is_failed and run.step.on_failure == "ignore":
            run.ignore_failure()
        elif is_failed:  # from now on, not only once it is recorded
            self.state.failed = self.state.failed or run
            self.halt()
        if run.state != "cancelled" or run.is_started:
            await self._record_end(run)
        if run.record is None:
            return []
        if run.owner is not None and run.owner.items is not None:
            return self._after_item(run.owner.items)
        self.state.records[run.step.name] = run.record  # before its followers start, because they read it
        return self._take_ready(self.state.followers(run.step.name))

    # The record.

    async def _record_end(self, run: StepRun) -> None:
        """Record the end of a step, also if this call is cancelled now: what the step did would be lost."""
        if self._tasks:  # it has a task of its own, which nobody cancels
            await self._record(run)
        else:
            await outlast(self._record(run))

    async def _record(self, run: StepRun) -> None:
        """Record the end of a step, or a beginning.

        With the state `delayed` it is a failed attempt that another one follows, with `sleeping` the
        beginning of a wait, and with `active` the list of the items of a step.
        """
        now_ms = self._recorder.clock.now_ms
        if run.state == "sleeping":
            run.started_ms = now_ms
        run.took_ms = max(now_ms - run.started_ms, 0)
        is_told = run.child and run.step.workflow is None  # by the worker that ran it
        if run.state in ("failed", "delayed") and run.failure and not is_told:
            self._around.tell(run)
        if run.state in ("delayed", "sleeping") and run.delay < math.inf:
            run.due_ms = now_ms + round(run.delay * 1000)
        try:
            await self._recorder.append(
                [entry_of(run)], taken=[run.signal] if run.signal else (), live=self._cleared_by(run)
            )
        except FlowStops:  # recorded. What runs may end its attempt; who wants it cut cancels this run
            self._hear_stop()
            return
        if run.state == "failed" and run.record is None:
            await self._recorder.stop_failed(run, is_last=not self.state.is_active)

    def _hear_stop(self) -> None:
        self.has_heard_stop = True
        self.halt()

    def _cleared_by(self, run: StepRun) -> Mapping[str, str] | None:
        """Return what a step saved and needs no more, if this is its end."""
        has_ended = run.record is not None or (run.state == "failed" and not run.step.keeps_saved)
        # In an activation that ended with its worker and recorded nothing of it, any step may have saved
        # something.
        may_have = run.has_saved or (self._around.job.stalls > 0 and run.attempt is not None)
        return cleared(run.step.saved_as) if has_ended and may_have else None

    # The kinds of steps.

    async def _work_plain(self, run: StepRun) -> None:
        if run.state == "delayed" and not await self.pauses.wait(run.delay):
            return
        around, slots = self._around, self._around.slots_of(run.step.name)
        while not self.is_halted:
            if slots and enter_all(slots) is not None:
                self._halted = self._halted or asyncio.get_running_loop().create_future()
                if not await wait_all(slots, self._halted):
                    break
            try:
                if not around.may_start():
                    run.state = "waiting" if run.state == "active" else run.state
                    return
                is_paused = (asked := around.ask_paused(run.step)) is not None and await asked
                delay = None if is_paused else await self._try(run)
            finally:
                leave_all(slots)
            if is_paused:
                await self._put_aside(run)
                return
            if delay is None or self.is_halted:
                break
            run.state, run.delay = "delayed", delay
            await self._record(run)
            if self.is_halted:
                break
            if not around.may_start() or not await self.pauses.wait(delay):
                return
        is_over = self.cancellation is not None or self._error is not None
        is_recorded = run.state == "delayed" and is_over
        if run.state in ("active", "delayed") and not is_recorded:  # else its next attempt is
            run.state = "cancelled"

    async def _try(self, run: StepRun) -> float | None:
        """Make one attempt; return the seconds until the next one, None if there is none."""
        run.start()
        ended = await self.attempt(
            partial(self._call, run), what=run.step.where, limit=run.step.timeout, run=run
        )
        if ended.is_cut:
            run.end_cut(is_lost=ended.is_lost)
        elif ended.error is None:
            run.complete(ended.value)
        elif isinstance(ended.error, Later):
            return run.put_off(ended.error)
        else:
            event = f"{self.workflow.name}.{run.step.name}"
            return run.fail(rule_of(self.workflow, run.step), ended.error, self.workflow, event=event)
        return None

    async def _call(self, run: StepRun) -> StepRecord:
        """Call the function of a step, in a task of its own."""
        around, step, number = self._around, run.step, run.attempts + 1
        run.started_ms = self._recorder.clock.now_ms
        job_id = around.job_of(step.name)
        around.begin(step.name, job_id, number)
        around.aliases[job_id] = around.job.id
        progress = self.progress.begin(step.name)
        own = StepAttempt(
            around.host, around.job, step.saved_as, where=step.where, run=run.attempt, progress=progress
        )
        try:
            with around.span(
                "step", step=step.name, job_id=job_id, attempt=number, links=self.apart.links(step)
            ) as traceparent:
                run.trace = around.trace_of(job_id)
                context = around.context(
                    step.name,
                    job_id=job_id,
                    attempt=number,
                    traceparent=traceparent,
                    records=self.state.records,
                    own=own,
                )
                return await run_step(step, context, around.call_sync)
        finally:
            own.has_ended = True
            run.has_saved = run.has_saved or own.has_saved
            self.progress.end(progress)
            around.aliases.pop(job_id, None)

    async def _put_aside(self, run: StepRun) -> None:
        """Let a job of its own run a step that is paused; one that is paused between two attempts waits here,
        where they are counted.
        """
        doubts = self._recorder.doubts
        if run.state != "delayed" and not run.has_saved and run.step.name not in doubts:
            await self._work_apart(run)
            return
        run.state, run.delay = "delayed", _PAUSED
        run.due_ms = self._recorder.clock.now_ms + round(_PAUSED * 1000)
        if self._recorder.has_news:  # only what nobody knows yet needs an entry
            run.failure = run.told = ""
            await self._record(run)

    async def _work_apart(self, run: StepRun) -> None:
        """Let another job or flow run a step, and take over its end. The run is `waiting` if that comes
        later.
        """
        try:
            await self._run_apart(run)
        except FlowStops:  # what runs may end its attempt
            self._hear_stop()
            run.state = "waiting"

    async def _run_apart(self, run: StepRun) -> None:
        apart = self.apart
        end = apart.follow(run)
        if end is None:
            child = await self._prepare(run)
            if child is None:
                return
            await apart.record(run, child)
            if self.is_halted:  # it is not there then, so whoever undoes the flow passes it over
                run.state = "waiting"
                return
            end = apart.add(child)
        run.is_apart = True
        try:
            outcome: Outcome | None = await self.pauses.wait_apart(end, lingers=apart.lingers(run))
        finally:
            run.is_apart = False
        if outcome is None or outcome.state == "unknown":
            run.state = "waiting"
        elif not await apart.take_over(run, outcome):
            run.state = "waiting"
            self.halt()

    async def _prepare(self, run: StepRun) -> StepChild | None:
        """Return the child that is to run a step; None if the step has ended without one."""
        step = run.step
        run.start()
        run.started_ms = self._recorder.clock.now_ms
        if step.workflow is None:
            return self.apart.make_job(run)
        ended = await self.attempt(partial(self.apart.make_flow, run), what=step.where, limit=step.timeout)
        if ended.is_cut or (ended.error is None and self.is_halted):
            run.end_cut(is_lost=ended.is_lost)
        elif ended.error is not None:
            run.fail(rule_of(self.workflow, step), ended.error, self.workflow)
        elif isinstance(ended.value, StepRecord):
            run.complete(ended.value)
        else:
            return ended.value
        return None

    async def _work_each(self, run: StepRun) -> list[StepRun]:
        """List the items of a step, record them and begin them; or end the step after all of them."""
        if run.items is None:
            await self._work_plain(run)
            if run.state != "completed" or run.record is None:
                return []
            if self.is_halted:
                run.state, run.record = "cancelled", None
                return []
            begin_items(run, run.record.result)
            await self._record(run)
        items = run.items
        assert items is not None  # noqa: S101  (they are recorded)
        run.is_apart = True
        if not self._may_go_on():
            return []
        ready = items.begin()
        if items.are_done:
            items.complete(self.workflow)
        return ready

    def _after_item(self, items: Items) -> list[StepRun]:
        """Return the items that begin after the end of one, or their step if that was the last one."""
        if not self._may_go_on():
            return []
        ready = items.end()
        return [items.owner] if items.are_done else ready

    async def _work_pause(self, run: StepRun) -> None:
        """Wait for a time or a signal, from its recorded beginning on."""
        pause = run.step.pause
        assert pause is not None  # noqa: S101  (the caller's condition)
        if run.state != "sleeping":
            if run.step.when is not None:
                await self._work_plain(run)
                if run.state != "completed":
                    return
            run.record, run.state = None, "sleeping"
            run.delay = math.inf if pause.length is None else pause.length
            await self._record(run)
        if pause.signal is None:
            if await self.pauses.wait(run.delay):
                self._end_pause(run, StepRecord())
        elif self._desk is not None:
            await self._work_wait(run, pause, self._desk)

    async def _work_wait(self, run: StepRun, pause: Pause, desk: SignalDesk) -> None:
        arrival = await desk.enter(run)
        try:
            if not arrival.done() and not await self.pauses.wait(
                run.delay, holds=self._around.holds(run.delay, listens=True), arrival=arrival
            ):
                return
            if not arrival.done() and not self.is_halted:
                await desk.look()
        finally:
            desk.leave(arrival)
        if arrival.done():
            signal = arrival.result()
            if not self.is_halted:  # otherwise the step ends without it, and another run may take it
                run.signal = signal.id
            self._end_pause(run, StepRecord(result=msgspec.Raw(signal.payload.encode())))
        elif self.is_halted:
            self._end_pause(run, StepRecord())
        else:
            run.fail(
                self.workflow.retry, late(pause), self.workflow, event=f"{self.workflow.name}.{run.step.name}"
            )

    def _end_pause(self, run: StepRun, record: StepRecord) -> None:
        """Complete a step that waited; if the run halts meanwhile, it is cancelled, or goes on in another
        activation.
        """
        if not self.is_halted:
            run.complete(record)
        elif self.cancellation is None and self._error is None:
            run.state = "cancelled"
