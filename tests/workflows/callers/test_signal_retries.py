"""Signals with ids of their senders, and retries by hand: what a retry keeps keeps its ids, and what it
forgets may be sent once more.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from eventbus import EventProvider, HandlerError, Retry, SignalRefused
from workflows import (
    END,
    FlowContext,
    FlowError,
    MachineContext,
    Signal,
    StateMachine,
    StepContext,
    Workflow,
    WorkflowProvider,
    durable,
    task,
    transition,
)

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]

GO = Signal("go", str)
MOST = 4
_ONCE = Retry(attempts=1)


class Shop:
    """A function and graphs that wait for signals, each with a step behind it that fails if it is told so."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.broken: int | None = None
        self.step = task(retry=_ONCE)(self.check)

        @durable("waits")
        async def function(ctx: FlowContext[int]) -> list[str]:
            found: list[str] = []
            for number in range(ctx.input):
                found.append(await ctx.wait_for(GO))
                await ctx.step(self.step, number)
            return found

        self.function = function

    async def check(self, number: int) -> None:
        await self.gate.wait()
        if number == self.broken:
            raise ValueError(f"step {number} is broken")

    def graph(self, waits: int, *, spread: bool) -> Workflow[Any, list[str]]:
        graph: Workflow[Any, list[str]] = Workflow(
            f"waits-{waits}-{spread}".lower(), output=list[str], spread=spread, retry=_ONCE
        )
        names: list[Any] = []
        for number in range(waits):
            names.append(graph.wait(GO, name=f"wait{number}"))

            async def check(ctx: StepContext[Any], number: int = number) -> None:
                await self.check(number)

            graph.step(check, name=f"step{number}")

        @graph.completed
        async def done(ctx: StepContext[Any]) -> list[str]:
            return [ctx.result(name) for name in names]

        return graph

    def definition(self, shape: str, waits: int) -> Any:
        return self.function if shape == "function" else self.graph(waits, spread=shape == "spread")


async def _open(provider: EventProvider, stack: AsyncExitStack, *workflows: Any) -> WorkflowProvider:
    flows = WorkflowProvider(provider)
    for workflow in workflows:
        flows.register(workflow)
    await stack.enter_async_context(provider)
    await stack.enter_async_context(provider.worker())
    return flows


@pytest.mark.parametrize("shape", ["function", "local", "spread"])
@pytest.mark.parametrize("seed", range(4))
async def test_each_signal_counts_once_in_each_run_that_has_not_kept_it(
    shape: str, seed: int, make_provider: MakeProvider, stack: AsyncExitStack
) -> None:
    """The same ids are sent in each run, some of them twice. A run from the start takes them anew; a resumed
    one has those that came before.
    """
    dice = random.Random(f"{shape} {seed}")
    shop, waits = Shop(), dice.randint(1, MOST)
    definition = shop.definition(shape, waits)
    flows = await _open(make_provider(), stack, definition)
    flow = await flows.execute(definition, waits)
    known: dict[str, str] = {}
    kept = 0  # the steps that completed, and are not run again
    for run in range(1, 6):
        is_last = run == 5
        shop.broken = None if is_last or dice.random() < 0.2 else dice.randrange(kept, waits)
        for number in range(waits):
            for repeat in range(dice.randint(1, 2)):
                payload = f"run {run}, repeat {repeat}"
                await flow.signal(GO, payload, signal_id=f"own id {number}")
                known.setdefault(f"own id {number}", payload)
        shop.gate.set()
        expected = [known[f"own id {number}"] for number in range(waits)]
        if shop.broken is None:
            assert await flow.result(240) == expected
            if is_last:
                break
        else:
            with pytest.raises(FlowError, match=f"step {shop.broken} is broken"):
                await flow.result(240)
        shop.gate.clear()
        resume = None if shop.broken is None else dice.choice([True, False])
        flow = await flows.retry(flow.id, resume=resume)
        kept = (shop.broken or 0) if resume else 0
        if not resume:
            known.clear()


