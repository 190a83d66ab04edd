"""Chaos: jobs run while faults hit everything around them; then comes the reconciliation.

    python integration/chaos.py --jobs 20000 --seed 7        (or: tox -e chaos -- --jobs 20000)

One worker is killed each second with `kill -9`. Every few seconds another fault comes: connections
are cut or go silent, scripts are flushed, clients are killed or paused, the server is stopped or
killed and started again, or a worker is paused for longer than its lease. Between them an operator pauses
queues, changes a limit, and edits jobs that wait. One emission in four is of an event with a limit, or joins
others of its key. The seed decides the faults and the jobs; which job a fault hits depends on the machine.

Ends with status 1 unless the reconciliation is clean.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import structlog
from checks.reconciliation import Deliveries, Reconciliation
from harness.backends import KINDS, Backend
from harness.conditions import last
from harness.fleet import Fleet
from harness.journal import Journal
from harness.load import Answer
from harness.proxy import Proxy

from eventbus import EventProvider, Limit, StoreUnavailable, UnknownJob

__all__ = ["Chaos"]

LEASE = 2.0
TIMEOUT = 90.0
_LATE = 60.0
"""Seconds that an emission may report its timeout late on a busy machine."""
_MERGES: tuple[dict[str, Any], ...] = (
    {"throttle": "100ms"},
    {"debounce": "50ms", "longest": "500ms"},
    {"keep_last": True},
)
_DURABLE = ("--appendonly", "yes", "--appendfsync", "always")


class Chaos:
    """One run: a server, a fleet of workers, an emitter, and the faults."""

    def __init__(
        self, folder: Path, *, kind: str, jobs: int, seed: int, workers: int = 3, loops: int = 150
    ) -> None:
        self.jobs, self.seed = jobs, seed
        self.answers: list[Answer] = []
        self.faults: Counter[str] = Counter()
        self.orders = 0
        """Orders of an operator that the server took."""
        self.joined = 0
        """Emissions that joined the job of another one."""
        self.seconds = 0.0
        self._late: list[str] = []
        self._is_over = False
        self._rng = random.Random(seed)
        self._next = 0
        self._open: dict[str, tuple[str, dict[str, Any]]] = {}
        """The jobs without an outcome, but those of keys -> event and payload."""
        self._loops = loops
        self._deliveries = Deliveries()
        self._journal = Journal(folder / "journal")
        self.server = Backend(kind, *_DURABLE)
        self.server.start()
        self._proxy = Proxy(folder / "proxy", self.server.socket)
        self._proxy.listener = self._deliveries.listen
        self._proxy.start()
        keep = f"{2 * jobs + 1000},1 day"
        self.fleet = Fleet(
            self._proxy.url,
            folder,
            size=workers,
            app="apps.drawn.jobs:provider",
            lease=f"{LEASE:g}s",
            max_stalls=20,
            keep_completed=keep,
            keep_failed=keep,
        )

    async def run(self) -> Reconciliation:
        """Emit all jobs while faults happen; compare when the last emission has ended."""
        began = time.monotonic()
        async with EventProvider(self._proxy.url, lease=LEASE, reply_timeout=TIMEOUT) as provider:
            harm = [
                asyncio.create_task(each)
                for each in (self._kill_each_second(), self._do_faults(), self._operate(provider))
            ]
            await asyncio.gather(*(self._emit_in_turn(provider) for _ in range(self._loops)))
            self._is_over = True
            await asyncio.gather(*harm)  # let the last fault end
        self.seconds = time.monotonic() - began
        assert set(await asyncio.to_thread(self.fleet.end)) == {0}
        return Reconciliation(self.answers, self._late, self._deliveries, self.server, self._journal)

    def close(self) -> None:
        """End all processes and connections of the run."""
        self.fleet.close()
        self._proxy.close()
        self.server.close()
        self._journal.close()

    def lines(self, reconciliation: Reconciliation) -> list[str]:
        """Return the summary that is printed."""
        complaints = self.fleet.complaints()
        return [
            f"seed {self.seed}, {self.server.kind}, {self.jobs} jobs",
            *reconciliation.lines(),
            f"{'kills':<26} {self.fleet.kills}, left out for want of a second worker: {self.fleet.spared}",
            f"{'other faults':<26} {', '.join(f'{name}: {n}' for name, n in sorted(self.faults.items()))}",
            f"{'orders of an operator':<26} {self.orders}",
            f"{'joined another emission':<26} {self.joined}",
            f"{'errors in workers logs':<26} {len(complaints)}",
            *complaints[:5],
            f"{'duration':<26} {self.seconds:.1f} s",
        ]

    async def _emit_in_turn(self, provider: EventProvider) -> None:
        while self._next < self.jobs:
            self._next += 1
            await self._emit(provider, self._next)

    async def _emit(self, provider: EventProvider, n: int) -> None:
        """One job: three in four are short, one in twenty needs a second attempt, one in fifty fails."""
        rng = random.Random(f"{self.seed}-{n}")
        ms = rng.uniform(5, 30) if rng.random() < 0.75 else rng.uniform(100, 600)
        good = rng.choices([1, 2, 9], [93, 5, 2])[0]
        began = time.monotonic()
        payload: dict[str, Any] = {"n": n, "ms": ms, "good": good}
        match rng.choices(["toil", "bounded", "merged"], [75, 15, 10])[0]:
            case "merged":
                key = rng.randrange(6)
                options = _MERGES[key % len(_MERGES)]
                emission = provider.emit("merged", payload, idempotency_key=f"key-{key}", **options)
            case event:
                emission = provider.emit(event, payload)
                self._open[emission.job_id] = event, payload
        was_enqueued, result, error = False, None, None
        try:
            await emission.enqueued()
            was_enqueued = True
            result = await emission
        except Exception as caught:  # noqa: BLE001  (the reconciliation checks it)
            error = caught
        self._open.pop(emission.job_id, None)
        self.joined += emission.joined
        if time.monotonic() - began > TIMEOUT + _LATE:
            self._late.append(emission.job_id)
        self.answers.append(Answer(emission.job_id, n, was_enqueued, result, error))

    async def _operate(self, provider: EventProvider) -> None:
        """Give orders, each of them until the server has taken it."""
        order = random.Random(f"{self.seed}-orders")
        while not self._is_over:
            await last(order.uniform(0.2, 1))
            match order.choice(["pause", "limit", "edit", "edit"]):
                case "pause":
                    event = order.choice(["toil", "bounded", "merged"])
                    await self._order(partial(provider.pause, event, reason="chaos"))
                    await last(order.uniform(0.1, 1))
                    await self._order(partial(provider.resume, event))
                case "limit":
                    limit = order.choice([None, Limit(at_once=order.randint(1, 20)), Limit(rate="100/1s")])
                    await self._order(partial(provider.set_limit, "bounded", limit))
                case _:
                    await self._edit(provider, order)

    async def _edit(self, provider: EventProvider, order: random.Random) -> None:
        """Edit some open jobs; those that run or have ended stay as they are."""
        inspector = provider.inspector
        for job, (event, payload) in order.sample(list(self._open.items()), min(5, len(self._open))):
            edits: list[Callable[[], Awaitable[Any]]] = [
                partial(inspector.promote, job),
                partial(inspector.delay, job, "100ms"),
                partial(inspector.prioritize, job, order.randint(-9, 9)),
                partial(inspector.replace_payload, event, job, payload),
            ]
            await self._order(order.choice(edits))

    async def _order(self, call: Callable[[], Awaitable[Any]]) -> None:
        while True:
            try:
                await call()
                self.orders += 1
            except UnknownJob:  # its emission is not enqueued yet
                return
            except StoreUnavailable:
                await last(0.1)
            else:
                return

    async def _kill_each_second(self) -> None:
        began = time.monotonic()
        while not self._is_over:
            times = self.fleet.kills + self.fleet.spared + 1
            await last(max(0.0, began + times - time.monotonic()))
            self.fleet.kill(self._rng)

    async def _do_faults(self) -> None:
        faults: list[Callable[[], Awaitable[Any]]] = [
            self._cut_all,
            self._cut_steps,
            self._go_silent,
            self._flush_scripts,
            self._kill_clients,
            self._pause_clients,
            self._stop_server,
            self._restart_server,
            self._stop_worker,
        ]
        order = random.Random(self.seed)
        left: list[Callable[[], Awaitable[Any]]] = []
        while not self._is_over:
            await last(order.uniform(1, 3))
            left = left or order.sample(faults, len(faults))  # each once, then again in another order
            fault = left.pop()
            await fault()
            self.faults[getattr(fault, "__name__", "").strip("_").replace("_", " ")] += 1

    async def _cut_all(self) -> None:
        self._proxy.break_all()

    async def _cut_steps(self) -> None:
        self._proxy.cut("add", "claim", "settle", "renew", every=3)
        await last(LEASE / 2)
        self._proxy.spare()

    async def _go_silent(self) -> None:
        self._proxy.mute()

    async def _flush_scripts(self) -> None:
        await asyncio.to_thread(self.server.command, "SCRIPT", "FLUSH")

    async def _kill_clients(self) -> None:
        await asyncio.to_thread(self.server.command, "CLIENT", "KILL", "TYPE", "normal")

    async def _pause_clients(self) -> None:
        await asyncio.to_thread(self.server.command, "CLIENT", "PAUSE", round(LEASE * 500), "ALL")

    async def _stop_server(self) -> None:
        self.server.pause()
        await last(LEASE / 2)
        self.server.resume()

    async def _restart_server(self) -> None:
        await asyncio.to_thread(self.server.kill)
        await asyncio.to_thread(self.server.start)

    async def _stop_worker(self) -> None:
        worker = self.fleet.choose(self._rng)
        worker.send(signal.SIGSTOP)
        await last(1.5 * LEASE)
        worker.send(signal.SIGCONT)  # unless it was killed meanwhile


def main() -> int:
    parser = argparse.ArgumentParser(description="Jobs under way while everything around them is hurt.")
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=None, help="another one each time, unless given")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--server", choices=list(KINDS), default=next(iter(KINDS)))
    asked = parser.parse_args()
    # The provider logs each fault that it notices; here that is no news.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    seed = random.randrange(1 << 32) if asked.seed is None else asked.seed
    print(f"seed {seed}", flush=True)  # noqa: T201
    with tempfile.TemporaryDirectory(prefix="eventbus-chaos-") as folder:
        chaos = Chaos(Path(folder), kind=asked.server, jobs=asked.jobs, seed=seed, workers=asked.workers)
        try:
            reconciliation = asyncio.run(chaos.run())
            print("\n".join(chaos.lines(reconciliation)))  # noqa: T201
        finally:
            chaos.close()
    return 0 if reconciliation.is_clean() else 1


if __name__ == "__main__":
    raise SystemExit(main())
