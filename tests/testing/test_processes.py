"""Handlers and tasks with a pool of processes: threads stand for the processes, unless a test wants real
ones.
"""

from __future__ import annotations

import os
import threading

import pytest
from importable import crunching
from importable.crunching import crunch, named

from eventbus import Event, EventProvider, HandlerError, ProcessContext, Retry
from eventbus.testing import TestBus
from workflows import FlowContext, StepContext, Workflow, WorkflowProvider, durable, task

provider = EventProvider(name="shop")
provider.pool("cpu", processes=1)
flows = WorkflowProvider(provider)

saving = Event("saving", payload=int, result=int)


provider.on(crunch, pool="process")(crunching.run)
provider.on(named, pool="cpu")(crunching.run)


@provider.on(saving, pool="process", retry=Retry(2, delay="1s"))
def run_saving(number: int, ctx: ProcessContext) -> int:
    saved = ctx.saved(int, default=0)
    ctx.progress(50)
    if ctx.attempt == 1:
        ctx.save(number + saved)
        raise ConnectionError("not yet")
    return saved


@task(pool="process")
def work(number: int) -> list[int]:
    return crunching.run(number)


@durable("working")
async def working(ctx: FlowContext[int]) -> list[int]:
    return await ctx.step(work, ctx.input)


graph = Workflow("graph", input=int, output=list[int])


@graph.step(pool="cpu")
def calculate(ctx: StepContext[int]) -> list[int]:
    return crunching.run(ctx.input)


@graph.completed
async def tell(ctx: StepContext[int]) -> list[int]:
    return ctx.result(calculate)


flows.register(working)
flows.register(graph)


def _check(found: list[int], number: int, *, is_here: bool = True) -> None:
    assert found[0] == number
    assert (found[1] == os.getpid()) is is_here
    assert found[2] != threading.get_ident() or not is_here


async def test_handlers_with_a_pool_of_processes_run_in_threads() -> None:
    async with TestBus(provider) as bus:
        began = bus.now
        _check(await provider.emit(crunch, 1), 1)
        _check(await provider.emit(named, 2), 2)
        assert bus.now == began
        _check(await bus.run(crunch, 3), 3)


async def test_tasks_and_steps_with_a_pool_of_processes_run_in_threads() -> None:
    async with TestBus(provider):
        _check(await (await flows.execute(working, 1)).result(), 1)
        _check(await (await flows.execute(graph, 2)).result(), 2)


async def test_a_handler_in_a_thread_saves_and_retries_as_in_a_process() -> None:
    async with TestBus(provider) as bus:
        assert await provider.emit(saving, 7, reply_timeout=0) == 7
        assert [run.attempt for run in bus.ran] == [1, 2]


async def test_a_handler_in_a_thread_fails_as_in_a_process() -> None:
    async with TestBus(provider) as bus:
        bus.fail(crunch, ValueError("told to"), times=3)
        with pytest.raises(HandlerError, match="told to"):
            await provider.emit(crunch, 1, reply_timeout=0)


@pytest.mark.slow
async def test_real_processes_run_while_time_stands() -> None:
    async with TestBus(provider, processes=True) as bus:
        began = bus.now
        _check(await provider.emit(crunch, 1), 1, is_here=False)
        assert bus.now == began
