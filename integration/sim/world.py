"""The world of a simulation: workers of the real engine in one loop, under faults of a seed.

Time and the network are virtual; the server, its scripts and the whole Python are real. What the workers do,
and what uses them, a simulation says: `simulation` of events, `flow_simulation` of flows. What a seed draws:

- its kind (`kinds`), and how often connections fail;
- each delay and each fault of a connection (`network`);
- what hits the server: cuts, flushed functions, mute moments, restarts, refusals, stops, failovers;
- what hits workers: killed, paused for 0.3 to 2.5 leases, clocks that step;
- the ids and the jitter of the product (`eventbus.model.chance`).

What must always hold: one seed, one history. So the clocks begin at the same time, and what a process is
called is fixed. A history is the hash over all commands, answers and outcomes.
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

from checks.audit import Audit
from harness.backends import Backend
from harness.conditions import last
from harness.journal import PROCESS, Journal, Process

from eventbus import EventProvider, Keep
from eventbus.engine import presence
from eventbus.model import chance
from eventbus.store.connection.connector import add_scheme
from eventbus.testing.network import SCHEME
from eventbus.testing.nodes import Node
from eventbus.testing.server import TestServer
from eventbus.testing.virtual_time import VirtualTime
from sim.kinds import KINDS, kind_of
from sim.network import FaultyConnector, FaultyNetwork

__all__ = ["TARGETS", "World"]

LEASES = (2.0, 6.0, 15.0)
"""Seconds. A short lease lets much run out; renewals of a long one come too late to hide what was
forgotten."""
TARGETS = ("", "", "turn", "add", "settle_one", "renew", "attend", "ZREM", "BZPOPMIN", "XREAD")
"""What the faults of connections aim at; a defect may need two of them beside one kind of call."""
_BEGAN = 1000.0
"""The loop's time at first."""
_START = 1_893_456_000
"""The wall clock's time at first."""
_LONGEST = 1000.0
"""Virtual seconds after which a simulation that has not ended stands still, or lives on for nothing."""


class StandsStill(Exception):
    """Nobody will ever do anything any more, or the simulation takes too long."""


class Worker:
    """One worker, in a node of its own."""

    def __init__(self, node: Node, process: Process) -> None:
        self.node = node
        self.process = process
        self.is_over = asyncio.Event()
        self.task: asyncio.Task[None] | None = None