@pytest.mark.parametrize("ends", ["fails", "is cancelled"])
@pytest.mark.parametrize("spread", [False, True])
async def test_a_retry_that_keeps_all_steps_ends_without_another_signal(
    spread: bool, ends: str, make_provider: MakeProvider, stack: AsyncExitStack
) -> None:
    """The root has nothing left to wait for: it must not lie down to listen, for nobody sends it anything."""
    is_broken, hook_runs = True, asyncio.Event()
    graph: Workflow[Any, list[str]] = Workflow("kept", output=list[str], spread=spread, retry=_ONCE)
    wait = graph.wait(GO, name="wait")

    @graph.completed
    async def done(ctx: StepContext[Any]) -> list[str]:
        hook_runs.set()
        if is_broken and ends == "fails":
            raise ValueError("the hook is broken")
        if is_broken:
            await asyncio.Event().wait()
        return [ctx.result(wait)]

    flows = await _open(make_provider(), stack, graph)
    flow = await flows.execute(graph, None)
    await flow.signal(GO, "only once", signal_id="own")
    await asyncio.wait_for(hook_runs.wait(), 240)
    if ends == "is cancelled":
        await flow.cancel()
    with pytest.raises(FlowError, match="cancelled" if ends == "is cancelled" else "hook is broken"):
        await flow.result(240)
    is_broken = False
    flow = await flows.retry(flow.id)
    assert await flow.result(240) == ["only once"]


async def test_a_function_that_waits_again_is_sent_the_same_signal(
    make_provider: MakeProvider, stack: AsyncExitStack
) -> None:
    """What the code recorded because of the error is forgotten, and so is the id of the signal that it
    took.
    """
    is_broken = True

    @task(retry=_ONCE)
    async def fail() -> str:
        if is_broken:
            raise ValueError("broken")
        return "mended"

    @durable("tidies")
    async def tidies(ctx: FlowContext[None]) -> list[str]:
        found = [await ctx.wait_for(GO)]
        try:
            found.append(await ctx.step(fail))
        except HandlerError:
            await ctx.wait_for(GO)
            raise
        return [*found, await ctx.wait_for(GO)]

    flows = await _open(make_provider(), stack, tidies)
    flow = await flows.execute(tidies, None)
    await flow.signal(GO, "first", signal_id="one")
    await flow.signal(GO, "because of the error", signal_id="two")
    with pytest.raises(FlowError, match="broken"):
        await flow.result(240)
    is_broken = False
    flow = await flows.retry(flow.id)
    await flow.signal(GO, "again", signal_id="one")
    await flow.signal(GO, "in the new run", signal_id="two")
    await flow.signal(GO, "too late", signal_id="two")
    assert await flow.result(240) == ["first", "mended", "in the new run"]


@pytest.mark.parametrize("shape", ["function", "local", "spread"])
async def test_a_signal_that_did_not_fit_may_be_sent_with_its_id_after_a_retry(
    shape: str, make_provider: MakeProvider, stack: AsyncExitStack, until: Until
) -> None:
    shop = Shop()
    definition = shop.definition(shape, 1)
    flows = await _open(provider := make_provider(), stack, definition)
    shop.gate.set()
    flow = await flows.execute(definition, 1)
    jobs = provider.jobs

    async def is_refused() -> bool:
        return any('"refused"' in entry for entry in await jobs.journal(flow.id))

    await jobs.signal(flow.id, "go", "1", signal="own")
    await until(is_refused, "the signal is refused")
    await flow.signal(GO, "not heard", signal_id="own")
    await flow.cancel()
    with pytest.raises(Exception, match="cancelled"):
        await flow.result(240)
    flow = await flows.retry(flow.id)
    await flow.signal(GO, "fits", signal_id="own")
    await flow.signal(GO, "again", signal_id="own")
    assert await flow.result(240) == ["fits"]


