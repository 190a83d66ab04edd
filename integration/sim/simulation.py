"""One simulation: workers, an emitter and an operator of the real engine in one loop, under faults of a seed.

Time and the network are virtual; the server, its scripts and the whole Python are real. The handlers, the
load and the checks are those of `chaos`. What a seed draws:

- its kind (`kinds`), and how often connections fail;
- each delay and each fault of a connection (`network`);
- what hits the server: cuts, flushed functions, mute moments, restarts, refusals, stops, failovers;
- what hits workers: killed, paused for 0.3 to 2.5 leases, clocks that step;
- the jobs, and the orders of the operator;
- the ids and the jitter of the product (`eventbus.model.chance`).

What must always hold: one seed, one history. So the clocks begin at the same time, and what a process is
called is fixed. A history is the hash over all commands, answers and outcomes.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, cast

from checks.audit import Audit, JobRecord
from checks.reconciliation import Deliveries, Reconciliation
from harness.backends import Backend
from harness.conditions import last
from harness.journal import Journal
from harness.toil import EVENTS, serve_toil
from harness.toil_load import ToilLoad

from eventbus import EventBusError, EventProvider, Keep
from eventbus.engine import presence
from eventbus.model import chance
from eventbus.store.connection.connector import add_scheme
from eventbus.testing.network import SCHEME
from eventbus.testing.nodes import Node
from eventbus.testing.server import TestServer
from eventbus.testing.virtual_time import VirtualTime
from sim.kinds import KINDS, kind_of
from sim.network import FaultyConnector, FaultyNetwork

__all__ = ["Simulation"]

LEASES = (2.0, 6.0, 15.0)
"""Seconds. A short lease lets much run out; renewals of a long one come too late to hide what was
forgotten."""
_LATE = 3.0
_WITHIN, _WITHIN_LEASES = 40.0, 8
"""Seconds and leases in which each emission has its outcome."""
_CALM_WITHIN = 5.0
"""The same in calm, without what its jobs take."""
_UNHEARD = ("half lost", "silent", "late", "mute")
"""Faults that only a watch notices."""
_WATCH = 9.0
"""Seconds until it has, and the call was made again."""
_BEGAN = 1000.0
"""The loop's time at first."""
_START = 1_893_456_000
"""The wall clock's time at first."""
_LOOPS = (3, 10, 40)
"""How many emissions wait at a time: if few, most jobs are handed over; if many, they are claimed."""
_WORKERS = 3
_TARGETS = ("", "", "turn", "add", "settle_one", "renew", "attend", "ZREM", "BZPOPMIN", "XREAD")
"""What the faults of connections aim at; a defect may need two of them beside one kind of call."""
_LONGEST = 1000.0
"""Virtual seconds after which a simulation that has not ended stands still, or lives on for nothing."""


class StandsStill(Exception):
    """Nobody will ever do anything any more, or the simulation takes too long."""


