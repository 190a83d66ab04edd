"""Turns: settles what ended and claims what comes next, in one call.

Two lanes take turns: while the server works on the call of one, this process runs the jobs
that the other claimed. What ends meanwhile gathers for the next call, so a busy worker makes
few large calls and an idle one a small one at once. Each lane has one call under way and
numbers its calls; the store repeats a call whose answer was lost, with the same number, and
the server gives the same answer.

What must hold:
- a settle is dropped only when it was answered: recorded, or refused because the lease is lost;
  until then its lease is kept (`unsettled`), however long the answer takes;
- never more jobs are asked for than there are free slots, for the worker and each queue,
  what the other lane asks for counted in;
- while a queue has work and this worker has a slot for it, a turn is under way or due.

Crash windows: `turn-not-sent`, `turn-not-answered` (both: the same call again),
`dies-after-claim` (the leases run out: rescue), `dies-before-settle` (the job runs again:
handlers run at least once).
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Mapping

import anyio

from eventbus.engine.agenda import Agenda
from eventbus.engine.consumer import Consumer
from eventbus.engine.executor import Executor
from eventbus.engine.job import Job, Settle, give_back
from eventbus.errors import StoreError, StoreRefused
from eventbus.logs import get_logger
from eventbus.store.rows import SettleRow, TurnAnswer, TurnQueue
from eventbus.store.store import Store

__all__ = ["Claimer"]

_log = get_logger("eventbus.worker")

_BATCH = 200
_FOLLOWED = 3  # what a job that others follow costs the server, in plain jobs
_BYTES = 1 << 20
_QUEUES = 64
_ENOUGH = 16  # settles that are worth a second call beside one under way
_PAUSE = 0.25
_SUSPECT = 2  # as in `candidate.lua`
_LONGEST = 3600.0


class _Lane:
    """One series of numbered calls."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.call = 0
        self.is_busy = False