@dataclass
class Words:
    first: str = ""


class Stands(StateMachine[Words], name="stands", start="a"):
    is_broken = False

    @transition("a", to="b", wait=str)
    async def first(self, ctx: MachineContext[Words], word: str) -> None:
        ctx.state.first = word

    @transition("b", to=END, wait=str)
    async def last(self, ctx: MachineContext[Words], word: str) -> list[str]:
        if Stands.is_broken:
            raise ValueError("last is broken")
        return [ctx.state.first, word]


@pytest.mark.parametrize("resume", [True, False])
async def test_a_place_that_waits_again_takes_the_same_trigger_and_no_move_is_made_twice(
    resume: bool, make_provider: MakeProvider, stack: AsyncExitStack, until: Until
) -> None:
    flows = await _open(provider := make_provider(), stack, Stands)
    Stands.is_broken = True
    flow = await flows.execute(Stands, Words())

    async def accepts(name: str) -> bool:
        report = await flow.report()
        machine = report.machine
        return machine is not None and name in machine.accepts

    async def fails() -> bool:
        return "last is broken" in (await flow.report()).error

    await until(lambda: accepts("first"), "it waits")
    await flow.trigger("first", "one", trigger_id="1")
    await until(lambda: accepts("last"), "it moved")
    await flow.trigger("last", "two", trigger_id="2")
    await until(fails, "the transition failed")
    await flow.retry()  # in the same run, by hand

    async def is_sent() -> bool:
        try:
            await flow.trigger("last", "in the same run", trigger_id="2")
        except SignalRefused:  # the place opens when the retry has failed
            return False
        return True

    await until(is_sent, "it failed again")
    await flow.cancel()
    with pytest.raises(Exception, match="cancelled"):
        await flow.result(240)
    Stands.is_broken = False
    flow = await flows.retry(flow.id, resume=resume)

    async def has_begun() -> bool:  # the first activation closes the place for a moment
        return any('"k":"run"' in each for each in await provider.jobs.journal(flow.id))

    if resume:
        await until(has_begun, "the run has begun")
    else:
        await until(lambda: accepts("first"), "it waits")
        await flow.trigger("first", "new one", trigger_id="1")
    await until(lambda: accepts("last"), "it moved")
    await flow.trigger("last", "new two", trigger_id="2")
    assert await flow.result(240) == ["one" if resume else "new one", "new two"]


@dataclass
class Turns:
    left: int = 0
    made: int = 0


class Circles(StateMachine[Turns], name="circles", start="a"):
    is_broken = False

    @transition("a", to="a", wait=int, retry=_ONCE)
    async def begin(self, ctx: MachineContext[Turns], turns: int) -> None:
        if Circles.is_broken:
            raise ValueError("begin is broken")
        ctx.state.left = turns

    @transition("a", to="a", when=lambda ctx: ctx.state.left > 0)
    async def turn(self, ctx: MachineContext[Turns]) -> None:
        ctx.state.left -= 1
        ctx.state.made += 1

    @transition("a", to=END, wait=str, retry=_ONCE)
    async def one(self, ctx: MachineContext[Turns], word: str) -> tuple[str, int]:
        if Circles.is_broken:
            raise ValueError("one is broken")
        return word, ctx.state.made

    @transition("a", to=END, wait=str, retry=_ONCE)
    async def two(self, ctx: MachineContext[Turns], word: str) -> tuple[str, int]:
        if Circles.is_broken:
            raise ValueError("two is broken")
        return word, ctx.state.made


