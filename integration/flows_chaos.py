"""Random flows, run by workers that are killed; then each flow is compared with what really happened.

Two of three flows are graphs of steps, local, spread and mixed; the others are durable functions.

    tox -e chaos-flows -- --flows 1000 --seed 7

One worker is killed each second with `kill -9`, and started again. Operators pause steps for a moment, all
the time. The seed decides the shapes, the course of each flow and which worker is killed; what a kill hits
depends on the machine. `ledger` and `function_ledger` say what must hold for each flow. Ends with status 1
unless that holds for all of them.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import tempfile
import time
from collections import Counter
from pathlib import Path

import structlog
from checks.audit import Audit
from checks.ledger import Ledger
from harness.backends import KINDS, Backend
from harness.conditions import last
from harness.fleet import Fleet
from harness.flow_load import FlowLoad
from harness.journal import Journal

from eventbus import EventProvider
from workflows import WorkflowProvider

__all__ = ["FlowsChaos"]

LEASE = "1s"
_AT_ONCE = 30
_OPERATORS = 4
_PATIENCE = 120.0
"""Seconds in which each flow must have ended, however often its workers die."""


class FlowsChaos:
    """One run: a server, a fleet of workers, and random flows."""

    def __init__(
        self, folder: Path, *, kind: str, flows: int, seed: int, workers: int = 3, at_once: int = _AT_ONCE
    ) -> None:
        self.flows, self.seed = flows, seed
        graphs, functions = max(8, flows // 15), max(2, flows // 30)
        self.load = FlowLoad(seed, flows, graphs=graphs, functions=functions, patience=_PATIENCE)
        self.seconds = 0.0
        self._rng = random.Random(seed)
        self._at_once = at_once
        self.server = Backend(kind)
        self.server.start()
        self.journal = Journal(folder / "journal")
        self.fleet = Fleet(
            self.server.url,
            folder,
            size=workers,
            app="apps.drawn.app:provider",
            lease=LEASE,
            max_stalls=50,
            keep_completed=f"{flows + 1000},1 day",
            keep_failed=f"{flows + 1000},1 day",
            test_shapes=f"{seed}-{graphs}-{functions}",
        )

    async def run(self) -> None:
        """Execute all flows while workers die, then check each flow."""
        began = time.monotonic()
        async with EventProvider(self.server.url, lease=LEASE) as provider:
            flows = WorkflowProvider(provider)
            self.load.register(flows)
            killing = asyncio.create_task(self._kill_each_second())
            pausing = [
                asyncio.create_task(self.load.pause_steps(flows, number)) for number in range(_OPERATORS)
            ]
            await self.load.execute_all(flows, at_once=self._at_once)
            await killing
            await asyncio.gather(*pausing)
            self.seconds = time.monotonic() - began
            assert set(await asyncio.to_thread(self.fleet.end)) == {0}
            await self.load.judge(flows, Ledger(self.journal, self.fleet.killed))
            self.load.judge_server(await asyncio.to_thread(Audit, self.server))

    @property
    def flaws(self) -> list[str]:
        return self.load.flaws

    @property
    def counts(self) -> Counter[str]:
        return self.load.counts

    def close(self) -> None:
        """End all processes and connections of the run."""
        self.fleet.close()
        self.server.close()
        self.journal.close()

    def lines(self) -> list[str]:
        """Return the summary that is printed."""
        complaints = [each for each in self.fleet.complaints() if "rollback failed" not in each]
        rows = [
            (
                "flows",
                f"{self.flows} of {len(self.load.shapes)} shapes, {self.server.kind}, seed {self.seed}",
            ),
            *sorted(self.counts.items()),
            ("workers killed", f"{self.fleet.kills}, left out for want of a second one: {self.fleet.spared}"),
            ("errors in workers logs", len(complaints)),
            ("flaws", len(self.flaws)),
            ("duration", f"{self.seconds:.1f} s"),
        ]
        told = [*complaints[:5], *self.flaws[:20], *self.load.stories[:3]]
        return [*(f"{name:<38} {value}" for name, value in rows), *told]

    async def _kill_each_second(self) -> None:
        began = time.monotonic()
        while not self.load.is_over:
            times = self.fleet.kills + self.fleet.spared + 1
            await last(max(0.0, began + times - time.monotonic()))
            self.fleet.kill(self._rng)


def main() -> int:
    parser = argparse.ArgumentParser(description="Random flows, run by workers that are killed.")
    parser.add_argument("--flows", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=None, help="another one each time, unless given")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--server", choices=list(KINDS), default=next(iter(KINDS)))
    asked = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    seed = random.randrange(1 << 32) if asked.seed is None else asked.seed
    print(f"seed {seed}", flush=True)  # noqa: T201
    with tempfile.TemporaryDirectory(prefix="eventbus-flows-") as folder:
        chaos = FlowsChaos(
            Path(folder), kind=asked.server, flows=asked.flows, seed=seed, workers=asked.workers
        )
        try:
            asyncio.run(chaos.run())
            print("\n".join(chaos.lines()))  # noqa: T201
        finally:
            chaos.close()
    return 1 if chaos.flaws else 0


if __name__ == "__main__":
    raise SystemExit(main())
