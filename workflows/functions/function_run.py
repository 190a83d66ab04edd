"""The run of a durable function: it repeats what is recorded, and goes on behind it.

    advance -> collect -> append -> begin steps and children -> advance -> ...
            -> completed | failed | asleep | again | diverged

`advance` runs the code until all of its scopes wait. `collect` turns what happened meanwhile into entries:
steps that ended, times that came, signals, and then who won a race. The code goes on, and steps begin, only
after `append` has returned.

What must always hold:
- nothing begins before all that it needs is recorded; what is recorded is never done again;
- facts are recorded in one order: signals as they came, to the wait that began first; then times, the
  earliest first;
- the code awaits calls of its context alone, and makes them in its own scope: else NonDeterminismError, in
  the first run too;
- the code runs outside of any asyncio task, so that `asyncio.timeout` and task groups refuse to work there;
- so do its `finally` blocks, in the context of the code;
- once its worker stops, the run begins no step: it sleeps with what it would begin as due now, and another
  worker goes on;
- a mismatch ends the run before anything new begins, whatever the code does with the error.

Crash windows: `dies-in-step` and `dies-before-append` (the step runs again, with the same key),
`facts-saved-then-dies` (the next run reads them), `dies-in-race` (decided again: nothing behind it has
begun), `dies-behind-race` (steps that lost are recorded with the decision: they are in doubt until their ends
are recorded, too).
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from types import NoneType
from typing import TYPE_CHECKING, Any

from eventbus.lowlevel import Passing
from workflows.execution.attempt import begin_task, let_go, outlast
from workflows.functions.calls.child_call import end_entry
from workflows.functions.calls.step_call import HELD_SECONDS, StepCall
from workflows.functions.code_run import CodeRun, Mark, Scope
from workflows.functions.control import ContinueAsNew, FlowStopping, FlowSuspended
from workflows.functions.definition import Durable
from workflows.functions.endings import Again, Asleep, Diverged, Ending, end_of
from workflows.functions.entry_batch import EntryBatch, collect
from workflows.functions.history import History, is_under, losers
from workflows.records.entries import Entry

if TYPE_CHECKING:
    from eventbus.lowlevel import Outcome
    from workflows.execution.surroundings import Recorder, Surroundings
    from workflows.functions.definition import DurableCodecs

_REPEATED, _LEAST, _MOST = 0.0001, 0.01, 0.25
"""Seconds that an activation needs for each entry that it repeats, about; and the least and the most to wait
here for a child."""

_HELD_MS = round(HELD_SECONDS * 1000)  # a worker waits here for what is due within this time


class FunctionRun(CodeRun):
    """One run of the code of a flow. Await `run` only once."""

    def __init__(
        self,
        durable: Durable[Any, Any],
        codecs: DurableCodecs,
        history: History,
        recorder: Recorder,
        around: Surroundings,
        *,
        has_effects: bool = True,
        is_rescued: bool = False,
    ) -> None:
        """Without effects the run ends at the first call that is not recorded, as `Asleep`.

        `is_rescued` says that the worker of the run before died after its last record, so that steps may have
        begun.
        """
        super().__init__(durable, codecs, history, recorder, around)
        self._has_effects = has_effects
        self._is_rescued = is_rescued
        self._working: dict[asyncio.Task[None], StepCall[Any]] = {}
        self._children: dict[str, tuple[Entry, asyncio.Future[Outcome]]] = {}
        """Children whose end is awaited, by position, with the entries of their beginnings."""
        self._ended_children: list[str] = []
        self._cancelled: set[str] = set()
        self._something = asyncio.Event()
        self._ear: asyncio.Task[None] | None = None
        """Waits for a signal while a step runs."""
        self._has_heard = False
        self._broken: Exception | None = None

    @property
    def is_working(self) -> bool:
        """Whether a step runs, or has ended and is not recorded."""
        return bool(self._working or self.ended)

    @property
    def due_steps(self) -> list[StepCall[Any]]:
        """The steps that would begin now."""
        now = self.now_ms
        waited = [call for call in self.pending.values() if (call.due_ms or 0) <= now]
        return [*self.fresh, *(call for call in waited if isinstance(call, StepCall))]

    def doubts_of(self, race: Entry) -> list[Entry]:
        """Return an entry for each step that may have begun, lost a race and would be undone; its end
        replaces that.
        """
        lost = losers(race)
        begun = [*self._working.values(), *(call for call in self.due_steps if call.is_doubtful)]
        return [call.in_doubt() for call in begun if call.undo and is_under(call.position, lost)]

    # The rounds.

    async def run(self, routine: Any) -> Ending:
        """Run the code, `routine`, until it ends or sleeps.

        Raises what the recorder raises, after all steps have ended. A cancellation cuts the steps that run,
        records what they returned, and is raised at the end.
        """
        self.start_scope(Scope("", routine, Mark(self.history.created_ms), self.seed), None)
        try:
            return await self._rounds()
        except asyncio.CancelledError:
            self.end_with(FlowStopping("the flow stops"))
            raise
        finally:
            self.end_with(FlowSuspended("the flow sleeps"))
            await self._end()

    async def _rounds(self) -> Ending:
        while True:
            self._outside(self.advance)
            self._check_apart()
            if self.refusal is not None:
                return Diverged(self.refusal)
            if not self._has_effects:
                return Asleep(None, listens=False) if self.result is None else self._result_of(*self.result)
            if self._is_rescued:
                self._is_rescued = False
                for call in self.due_steps:
                    call.is_doubtful = True
            self._take_ends()
            batch = collect(self, self.doubts_of)
            if batch.entries or (batch.live and not self.fresh and not self._working):
                await self._append(batch)
            self._begin_steps()
            await self._follow_children()
            if self.ready or self.races or self.ended or self.has_fresh_children:
                continue
            if (ending := await self._rest()) is not None:
                return ending

    def _result_of(self, value: Any, error: BaseException | None) -> Ending:
        if isinstance(error, ContinueAsNew):
            return Again(error.text)
        return end_of(value, error, self.durable, self.codecs)

    async def _rest(self) -> Ending | None:
        """Wait until something happens. Return how the run ends if nothing will happen here."""
        if self._broken is not None:
            raise self._broken
        if self._ended_children:
            return None
        if self._working or self._pause_ms is not None:
            await self._wait()
            return None
        # A function that ends waits for the children that lost a race, which undo themselves, and for
        # emissions that are to be tried again. One that raised waits for neither.
        is_left = bool(self._children or self.pending)
        if self.result is not None and (not is_left or not isinstance(self.result[1], (Passing, NoneType))):
            return self._result_of(*self.result)
        dues = [call.due_ms for call in self.pending.values() if call.due_ms is not None]
        due, listens = min(dues, default=None), any(call.family == "wait" for call in self.pending.values())
        if self._children and await self._lingers(due):
            return None
        if self._children:
            children = tuple(entry.child for entry, _ in self._children.values())
            return Asleep(due, listens=listens, children=children)
        if listens or due is None or due - self.now_ms > _HELD_MS or self.is_leaving:
            return Asleep(due, listens=listens)
        await self.recorder.wait_until(due)
        return None

    async def _lingers(self, due: int | None) -> bool:
        """Wait for the end of a child here, for as long as another activation would need to repeat the
        history.

        So the cost of a long map follows from its items: each sleep costs a replay of all that went before.
        Return False if nothing came, or if it is not worth while. A signal that comes meanwhile lets the flow
        not sleep.
        """
        patience = min(self.history.length * _REPEATED, _MOST)
        if due is not None:
            patience = min(patience, (due - self.now_ms) / 1000)
        if patience < _LEAST or self.is_leaving:
            return False
        self._something.clear()
        if not self._ended_children:
            await self._happens(patience, None)
        return bool(self._ended_children)

    @property
    def _pause_ms(self) -> int | None:
        """The time of the next attempt of a step that pauses here; None without one."""
        if self.is_leaving:
            return None
        dues = [call.due_ms or 0 for call in self.pending.values() if isinstance(call, StepCall)]
        first = min(dues, default=None)
        return first if first is not None and first - self.now_ms <= _HELD_MS else None

    async def _wait(self) -> None:
        """Wait until a step ends or may try again, a time comes, or a signal may have come."""
        dues = [
            call.due_ms for call in self.pending.values() if call.due_ms is not None and self.may_begin(call)
        ]
        left = None if not dues else max(0, min(dues) - self.now_ms) / 1000
        listens = any(call.family == "wait" for call in self.pending.values())
        if listens and self._ear is None:
            self._ear = begin_task(self._listen())
        if not (self.ended or self._ended_children or self._has_heard or self._broken):
            self._something.clear()
            await self._happens(left, self._pause_ms)
        if self._has_heard:
            self._has_heard, self._ear = False, None
            if listens:
                await self.recorder.refresh()

    async def _listen(self) -> None:
        try:
            await self.recorder.listen()
        except Exception as error:  # noqa: BLE001  (of the server, or of this package)
            self._broken = error
        self._has_heard = True
        self._something.set()

    async def _happens(self, seconds: float | None, pause_ms: int | None) -> None:
        """Wait for something, at most so many seconds, or to the end of a pause by the recorder's clock."""
        if seconds is None and pause_ms is None:
            await self._something.wait()
            return
        pause = None if pause_ms is None else begin_task(self.recorder.wait_until(pause_ms))
        if pause is not None:
            pause.add_done_callback(self._note_pause)
        try:
            async with asyncio.timeout(seconds if pause is None else None):
                await self._something.wait()
        except TimeoutError:
            pass
        finally:
            if pause is not None:
                pause.cancel()

    def _note_pause(self, pause: asyncio.Task[None]) -> None:
        if not pause.cancelled():
            error = pause.exception()  # of a `sleep` that a user supplied
            self._broken = self._broken or (error if isinstance(error, Exception) else None)
            self._something.set()

    def _check_apart(self) -> None:
        """Refuse code that waits for something although it recorded more behind that: it has changed."""
        if self.refusal is not None:
            return
        for scope, _ in self.scopes.values():
            if not scope.is_ended and self.history.highest(scope.name) >= scope.count:
                asked = scope.waiting.told if scope.waiting is not None else ""
                found = self.history.first_from(scope.name, scope.count)
                self.mismatch(scope.position(scope.count), found, asked)
                return

    async def _append(self, batch: EntryBatch) -> None:
        """Record a batch, then tell the calls whose end that was."""
        begun = 0
        for entries, live, taken in batch.parts():
            begun += len(entries)
            try:
                await outlast(self.recorder.append(entries, live=live, taken=taken))
            except BaseException:
                # Of the later parts, `_record_last` takes what was done, but nothing that came: others can
                # take that again.
                self.ended[:0] = [(None, entry) for entry in batch.entries[begun : batch.done]]
                raise
        self._outside(functools.partial(batch.settle, self))

    def _begin_steps(self) -> None:
        fresh = [*self.fresh]
        self.fresh.clear()
        is_leaving = bool(fresh) and self.is_leaving
        for call in fresh:
            if is_leaving and not call.is_closed:  # nothing is recorded of it: another worker begins it
                call.due_ms = self.now_ms
                self.pending[call.position] = call
            elif not call.is_closed:
                work = begin_task(self._work(call))
                if not work.done():
                    self._working[work] = call

    async def _follow_children(self) -> None:
        """Add the children that are recorded now, await their ends, and cancel those that lost a race."""
        begun = list(self.begun_children)
        self.begun_children.clear()
        for call in begun:
            if call.position in self.history.open_children and not call.is_closed:
                self._follow(call.position, self.around.children.follow(call.child()))
        for entry in self.history.lost_children:
            if entry.place not in self._cancelled:
                self._cancelled.add(entry.place)
                await self.around.children.cancel(entry.child, "another call won the race")
                if entry.place not in self._children:
                    self._follow(entry.place, self.around.children.follow_lost(entry.child))

    def _follow(self, place: str, end: asyncio.Future[Outcome]) -> None:
        self._children[place] = (self.history.open_children[place], end)
        if end.done():
            self._note_end(place, end)
        else:
            end.add_done_callback(functools.partial(self._note_end, place))

    def _note_end(self, place: str, end: asyncio.Future[Outcome]) -> None:
        if not end.cancelled():
            self._ended_children.append(place)
            self._something.set()

    def _take_ends(self) -> None:
        """Make entries of the ends of children that came. Raises what the surroundings raise about them."""
        ended, self._ended_children = self._ended_children, []
        for place in ended:
            begun, end = self._children.pop(place)
            call = self.pending.pop(place, None)
            made = end_entry(
                begun, end.result(), flow_id=self.flow_id, now_ms=self.now_ms, is_wanted=call is not None
            )
            self.ended.append((call, made))

    async def _work(self, call: StepCall[Any]) -> None:
        try:
            entry = await call.work()
            self.ended.append((call, entry))
        except Exception as error:  # noqa: BLE001  (of a `sleep` that a user supplied, or of this package)
            self._broken = error
        finally:
            task = asyncio.current_task()
            if task is not None:
                self._working.pop(task, None)
            self._something.set()

    def _outside(self, call: Callable[[], None]) -> None:
        """Make a call that runs code of the flow in the context of the code, while no asyncio task is
        current.
        """
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        if task is None:
            self.context.run(call)
            return
        asyncio.tasks._leave_task(loop, task)  # noqa: SLF001  # asyncio documents it, for those who extend it
        try:
            self.context.run(call)
        finally:
            asyncio.tasks._enter_task(loop, task)  # noqa: SLF001

    # The end.

    async def _end(self) -> None:
        """Cut the steps that run, record what they returned, and end the code."""
        if self._ear is not None:
            self._ear.cancel()
        for call in self._working.values():
            call.cut()
        while self._working:
            try:
                await asyncio.wait(set(self._working))
            except asyncio.CancelledError:
                continue  # an attempt ends within its patience; the executor gives up on what does not
        try:
            if self.ended:
                await self._record_last()
        finally:
            self._outside(self._unwind_all)

    def _unwind_all(self) -> None:
        for scope, _ in reversed(list(self.scopes.values())):
            self.unwind(scope, self.ending or FlowSuspended())

    async def _record_last(self) -> None:
        """Record the ends of steps that were cut, so that what they did is undone, or not done again.

        The parts are appended in their order, and none needs another one. An error is lost: the flow's next
        run knows.
        """
        batch = EntryBatch()
        for entry in (*self.outbox, *(entry for _, entry in self.ended)):
            batch.add(entry)
        self.outbox.clear()
        self.ended.clear()
        appending = [begin_task(self.recorder.append(entries)) for entries, _, _ in batch.parts()]
        try:
            await outlast(_all_of(appending))
        finally:
            for each in appending:
                let_go(each)


async def _all_of(tasks: Sequence[asyncio.Task[None]]) -> None:
    await asyncio.wait(tasks)
