"""What a durable function begins in a worker that stops: nothing. Another worker goes on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from eventbus import EventProvider
from workflows import Durable, FlowContext, WorkflowProvider, durable, task

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]

did: list[str] = []
began, may_end = threading.Event(), threading.Event()


@pytest.fixture(autouse=True)
def nothing_did() -> None:
    did.clear()
    began.clear()
    may_end.clear()


def act(name: str) -> str:
    did.append(name)
    began.set()
    may_end.wait(240)
    return name


free, placed = task(act), task(pool="single")(act)


@task
async def note(name: str) -> str:
    did.append(name)
    return name


@durable("row")
async def in_a_row(ctx: FlowContext[None]) -> list[str]:
    return [
        await ctx.step(free, "first"),
        await ctx.step(note, "second"),
        *await ctx.map(note, ["a"], local=True),
    ]


@durable("line")
async def in_line(ctx: FlowContext[None]) -> list[str]:
    return list(await ctx.gather(ctx.step(placed, "first"), ctx.step(placed, "second")))


def _open(make_provider: MakeProvider) -> WorkflowProvider:
    provider = make_provider(grace="20s")
    provider.pool("single", threads=1)
    flows = WorkflowProvider(provider)
    for function in (in_a_row, in_line):
        flows.register(function)
    return flows


@pytest.mark.parametrize(
    ("function", "all_that_runs"), [(in_a_row, ["first", "second", "a"]), (in_line, ["first", "second"])]
)
async def test_a_worker_that_stops_begins_no_task_and_another_one_goes_on(
    make_provider: MakeProvider, until: Until, function: Durable[None, list[str]], all_that_runs: list[str]
) -> None:
    first, second = _open(make_provider), _open(make_provider)
    async with second.provider:
        flow = await second.execute(function, None)
        async with first.provider, first.provider.worker() as worker:
            await until(began.is_set, "the first task runs")
            stopping = asyncio.create_task(worker.stop())
            await asyncio.sleep(0)  # it is asked to stop by then
            may_end.set()
            await stopping
        assert did == ["first"]
        async with second.provider.worker():
            assert await flow.result() == all_that_runs
    assert did == all_that_runs, "what is recorded is not done again"
