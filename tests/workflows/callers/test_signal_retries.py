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

from eventbus import EventProvider, HandlerError, Retry
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
            assert await flow.result(60) == expected
            if is_last:
                break
        else:
            with pytest.raises(FlowError, match=f"step {shop.broken} is broken"):
                await flow.result(60)
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
    await asyncio.wait_for(hook_runs.wait(), 60)
    if ends == "is cancelled":
        await flow.cancel()
    with pytest.raises(FlowError, match="cancelled" if ends == "is cancelled" else "hook is broken"):
        await flow.result(60)
    is_broken = False
    flow = await flows.retry(flow.id)
    assert await flow.result(60) == ["only once"]


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
        await flow.result(60)
    is_broken = False
    flow = await flows.retry(flow.id)
    await flow.signal(GO, "again", signal_id="one")
    await flow.signal(GO, "in the new run", signal_id="two")
    await flow.signal(GO, "too late", signal_id="two")
    assert await flow.result(60) == ["first", "mended", "in the new run"]


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
        await flow.result(60)
    flow = await flows.retry(flow.id)
    await flow.signal(GO, "fits", signal_id="own")
    await flow.signal(GO, "again", signal_id="own")
    assert await flow.result(60) == ["fits"]


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
    flows = await _open(make_provider(), stack, Stands)
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
    await until(fails, "it failed again")
    await flow.trigger("last", "in the same run", trigger_id="2")
    await flow.cancel()
    with pytest.raises(Exception, match="cancelled"):
        await flow.result(60)
    Stands.is_broken = False
    flow = await flows.retry(flow.id, resume=resume)
    if not resume:
        await until(lambda: accepts("first"), "it waits")
        await flow.trigger("first", "new one", trigger_id="1")
    await until(lambda: accepts("last"), "it moved")
    await flow.trigger("last", "new two", trigger_id="2")
    assert await flow.result(60) == ["one" if resume else "new one", "new two"]
