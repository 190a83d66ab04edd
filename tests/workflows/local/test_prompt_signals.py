"""A signal to a flow whose worker runs another step of it: the worker is told, and looks now and then all the
same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from eventbus import EventProvider
from eventbus.engine.executor import Executor
from eventbus.store.calls.journal_store import JournalStore
from workflows import (
    Durable,
    FlowContext,
    FlowHandle,
    Signal,
    StepContext,
    Workflow,
    WorkflowProvider,
    durable,
    task,
)
from workflows.distributed import local_graph
from workflows.distributed.functions import flow_recorder

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]

GO = Signal("go", int)
_NEVER = 3600.0


def look_each(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers look for signals so often, unless they are told."""
    for module in (flow_recorder, local_graph):
        monkeypatch.setattr(module, "_LOOK_SECONDS", seconds)


def make_function(*, others: int = 1) -> Durable[None, list[int]]:
    @task
    async def work() -> None:
        await asyncio.Event().wait()

    @durable("function")
    async def function(ctx: FlowContext[None]) -> list[int]:
        async def answers() -> list[int]:
            return [await ctx.wait_for(GO) for _ in range(others)]

        _, found = await ctx.race(ctx.step(work), answers())
        assert isinstance(found, list)
        return found

    return function


def make_graph() -> Workflow[None, list[int]]:
    heard = asyncio.Event()
    graph: Workflow[None, list[int]] = Workflow("graph", output=list[int])

    @graph.step(after=None)
    async def work(ctx: StepContext[None]) -> None:
        await heard.wait()

    first = graph.wait(GO, after=None)

    @graph.step(after=first)
    async def hear(ctx: StepContext[None]) -> None:
        heard.set()

    @graph.completed
    async def said(ctx: StepContext[None]) -> list[int]:
        return [ctx.result(first)]

    return graph


async def _waits(handle: FlowHandle[Any]) -> None:
    while not any(  # noqa: ASYNC110
        step.state == "waiting" for step in (await handle.report()).steps.values()
    ):
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("make", [make_function, make_graph])
async def test_a_flow_that_runs_hears_a_signal_at_once(
    make_provider: MakeProvider, monkeypatch: pytest.MonkeyPatch, make: Callable[[], Any]
) -> None:
    look_each(_NEVER, monkeypatch)
    workflow = make()
    flows = WorkflowProvider(make_provider())
    flows.register(workflow)
    async with flows.provider, flows.provider.worker(), asyncio.timeout(240):
        handle = await flows.execute(workflow, None)
        await _waits(handle)
        await handle.signal(GO, 7)
        assert await handle.result() == [7]


async def test_each_of_many_signals_is_heard_at_once(
    make_provider: MakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_each(_NEVER, monkeypatch)
    workflow = make_function(others=50)
    flows = WorkflowProvider(make_provider())
    flows.register(workflow)
    async with flows.provider, flows.provider.worker(), asyncio.timeout(240):
        handle = await flows.execute(workflow, None)
        for number in range(50):
            await handle.signal(GO, number)
        assert await handle.result() == list(range(50))


@pytest.mark.parametrize("make", [make_function, make_graph])
async def test_a_message_that_is_lost_costs_the_time_until_the_next_look(
    make_provider: MakeProvider, monkeypatch: pytest.MonkeyPatch, make: Callable[[], Any]
) -> None:
    look_each(0.1, monkeypatch)
    monkeypatch.setattr(Executor, "tell", lambda *_: None)
    workflow = make()
    flows = WorkflowProvider(make_provider())
    flows.register(workflow)
    async with flows.provider, flows.provider.worker(), asyncio.timeout(240):
        handle = await flows.execute(workflow, None)
        await _waits(handle)
        await handle.signal(GO, 7)
        assert await handle.result() == [7]


async def test_a_flow_that_does_not_wait_asks_for_no_news(
    make_provider: MakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    async def listen(_: JournalStore, job: str, *given: Any, **settings: Any) -> int:
        asked.append(job)
        return 0

    monkeypatch.setattr(JournalStore, "listen", listen)
    graph: Workflow[None, None] = Workflow("plain")

    @graph.step
    async def work(ctx: StepContext[None]) -> None:
        await asyncio.sleep(0.05)

    graph.wait(GO)  # it waits while no step runs: the flow sleeps then, and a signal wakes it
    flows = WorkflowProvider(make_provider())
    flows.register(graph)
    async with flows.provider, flows.provider.worker(), asyncio.timeout(240):
        handle = await flows.execute(graph, None)
        await _waits(handle)
        await handle.signal(GO, 7)
        await handle.result()
    assert asked == []
