"""The claimer of a worker: takes turns, each one call that settles ended jobs and claims the next ones.

A worker has two lanes. While the server works on the call of one lane, this process runs the jobs
that the other lane claimed. Jobs that end meanwhile gather for the next call, so a busy worker makes
few large calls and an idle worker makes a small call at once. Each lane has at most one call under
way and numbers its calls. The store repeats a call whose answer was lost, with the same number, and
the server gives the same answer.

Not here: how jobs run (`executor`), which queues are asked (`queue_rotation`), which turns may claim a suspect
(`suspects`), who reads wakes (`wake_listener`).

What must always hold:
- a settle is dropped only when it was answered: recorded, or refused because the lease is lost;
  until then the lease of its job is kept (`unsettled`), however long the answer takes;
- a call never asks for more jobs than the worker and each queue have free slots; the jobs that the
  other lane asks for count as taken slots;
- while a queue has work and this worker has a slot for it, a turn is under way or due.

Crash windows: `turn-not-sent` and `turn-not-answered` (the same call is made again),
`turn-given-up` (it may have claimed jobs; a renewal gives them back), `dies-after-claim` (the leases run out
and the jobs are rescued), `dies-before-settle` (the job runs again: handlers run at least once).
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Mapping

import anyio

from eventbus.engine.consumer import Consumer
from eventbus.engine.executor import Executor
from eventbus.engine.job import Job, Settle, give_back
from eventbus.engine.queue_rotation import QueueRotation
from eventbus.engine.suspects import Suspects
from eventbus.errors import StoreError
from eventbus.model import clock
from eventbus.store.script_rows import LeaseRow, SettleRow, TurnAnswer, TurnQueue
from eventbus.store.store import Store
from eventbus.telemetry.logging import get_logger

__all__ = ["Claimer"]

_log = get_logger("eventbus.worker")

_BATCH = 200  # jobs in one call: the server serves nobody else while a script runs
_FOLLOWED = 3  # plain jobs that cost the server as much as one job that others follow
_BYTES = 1 << 20  # of bodies and of settled texts in one call
_QUEUES = 64  # that one call asks
_ENOUGH = 16  # settles that are worth a second call beside the one under way
_PAUSE = 0.25  # seconds
_LONGEST = 3600.0  # seconds; bounds a timer whose due time may be years away


class _Lane:
    """One series of numbered calls, of which at most one is under way."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.call = 0
        self.done = 0
        """The last call whose claims were started, or whose answer nobody waits for any more."""
        self.is_busy = False