class _Worker:
    """One worker, in a node of its own."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.is_over = asyncio.Event()
        self.task: asyncio.Task[None] | None = None


class Simulation:
    """One run of one seed on a server that nobody else uses."""

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
        self.seed, self.jobs = seed, jobs
        self.kind_name = kind or kind_of(seed)
        self.kind = KINDS[self.kind_name]
        self.kills = 0
        self.audits = 0
        self.flaws: list[str] = []
        """What is wrong beside what the reconciliation finds."""
        self._rng = random.Random(f"{seed}-faults")
        # Seeds differ in how often connections fail, so that some reach what others never do.
        self._rate = random.Random(f"{seed}-rate").choice([0.001, 0.004, 0.016])
        self.lease = random.Random(f"{seed}-lease").choice(LEASES)
        self.timeout = 120 + 15 * self.lease
        """Seconds that an emission waits: its job may be killed again and again."""
        self._longest = random.Random(f"{seed}-longest").choice([0.6, 0.6, 4.0])
        self._loops = random.Random(f"{seed}-loops").choice(_LOOPS)
        orders = ("pause", "limit", "edit", "edit")
        if not self.kind.fails_over:
            orders = (*orders, "cancel", "retry")
        self.load = ToilLoad(
            seed,
            jobs,
            timeout=self.timeout,
            late=_LATE,
            longest=self._longest,
            orders=orders,
        )
        self._target = random.Random(f"{seed}-target").choice(_TARGETS)
        self._backend = server
        self._folder = folder
        self._journal = Journal(folder / "journal")
        self._workers: list[_Worker] = []
        self._count = 0
        self._is_over = False
        self._tape = tape
        self.time = VirtualTime(start=_START, leaps=False)

    @property
    def history(self) -> str:
        """The hash of all that happened so far."""
        return self.network.history.hexdigest()[:16]

    @property
    def seconds(self) -> float:
        """The virtual seconds that have passed."""
        return self.time.now - _BEGAN

    async def run(self) -> Reconciliation:
        """Emit all jobs under faults; compare when the last has ended. Raises StandsStill."""
        server = TestServer(str(self._backend.socket))
        server.run([("FLUSHALL", "SYNC"), ("FUNCTION", "FLUSH", "SYNC"), ("SCRIPT", "FLUSH", "SYNC")])
        self.time.install()
        self.time.now = self.time.began = _BEGAN
        main = asyncio.current_task()
        assert main is not None
        self.time.on_standstill = lambda: self._stand_still(main)
        self.network = FaultyNetwork(self.time, server, self._rng, tape=self._tape)
        deliveries = Deliveries()
        self.network.listeners.append(lambda command, reply: _note_delivery(deliveries, command, reply))
        add_scheme(SCHEME, lambda url: FaultyConnector(url, self.network))
        with _fixed(self.seed):
            async with asyncio.timeout(_LONGEST):
                await self._run()
        self.time.remove()
        self.network.run([("DEL", "expiring")])  # after what has expired
        server.close()
        found = Reconciliation(
            self.load.answers,
            self.load.late,
            deliveries,
            self._backend,
            self._journal,
            repeated=self.load.repeated,
        )
        outcomes = [
            (each.job, each.n, each.was_enqueued, each.result, repr(each.error)) for each in found.answers
        ]
        lines = [(each.what, each.job, each.attempt, each.payload) for each in self._journal.read()]
        self.network.note(repr((outcomes, lines)))
        self._judge(found)
        return found

    def _stand_still(self, main: asyncio.Task[Any]) -> None:
        main.cancel()
        raise StandsStill("everything waits, and nothing is due")

    async def _run(self) -> None:
        for _ in range(_WORKERS):
            self._start_worker()
        async with self._make_provider("emitter") as provider:
            self.network.rate, self.network.target = self._rate, self._target
            self.network.is_gentle = self.kind.is_exact
            harm = [
                asyncio.create_task(each)
                for each in (self._kill_each_second(), self._do_faults(), self.load.operate(provider))
            ]
            await self.load.emit_all(provider, loops=self._loops)
            self._is_over = True
            await asyncio.gather(*harm)  # let the last fault end
            self.network.rate = 0.0
            if self.kind.fails_over:
                for event in EVENTS:
                    await provider.resume(event)  # a failover may have taken a resume back
                await last(5 * self.lease)  # what was taken back runs to its end again
            for job in sorted(self.load.repeated):
                with suppress(EventBusError):  # whatever becomes of it
                    await provider.result(job)
        for each in self._workers:
            each.is_over.set()
        for each in self._workers:
            assert each.task is not None
            await each.task

    # Nodes

    def _make_provider(self, name: str) -> EventProvider:
        keep = Keep(count=2 * self.jobs + 1000, age="1 day")
        provider = EventProvider(
            f"{SCHEME}://{name}",
            name=name,
            lease=self.lease,
            max_stalls=20,
            reply_timeout=self.timeout,
            keep_completed=keep,
            keep_failed=keep,
        )
        serve_toil(provider, self._journal, self._name_run)
        return provider

    def _name_run(self) -> str:
        self._count += 1
        return f"run-{self._count}"

    def _start_worker(self) -> None:
        self._count += 1
        worker = _Worker(Node(self.time, f"worker-{self._count}"))
        provider = self._make_provider(worker.node.name)

        async def work() -> None:
            async with provider, provider.worker():
                await worker.is_over.wait()

        worker.task = self.time.loop.create_task(work(), context=worker.node.context.copy())
        self._workers.append(worker)

    async def _kill_each_second(self) -> None:
        while self.kind.kills and not self._is_over:
            await last(self._rng.uniform(0.5, 1.5))
            worker = self._rng.choice(self._workers)
            worker.node.kill()
            self._workers.remove(worker)
            self.kills += 1
            await last(self._rng.uniform(0.05, 0.6))
            self._start_worker()

    # Faults

    async def _do_faults(self) -> None:
        left: list[str] = []
        while not self._is_over:
            await last(self._rng.uniform(0.3, 1.5))
            left = left or self._rng.sample(self.kind.faults, len(self.kind.faults))
            fault = left.pop()
            self.network.faults[fault] += 1
            self.network.note(f"fault: {fault}")
            await getattr(self, f"_{fault.replace(' ', '_')}")()
            self._audit()

    def _audit(self) -> None:
        """Look at the whole server, which must be whole after each call of anybody."""
        self.audits += 1
        problems = [each for each in Audit(self._backend).problems if not each.startswith("expiring:")]
        self.flaws += [f"at {self.seconds:.3f} s: {each}" for each in problems]

    async def _cut(self) -> None:
        self.network.lose_connections()

    async def _flush(self) -> None:
        self.network.flush()

    async def _mute(self) -> None:
        self.network.is_mute = True
        await last(0.05)
        self.network.is_mute = False

    async def _refuse(self) -> None:
        self.network.refuses = self._rng.choice([0.3, 0.3, 0.9])
        await last(0.2)
        self.network.refuses = 0.0
        self.network.unblock_all()

    async def _restart(self) -> None:
        self.network.fall()
        await last(self._rng.uniform(0.05, 0.3 if self.kind.is_exact else 1.0))
        self.network.rise()

    async def _stop(self) -> None:
        self.network.stop()
        await last(self._rng.uniform(0.2, 1) * self.lease)
        self.network.go_on()

    async def _pause(self) -> None:
        worker = self._rng.choice(self._workers)
        worker.node.pause()
        await last(self._rng.uniform(0.3, 2.5) * self.lease)
        worker.node.resume()  # unless it was killed meanwhile

    async def _skew(self) -> None:
        self._rng.choice(self._workers).node.skew = self._rng.uniform(-300, 300)

    async def _server_skew(self) -> None:
        self.time.skew = max(0.0, self.time.skew + self._rng.uniform(-0.3, 0.5))

    async def _failover(self) -> None:
        kept = self.network.take_snapshot() if self._rng.random() < 0.8 else []  # or to a server without data
        await last(self._rng.uniform(0.02, 0.6))
        self.network.restore(kept)

    # The verdict

    def _judge(self, found: Reconciliation) -> None:
        """Add what only a simulation can demand, and take back what its faults allow."""
        if self.kind.fails_over:
            for name in ("lost", "ended twice", "heard another outcome", "unexplained"):
                found.flaws[name].clear()
        for job in self.load.repeated:
            if found.audit.jobs[job].state == "cancelled":
                self.flaws.append(f"{job}: was let run again, and was cancelled by nobody")
        for job, record in found.audit.jobs.items():
            if job not in self.load.stopped | self.load.repeated:
                self._judge_runs(job, record, found.runs[job])
        for (event, n), seconds in self.load.seconds.items():
            if seconds > (limit := self._limit_of(event)):
                self.flaws.append(
                    f"emission {n} of {event} took {seconds:.1f} s, expected {limit:g} s at most"
                )

    def _limit_of(self, event: str) -> float:
        """Return the seconds in which an emission has its outcome, far below its timeout."""
        if not self.kind.is_exact or event == "bounded":  # an operator may let its jobs run one by one
            return _WITHIN + _WITHIN_LEASES * self.lease
        is_unheard = any(self.network.faults[each] for each in _UNHEARD)
        return _CALM_WITHIN + 4 * self._longest + (_WATCH if is_unheard else 0)

    def _judge_runs(self, job: str, record: JobRecord, ran: int) -> None:
        expected = record.attempts + (record.state == "completed")
        if self.kind.is_exact:
            is_right = ran == expected and not record.stalls
        else:
            is_right = self.kind.fails_over or ran <= expected + record.stalls
        if not is_right:
            self.flaws.append(f"{job}: {ran} runs, expected {expected}, {record.stalls} stalls")

    def is_clean(self, found: Reconciliation) -> bool:
        return found.is_clean() and not self.flaws


def _note_delivery(deliveries: Deliveries, command: tuple[Any, ...], reply: Any) -> None:
    """Note the entries of a reply stream, which are read in bytes."""
    if command[0] == "XREAD" and isinstance(reply, list) and isinstance(cast("Any", reply)[0][0], bytes):
        deliveries.note(reply)


@contextmanager
def _fixed(seed: int) -> Generator[None]:
    """Have the product draw from the seed, and call each process and host the same."""
    drawn = random.Random(f"{seed}-product")
    kept = chance.token, chance.jitter
    names: Any = presence
    kept_names = names.os, names.socket
    chance.token, chance.jitter = (lambda count: drawn.randbytes(count).hex()), drawn.random
    names.os, names.socket = (
        SimpleNamespace(getpid=lambda: 1),
        SimpleNamespace(gethostname=lambda: "simulated"),
    )
    try:
        yield
    finally:
        chance.token, chance.jitter = kept
        names.os, names.socket = kept_names
