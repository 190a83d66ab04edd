"""A fleet of workers without processes: the real scripts and the real gate of suspects, at the test's own
time.

Each worker renews each 3 s of its lease of 10 s, takes a turn as soon as something may be claimed or settled,
and asks again each 4 s. A worker that dies takes all of its jobs along, and is back under another name after
2 s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from drivers.shards import LEASE, START, Shard, row, settle, turn_queue

from eventbus.engine.claiming.suspects import SuspectGate
from eventbus.store.scripting.script_rows import ClaimRow, SettleRow

__all__ = ["Fleet", "Work"]

_STEP = 0.25  # seconds
_BEAT, _LOOK, _BACK = 3.0, 4.0, 2.0
_MAX_STALLS = 3


@dataclass(frozen=True)
class Work:
    """A job that takes so long, and may kill its worker."""

    id: str
    seconds: float
    kills_after: float | None = None


@dataclass
class _Run:
    work: Work
    claim: ClaimRow
    token: str
    since: float


@dataclass
class _Worker:
    name: str
    gate: SuspectGate
    up: float
    beat: float = 0.0
    look: float = 0.0
    runs: dict[str, _Run] = field(default_factory=dict[str, _Run])
    ends: list[SettleRow] = field(default_factory=list[SettleRow])


class Fleet:
    """Some workers, each with so many slots, that serve one queue."""

    def __init__(self, shard: Shard, workers: int, slots: int) -> None:
        self.now = 0.0
        self.deaths = 0
        self.completed: list[str] = []
        self.failed: list[str] = []
        self.most_stalls = 0
        self._shard = shard
        self._slots = slots
        self._works: dict[str, Work] = {}
        self._names = 0
        self._next_rescue = 0.0
        self._workers = [self._make(0.0) for _ in range(workers)]

    @property
    def width(self) -> int:
        """How many jobs run."""
        return sum(len(each.runs) for each in self._workers)

    def close(self) -> None:
        for worker in self._workers:
            worker.gate.close()

    async def add(self, works: Sequence[Work]) -> None:
        self._works.update((each.id, each) for each in works)
        for first in range(0, len(works), 100):
            await self._shard.add(*(row(each.id, reply=0) for each in works[first : first + 100]))

    async def run(self, kills: Iterable[float] = (), until: Callable[[], bool] = lambda: False) -> None:
        """Run until all jobs have ended or `until` holds; all workers die at each time of `kills`."""
        left = list(kills)
        while len(self.completed) + len(self.failed) < len(self._works) and not until():
            assert self.now < 4000, "it ends"
            for worker in self._workers:
                if (left and self.now >= left[0]) or any(self._is_fatal(run) for run in worker.runs.values()):
                    self._kill(worker)
            left = [at for at in left if at > self.now]
            await self._rescue()
            for worker in list(self._workers):
                if worker.up <= self.now:
                    await self._advance(worker)
            self.now += _STEP
            self._shard.now = START + round(self.now * 1000)

    def _is_fatal(self, run: _Run) -> bool:
        return run.work.kills_after is not None and self.now - run.since >= run.work.kills_after

    def _make(self, up: float) -> _Worker:
        self._names += 1
        runs: dict[str, _Run] = {}
        return _Worker(
            f"w{self._names}", SuspectGate(runs, lease=LEASE / 1000, on_room=lambda: None), up, runs=runs
        )

    def _kill(self, worker: _Worker) -> None:
        self.deaths += worker.up <= self.now
        worker.gate.close()
        self._workers[self._workers.index(worker)] = self._make(self.now + _BACK)

    async def _rescue(self) -> None:
        if self.now < self._next_rescue:
            return
        pause, _, ended = await self._shard.rescue(limit=200, max_stalls=_MAX_STALLS)
        self.failed += ended
        if self._shard.stalls:
            self._look()
            records = [await self._shard.record(each.id) for each in self._shard.stalls[-3:]]
            self.most_stalls = max(self.most_stalls, *(int(each["stalls"]) for each in records))
        if len(self._shard.stalls) < 200:
            self._next_rescue = self.now + min(4.0, pause / 1000 if pause >= 0 else 4.0)

    def _look(self) -> None:
        for worker in self._workers:
            worker.look = self.now

    async def _advance(self, worker: _Worker) -> None:
        for job, run in list(worker.runs.items()):
            if self.now - run.since >= run.work.seconds:
                del worker.runs[job]
                worker.gate.ended(job)
                worker.ends.append(settle(run.claim, run.token))
                self.completed.append(job)
                worker.look = self.now
        if self.now >= worker.beat:
            worker.beat = self.now + _BEAT
            named = [(job, run.token) for job, run in worker.runs.items()]
            assert await self._shard.renew(*named, worker=worker.name) == []
        change = worker.gate.next_change()
        while worker.ends or self.now >= worker.look:
            worker.look = self.now + min(_LOOK, _LOOK if change is None else change + 0.001)
            if not await self._turn(worker):
                break
            worker.look = self.now

    async def _turn(self, worker: _Worker) -> bool:
        """Take a turn; return whether another one should follow."""
        free = self._slots - len(worker.runs) if worker.gate.is_open else 0
        ask = worker.gate.ask(worker.gate.find_lonely() or ["q"] if free > 0 else [])
        ends, worker.ends = worker.ends, []
        answer = await self._shard.turn(
            *ends, worker=worker.name, want=min(free, 200), queues=[turn_queue(quota=free)],
            suspects=ask.room, watched=ask.watched, is_alone=ask.is_alone,
        )  # fmt: skip
        assert answer.lost == []
        for claim in answer.claims:
            worker.runs[claim.id] = _Run(self._works[claim.id], claim, answer.token, self.now)
        worker.gate.answered(ask)
        worker.gate.note(ask, answer, ["q"])
        self.most_stalls = max([self.most_stalls, *(each.stalls for each in answer.claims)])
        return bool(answer.claims) or bool(worker.gate.find_lonely())