class Claimer:
    """Claims jobs for one worker, has its executor run them, and settles them."""

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
        self.executor: Executor = Executor(self._settle, patience=patience)
        self.pool = ""
        self.claimed: int = 0
        self.answered: float | None = None
        """When a turn was last answered, in monotonic seconds; None before the first answer."""
        self.refused: int = 0
        """How many outcomes the server refused because their lease was lost."""
        self.unsettled: set[LeaseRow] = set()
        """The jobs that ended here and whose settle is not answered yet."""
        self._foreign: set[str] = set()  # queues that the last turns could not read
        self._store = store
        self._consumers = consumers
        self._lease_ms = lease_ms
        self._max_concurrency = max_concurrency
        self._rotation = QueueRotation(self._quota)
        self._settles: deque[tuple[str, SettleRow]] = deque()
        self._lanes = (_Lane(worker), _Lane(f"{worker}+"))
        self._asked = 0
        self._asked_of: Counter[str] = Counter()
        self._suspects = Suspects(self.executor.running)
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
        """How many jobs this worker could take now."""
        if self._is_draining:
            return 0
        return self._max_concurrency - len(self.executor.running) - self._asked

    @property
    def _want(self) -> int:
        """How many jobs to ask for: at most half of the slots, because the other lane asks for the other half."""
        return min(max(self.free, 0), max(1, self._max_concurrency // 2), _BATCH)

    def read_calls(self) -> tuple[int, int]:
        """Return for each lane the number of the last call whose claims were started; called from any thread."""
        first, second = self._lanes
        return first.done, second.done

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs, nothing waits to be settled, and no queue is known to have work."""
        return not self.executor.running and not self._settles and self._quiet.is_set()

    def look_everywhere(self) -> None:
        """Ask every queue in the next turns, whether or not it is known to have work."""
        for queue in self._consumers:
            self._rotation.look_at(queue)
        self._poke()

    def notice(self, *queues: str) -> None:
        """Ask these queues in the next turns, because they may have work; others' queues are ignored."""
        self._rotation.note(queue for queue in queues if queue in self._consumers)
        self._poke()

    async def wait_quiet(self) -> bool:
        """Wait at most 0.25 s until there is nothing to claim; return whether that is so."""
        if self._quiet.is_set():
            return True
        try:
            async with asyncio.timeout(_PAUSE):
                return await self._quiet.wait()
        except TimeoutError:
            return False

    async def look_through(self) -> bool:
        """Wait until nothing runs here, ask every queue, and return True if none of them had a job.

        While nothing runs, every queue has free slots, so every queue is really asked. Any claim
        meanwhile, also one after a wake, makes the answer False.
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
        """Claim no more jobs; running ones are still settled."""
        self._is_draining = True
        self._poke()

    async def hand_over(self) -> None:
        """Wake other workers for the queues in which this worker knew of work."""
        queues = self._rotation.take_all()
        if queues:
            await self._store.rearm(self.pool, queues)

    async def wait_settled(self) -> None:
        """Wait until every settle was answered and no call is under way."""
        await self._settled.wait()

    async def run(self) -> None:
        """Take turns until cancelled; the worker runs this as one of its tasks."""
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
                _log.error("turn refused, trying again in 1 s", error=str(error))
                await asyncio.sleep(1)
                self._poke()

    async def _take_turns(self, lane: _Lane) -> None:
        while True:
            is_second = any(other.is_busy for other in self._lanes)
            queues = self._rotation.choose(_QUEUES, self._want) if self.free > 0 else []
            enough = _ENOUGH if is_second else 1
            if not (queues or len(self._settles) >= enough or (self._is_due and not is_second)):
                break
            await self._turn(lane, queues)
        self._poked.clear()
        if is_second:
            return  # the lane whose call is under way looks again when its answer comes
        self._quiet.set()
        self._settled.set()
        if self._rotation.has_owed and self._owed_timer is None:
            self._owed_timer = asyncio.get_running_loop().call_later(_PAUSE, self._on_owed)
            await self._pay_owed()

    async def _turn(self, lane: _Lane, asked: list[str]) -> None:
        settles = self._next_settles()
        asked = self._with_followers(asked, settles)
        want = self._want
        if any(self._consumers[queue].follows for queue in asked):
            # Such a job costs the server more to claim and settle, so a call asks for fewer of them.
            want = min(want, _BATCH // _FOLLOWED)
        queues = [self._queue_row(queue, min(want, self._quota(queue))) for queue in asked]
        reserved = {row.queue: row.quota for row in queues}
        # A settle needs its queue's retention in the same call, so queues that are not asked go with quota 0.
        others = {queue for queue, _ in settles}.difference(asked)
        queues.extend(self._queue_row(queue, 0) for queue in others)
        self._is_due = False
        self._settled.clear()
        self._rotation.ask(asked)
        lane.is_busy = True
        suspects = self._suspects.ask(asked)
        self._asked += want
        self._asked_of.update(reserved)
        lane.call += 1
        try:
            answer = await self._store.turn(
                lane=lane.name,
                call=lane.call,
                lease_ms=self._lease_ms,
                pool=self.pool,
                want=want,
                suspects=suspects,
                max_bytes=_BYTES,
                queues=queues,
                settles=[row for _, row in settles],
            )
        except BaseException:  # also a cancellation: no settle may be lost
            self._settles.extendleft(reversed(settles))
            self._rotation.unanswered(asked)
            # The server may have carried it out, or a part of it. Its kept answer does not fit another list of
            # settles, so its number is not used again. The next renewal gives back the jobs that it claimed.
            lane.done = lane.call
            raise
        finally:
            lane.is_busy = False
            self._suspects.answered(may_claim=suspects)
            self._asked -= want
            self._asked_of.subtract(reserved)
        for queue, row in settles:
            self.unsettled.discard(LeaseRow(row.id, row.token))
            if self._consumers[queue].follows and row.id not in answer.lost:
                self._consumers[queue].settled(row.id, row.state, row.text)
        self._apply(answer, asked, queues)
        lane.done = lane.call  # not before, because the lease thread may look at any moment
        if suspects:
            for queue in self._suspects.take_passed():
                self._rotation.look_at(queue)

    def _apply(self, answer: TurnAnswer, asked: list[str], queues: list[TurnQueue]) -> None:
        self.answered = clock.monotonic()
        gave = {queues[row.queue - 1].queue for row in answer.claims}
        self._rotation.answered(asked, (queues[place - 1].queue for place in answer.more), gave)
        self._rotation.note(queue for queue in answer.woken if queue in self._consumers)
        self._expect_due(answer)
        self._note_foreign(answer.foreign, asked)
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
            self._suspects.note_claim(row.id, row.stalls)
            if self._is_draining:
                self._settle(job, give_back())  # the call that claimed it began before the stop
            else:
                self.executor.start(job, self._consumers[queue])

    def _note_foreign(self, found: list[str], asked: list[str]) -> None:
        """Log the queues that cannot be read, each once until it can be."""
        for queue in set(found) - self._foreign:
            _log.error("queue not read: another program's value stands in the place of its key", queue=queue)
        self._foreign = (self._foreign - set(asked)) | set(found)

    def _settle(self, job: Job, settle: Settle) -> None:
        # The server always writes the count of a delayed job, so one that did not count sends the old number.
        kept = job.attempts if settle.state == "delayed" else ""
        attempts = job.attempts + 1 if settle.counts else kept
        row = SettleRow(job.id, job.token, settle.state, attempts, settle.text, settle.delay_ms)
        self._settles.append((job.queue, row))
        self.unsettled.add(LeaseRow(job.id, job.token))
        if self._suspects.is_last(job.id):
            self.look_everywhere()  # other suspects may have been left in any queue
        self._settled.clear()
        self._poke()

    def _with_followers(self, asked: list[str], settles: list[tuple[str, SettleRow]]) -> list[str]:
        """Return the queues to ask, with those that these settles may fill: follow-up jobs need no second call."""
        if self.free <= 0:
            return asked
        follow = {follower for queue, _ in settles for follower in self._consumers[queue].follows}
        return [*asked, *(follower for follower in follow.difference(asked) if self._quota(follower) > 0)]

    def _next_settles(self) -> list[tuple[str, SettleRow]]:
        chosen: list[tuple[str, SettleRow]] = []
        size = cost = 0
        while self._settles and cost < _BATCH and size < _BYTES:
            settle = self._settles.popleft()
            size += len(settle[1].text)
            cost += _FOLLOWED if self._consumers[settle[0]].follows else 1
            chosen.append(settle)
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
        """Plan a turn for the time when the earliest delayed job is due, because turns promote delayed jobs."""
        if self._due_timer is not None:
            self._due_timer.cancel()
            self._due_timer = None
        if answer.next_due < 0:
            return
        seconds = (answer.next_due - answer.now) / 1000
        if seconds <= 0:
            self._is_due = True  # more jobs were due than one turn promotes
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
        """Put back wakes that other workers may use. This worker may pop them again, so it pauses in between."""
        owed = self._rotation.take_owed()
        if owed:
            await self._store.rearm(self.pool, owed)

    def _poke(self) -> None:
        self._quiet.clear()
        self._poked.set()
