"""The simulation of events: an emitter and an operator use the workers of a `world`.

The handlers, the load and the checks are those of `chaos`. Besides what the world draws, a seed draws the
jobs, how many wait at a time, and the orders of the operator.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, cast

from checks.audit import JobRecord
from checks.reconciliation import Deliveries, Reconciliation
from harness.backends import Backend
from harness.conditions import last
from harness.toil import EVENTS, serve_toil
from harness.toil_load import ToilLoad

from eventbus import EventBusError, EventProvider
from sim.network import READS_OF_NEWS
from sim.world import World

__all__ = ["Simulation"]

_LATE = 3.0
_WITHIN, _WITHIN_LEASES = 80.0, 8
"""Seconds and leases in which each emission has its outcome."""
_HEARD_LATE = 0.9
"""Seconds after which a worker may hear of a hand-over too late; it asks first after 1 s (`handed_jobs`)."""
_CALM_WITHIN = 5.0
"""The same in calm, without what its jobs take."""
_UNHEARD = ("half lost", "silent", "late", "mute")
"""Faults that only a watch notices."""
_WATCH = 9.0
"""Seconds until it has, and the call was made again."""
_LOOPS = (3, 10, 40)
"""How many emissions wait at a time: if few, most jobs are handed over; if many, they are claimed."""


class Simulation(World):
    """One run of one seed."""

    def __init__(
        self,
        seed: int,
        folder: Path,
        server: Backend,
        *,
        jobs: int,
        kind: str = "",
        tape: IO[str] | None = None,
    ) -> None:
        super().__init__(seed, folder, server, kind=kind, tape=tape)
        self._longest = random.Random(f"{seed}-longest").choice([0.6, 0.6, 4.0])
        self._loops = random.Random(f"{seed}-loops").choice(_LOOPS)
        orders = ("pause", "limit", "edit", "edit")
        if not self.kind.fails_over:
            orders = (*orders, "cancel", "retry", "again")
        self.load = ToilLoad(
            seed, jobs, timeout=self.timeout, late=_LATE, longest=self._longest, orders=orders
        )
        self._deliveries = Deliveries()
        self._heard_late: set[str] = set()
        """Jobs whose worker heard of a hand-over late, or confirmed it late: they may be given back."""

    @property
    def size(self) -> int:
        return len(self.load.answers)

    @property
    def slowest(self) -> float:
        return max(self.load.seconds.values(), default=0.0)

    def serve(self, provider: EventProvider) -> None:
        serve_toil(provider, self._journal, lambda: f"run-{self._next_number()}")

    async def use(self, provider: EventProvider) -> None:
        await self.load.emit_all(provider, loops=self._loops)

    async def operate(self, provider: EventProvider) -> None:
        await asyncio.gather(self.load.operate(provider), self._hold_news())

    async def look(self, provider: EventProvider) -> None:
        if self.kind.fails_over:
            for event in EVENTS:
                await provider.resume(event)  # a failover may have taken a resume back
            await last(5 * self.lease)  # what was taken back runs to its end again
        for job in sorted(self.load.repeated):
            with suppress(EventBusError):  # whatever becomes of it
                await provider.result(job)

    def hear(self, command: tuple[Any, ...], reply: Any) -> None:
        """Note the entries of a reply stream, which are read in bytes, and hand-overs that are heard late."""
        is_of_stream = command[0] == "XREAD" and isinstance(reply, list)
        if is_of_stream and isinstance(cast("Any", reply)[0][0], bytes):
            self._deliveries.note(reply)
        if command[0] in READS_OF_NEWS and reply and reply[-2].startswith("job:"):
            job, _, handed_ms, _ = reply[-2].removeprefix("job:").split("\n", 3)
            if self.time.server_us() / 1e6 - int(handed_ms) / 1e3 > _HEARD_LATE:
                self._heard_late.add(job)
        if command[0] == "ZREM" and reply == 0 and command[2].startswith("hand:"):
            self._heard_late.add(command[2].partition("/")[2])

    # The verdict

    def judge(self) -> list[str]:
        """Compare all, add what only a simulation can demand, and take back what its faults allow."""
        found = Reconciliation(
            self.load.answers,
            self.load.late,
            self._deliveries,
            self._backend,
            self._journal,
            repeated=self.load.repeated,
        )
        outcomes = [
            (each.job, each.n, each.was_enqueued, each.result, repr(each.error)) for each in found.answers
        ]
        lines = [(each.what, each.job, each.attempt, each.payload) for each in self._journal.read()]
        self.network.note(repr((outcomes, lines)))
        if self.kind.fails_over:
            for name in ("lost", "ended twice", "heard another outcome", "unexplained"):
                found.flaws[name].clear()
        for job in self.load.repeated:
            if found.audit.jobs[job].state == "cancelled":
                self.flaws.append(f"{job}: was let run again, and was cancelled by nobody")
        for job, record in found.audit.jobs.items():
            if job not in self.load.stopped | self.load.repeated:
                self._judge_runs(job, record, found.runs[job])
        # What a worker heard of late is given back by a renewal, within a lease.
        heard_late = {each.n for each in found.answers if each.job in self._heard_late}
        for (event, n), seconds in self.load.seconds.items():
            if seconds > (limit := self._limit_of(event) + self.lease * (n in heard_late)):
                self.flaws.append(
                    f"emission {n} of {event} took {seconds:.1f} s, expected {limit:g} s at most"
                )
        if not found.is_clean():
            self.flaws.append("the reconciliation is not clean")
        return found.lines()

    def _limit_of(self, event: str) -> float:
        """Return the seconds in which an emission has its outcome, far below its timeout."""
        if not self.kind.is_exact or event == "bounded":  # an operator may let its jobs run one by one
            return _WITHIN + _WITHIN_LEASES * self.lease
        is_unheard = any(self.network.faults[each] for each in _UNHEARD)
        return _CALM_WITHIN + 4 * self._longest + (_WATCH if is_unheard else 0)

    def _judge_runs(self, job: str, record: JobRecord, ran: int) -> None:
        expected = record.attempts + (record.state == "completed")
        if self.kind.is_exact:
            is_right = ran == expected and (not record.stalls or job in self._heard_late)
        else:
            is_right = self.kind.fails_over or ran <= expected + record.stalls + (job in self._heard_late)
        if not is_right:
            self.flaws.append(f"{job}: {ran} runs, expected {expected}, {record.stalls} stalls")
