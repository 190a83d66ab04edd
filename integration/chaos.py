"""Chaos: jobs run while faults hit everything around them; then comes the reconciliation.

    tox -e chaos -- --jobs 20000 --seed 7

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
from pathlib import Path
from typing import Any

import structlog
from checks.reconciliation import Deliveries, Reconciliation
from harness.backends import KINDS, Backend
from harness.conditions import last
from harness.fleet import Fleet
from harness.journal import Journal
from harness.proxy import Proxy
from harness.toil_load import ToilLoad

from eventbus import EventProvider

__all__ = ["Chaos"]

LEASE = 2.0
TIMEOUT = 90.0
_DURABLE = ("--appendonly", "yes", "--appendfsync", "always")


class Chaos:
    """One run: a server, a fleet of workers, an emitter, and the faults."""

    def __init__(
        self, folder: Path, *, kind: str, jobs: int, seed: int, workers: int = 3, loops: int = 150
    ) -> None:
        self.jobs, self.seed = jobs, seed
        self.load = ToilLoad(seed, jobs, timeout=TIMEOUT)
        self.faults: Counter[str] = Counter()
        self.seconds = 0.0
        self._is_over = False
        self._rng = random.Random(seed)
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
                for each in (self._kill_each_second(), self._do_faults(), self.load.operate(provider))
            ]
            await self.load.emit_all(provider, loops=self._loops)
            self._is_over = True
            await asyncio.gather(*harm)  # let the last fault end
        self.seconds = time.monotonic() - began
        assert set(await asyncio.to_thread(self.fleet.end)) == {0}
        return Reconciliation(self.load.answers, self.load.late, self._deliveries, self.server, self._journal)

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
            f"{'orders of an operator':<26} {self.load.orders}",
            f"{'joined another emission':<26} {self.load.joined}",
            f"{'errors in workers logs':<26} {len(complaints)}",
            *complaints[:5],
            f"{'duration':<26} {self.seconds:.1f} s",
        ]

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
