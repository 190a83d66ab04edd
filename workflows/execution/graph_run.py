"""The run of a step graph in one process: which step may start, what follows from its end, and when nothing
can go on.

    waiting -> active -> completed | skipped -> its followers
                      -> delayed -> active
                      -> failed -> the run halts; if the step's failure is ignored: its followers
                      -> cancelled | unknown
            -> sleeping -> completed | failed   (a step that only waits, for a time or a signal)
            -> its items, each as a step -> completed | failed   (a step that runs for each item of a list)

Inline flows and the flows of workers both run their steps with it. Their difference is the `StepDriver`: how
one attempt is made, where an end is recorded, and how long a step waits here for its next attempt.

What must always hold:
- no step starts before all that it needs is recorded (`record` has returned);
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
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from eventbus import Later
from workflows.definition.pause import Pause, late
from workflows.definition.workflow import Workflow
from workflows.execution.attempt import PATIENCE, AttemptRun, Ended, outlast
from workflows.execution.pauses import Pauses
from workflows.execution.signal_desk import SignalDesk
from workflows.execution.step_driver import StepDriver, wait_slot
from workflows.execution.step_run import Items, StepRun, begin_items, find_run, runs_of, settle_items
from workflows.execution.step_runner import rule_of
from workflows.records.records import StepRecord

__all__ = ["GraphRun"]

T = TypeVar("T")


class GraphRun:
    """The steps of one run. Await `run` once."""

    def __init__(
        self,
        workflow: Workflow[Any, Any],
        driver: StepDriver,
        *,
        kept: Collection[str] = (),
        desk: SignalDesk | None = None,
        patience: float = PATIENCE,
    ) -> None:
        """Prepare all steps of `workflow` as waiting. `patience` in seconds is that of each attempt.

        `desk` has the signals, if the workflow waits for any. `kept` are the steps whose results count from
        an earlier run: a step that waited for one of them waits for what that one waited for.
        """
        self.workflow = workflow
        self.records: dict[str, StepRecord] = {}
        """The records of the steps that completed or were skipped."""
        self.ended: list[StepRun] = []
        """The steps that have ended, in the order of their ends."""
        self.failed: StepRun | None = None
        """The first step that failed for good."""
        self.is_halted: bool = False
        plan = workflow.plan.without(kept) if kept else workflow.plan
        steps = workflow.steps
        self.steps: dict[str, StepRun] = {name: StepRun(steps[name], needs) for name, needs in plan.nodes}
        if kept:
            ended = {name: StepRun(steps[name], ()) for name, _ in workflow.plan.nodes if name in kept}
            self.steps = {name: ended.get(name) or self.steps[name] for name, _ in workflow.plan.nodes}
        self._followers = plan.followers
        self._driver = driver
        self._desk = desk
        self._pauses = Pauses(driver)
        self._patience = patience
        self._tasks: set[asyncio.Task[None]] = set()
        self._halted: asyncio.Future[None] | None = None
        self._attempts: set[AttemptRun] = set()
        self.cancellation: asyncio.CancelledError | None = None
        """How `run` was cancelled, if it was."""
        self._error: BaseException | None = None

    def restore(self, run: StepRun) -> None:
        """Take over a step that ended in an earlier activation, before `run`."""
        self.ended.append(run)
        if run.record is not None:
            if run.owner is None:
                self.records[run.step.name] = run.record
        elif run.state == "failed":
            self.failed = self.failed or run
            self.is_halted = True

    def find(self, name: str) -> StepRun | None:
        """Return a step, or an item of one, by its name."""
        return find_run(self.steps, name)

    @property
    def is_complete(self) -> bool:
        """Whether every step has completed or was skipped."""
        return len(self.records) == len(self.steps)

    @property
    def is_active(self) -> bool:
        """Whether a step is active here."""
        return any(run.state == "active" and not run.is_apart for run in runs_of(self.steps))

    @property
    def delayed(self) -> Sequence[StepRun]:
        """The steps that wait for their next attempt."""
        return [run for run in runs_of(self.steps) if run.state == "delayed"]

    @property
    def sleeping(self) -> Sequence[StepRun]:
        """The steps that wait for a time or a signal, those that began first before the others."""
        return sorted(
            (run for run in self.steps.values() if run.state == "sleeping"), key=lambda run: run.started_ms
        )

    async def run(self) -> None:
        """Run steps until none can go on here. Raises CancelledError, and what `record` raises."""
        ready = self._take_ready(self.steps.values())
        self._start([*self.sleeping, *self.delayed])
        # A step that is alone runs without a task of its own.
        while len(ready) == 1 and not self._tasks:
            self._pauses.busy = 1
            ready = await self._guarded(ready[0])
            self._pauses.busy = 0
        self._start(ready)
        while self._tasks:
            try:
                await asyncio.wait(self._tasks)
            except asyncio.CancelledError as error:
                self._note_cancelled(error)
                self.cut()
        settle_items(self.steps.values(), is_halted=self.is_halted)
        if self._error is not None:
            raise self._error
        if self.cancellation is not None:
            raise self.cancellation

    def halt(self) -> None:
        """Let no further step start, and end all pauses."""
        self.is_halted = True
        if self._halted is not None and not self._halted.done():
            self._halted.set_result(None)
        self._pauses.end()

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
        self._attempts.add(attempt)
        try:
            # Steps that start together all begin, also if one of them fails at once.
            ended = await attempt.run(cut_on_cancel=True, at_once=not self._tasks)
        finally:
            self._attempts.discard(attempt)
        if attempt.cancellation is not None:
            self._note_cancelled(attempt.cancellation)
        return ended

    def _note_cancelled(self, error: asyncio.CancelledError) -> None:
        self.cancellation = error
        self.halt()

    def _take_ready(self, runs: Iterable[StepRun]) -> list[StepRun]:
        """Return the steps that can start now, and mark them, so that no other step starts them, too."""
        if self.is_halted or not self._driver.may_start():
            return []
        for run in (ready := [run for run in runs if run.is_ready(self.records)]):
            run.state = "active"
        return ready

    def _start(self, ready: Iterable[StepRun]) -> None:
        for run in ready:
            task = asyncio.get_running_loop().create_task(self._run_in_task(run))
            self._pauses.busy += 1
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run_in_task(self, run: StepRun) -> None:
        try:
            self._start(await self._guarded(run))
        finally:
            self._pauses.busy -= 1
            self._pauses.release()

    async def _guarded(self, run: StepRun) -> list[StepRun]:
        """Run a step to its end; return its followers that can start. An error ends the whole run."""
        try:
            return await self._work(run)
        except asyncio.CancelledError as error:
            self._note_cancelled(error)
            self.cut()
        except BaseException as error:  # noqa: BLE001  (what `record` raises)
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
        elif self._driver.runs_apart(run.step):
            await self._driver.run_apart(run)
        else:
            await self._work_plain(run)
        if run.state in ("delayed", "waiting", "sleeping"):  # it goes on, or begins, in another activation
            return []
        self.ended.append(run)
        is_failed = (
            run.state == "failed" and run.record is None
        )  # else the job that ran it ignored its failure
        if is_failed and run.step.on_failure == "ignore":
            run.ignore_failure()
        elif is_failed:  # from now on, not only once it is recorded
            self.failed = self.failed or run
            self.halt()
        if run.state != "cancelled" or run.is_started:
            await self._record_end(run)
        if run.record is not None and run.owner is not None and run.owner.items is not None:
            return self._after_item(run.owner.items)
        if run.record is not None:
            name = run.step.name
            self.records[name] = run.record  # before its followers start, because they read it
            return self._take_ready([self.steps[each] for each in self._followers.get(name, ())])
        return []

    async def _record_end(self, run: StepRun) -> None:
        """Record the end of a step, also if this call is cancelled now: what the step did would be lost."""
        if self._tasks:  # it has a task of its own, which nobody cancels
            await self._driver.record(run)
        else:
            await outlast(self._driver.record(run))

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
            await self._driver.record(run)
        items = run.items
        assert items is not None  # noqa: S101  (they are recorded)
        run.is_apart = True
        if self.is_halted or not self._driver.may_start():
            return []
        ready = items.begin()
        if items.are_done:
            items.complete(self.workflow)
        return ready

    def _after_item(self, items: Items) -> list[StepRun]:
        """Return the items that begin after the end of one, or their step if that was the last one."""
        if self.is_halted or not self._driver.may_start():
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
            await self._driver.record(run)
        if pause.signal is None:
            if await self.pause(run.delay):
                self._end_pause(run, StepRecord())
        elif self._desk is not None:
            await self._work_wait(run, pause, self._desk)

    async def _work_wait(self, run: StepRun, pause: Pause, desk: SignalDesk) -> None:
        arrival = await desk.enter(run)
        try:
            if not arrival.done() and not await self._pauses.wait(
                run.delay, holds=desk.inbox.holds(run.delay), arrival=arrival
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

    async def _work_plain(self, run: StepRun) -> None:
        if run.state == "delayed" and not await self.pause(run.delay):
            return
        while await self._take_slot(run):
            try:
                if not self._driver.may_start():
                    run.state = "waiting" if run.state == "active" else run.state
                    return
                is_paused = (asked := self._driver.ask_paused(run.step)) is not None and await asked
                delay = None if is_paused else await self._try(run)
            finally:
                self._driver.leave(run)
            if is_paused:
                await self._driver.run_apart(run)
                return
            if delay is None or self.is_halted:
                break
            run.state, run.delay = "delayed", delay
            await self._driver.record(run)
            if not self._driver.may_start() or not await self.pause(delay):
                return
        is_over = self.cancellation is not None or self._error is not None
        is_recorded = run.state == "delayed" and is_over
        if run.state in ("active", "delayed") and not is_recorded:  # else its next attempt is
            run.state = "cancelled"

    async def _try(self, run: StepRun) -> float | None:
        """Make one attempt; return the seconds until the next one, None if there is none."""
        run.start()
        ended = await self.attempt(
            lambda: self._driver.attempt(run), what=run.step.where, limit=run.step.timeout, run=run
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

    async def _take_slot(self, run: StepRun) -> bool:
        """Wait for a slot; return False without one if the run halts."""
        if self.is_halted:
            return False
        if self._driver.enter(run):
            return True
        self._halted = self._halted or asyncio.get_running_loop().create_future()
        return await wait_slot(self._driver, run, self._halted)

    async def pause(self, delay: float) -> bool:
        """Wait before a next attempt; return False if that follows in another activation. A halt ends the
        wait.
        """
        return await self._pauses.wait(delay)

    async def wait_apart(self, run: StepRun, end: asyncio.Future[T], *, lingers: bool = False) -> T | None:
        """Wait for the end of what runs the step elsewhere. Return None if the run halts, or if nothing is
        active here.

        With `lingers` it waits on in the second case, until `settle_down`. Raises the error of `end`.
        """
        run.is_apart = True
        try:
            return await self._pauses.wait_apart(end, lingers=lingers, is_halted=self.is_halted)
        finally:
            run.is_apart = False

    def settle_down(self) -> None:
        """End what lingers, as soon as nothing is active here."""
        self._pauses.settle_down()