class World(ABC):
    """One run of one seed on a server that nobody else uses."""

    targets = TARGETS

    def __init__(
        self, seed: int, folder: Path, server: Backend, *, kind: str = "", tape: IO[str] | None = None
    ) -> None:
        self.seed = seed
        self.kind_name = kind or kind_of(seed)
        self.kind = KINDS[self.kind_name]
        self.kills = 0
        self.audits = 0
        self.flaws: list[str] = []
        """What is wrong."""
        self.stories: list[str] = []
        """More about that."""
        self._rng = random.Random(f"{seed}-faults")
        # Seeds differ in how often connections fail, so that some reach what others never do.
        self._rate = random.Random(f"{seed}-rate").choice([0.001, 0.004, 0.016])
        self.lease = random.Random(f"{seed}-lease").choice(LEASES)
        self.timeout = 120 + 15 * self.lease
        """Seconds that an emission waits: its job may be killed again and again."""
        self._target = random.Random(f"{seed}-target").choice(self.targets)
        self._backend = server
        self._folder = folder
        self._journal = Journal(folder / "journal")
        self._workers: list[Worker] = []
        self.processes: list[Process] = []
        """Those of all workers that there ever were."""
        self._count = 0
        self._strays = 0
        self._is_over = False
        self._tape = tape
        self.time = VirtualTime(start=_START, leaps=False)

    # What a simulation says

    @property
    @abstractmethod
    def size(self) -> int:
        """How many jobs, or flows, were begun."""

    @property
    @abstractmethod
    def slowest(self) -> float:
        """The seconds that the slowest of them took."""

    @abstractmethod
    def serve(self, provider: EventProvider) -> None:
        """Let a worker's provider know what it runs."""

    @abstractmethod
    async def use(self, provider: EventProvider) -> None:
        """Use the workers while faults come; return when all has its outcome."""

    @abstractmethod
    async def operate(self, provider: EventProvider) -> None:
        """Give orders meanwhile."""

    @abstractmethod
    async def look(self, provider: EventProvider) -> None:
        """Look at what came of it, once no fault comes any more."""

    @abstractmethod
    def judge(self) -> list[str]:
        """Find out, when all has ended, what is wrong (`flaws`); return lines that tell of the run."""

    @abstractmethod
    def hear(self, command: tuple[Any, ...], reply: Any) -> None:
        """Hear each command that the server has run, and its reply."""

    def count_workers(self) -> int:
        """Return how many workers there are."""
        return 3

    @property
    def history(self) -> str:
        """The hash of all that happened so far."""
        return self.network.history.hexdigest()[:16]

    @property
    def seconds(self) -> float:
        """The virtual seconds that have passed."""
        return self.time.now - _BEGAN

    async def run(self) -> list[str]:
        """Let all happen under faults, and judge it; return lines about it. Raises StandsStill."""
        server = TestServer(str(self._backend.socket))
        server.run([("FLUSHALL", "SYNC"), ("FUNCTION", "FLUSH", "SYNC"), ("SCRIPT", "FLUSH", "SYNC")])
        self.time.install()
        self.time.now = self.time.began = _BEGAN
        main = asyncio.current_task()
        assert main is not None
        self.time.on_standstill = lambda: self._stand_still(main)
        self.network = FaultyNetwork(self.time, server, self._rng, tape=self._tape)
        self.network.listeners.append(self.hear)
        add_scheme(SCHEME, lambda url: FaultyConnector(url, self.network))
        with _fixed(self.seed):
            async with asyncio.timeout(_LONGEST):
                await self._run()
        self.time.remove()
        self.network.run([("DEL", "expiring")])  # after what has expired
        server.close()
        return self.judge()

    def _stand_still(self, main: asyncio.Task[Any]) -> None:
        main.cancel()
        raise StandsStill("everything waits, and nothing is due")

    async def _run(self) -> None:
        for _ in range(self.count_workers()):
            self._start_worker()
        async with self._make_provider("emitter") as provider:
            self.network.rate, self.network.target = self._rate, self._target
            self.network.is_gentle = self.kind.is_exact
            harm = [
                asyncio.create_task(each)
                for each in (self._kill_each_second(), self._do_faults(), self.operate(provider))
            ]
            await self.use(provider)
            self._is_over = True
            await asyncio.gather(*harm)  # let the last fault end
            self.network.rate = 0.0
            await self.look(provider)
        for each in self._workers:
            each.is_over.set()
        for each in self._workers:
            assert each.task is not None
            await each.task

    # Nodes

    def _make_provider(self, name: str) -> EventProvider:
        keep = Keep(count=20_000, age="1 day")
        provider = EventProvider(
            f"{SCHEME}://{name}",
            name=name,
            lease=self.lease,
            max_stalls=20,
            reply_timeout=self.timeout,
            keep_completed=keep,
            keep_failed=keep,
        )
        self.serve(provider)
        return provider

    def _next_number(self) -> int:
        self._count += 1
        return self._count

    def _start_worker(self) -> None:
        number = self._next_number()
        worker = Worker(Node(self.time, f"worker-{number}"), Process(number))
        worker.node.context.run(PROCESS.set, worker.process)
        self.processes.append(worker.process)
        provider = self._make_provider(worker.node.name)

        async def work() -> None:
            async with provider, provider.worker():
                await worker.is_over.wait()

        worker.task = self.time.loop.create_task(work(), context=worker.node.context.copy())
        self._workers.append(worker)

    async def _kill_each_second(self) -> None:
        """Kill for some leases: a job that is killed each time would outlast any bound."""
        while self.kind.kills and not self._is_over and self.seconds < 60 + 4 * self.lease:
            await last(self._rng.uniform(0.5, 1.5))
            worker = self._rng.choice(self._workers)
            worker.node.kill()
            worker.process.is_suspect = True
            self._workers.remove(worker)
            self.kills += 1
            await last(self._rng.uniform(0.05, 0.6))
            self._start_worker()

    # Faults

    async def _hold_news(self) -> None:
        """In half of the seeds, hold the messages to one worker after the other back for a moment."""
        rng = random.Random(f"{self.seed}-news")
        if rng.random() < 0.5:
            return
        longest = 0.7 if self.kind.is_exact else 3.0
        while not self._is_over:
            await last(rng.uniform(0.1, 0.8))
            if self._workers:
                node = rng.choice(self._workers).node
                self.network.hold_news(node, rng.uniform(0.1, longest))

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
        self._let_stray(self._workers)
        await last(self._rng.uniform(0.2, 1) * self.lease)
        self.network.go_on()
        self._call_back()

    async def _pause(self) -> None:
        worker = self._rng.choice(self._workers)
        worker.node.pause()
        self._let_stray([worker])
        await last(self._rng.uniform(0.3, 2.5) * self.lease)
        worker.node.resume()  # unless it was killed meanwhile
        self._call_back()

    def _let_stray(self, workers: Sequence[Worker]) -> None:
        self._strays += 1
        for each in workers:
            each.process.stray()

    def _call_back(self) -> None:
        """Count all workers as those that have their leases, once they have heard of those that they lost."""
        self.time.loop.call_later(self.lease, self._count_back, self._strays)

    def _count_back(self, strays: int) -> None:
        if strays == self._strays:  # else another one strays
            for each in self.processes:
                each.is_astray = False

    async def _skew(self) -> None:
        self._rng.choice(self._workers).node.skew = self._rng.uniform(-300, 300)

    async def _server_skew(self) -> None:
        self.time.skew = max(0.0, self.time.skew + self._rng.uniform(-0.3, 0.5))

    async def _failover(self) -> None:
        kept = self.network.take_snapshot() if self._rng.random() < 0.8 else []  # or to a server without data
        await last(self._rng.uniform(0.02, 0.6))
        self.network.restore(kept)


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
