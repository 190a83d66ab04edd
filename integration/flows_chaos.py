"""Random flows, run by workers that are killed; then each flow is compared with what really happened.

    python integration/flows_chaos.py --flows 1000 --seed 7      (or: tox -e chaos-flows -- --flows 1000)

One worker is killed each second with `kill -9`, and started again. The seed decides the shapes, the
course of each flow and which worker is killed; what a kill hits depends on the machine. `ledger` says
what must hold for each flow. Ends with status 1 unless that holds for all of them.
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
from typing import Any

import structlog
from apps.shapes import Course, make_course, make_shapes
from checks.audit import Audit
from checks.ledger import Account, Ledger, read_account
from harness.backends import KINDS, Backend
from harness.conditions import last
from harness.fleet import Fleet
from harness.journal import Journal

from eventbus import EventProvider
from workflows import FlowCancelled, FlowHandle, Workflow, WorkflowProvider

__all__ = ["FlowsChaos"]

LEASE = "1s"
_AT_ONCE = 60
_PATIENCE = 120.0
"""Seconds in which each flow must have ended, however often its workers die."""


class FlowsChaos:
    """One run: a server, a fleet of workers, and random flows."""

    def __init__(
        self, folder: Path, *, kind: str, flows: int, seed: int, workers: int = 3, at_once: int = _AT_ONCE
    ) -> None:
        self.flows, self.seed = flows, seed
        self.shapes = make_shapes(seed, max(8, flows // 10))
        self.flaws: list[str] = []
        self.counts: Counter[str] = Counter()
        self.seconds = 0.0
        self._rng = random.Random(seed)
        self._next = 0
        self._at_once = at_once
        self._is_over = False
        self._heard: dict[str, tuple[Workflow[Course, Any], Any]] = {}
        self.server = Backend(kind)
        self.server.start()
        self.journal = Journal(folder / "journal")
        self.fleet = Fleet(
            self.server.url,
            folder,
            size=workers,
            app="apps.shaped:provider",
            lease=LEASE,
            max_stalls=50,
            keep_completed=f"{flows + 1000},1 day",
            keep_failed=f"{flows + 1000},1 day",
            test_shapes=f"{seed}-{len(self.shapes)}",
        )

    async def run(self) -> None:
        """Execute all flows while workers die, then check each flow."""
        began = time.monotonic()
        async with EventProvider(self.server.url, lease=LEASE) as provider:
            flows = WorkflowProvider(provider)
            for shape in self.shapes:
                flows.register(shape)
            killing = asyncio.create_task(self._kill_each_second())
            await asyncio.gather(*(self._execute_in_turn(flows) for _ in range(self._at_once)))
            self._is_over = True
            await killing
            self.seconds = time.monotonic() - began
            assert set(await asyncio.to_thread(self.fleet.end)) == {0}
            await self._judge(flows)

    def close(self) -> None:
        """End all processes and connections of the run."""
        self.fleet.close()
        self.server.close()
        self.journal.close()

    def lines(self) -> list[str]:
        """Return the summary that is printed."""
        complaints = [each for each in self.fleet.complaints() if "rollback failed" not in each]
        rows = [
            ("flows", f"{self.flows} of {len(self.shapes)} shapes, {self.server.kind}, seed {self.seed}"),
            *sorted(self.counts.items()),
            ("workers killed", f"{self.fleet.kills}, left out for want of a second one: {self.fleet.spared}"),
            ("errors in workers logs", len(complaints)),
            ("flaws", len(self.flaws)),
            ("duration", f"{self.seconds:.1f} s"),
        ]
        return [*(f"{name:<38} {value}" for name, value in rows), *complaints[:5], *self.flaws[:20]]

    async def _execute_in_turn(self, flows: WorkflowProvider) -> None:
        while self._next < self.flows:
            self._next += 1
            await self._execute(flows, self._next)

    async def _execute(self, flows: WorkflowProvider, number: int) -> None:
        shape = self.shapes[number % len(self.shapes)]
        course, end = make_course(self.seed, number, shape)
        handle = await flows.execute(shape, course, timeout=end.timeout or None)
        cancelling = asyncio.create_task(_cancel_after(handle, end.cancel)) if end.cancel else None
        try:
            async with asyncio.timeout(_PATIENCE):
                heard: Any = await handle.result()
        except TimeoutError:
            heard = None
            self.flaws.append(f"{handle.id}: nothing heard in {_PATIENCE:g} s, it is {await handle.status()}")
        except Exception as error:  # noqa: BLE001  (the ledger checks it)
            heard = error
        if cancelling is not None and await cancelling != isinstance(heard, FlowCancelled):
            self.flaws.append(
                f"{handle.id}: its cancel said {cancelling.result()}, and its caller heard {heard!r}"
            )
        self._heard[handle.id] = (shape, heard)

    async def _kill_each_second(self) -> None:
        began = time.monotonic()
        while not self._is_over:
            times = self.fleet.kills + self.fleet.spared + 1
            await last(max(0.0, began + times - time.monotonic()))
            self.fleet.kill(self._rng)

    async def _judge(self, flows: WorkflowProvider) -> None:
        ledger = Ledger(self.journal, self.fleet.killed)
        known: set[str] = set()
        for flow_id, (shape, heard) in self._heard.items():
            account = await read_account(flows, ledger, shape, flow_id, heard)
            self.flaws += ledger.flaws(account)
            self._count(account)
            known |= _ids_of(account)
        self.flaws += [f"{each}: happened, and nobody executed it" for each in ledger.flows - known]
        audit = await asyncio.to_thread(Audit, self.server)
        self.flaws += audit.problems
        for job, record in audit.jobs.items():
            if record.state not in ("completed", "failed", "cancelled"):
                self.flaws.append(f"{job}: {record.state} in {record.queue}, {record.stalls} stalls")
        if audit.left_open():
            self.flaws.append(f"left open: {audit.left_open()}")
        self.counts["lost"] += self.flows - len(self._heard)
        self.counts["rescued steps and roots"] = sum(record.stalls > 0 for record in audit.jobs.values())

    def _count(self, account: Account) -> None:
        report, heard = account.report, account.heard
        self.counts[f"ended {report.state}"] += 1
        self.counts["local flows"] += not account.workflow.spreads
        if report.state != "completed":
            self.counts[f"heard {type(heard).__name__}"] += 1
            self.counts[f"rollback {report.rollback}"] += 1
        self.counts["sub-workflows"] += len(account.inner)
        self.counts["steps"] += len(report.steps)
        for step in report.steps.values():
            self.counts[f"steps {step.state}"] += 1
        self.counts["rollbacks"] += len(report.rollbacks)
        self.counts["rollbacks that failed"] += sum(bool(each.error) for each in report.rollbacks)


async def _cancel_after(handle: FlowHandle[Any], seconds: float) -> bool:
    await last(seconds)
    return await handle.cancel("no more")


def _ids_of(account: Account) -> set[str]:
    return {account.id, *(each for inner in account.inner.values() for each in _ids_of(inner))}


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
