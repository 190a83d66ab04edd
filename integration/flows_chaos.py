"""Random flows, run by workers that are killed; then each flow is compared with what really happened.

Two of three flows are graphs of steps, local, spread and mixed; the others are durable functions.

    python integration/flows_chaos.py --flows 1000 --seed 7      (or: tox -e chaos-flows -- --flows 1000)

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
from typing import Any, TypeAlias

import structlog
from apps.drawn.functions import TASKS, Function, go, make_functions, maybe
from apps.drawn.graphs import Course, acts_of, make_course, make_parts, make_shapes
from checks.account import Account, read_account
from checks.audit import Audit
from checks.function_ledger import FunctionAccount, FunctionLedger, read_function_account
from checks.ledger import Ledger
from harness.backends import KINDS, Backend
from harness.conditions import last
from harness.fleet import Fleet
from harness.journal import Journal

from eventbus import EventProvider, SignalRefused
from workflows import Durable, FlowCancelled, FlowHandle, Workflow, WorkflowProvider
from workflows.distributed.paused_steps import may_pause

__all__ = ["FlowsChaos"]

Shape: TypeAlias = Workflow[Course, Any] | Function

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
        self.parts = make_parts(seed)
        self.shapes: list[Shape] = [*make_shapes(seed, max(8, flows // 15), self.parts)]
        graphs, functions = len(self.shapes), max(2, flows // 30)
        self.shapes += make_functions(seed, functions, self.parts)
        self.flaws: list[str] = []
        self.stories: list[str] = []
        """What is recorded of the flows with flaws, and what they did."""
        self.counts: Counter[str] = Counter()
        self.seconds = 0.0
        self._rng = random.Random(seed)
        self._next = 0
        self._at_once = at_once
        self._is_over = False
        self._heard: dict[str, tuple[Shape, Course, Any]] = {}
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
            for shape in (*self.parts, *self.shapes):
                flows.register(_definition_of(shape))
            killing = asyncio.create_task(self._kill_each_second())
            pausing = [asyncio.create_task(self._pause_steps(flows, number)) for number in range(_OPERATORS)]
            await asyncio.gather(*(self._execute_in_turn(flows) for _ in range(self._at_once)))
            self._is_over = True
            await killing
            await asyncio.gather(*pausing)
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
        told = [*complaints[:5], *self.flaws[:20], *self.stories[:3]]
        return [*(f"{name:<38} {value}" for name, value in rows), *told]

    async def _execute_in_turn(self, flows: WorkflowProvider) -> None:
        while self._next < self.flows:
            self._next += 1
            await self._execute(flows, self._next)

    async def _execute(self, flows: WorkflowProvider, number: int) -> None:
        shape = self.shapes[number % len(self.shapes)]
        names = shape.acts() if isinstance(shape, Function) else acts_of(shape)
        course, end = make_course(self.seed, number, names)
        handle: FlowHandle[Any] = await flows.execute(
            _definition_of(shape), course, timeout=end.timeout or None
        )
        cancelling = asyncio.create_task(_cancel_after(handle, end.cancel)) if end.cancel else None
        sending = asyncio.create_task(self._send_signals(handle, shape, number))
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
        await sending
        self._heard[handle.id] = (shape, course, heard)

    async def _send_signals(self, handle: FlowHandle[Any], shape: Shape, number: int) -> None:
        """Send one signal for each wait of a function, and perhaps one for those with a limit."""
        if not isinstance(shape, Function):
            return
        rng = random.Random(f"{self.seed}-signals-{number}")
        sent = [(go, each) for each in range(shape.body.count("wait"))]
        if shape.body.count("limited") and rng.random() < 0.7:
            sent.insert(rng.randint(0, len(sent)), (maybe, 0))
        try:
            for signal, each in sent:
                await last(rng.uniform(0, 0.3))
                await handle.signal(signal, each)
                self.counts["signals"] += 1
        except SignalRefused as error:
            self.counts["signals refused"] += 1
            if error.reason not in ("ended", "stopping"):
                self.flaws.append(f"{handle.id}: {error}")

    async def _kill_each_second(self) -> None:
        began = time.monotonic()
        while not self._is_over:
            times = self.fleet.kills + self.fleet.spared + 1
            await last(max(0.0, began + times - time.monotonic()))
            self.fleet.kill(self._rng)

    async def _pause_steps(self, flows: WorkflowProvider, number: int) -> None:
        """Pause one step after the other, of any graph, and resume it a moment later."""
        rng = random.Random(f"{self.seed}-pauses-{number}")
        graphs = [shape for shape in (*self.parts, *self.shapes) if isinstance(shape, Workflow)]
        while not self._is_over:
            graph = rng.choice(graphs)
            steps = [step for step in graph.steps.values() if may_pause(step)]
            if not steps:
                continue
            step = rng.choice(steps)
            await flows.pause(graph, step=step)
            await last(rng.uniform(0.2, 1.5))
            (order,) = await flows.provider.inspector.controls(f"workflow.{graph.name}.steps/{step.name}")
            self.counts["pauses of steps"] += 1
            self.counts["attempts held by pauses"] += order.waiting
            await flows.resume(graph, step=step)

    async def _judge(self, flows: WorkflowProvider) -> None:
        ledger = Ledger(self.journal, self.fleet.killed)
        functions, seen = FunctionLedger(ledger), ledger.flows
        known: set[str] = set()
        for flow_id, (shape, course, heard) in self._heard.items():
            account: Account | FunctionAccount
            if isinstance(shape, Function):
                account = await read_function_account(flows, seen, shape, course, flow_id, heard)
                flaws = functions.flaws(account)
                self._count_function(account)
            else:
                account = await read_account(flows, seen, shape, flow_id, heard)
                flaws = ledger.flaws(account)
                self._count_graph(account)
            self._count(account)
            if flaws:
                self.flaws += flaws
                self.stories += [await _tell(flows, ledger, each) for each in account.ids()]
            known |= set(account.ids())
        self.flaws += [f"{each}: happened, and nobody executed it" for each in seen - known]
        audit = await asyncio.to_thread(Audit, self.server)
        self.flaws += audit.problems
        for job, record in audit.jobs.items():
            if record.state not in ("completed", "failed", "cancelled"):
                self.flaws.append(f"{job}: {record.state} in {record.queue}, {record.stalls} stalls")
        if audit.left_open():
            self.flaws.append(f"left open: {audit.left_open()}")
        self.counts["lost"] += self.flows - len(self._heard)
        self.counts["rescued steps and roots"] = sum(record.stalls > 0 for record in audit.jobs.values())

    def _count(self, account: Account | FunctionAccount) -> None:
        report, heard = account.report, account.heard
        self.counts[f"ended {report.state}"] += 1
        if report.state != "completed":
            self.counts[f"heard {type(heard).__name__}"] += 1
            self.counts[f"rollback {report.rollback}"] += 1
        self.counts["rollbacks"] += len(report.rollbacks)
        self.counts["rollbacks that failed"] += sum(bool(each.error) for each in report.rollbacks)

    def _count_graph(self, account: Account) -> None:
        self.counts["spread graphs" if account.workflow.spreads else "local graphs"] += 1
        self.counts["sub-workflows"] += len(account.inner)
        for name, step in account.report.steps.items():
            is_item = name not in account.workflow.steps
            self.counts["items of each steps" if is_item else "steps"] += 1
            self.counts[f"steps {step.state}"] += 1
            self.counts["each steps"] += not is_item and account.workflow.steps[name].is_each
            self.counts["spread steps of local graphs"] += not is_item and (
                account.workflow.steps[name].spread and not account.workflow.spreads
            )

    def _count_function(self, account: FunctionAccount) -> None:
        self.counts["durable functions"] += 1
        self.counts["flows of functions"] += len(account.inner)
        lines: list[str] = account.heard if isinstance(account.heard, list) else []
        for kind in ("won", "go", "maybe", "derived", "caught"):
            self.counts[f"results with {kind!r}"] += any(line.split()[0] == kind for line in lines)
        for label, step in account.report.steps.items():
            kind = label.rpartition("@")[0]
            if kind in TASKS:
                self.counts["calls of tasks"] += 1
                self.counts[f"calls {step.state}"] += 1
            elif label not in account.inner:
                self.counts["sleeps and waits"] += 1


async def _cancel_after(handle: FlowHandle[Any], seconds: float) -> bool:
    await last(seconds)
    return await handle.cancel("no more")


async def _tell(flows: WorkflowProvider, ledger: Ledger, flow_id: str) -> str:
    """Return what is recorded of a flow, and what it did."""
    report = await flows.report(flow_id)
    steps = [f"    {each}" for each in report.steps.values()]
    entries = [f"    {each}" for each in await flows.provider.jobs.journal(flow_id)]
    lines = [f"    {each.what} {each.payload} {each.attempt} {each.pid}" for each in ledger.lines_of(flow_id)]
    head = f"{flow_id}: {report.state}, rollback {report.rollback}, {report.rollbacks}"
    return "\n".join([head, "  steps:", *steps, "  entries:", *entries, "  did:", *lines])


def _definition_of(shape: Shape) -> Workflow[Course, Any] | Durable[Course, Any]:
    return shape.durable if isinstance(shape, Function) else shape


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