class Claimer:
    """The claiming and settling side of one worker."""

    def __init__(
        self,
        store: Store,
        consumers: Mapping[str, Consumer],
        *,
        worker: str,
        lease_ms: int,
        max_concurrency: int,
        patience: float,
    ) -> None:
        self.executor = Executor(self._settle, patience=patience)
        self.pool = ""
        self.claimed = 0
        self.answered: float | None = None
        """When a turn was last answered, monotonic seconds."""
        self.refused = 0
        """Outcomes that the server refused because their lease was lost."""
        self.unsettled: dict[str, str] = {}
        """Jobs that ended here and whose settle is not answered yet, with their tokens."""
        self._store = store
        self._consumers = consumers
        self._lease_ms = lease_ms
        self._max_concurrency = max_concurrency
        self._agenda = Agenda(self._quota)
        self._settles: deque[tuple[str, SettleRow]] = deque()
        self._lanes = (_Lane(worker), _Lane(f"{worker}+"))
        self._asked = 0
        self._asked_of: Counter[str] = Counter()
        self._suspect = ""
        """The job that runs here although it stalled twice or more; one at a time, see `candidate.lua`."""
        self._is_suspect_asked = False
        self._passed: set[str] = set()
        """Queues that a call asked which might claim no suspect, because the other lane's might."""
        self._is_due = False
        self._is_draining = False
        self._poked = asyncio.Event()
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._settled = asyncio.Event()
        self._settled.set()
        self._owed_timer: asyncio.TimerHandle | None = None
        self._due_timer: asyncio.TimerHandle | None = None

    @property
    def free(self) -> int:
        """Slots of this worker that could take a job now."""
        if self._is_draining:
            return 0
        return self._max_concurrency - len(self.executor.running) - self._asked

    @property
    def _want(self) -> int:
        """Jobs to ask for: half of the slots at most, the other half is what the other lane asks for."""
        return min(max(self.free, 0), max(1, self._max_concurrency // 2), _BATCH)

    @property
    def is_idle(self) -> bool:
        """Nothing runs, nothing is to be settled, and no queue is known to have work."""
        return not self.executor.running and not self._settles and self._quiet.is_set()

    def look_everywhere(self) -> None:
        """Ask every queue in the next turns."""
        for queue in self._consumers:
            self._agenda.look_at(queue)
        self._poke()

    def notice(self, *queues: str) -> None:
        """There may be work in these queues."""
        self._agenda.note(queue for queue in queues if queue in self._consumers)
        self._poke()

    async def wait_quiet(self) -> bool:
        """Wait at most 0.25 s until there is nothing to claim; returns whether that is so."""
        if self._quiet.is_set():
            return True
        try:
            async with asyncio.timeout(_PAUSE):
                return await self._quiet.wait()
        except TimeoutError:
            return False

    async def look_through(self) -> bool:
        """Ask every queue once nothing runs here; True if none had a job.

        Nothing runs, so every queue has slots and is really asked; a claim meanwhile, also
        one that a wake brought, makes the answer False.
        """
        while not self.is_idle:
            await self._quiet.wait()
            await self.executor.wait_ended()
            await self._settled.wait()
        before = self.claimed
        self.look_everywhere()
        await self._quiet.wait()
        return self.is_idle and self.claimed == before

    def stop_claiming(self) -> None:
        """From now on only settle."""
        self._is_draining = True
        self._poke()

    async def hand_over(self) -> None:
        """Wake other workers for the queues this one knew work in."""
        queues = self._agenda.take_all()
        if queues:
            await self._store.rearm(self.pool, queues)

    async def wait_settled(self) -> None:
        """Wait until every settle was answered and no call is under way."""
        await self._settled.wait()

    async def run(self) -> None:
        """Take turns for ever; the worker owns this and ends it."""
        try:
            async with anyio.create_task_group() as lanes:
                for lane in self._lanes:
                    lanes.start_soon(self._run_lane, lane, name=f"lane {lane.name}")
        finally:
            for timer in (self._owed_timer, self._due_timer):
                if timer is not None:
                    timer.cancel()

    async def _run_lane(self, lane: _Lane) -> None:
        while True:
            await self._poked.wait()
            try:
                await self._take_turns(lane)
            except StoreError as error:
                # Refused as a whole: nothing was recorded, so the same number goes again.
                _log.error("turn refused, trying again in 1 s", error=str(error))
                await asyncio.sleep(1)
                self._poke()

    async def _take_turns(self, lane: _Lane) -> None:
        while True:
            is_second = any(each.is_busy for each in self._lanes)
            queues = self._agenda.choose(_QUEUES, self._want) if self.free > 0 else []
            enough = _ENOUGH if is_second else 1
            if not (queues or len(self._settles) >= enough or (self._is_due and not is_second)):
                break
            await self._turn(lane, queues)
        self._poked.clear()
        if is_second:
            return  # the lane under way looks again when it is answered
        self._quiet.set()
        self._settled.set()
        if self._agenda.has_owed and self._owed_timer is None:
            self._owed_timer = asyncio.get_running_loop().call_later(_PAUSE, self._on_owed)
            await self._pay_owed()

    async def _turn(self, lane: _Lane, asked: list[str]) -> None:
        settles = self._next_settles()
        asked = self._with_followers(asked, settles)
        want = self._want
        if any(self._consumers[queue].follows for queue in asked):
            want = min(want, _BATCH // _FOLLOWED)
        queues = [self._queue_row(queue, min(want, self._quota(queue))) for queue in asked]
        reserved = {row.queue: row.quota for row in queues}
        others = {queue for queue, _ in settles}.difference(asked)
        queues.extend(self._queue_row(queue, 0) for queue in others)
        self._is_due = False
        self._settled.clear()
        self._agenda.ask(asked)
        lane.is_busy = True
        suspects = self._suspect not in self.executor.running and not self._is_suspect_asked
        if self._is_suspect_asked:
            self._passed.update(asked)
        self._is_suspect_asked = self._is_suspect_asked or suspects
        self._asked += want
        self._asked_of.update(reserved)
        try:
            answer = await self._store.turn(
                worker=lane.name,
                call=lane.call + 1,
                lease_ms=self._lease_ms,
                pool=self.pool,
                want=want,
                suspects=suspects,
                max_bytes=_BYTES,
                queues=queues,
                settles=[row for _, row in settles],
            )
            lane.call += 1
        except BaseException as error:
            self._settles.extendleft(reversed(settles))
            self._agenda.unanswered(asked)
            if not isinstance(error, StoreRefused):
                # It may have been carried out, and its answer is none for another list of
                # settles. What it claimed stalls and is rescued.
                lane.call += 1
            raise
        finally:
            lane.is_busy = False
            self._is_suspect_asked = self._is_suspect_asked and not suspects
            self._asked -= want
            self._asked_of.subtract(reserved)
        for queue, row in settles:
            if self.unsettled.get(row.id) == row.token:
                del self.unsettled[row.id]
            if self._consumers[queue].follows and row.id not in answer.lost:
                self._consumers[queue].settled(row.id, row.state, row.text)
        self._apply(answer, asked, queues)
        if suspects:
            self._look_again()

    def _look_again(self) -> None:
        """Ask the queues that were passed, unless a suspect runs now: its end makes all be asked."""
        passed, self._passed = self._passed, set()
        if self._suspect not in self.executor.running:
            for queue in passed:
                self._agenda.look_at(queue)

    def _apply(self, answer: TurnAnswer, asked: list[str], queues: list[TurnQueue]) -> None:
        self.answered = time.monotonic()
        gave = {queues[row.queue - 1].queue for row in answer.claims}
        self._agenda.answered(asked, (queues[place - 1].queue for place in answer.more), gave)
        self._agenda.note(queue for queue in answer.woken if queue in self._consumers)
        self._expect_due(answer)
        for job_id in answer.lost:
            self.refused += 1
            _log.warning("outcome refused: the lease was lost", job_id=job_id)
        self.claimed += len(answer.claims)
        for row in answer.claims:
            queue = queues[row.queue - 1].queue
            job = Job(
                row.id,
                answer.token,
                queue,
                row.body,
                row.attempts,
                row.stalls,
                row.created,
                row.due,
                answer.now,
                row.stop,
            )
            if row.stalls >= _SUSPECT:
                self._suspect = row.id
            if self._is_draining:
                self._settle(job, give_back())  # asked for before the stop
            else:
                self.executor.start(job, self._consumers[queue])

    def _settle(self, job: Job, settle: Settle) -> None:
        attempts = job.attempts + 1 if settle.counts else ""
        row = SettleRow(job.id, job.token, settle.state, attempts, settle.text, settle.delay_ms)
        self._settles.append((job.queue, row))
        self.unsettled[job.id] = job.token
        if job.id == self._suspect:
            self.look_everywhere()  # others of its kind may have been left in any queue
        self._settled.clear()
        self._poke()

    def _with_followers(self, asked: list[str], settles: list[tuple[str, SettleRow]]) -> list[str]:
        """The queues to ask, with those that these settles may fill: what follows costs no call of its own."""
        if self.free <= 0:
            return asked
        follow = {each for queue, _ in settles for each in self._consumers[queue].follows}
        return [*asked, *(each for each in follow.difference(asked) if self._quota(each) > 0)]

    def _next_settles(self) -> list[tuple[str, SettleRow]]:
        chosen: list[tuple[str, SettleRow]] = []
        size = cost = 0
        while self._settles and cost < _BATCH and size < _BYTES:
            each = self._settles.popleft()
            size += len(each[1].text)
            cost += _FOLLOWED if self._consumers[each[0]].follows else 1
            chosen.append(each)
        return chosen

    def _queue_row(self, queue: str, quota: int) -> TurnQueue:
        kept = self._consumers[queue].retention
        return TurnQueue(
            queue,
            quota,
            kept.keep_completed,
            kept.age_completed,
            kept.keep_failed,
            kept.age_failed,
            kept.key_ttl,
        )

    def _quota(self, queue: str) -> int:
        limit = self._consumers[queue].concurrency
        return min(limit - self.executor.counts[queue] - self._asked_of[queue], self.free)

    def _expect_due(self, answer: TurnAnswer) -> None:
        """Take a turn when the earliest delayed job is due; turns promote."""
        if self._due_timer is not None:
            self._due_timer.cancel()
            self._due_timer = None
        if answer.next_due < 0:
            return
        seconds = (answer.next_due - answer.now) / 1000
        if seconds <= 0:
            self._is_due = True  # more was due than one turn promotes
        else:
            self._due_timer = asyncio.get_running_loop().call_later(min(seconds, _LONGEST), self._on_due)

    def _on_due(self) -> None:
        self._due_timer = None
        self._is_due = True
        self._poke()

    def _on_owed(self) -> None:
        self._owed_timer = None
        self._poke()

    async def _pay_owed(self) -> None:
        """Put wakes back that others may use. Ours may pop them again, hence the pause between."""
        owed = self._agenda.take_owed()
        if owed:
            await self._store.rearm(self.pool, owed)

    def _poke(self) -> None:
        self._quiet.clear()
        self._poked.set()
