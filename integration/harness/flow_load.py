"""The load of random flows: it executes them, signals and cancels them, and compares each with what really
happened. Graphs of steps, local, spread and mixed, and durable functions.

The seed decides the shapes and the course of each flow. `ledger` and `function_ledger` say what must hold.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any, TypeAlias

from apps.drawn.functions import TASKS, Function, count_attempt, go, make_functions, maybe
from apps.drawn.graphs import Course, acts_of, make_course, make_parts, make_shapes
from checks.account import Account, read_account
from checks.audit import Audit
from checks.function_ledger import FunctionAccount, FunctionLedger, read_function_account
from checks.ledger import Ledger
from harness.conditions import last

from eventbus import SignalRefused
from workflows import Durable, FlowCancelled, FlowHandle, Workflow, WorkflowProvider
from workflows.distributed.paused_steps import may_pause

__all__ = ["AnyAccount", "FlowLoad", "Shape", "acts_in", "definition_of"]

Shape: TypeAlias = Workflow[Course, Any] | Function
AnyAccount: TypeAlias = Account | FunctionAccount


class FlowLoad:
    """Executes so many flows of random shapes. `patience` is the seconds in which each must have ended."""

    def __init__(
        self, seed: int, flows: int, *, graphs: int, functions: int, patience: float, has_threads: bool = True
    ) -> None:
        """Without `has_threads` no step and no task is a plain function."""
        self.seed, self.flows = seed, flows
        self.parts = make_parts(seed, has_threads=has_threads)
        self.shapes: list[Shape] = [*make_shapes(seed, graphs, self.parts, has_threads=has_threads)]
        self.shapes += make_functions(seed, functions, self.parts, has_threads=has_threads)
        self.flaws: list[str] = []
        self.stories: list[str] = []
        """What is recorded of the flows with flaws, and what they did."""
        self.counts: Counter[str] = Counter()
        self.is_over = False
        self.heard: dict[str, tuple[Shape, Course, Any]] = {}
        """flow -> its shape, its course, and what its caller heard."""
        self._patience = patience
        self._next = 0

    def register(self, flows: WorkflowProvider) -> None:
        """Let a provider know all shapes."""
        flows.use(count_attempt)
        for shape in (*self.parts, *self.shapes):
            flows.register(definition_of(shape))

    async def execute_all(self, flows: WorkflowProvider, *, at_once: int) -> None:
        """Execute all flows, so many at once; return when the last has ended."""
        await asyncio.gather(*(self._execute_in_turn(flows) for _ in range(at_once)))
        self.is_over = True

    async def _execute_in_turn(self, flows: WorkflowProvider) -> None:
        while self._next < self.flows:
            self._next += 1
            await self.execute(flows, self._next)

    async def execute(self, flows: WorkflowProvider, number: int) -> None:
        """Execute one flow, and hear what became of it."""
        shape = self.shapes[number % len(self.shapes)]
        course, end = make_course(self.seed, number, acts_in(shape))
        handle: FlowHandle[Any] = await flows.execute(
            definition_of(shape), course, timeout=end.timeout or None
        )
        cancelling = asyncio.create_task(_cancel_after(handle, end.cancel)) if end.cancel else None
        sending = asyncio.create_task(self._send_signals(handle, shape, number))
        try:
            async with asyncio.timeout(self._patience):
                heard: Any = await handle.result()
        except TimeoutError:
            heard = None
            self.flaws.append(
                f"{handle.id}: nothing heard in {self._patience:g} s, it is {await handle.status()}"
            )
        except Exception as error:  # noqa: BLE001  (the ledger checks it)
            heard = error
        if cancelling is not None and await cancelling != isinstance(heard, FlowCancelled):
            self.flaws.append(
                f"{handle.id}: its cancel said {cancelling.result()}, and its caller heard {heard!r}"
            )
        await sending
        self.heard[handle.id] = (shape, course, heard)

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

    async def pause_steps(self, flows: WorkflowProvider, number: int) -> None:
        """Pause one step after the other, of any graph, and resume it a moment later."""
        rng = random.Random(f"{self.seed}-pauses-{number}")
        graphs = [shape for shape in (*self.parts, *self.shapes) if isinstance(shape, Workflow)]
        while not self.is_over:
            graph = rng.choice(graphs)
            steps = [step for step in graph.steps.values() if may_pause(step)]
            if not steps:
                continue
            step = rng.choice(steps)
            await flows.pause(graph, step=step)
            await last(rng.uniform(0.2, 1.5))
            (order,) = await flows.provider.inspector.queues.controls(
                f"workflow.{graph.name}.steps/{step.name}"
            )
            self.counts["pauses of steps"] += 1
            self.counts["attempts held by pauses"] += order.waiting
            await flows.resume(graph, step=step)

    async def judge(self, flows: WorkflowProvider, ledger: Ledger) -> None:
        """Compare each flow with what really happened."""
        known: set[str] = set()
        for flow_id in self.heard:
            account = await self.read(flows, flow_id)
            self.count(account)
            await self.add_flaws(flows, ledger, account, self.flaws_of(ledger, account))
            known |= set(account.ids())
        self.flaws += [f"{each}: happened, and nobody executed it" for each in ledger.flows - known]
        self.counts["lost"] += self.flows - len(self.heard)

    async def read(self, flows: WorkflowProvider, flow_id: str) -> AnyAccount:
        """Read the account of a flow."""
        shape, course, heard = self.heard[flow_id]
        if isinstance(shape, Function):
            return await read_function_account(flows, shape, course, flow_id, heard)
        return await read_account(flows, shape, flow_id, heard)

    def flaws_of(self, ledger: Ledger, account: AnyAccount) -> list[str]:
        """Return what the ledgers say of a flow."""
        if isinstance(account, FunctionAccount):
            return FunctionLedger(ledger).flaws(account)
        return ledger.flaws(account)

    async def add_flaws(
        self, flows: WorkflowProvider, ledger: Ledger, account: AnyAccount, flaws: list[str]
    ) -> None:
        """Add flaws of a flow, with its story."""
        if flaws:
            self.flaws += flaws
            self.stories += [await _tell(flows, ledger, each) for each in account.ids()]

    def judge_server(self, audit: Audit) -> None:
        """Check that nothing is left of the flows in the server but their outcomes."""
        self.flaws += audit.problems
        for job, record in audit.jobs.items():
            if record.state not in ("completed", "failed", "cancelled"):
                self.flaws.append(f"{job}: {record.state} in {record.queue}, {record.stalls} stalls")
        if audit.left_open():
            self.flaws.append(f"left open: {audit.left_open()}")
        self.counts["rescued steps and roots"] = sum(record.stalls > 0 for record in audit.jobs.values())

    def count(self, account: AnyAccount) -> None:
        """Count what a flow is, and how it ended."""
        if isinstance(account, FunctionAccount):
            self._count_function(account)
        else:
            self._count_graph(account)
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


def acts_in(shape: Shape) -> list[str]:
    """Return the names of all that a flow of a shape does."""
    return shape.acts() if isinstance(shape, Function) else acts_of(shape)


def definition_of(shape: Shape) -> Workflow[Course, Any] | Durable[Course, Any]:
    """Return what is registered of a shape."""
    return shape.durable if isinstance(shape, Function) else shape