class Circle:
    """A flow of `Circles`."""

    def __init__(self, provider: EventProvider, flows: WorkflowProvider, flow: Any, until: Until) -> None:
        self.flow = flow
        self._jobs = provider.jobs
        self._flows = flows
        self._until = until

    async def opens(self, moves: int = 0) -> None:
        """Wait until the place accepts triggers, after so many moves."""

        async def is_open() -> bool:
            machine = (await self.flow.report()).machine
            return machine is not None and "one" in machine.accepts and machine.version >= moves

        await self._until(is_open, "the place accepts triggers")

    async def send(self, name: str, text: str, trigger: str, *, entry: str) -> None:
        """Send a trigger, unchecked, and wait until the journal has an entry about what became of it."""

        async def count() -> int:
            return sum(f'"k":"{entry}"' in each for each in await self._jobs.journal(self.flow.id))

        async def is_recorded() -> bool:
            return await count() > before

        before = await count()
        await self.opens()
        await self._jobs.signal(self.flow.id, f"!{name}", text, signal=trigger)
        await self._until(is_recorded, f"the journal has {entry}")
        await self.opens()

    async def run_again(self) -> None:
        """End the flow, and retry it."""
        await self.flow.cancel()
        with pytest.raises(FlowError, match="cancelled"):
            await self.flow.result(240)
        Circles.is_broken = False
        self.flow = await self._flows.retry(self.flow.id)
        run = (await self.flow.report()).run

        async def has_begun() -> bool:  # the first activation closes the place for a moment
            return any(f'"k":"run","x":{run}' in each for each in await self._jobs.journal(self.flow.id))

        await self._until(has_begun, "the run has begun")
        await self.opens()


@pytest.fixture
async def circle(make_provider: MakeProvider, stack: AsyncExitStack, until: Until) -> Circle:
    flows = await _open(provider := make_provider(), stack, Circles)
    Circles.is_broken = False
    found = Circle(provider, flows, await flows.execute(Circles, Turns()), until)
    await found.opens()
    return found


@pytest.mark.parametrize(
    "failing",
    [
        [("one", "1")],
        [("one", "1"), ("two", "2")],
        [("one", "1"), ("one", "2")],
        [("one", "1"), ("one", "")],
        [("two", "2"), ("one", "1")],
    ],
    ids=str,
)
async def test_every_trigger_that_failed_at_a_place_may_be_sent_once_more(
    circle: Circle, failing: list[tuple[str, str]]
) -> None:
    """Also if no other id is remembered, and if another one failed behind it."""
    Circles.is_broken = True
    for name, trigger in failing:
        await circle.send(name, '"failed"', trigger, entry="failed")
    await circle.run_again()
    await circle.flow.trigger("one", "again", trigger_id="1")
    assert await circle.flow.result(240) == ("again", 0)


async def test_the_only_trigger_of_a_flow_may_be_sent_once_more_if_it_did_not_fit(circle: Circle) -> None:
    await circle.send("one", "1", "own", entry="refused")
    await circle.run_again()
    await circle.flow.trigger("one", "fits", trigger_id="own")
    assert await circle.flow.result(240) == ("fits", 0)


async def test_a_trigger_that_did_not_fit_is_forgotten_though_the_journal_has_lost_the_beginning_of_its_run(
    circle: Circle,
) -> None:
    """The journal of a machine has the newest 100 entries alone."""
    await circle.run_again()
    await circle.send("begin", "150", "other", entry="move")
    await circle.opens(moves=151)
    await circle.send("one", "1", "own", entry="refused")
    await circle.run_again()
    await circle.flow.trigger("one", "fits", trigger_id="own")
    assert await circle.flow.result(240) == ("fits", 150)


async def test_a_trigger_that_failed_and_then_moved_the_machine_moves_it_once(circle: Circle) -> None:
    Circles.is_broken = True
    await circle.send("begin", "3", "own", entry="failed")
    Circles.is_broken = False
    await circle.flow.retry()  # in the same run, by hand
    await circle.opens(moves=4)
    await circle.run_again()
    await circle.flow.trigger("begin", 5, trigger_id="own")
    await circle.flow.trigger("one", "ends", trigger_id="another")
    assert await circle.flow.result(240) == ("ends", 3)
