"""The claimer of a worker: takes turns, each one call that settles ended jobs and claims the next ones.

A worker has two lanes. While the server works on the call of one lane, this process runs the jobs
that the other lane claimed. Jobs that end meanwhile gather for the next call, so a busy worker makes
few large calls and an idle worker makes a small call at once. Each lane has at most one call under
way and numbers its calls. The store repeats a call whose answer was lost, with the same number, and
the server gives the same answer.

Not here: how jobs run (`executor`), which queues are asked (`queue_rotation`), which turns may claim
suspects, and when nothing may be claimed because of one (`suspects`), jobs that need no turn (`handed_jobs`),
who reads wakes (`wake_listener`).

What must always hold:
- a settle is dropped only when it was answered: recorded, or refused because the lease is lost;
  until then the lease of its job is kept (`settle_queue`), however long the answer takes;
- a call asks for no more jobs than the worker and each queue (but see `look_through`) have slots; those that
  the other lane asks for count as taken slots;
- while a queue has work and this worker has a slot for it, a turn is under way or due.

Crash windows: `turn-not-sent` and `turn-not-answered` (the same call is made again),
`turn-given-up` (it may have claimed jobs; a renewal gives them back), `dies-after-claim` (the leases run out
and the jobs are rescued), `dies-before-settle` (the job runs again: handlers run at least once).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import anyio
import msgspec

from eventbus.engine.claiming.append_queue import AppendQueue
from eventbus.engine.claiming.due_timer import DueTimer
from eventbus.engine.claiming.handed_jobs import HandedJobs
from eventbus.engine.claiming.lane import Lane
from eventbus.engine.claiming.queue_rotation import QueueRotation
from eventbus.engine.claiming.retirement import Retirement
from eventbus.engine.claiming.settle_queue import SettleQueue
from eventbus.engine.claiming.slots import Slots
from eventbus.engine.claiming.suspects import SuspectGate
from eventbus.engine.consumer import Consumer
from eventbus.engine.executor import Executor
from eventbus.engine.job import Job, Settle, give_back
from eventbus.engine.reporting.tallies import Tallies
from eventbus.errors import StoreError
from eventbus.model import clock
from eventbus.store.bounds import CALL_BYTES, CALL_ROWS
from eventbus.store.calls.journal_store import read_signals
from eventbus.store.scripting.packing import TurnRequest
from eventbus.store.scripting.script_rows import SettleRow, TurnAnswer, TurnQueue
from eventbus.store.store import Store
from eventbus.telemetry.listeners import Teller
from eventbus.telemetry.logging import get_logger

_log = get_logger("eventbus.worker")

_FOLLOWED = 3  # plain jobs that cost the server as much as one job that others follow
_QUEUES = 64  # that one call asks
_ENOUGH = 16  # settles that are worth a second call beside the one under way
_PAUSE = 0.25  # seconds


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
        on_duty: Callable[[], None] | None = None,
        tallies: Tallies | None = None,
        teller: Teller | None = None,
    ) -> None:
        self.executor: Executor = Executor(self._settle, patience=patience, teller=teller)
        self.pool = ""
        self.claimed: int = 0
        self.answered: float | None = None
        """When a turn was last answered, in monotonic seconds; None before the first answer."""
        self.settles: SettleQueue = SettleQueue(self._cost_of, tallies, teller)
        self._appends = AppendQueue()
        self._foreign: set[str] = set()  # queues that the last turns could not read
        self._store = store
        self._consumers = consumers
        self._lease_ms = lease_ms
        self._lanes = (Lane(worker, store.address), Lane(f"{worker}+", store.address))
        self._suspects = SuspectGate(
            self.executor.running, lease=lease_ms / 1000, on_room=self.look_everywhere
        )
        self._slots = Slots(self.executor, consumers, max_concurrency, is_open=self._is_open)
        self._rotation = QueueRotation(self._slots.quota)
        self.retirement: Retirement = Retirement(self._slots, self._rotation, self.executor, self.settles)
        self.handed: HandedJobs = HandedJobs(store, worker)
        self.due: DueTimer = DueTimer(self._poke)
        self._on_duty = on_duty
        self._is_draining = False
        self._poked = asyncio.Event()
        self._quiet = asyncio.Event()
        self._quiet.set()
        self.settled: asyncio.Event = asyncio.Event()
        self.settled.set()
        self._owed_timer: asyncio.TimerHandle | None = None

    def read_jobs(self) -> list[str]:
        """Return the jobs that run here, and those whose settle is not answered."""
        return [*self.executor.running, *(lease.id for lease in self.settles.unsettled)]

    def read_calls(self) -> tuple[int, int]:
        """Return for each lane the number of the last call whose claims were started; called from any
        thread.
        """
        return self._lanes[0].done, self._lanes[1].done

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs, nothing waits to be settled, and no queue is known to have work."""
        return not self.executor.running and not self.settles.unsettled and self._quiet.is_set()

    def look_everywhere(self) -> None:
        """Ask every queue in the next turns, whether or not it is known to have work."""
        for queue in self._consumers:
            self._rotation.look_at(queue)
        self._poke()

    def notice(self, *queues: str) -> None:
        """Ask these queues in the next turns, because they may have work; others' queues are ignored."""
        self._rotation.note(queue for queue in queues if queue in self._consumers)
        self._poke()

    def append(
        self, job: Job, entries: Sequence[str], *, live: Mapping[str, str], taken: Sequence[str]
    ) -> asyncio.Future[str]:
        """Append to the journal of a running job; see `AppendQueue.put`."""
        appended = self._appends.put(job, entries, live=live, taken=taken)
        self._poke()
        return appended

    def start_handed(self, job: Job) -> None:
        """Run a job that was handed to this worker, or give it back if the worker has no slot for it."""
        if job.queue not in self._consumers:
            _log.error("message dropped that brings a job of another queue", queue=job.queue, job_id=job.id)
            return  # the next renewal but a few gives it back
        self.claimed += 1
        if self._is_draining or self._slots.quota(job.queue) <= 0:
            self._settle(job, give_back(has_begun=False))
        else:
            self._suspects.started()
            self.executor.start(job, self._consumers[job.queue])

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

        A thread that outlived its job may hold the last place of a queue's handler. That queue is asked as
        well: its job then waits for the place here. Any claim meanwhile, also one after a wake, makes the
        answer False.
        """
        while not self.is_idle:
            await self._quiet.wait()
            await self.executor.wait_ended()
            await self.settled.wait()
        before = self.claimed
        self.handed.refuse()
        with self._slots.open_each():
            self.look_everywhere()
            await self._quiet.wait()
        return await self.handed.hear_all() and self.is_idle and self.claimed == before

    def stop_claiming(self) -> None:
        """Claim no more jobs; running ones are still settled."""
        self._is_draining = True
        for sharing in self._slots.sharing.values():
            sharing.hurry()
        self._poke()

    async def hand_over(self) -> None:
        """Wake other workers for the queues in which this worker knew of work, or one of them to learn when
        something is due.
        """
        queues = self._rotation.take_all()
        if not queues and self.due.is_known:
            queues = list(self._consumers)[:1]
        if queues:
            await self._store.rearm(self.pool, queues)

    async def run(self) -> None:
        """Take turns until cancelled; the worker runs this as one of its tasks."""
        try:
            async with anyio.create_task_group() as lanes:
                for lane in self._lanes:
                    lanes.start_soon(self._run_lane, lane, name=f"lane {lane.name}")
        finally:
            self._suspects.close()
            self._appends.close()
            self.due.close()
            if self._owed_timer is not None:
                self._owed_timer.cancel()

    async def _run_lane(self, lane: Lane) -> None:
        while True:
            await self._poked.wait()
            try:
                await self._take_turns(lane)
            except StoreError as error:
                _log.error("turn refused, trying again in 1 s", error=str(error))
                self.executor.teller.error("claimer", error)
                await asyncio.sleep(1)
                self._poke()

    async def _take_turns(self, lane: Lane) -> None:
        while True:
            is_second = any(other.is_busy for other in self._lanes)
            queues = self._choose()
            enough = _ENOUGH if is_second else 1
            rows = len(self.settles) + len(self._appends)
            if not (queues or rows >= enough or (self.due.is_due and not is_second)):
                break
            await self._turn(lane, queues)
        self._poked.clear()
        if is_second:
            return  # the lane whose call is under way looks again when its answer comes
        self._quiet.set()
        self._note_settled()
        if self._rotation.has_owed and self._owed_timer is None:
            self._owed_timer = asyncio.get_running_loop().call_later(_PAUSE, self._on_owed)
            await self._pay_owed()

    def _choose(self) -> list[str]:
        """Return the queues that the next turn asks."""
        want = self._slots.want
        if want <= 0 and not self._slots.sharing:
            return []
        alone = self._suspects.find_lonely() if want > 0 else []
        return alone or self._slots.apart(self._rotation.choose(_QUEUES, want))

    async def _turn(self, lane: Lane, asked: list[str]) -> None:
        settles, appends = self.settles.take(), self._appends.take()
        asked = self._slots.with_followers(asked, (queue for queue, _ in settles))
        want = self._slots.want_of(asked)
        if any(self._consumers[queue].follows for queue in asked):
            # Such a job costs the server more to claim and settle, so a call asks for fewer of them.
            want = min(want, CALL_ROWS // _FOLLOWED)
        queues = [self._queue_row(queue, min(want, self._slots.quota(queue))) for queue in asked]
        # A settle needs its queue's retention in the same call, so queues that are not asked go with quota 0.
        others = {queue for queue, _ in settles}.difference(asked)
        queues.extend(self._queue_row(queue, 0) for queue in others)
        self.due.is_due = False
        self.settled.clear()
        self._rotation.ask(asked)
        idle = self.handed.offer(is_idle=self._is_free(asked, running=0))
        lane.begin()
        ask = self._suspects.ask(asked)
        try:
            with self._slots.reserve(want, queues):
                answer = await self._store.turn(
                    TurnRequest(
                        lane=lane.name,
                        call=lane.call,
                        lease_ms=self._lease_ms,
                        pool=self.pool,
                        idle=idle,
                        want=want,
                        suspects=ask.room,
                        watched=ask.watched,
                        is_alone=ask.is_alone,
                        max_bytes=CALL_BYTES,
                        queues=queues,
                        settles=[row for _, row in settles],
                        appends=appends,
                    )
                )
        except BaseException:  # also a cancellation: no settle may be lost
            self.settles.put_back(settles)
            self._appends.put_back(appends)
            self._rotation.unanswered(asked)
            # The server may have carried it out, or a part of it. Its kept answer does not fit another list
            # of settles, so its number is not used again. The next renewal gives back the jobs that it
            # claimed.
            lane.done = lane.call
            raise
        finally:
            lane.end()
            self._suspects.answered(ask)
        for queue, row in settles:
            is_lost = row.id in answer.lost
            self.settles.answered(queue, row, is_lost=is_lost)
            if not is_lost and self._consumers[queue].follows:
                self._consumers[queue].settled(row.id, row.state, row.text)
        self._appends.answered(appends, answer.refusals)
        self.handed.answered(idle, answer)
        self._apply(answer, asked, queues)
        lane.done = lane.call  # not before, because the lease thread may look at any moment
        for queue in self._suspects.note(ask, answer, asked):
            self._rotation.look_at(queue)

    def _apply(self, answer: TurnAnswer, asked: list[str], queues: list[TurnQueue]) -> None:
        self.answered = clock.monotonic()
        gave = {queues[row.queue - 1].queue for row in answer.claims}
        self._rotation.answered(asked, (queues[place - 1].queue for place in answer.more), gave)
        self._rotation.note(queue for queue in answer.woken if queue in self._consumers)
        self.due.expect(answer.next_due, answer.now)
        if answer.has_duty and self._on_duty is not None and not self._is_draining:
            self._on_duty()
        self._note_foreign(answer.foreign, asked)
        self.settles.note_apart(answer.aparts)
        self.claimed += len(answer.claims)
        for job in claimed_jobs(answer, queues, self.answered):
            if self._is_draining:
                self._settle(job, give_back(has_begun=False))  # claimed before the stop
            else:
                self.executor.start(job, self._consumers[job.queue])

    def _note_foreign(self, found: list[str], asked: list[str]) -> None:
        """Log the queues that cannot be read, each once until it can be."""
        for queue in set(found) - self._foreign:
            _log.error("queue not read: another program's value stands in the place of its key", queue=queue)
        self._foreign = (self._foreign - set(asked)) | set(found)

    def _settle(self, job: Job, settle: Settle) -> None:
        row = self.settles.begin(job, settle)
        self.settled.clear()
        self._suspects.ended(job.id)
        if self.handed.is_short(job, settle) and self._is_free([], running=1):
            self._settle_alone(job, row)
            return
        self.settles.put(job.queue, row)
        self._poke()

    def _is_open(self) -> bool:
        return not self._is_draining and self._suspects.is_open

    def _is_free(self, asked: list[str], *, running: int) -> bool:
        """Return whether nothing is under way here but `running` jobs that end, and a turn that asks the
        queues `asked`.
        """
        return (
            len(self.executor.running) <= running
            and not (self.settles or self._appends or self.handed.is_settling)
            and not any(lane.is_busy for lane in self._lanes)
            and not self._rotation.has_others(asked)
            and self._is_open()
        )

    def _settle_alone(self, job: Job, row: SettleRow) -> None:
        kept = self._consumers[job.queue].retention
        self.handed.settle(
            job,
            row.text,
            pool=self.pool,
            keep=kept.keep_completed,
            age=kept.age_completed,
            on_answer=partial(self._on_settled_alone, job.queue, row),
        )

    def _on_settled_alone(self, queue: str, row: SettleRow, word: str) -> None:
        if word == "long":
            self.settles.put(queue, row)
            self._poke()
            return
        self.answered = clock.monotonic()
        self.settles.answered(queue, row, is_lost=word == "lost")
        if not any(lane.is_busy for lane in self._lanes):
            self._note_settled()

    def _note_settled(self) -> None:
        if not self.settles.unsettled:
            self.settled.set()

    def _cost_of(self, queue: str) -> int:
        return _FOLLOWED if self._consumers[queue].follows else 1

    def _queue_row(self, queue: str, quota: int) -> TurnQueue:
        return TurnQueue(queue, quota, *msgspec.structs.astuple(self._consumers[queue].retention)[:5])

    def _on_owed(self) -> None:
        self._owed_timer = None
        self._poke()

    async def _pay_owed(self) -> None:
        """Put back wakes that other workers may use. This worker may pop them again, so it pauses in
        between.
        """
        if owed := self._rotation.take_owed():
            await self._store.rearm(self.pool, owed)

    def _poke(self) -> None:
        self._quiet.clear()
        self._poked.set()


def claimed_jobs(answer: TurnAnswer, queues: Sequence[TurnQueue], began: float) -> Iterator[Job]:
    """Yield the jobs of an answer, which came at `began`, monotonic seconds; `queues` are those that the turn
    asked.
    """
    journals = {each.id: each for each in answer.journals}
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
            abs(row.due),
            answer.now,
            row.stop,
            has_begun=row.due < 0,
            began=began,
        )
        if journals and (given := journals.get(row.id)) is not None:
            job.journal = given.entries
            job.unread = given.length - len(given.entries)
            job.signals = read_signals(given.signals)
            job.heard = given.heard
        yield job
