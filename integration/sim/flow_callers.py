"""The callers of the simulation of flows: they execute flows, give orders to them, hear what became of them,
and retry those that did not complete. What they do is drawn; what must hold stands in `flow_simulation`.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import Any, TypeVar

from apps.drawn.functions import Function, go, maybe
from apps.drawn.graphs import NEVER, Course, End, make_course
from apps.drawn.machines import MOST_TRIPS, Ship, Voyage, acts_of_trips
from apps.signal_app import Note, hearing, listen
from checks.later_runs import judge_derived, judge_later, kept_of
from checks.ledger import Ledger
from checks.machine_ledger import judge_machine
from harness.conditions import last
from harness.flow_load import AnyAccount, FlowLoad, Shape, acts_in, definition_of
from harness.journal import Journal

from eventbus import EventBusError, SignalRefused, StalledError, StoreUnavailable, UnknownJob
from workflows import FlowCancelled, FlowHandle, FlowNotEnded, FlowTimeout, StepError, WorkflowProvider
from workflows.records.entries import read_entries
from workflows.records.ids import parent_of

__all__ = ["FlowCallers"]

T = TypeVar("T")

_SHIPS, _LISTENERS = 0.25, 0.15
"""The shares of flows that are machines, and that only take signals; the others are of drawn shapes."""
_CANCELLED = 0.3
_MOST_RUNS = 3
_FINAL = ("completed", "failed", "cancelled")


class _Flow:
    """One flow, and what its callers know of it."""

    def __init__(self, handle: FlowHandle[Any], shape: Shape | None, course: Course) -> None:
        """Of a machine there is no shape."""
        self.handle = handle
        self.shape = shape
        self.course = course
        self.run = 1
        self.is_over = False
        self.starts: list[int] = [0]
        """How many lines of the journal it had when each run began."""
        self.kept: list[Collection[str]] = [()]
        """What each run must keep, as far as that is known."""
        self.first_run = 0
        """The last run that began from the start, from 0."""
        self.is_resumed = True
        """Whether no run began from the start."""
        self.cancels: Any = None
        """What the cancel of this run said; None: there was none."""
        self.refused: set[int] = set()
        """The signals of this run that were refused."""


class FlowCallers(FlowLoad):
    """Executes so many flows. `patience` is the seconds in which each run must have ended."""

    def __init__(
        self,
        seed: int,
        flows: int,
        *,
        patience: float,
        journal: Journal,
        suspects: Callable[[], set[int]],
        strayed: Callable[[], set[str]],
        now: Callable[[], float],
        is_exact: bool,
        is_lenient: bool,
    ) -> None:
        """`suspects` are the processes that may have done something twice, `strayed` the flows where one did
        something without its lease, and `now` is the time in seconds. If it `is_exact`, no step may lose its
        worker; if it `is_lenient`, anything may be taken back.
        """
        rng = random.Random(f"{seed}-shapes")
        super().__init__(
            seed,
            flows,
            graphs=rng.randint(2, 5),
            functions=rng.randint(1, 4),
            patience=patience,
            has_threads=False,
        )
        self.seconds: dict[tuple[str, int], float] = {}
        """How long each run took."""
        self.told: list[tuple[str, int, str]] = []
        """What became of each run."""
        self._journal = journal
        self._suspects, self._strayed, self._now = suspects, strayed, now
        self._is_exact, self._is_lenient = is_exact, is_lenient
        self._flows: dict[str, _Flow] = {}
        self._ships: dict[str, tuple[Any, list[int]]] = {}
        """machine -> what its caller heard, and the orders that it took."""
        self._listeners: set[str] = set()
        self._open: list[FlowHandle[Any]] = []

    def register(self, flows: WorkflowProvider) -> None:
        super().register(flows)
        flows.register(Ship)
        flows.register(listen)

    async def execute(self, flows: WorkflowProvider, number: int) -> None:
        rng = random.Random(f"{self.seed}-caller-{number}")
        drawn = rng.random()
        run = self._use_ship if drawn < _SHIPS else self._use_flow
        if drawn > 1 - _LISTENERS:
            run = self._use_listener
        try:
            await run(flows, number, rng)
        except EventBusError:
            if not self._is_lenient:
                raise
            self.counts["calls that failed"] += 1

    # Graphs and functions

    async def _use_flow(self, flows: WorkflowProvider, number: int, rng: random.Random) -> None:
        shape = self.shapes[number % len(self.shapes)]
        course, end = make_course(self.seed, number, acts_in(shape))
        for act in course.acts.values():
            act.later = rng.choices([0, 1, 2, NEVER], [60, 25, 5, 10])[0]
            if act.good == NEVER and rng.random() < 0.7:
                act.later = 1
        handle: FlowHandle[Any] = await flows.execute(
            definition_of(shape), course, timeout=end.timeout or None
        )
        flow = self._flows[handle.id] = _Flow(handle, shape, course)
        self._open.append(handle)
        if not end.timeout and rng.random() < _CANCELLED:
            end.cancel = rng.uniform(0.01, 1.5)
        while True:
            heard = await self._run(flow, end, rng)
            self._judge_heard(flow, heard, has_timeout=end.timeout > 0)
            if not flow.is_over or not isinstance(heard, Exception):
                break
            if flow.run == _MOST_RUNS or rng.random() < 0.2:
                break
            is_looked_at = rng.random() < 0.4 and not self._is_lenient
            await self._retry(flows, flow, rng, heard if is_looked_at else None)
            end = End(cancel=rng.uniform(0.01, 1.0) if rng.random() < 0.15 else 0.0, timeout=end.timeout)
        self.heard[handle.id] = shape, course, heard

    async def _run(self, flow: _Flow, end: End, rng: random.Random) -> Any:
        """Let one run of a flow end; return what its caller heard."""
        began, handle = self._now(), flow.handle
        flow.cancels, flow.is_over, flow.refused = None, True, set()
        cancelling = asyncio.create_task(self._cancel_after(handle, end.cancel)) if end.cancel else None
        sending = asyncio.create_task(self._signal(flow, rng))
        heard: Any = None
        try:
            async with asyncio.timeout(self._patience):
                heard = await self._hear(handle)
        except TimeoutError:
            flow.is_over = False
            if not self._is_lenient:
                status = await handle.status()
                self.flaws.append(
                    f"{handle.id}: nothing heard of run {flow.run} in {self._patience:g} s, {status}"
                )
        if cancelling is not None:
            flow.cancels = await cancelling
        await sending
        self.seconds[handle.id, flow.run] = self._now() - began
        self.told.append((handle.id, flow.run, repr(heard)))
        self.counts[f"heard {type(heard).__name__}"] += 1
        return heard

    async def _hear(self, handle: FlowHandle[Any]) -> Any:
        while True:
            try:
                return await handle.result()
            except StoreUnavailable:
                await last(0.1)
            except Exception as error:  # noqa: BLE001  (the ledger checks it)
                return error

    async def _cancel_after(self, handle: FlowHandle[Any], seconds: float) -> Any:
        """Cancel a flow; return what that said, or the error."""
        await last(seconds)
        try:
            return await _insist(partial(handle.cancel, "no more"))
        except EventBusError as error:
            return error

    async def _signal(self, flow: _Flow, rng: random.Random) -> None:
        """Send one signal for each wait of a function, under an id of its own, and perhaps one for those with
        a limit.
        """
        if not isinstance(flow.shape, Function):
            return
        body = flow.shape.body
        sent = [(go, each) for each in range(body.count("wait"))]
        if body.count("limited") and rng.random() < 0.7:
            sent.insert(rng.randint(0, len(sent)), (maybe, 0))
        for signal, each in sent:
            await last(rng.uniform(0, 0.3))
            try:
                await _insist(partial(flow.handle.signal, signal, each, signal_id=f"{signal.name}-{each}"))
                self.counts["signals"] += 1
            except SignalRefused as error:
                self.counts["signals refused"] += 1
                if signal is go:
                    flow.refused.add(each)
                if error.reason not in ("ended", "stopping"):
                    self.flaws.append(f"{flow.handle.id}: {error}")
            except UnknownJob:
                if not self._is_lenient:
                    raise

    def _judge_heard(self, flow: _Flow, heard: Any, *, has_timeout: bool) -> None:
        """Check that a run ended for a reason that there is."""
        where = f"{flow.handle.id}: run {flow.run}"
        if not flow.is_over or self._is_lenient:
            return
        is_cancelled = isinstance(heard, FlowCancelled)
        is_known = isinstance(flow.cancels, bool) or flow.cancels is None
        if is_known and is_cancelled != bool(flow.cancels):
            self.flaws.append(f"{where}: its cancel said {flow.cancels}, and its caller heard {heard!r}")
        if isinstance(heard, FlowTimeout) and not has_timeout:
            self.flaws.append(f"{where}: heard {heard!r}, and it has no timeout")
        if isinstance(heard, StepError):
            cause: BaseException | None = heard
            while isinstance(cause, StepError):
                cause = cause.error
            is_stalled = isinstance(cause, StalledError) and not self._is_exact
            if "attempt" not in str(cause) and not is_stalled:
                self.flaws.append(f"{where}: heard {heard!r}, which no act raises")
        if isinstance(flow.shape, Function) and isinstance(heard, list):
            came = {int(line.split()[1]) for line in heard if line.startswith("go ")}
            if came & flow.refused:
                self.flaws.append(f"{where}: signals {came & flow.refused} were refused, and came")

    async def _retry(
        self, flows: WorkflowProvider, flow: _Flow, rng: random.Random, heard: Exception | None
    ) -> None:
        """Begin the next run; look at this one first if what was `heard` is given."""
        handle, is_resumed = flow.handle, rng.random() < 0.85
        kept: Collection[str] = ()
        if heard is not None:
            assert flow.shape is not None
            self.heard[handle.id] = flow.shape, flow.course, heard
            account = await self._judge(flows, flow)
            # The journal still has items of runs before one that began from the start.
            lines = Ledger(self._journal, set()).lines_of(handle.id)[flow.starts[flow.first_run] :]
            kept = kept_of(account) & {each.payload for each in lines} if is_resumed else ()
        flow.is_resumed = flow.is_resumed and is_resumed
        flow.kept.append(kept)
        flow.starts.append(sum(each.job == handle.id for each in self._journal.read()))
        flow.first_run = flow.first_run if is_resumed else flow.run
        flow.run += 1
        self.counts["retries"] += 1
        try:
            await _insist(partial(handle.retry, None if is_resumed else False))
        except FlowNotEnded:  # this call had got through before
            self.counts["retries that were made twice"] += 1

    async def _judge(self, flows: WorkflowProvider, flow: _Flow) -> AnyAccount:
        """Judge the last run of a flow that has ended."""
        ledger = Ledger(self._journal, self._suspects())
        account = await self.read(flows, flow.handle.id)
        roots = {_root_of(each) for each in self._strayed()}
        if flow.handle.id in roots:
            flaws = list(ledger.judge_heard(account))
            self.counts["runs with strays"] += 1
        elif flow.run == 1:
            flaws = self.flaws_of(ledger, account)
        else:
            flaws = [
                *ledger.judge_heard(account),
                *judge_later(ledger, account, flow.starts, flow.kept, flow.first_run),
            ]
        if isinstance(flow.shape, Function) and flow.is_resumed:
            flaws += judge_derived(flow.shape, flow.handle.id, ledger.seen_in(flow.handle.id))
        flaws += await self._judge_signals(flows, flow.handle.id)
        await self.add_flaws(flows, ledger, account, flaws)
        return account

    async def _judge_signals(self, flows: WorkflowProvider, flow_id: str) -> list[str]:
        """Check that each signal was taken once in each run."""
        journal: list[str] = []
        while page := await flows.provider.jobs.journal(flow_id, first=len(journal), limit=500):
            journal += page
        flaws: list[str] = []
        taken: Counter[tuple[str, str]] = Counter()
        for entry in read_entries(flow_id, journal):
            if entry.kind in ("run", "again"):
                taken.clear()
            if entry.kind == "signal":
                taken[entry.name, bytes(entry.result).decode()] += 1
                if taken[entry.name, bytes(entry.result).decode()] > 1:
                    flaws.append(f"{flow_id}: took {entry.name} {bytes(entry.result).decode()} twice")
        return flaws

    # Machines

    async def _use_ship(self, flows: WorkflowProvider, number: int, rng: random.Random) -> None:
        course, end = make_course(self.seed, number, acts_of_trips())
        for act in course.acts.values():
            act.good = min(act.good, 2)
        if not end.timeout and rng.random() < 0.6:
            end.cancel = rng.uniform(0.05, 2.5)
        handle: FlowHandle[Any] = await flows.execute(Ship, Voyage(course), timeout=end.timeout or None)
        self._open.append(handle)
        taken: list[int] = []
        flow = _Flow(handle, None, course)
        ordering = asyncio.create_task(self._order(handle, rng.randint(1, MOST_TRIPS), taken, rng))
        heard = await self._run(flow, end, rng)
        await ordering
        self._judge_heard(flow, heard, has_timeout=end.timeout > 0)
        self._ships[handle.id] = heard, taken

    async def _order(self, handle: FlowHandle[Any], trips: int, taken: list[int], rng: random.Random) -> None:
        """Trigger a machine as soon as it accepts that, until it has ended."""
        number = 0
        while number <= trips:
            try:
                if number < trips:
                    await _insist(partial(handle.trigger, Ship.sail, number, trigger_id=f"sail-{number}"))
                    taken.append(number)
                else:
                    await _insist(partial(handle.trigger, Ship.retire, trigger_id="retire"))
                number += 1
                self.counts["triggers"] += 1
            except SignalRefused as error:
                if error.reason in ("ended", "stopping"):
                    return
                if handle.id in self._ships:
                    return
                self.counts["triggers refused"] += 1
            except UnknownJob:
                return
            await last(rng.uniform(0.02, 0.3))

    # Signals

    async def _use_listener(self, flows: WorkflowProvider, number: int, rng: random.Random) -> None:
        """Send notes to a flow that takes so many, one after the other."""
        notes = [Note(number, each) for each in range(rng.randint(2, 6))]
        handle: FlowHandle[Any] = await flows.execute(listen, len(notes))
        self._open.append(handle)
        flow = _Flow(handle, None, Course(number))
        running = asyncio.create_task(self._run(flow, End(), rng))
        for note in notes:
            await last(rng.choice([0, 0, 0.1]) * rng.random())
            try:
                await _insist(partial(handle.signal, hearing, note, signal_id=f"note-{note.number}"))
                self.counts["signals"] += 1
            except (SignalRefused, UnknownJob) as error:
                if not self._is_lenient:
                    self.flaws.append(f"{handle.id}: {note} of {len(notes)}: {error}")
        heard = await running
        if flow.is_over and heard != notes and not self._is_lenient:
            self.flaws.append(f"{handle.id}: was sent {len(notes)} notes, and heard {heard}")
        self._listeners.add(handle.id)
        self.counts["listeners"] += 1

    # The end

    async def judge_all(self, flows: WorkflowProvider) -> None:
        """Judge the last run of each flow."""
        known: set[str] = set()
        for flow in self._flows.values():
            if flow.is_over:
                account = await self._judge(flows, flow)
                self.count(account)
                known |= set(account.ids())
        ledger = Ledger(self._journal, self._suspects())
        roots = {_root_of(each) for each in self._strayed()}
        for flow_id, (heard, taken) in self._ships.items():
            self.counts["machines"] += 1
            if flow_id not in roots:
                report = await flows.report(flow_id)
                self.flaws += judge_machine(ledger, report, heard, taken)
        known |= set(self._ships) | self._listeners | set(self._flows)
        self.flaws += [
            f"{each}: happened, and nobody executed it"
            for each in ledger.flows
            if _root_of(each) not in known
        ]

    async def end_all(self, flows: WorkflowProvider) -> None:
        """Cancel the flows that a failover has left without what they wait for, and wait for their ends."""
        for handle in self._open:
            try:
                if (await handle.status()).state not in _FINAL:
                    await handle.cancel("left behind")
                    self.counts["left behind"] += 1
                    async with asyncio.timeout(self._patience):
                        while (await handle.status()).state not in _FINAL:
                            await last(0.5)
            except UnknownJob:
                self.counts["gone"] += 1
            except TimeoutError:
                self.flaws.append(f"{handle.id}: was cancelled, and is {await handle.status()}")


async def _insist(call: Callable[[], Awaitable[T]]) -> T:
    """Make a call until the server has answered it."""
    while True:
        try:
            return await call()
        except StoreUnavailable:
            await last(0.1)


def _root_of(flow_id: str) -> str:
    """Return the flow that was executed, of a flow inside it."""
    while (outer := parent_of(flow_id)) is not None:
        flow_id = outer.flow_id
    return flow_id
