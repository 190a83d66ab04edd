"""Nodes: what is killed never runs again, what is paused goes on where it stood."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack
from contextvars import Context
from typing import Any

import anyio
import pytest

from eventbus.runtime.upkeep import mark
from eventbus.testing.nodes import NODE, Node
from eventbus.testing.virtual_time import VirtualTime


@pytest.fixture
async def time() -> AsyncIterator[VirtualTime]:
    time = VirtualTime(start=1_893_456_000)
    time.install()
    try:
        yield time
    finally:
        time.remove()


def start(node: Node, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Start a task of a node."""
    return asyncio.get_running_loop().create_task(work, context=node.context.copy())


async def beat(told: list[int], each: float = 1.0) -> None:
    try:
        for number in range(1000):
            told.append(number)
            await asyncio.sleep(each)
    finally:
        told.append(-1)


async def test_what_is_killed_never_runs_again_not_even_its_clean_up(time: VirtualTime) -> None:
    async def work() -> None:
        """Wait in every way: tasks, groups, threads of calls, timers, upkeep, callbacks, generators."""
        loop = asyncio.get_running_loop()
        loop.call_later(10, told.append, -2)
        loop.call_soon(lambda: loop.call_soon(lambda: loop.call_later(7, told.append, -3)))
        async with AsyncExitStack() as stack:
            stack.callback(told.append, -4)
            async with anyio.create_task_group() as group, asyncio.TaskGroup() as own:
                group.start_soon(beat, told)
                own.create_task(beat(told, 3.0))
                group.start_soon(upkeep)
                async for _ in numbers():
                    await asyncio.sleep(0.5)

    async def upkeep() -> None:
        mark("always")
        await beat(told, 0.7)

    async def numbers() -> AsyncIterator[int]:
        try:
            while True:
                yield 1
        finally:
            told.append(-5)

    told: list[int] = []
    node = Node(time, "victim")
    start(node, work())
    await time.advance(4)
    assert len(told) > 4
    node.kill()
    before = list(told)
    await time.advance(1000)
    gc.collect()
    assert (told, node.is_dead) == (before, True)


def test_the_end_of_the_loop_does_not_run_the_clean_up_of_the_dead() -> None:
    async def main() -> None:
        time = VirtualTime(start=1_893_456_000)
        time.install()
        node = Node(time, "victim")
        start(node, beat(told))
        await time.advance(2)
        node.kill()
        time.remove()

    told: list[int] = []
    asyncio.run(main())
    gc.collect()
    assert told == [0, 1, 2]


async def test_what_a_dead_node_awaited_does_not_wake_it_and_what_awaited_it_is_not_told(
    time: VirtualTime,
) -> None:
    async def work() -> None:
        told.append(await answer)

    told: list[int] = []
    answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    node = Node(time, "victim")
    task = start(node, work())
    await time.settle()
    node.kill()
    answer.set_result(7)
    assert await asyncio.wait([task], timeout=60) == (set(), {task})
    assert told == []


async def test_a_paused_node_stands_and_goes_on_where_it_stood(time: VirtualTime) -> None:
    async def upkeep() -> None:
        mark("always")
        await beat(kept, 2.0)

    told: list[int] = []
    kept: list[int] = []
    others: list[int] = []
    node = Node(time, "sleeper")
    tasks = [start(node, beat(told)), start(node, upkeep()), asyncio.create_task(beat(others))]
    await time.advance(3.5)
    node.pause()
    await time.advance(10)
    assert (told, kept, others) == ([0, 1, 2, 3], [0, 1], list(range(14)))
    node.resume()
    await time.settle()
    assert told == [0, 1, 2, 3, 4]  # its timer was over
    await time.advance(3)
    assert told == [0, 1, 2, 3, 4, 5, 6, 7]
    assert len(kept) > 2
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def test_what_comes_to_a_paused_node_waits_for_its_resume(time: VirtualTime) -> None:
    async def work() -> None:
        told.append(await answer)

    told: list[int] = []
    answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    node = Node(time, "sleeper")
    task = start(node, work())
    await time.settle()
    node.pause()
    answer.set_result(7)
    await time.advance(5)
    assert told == []
    node.resume()
    await task
    assert told == [7]


async def test_a_paused_node_can_be_killed(time: VirtualTime) -> None:
    told: list[int] = []
    node = Node(time, "victim")
    start(node, beat(told))
    await time.advance(1.5)
    node.pause()
    node.kill()
    node.resume()
    await time.advance(10)
    assert told == [0, 1]


@pytest.mark.parametrize("end", [Node.kill, Node.pause])
async def test_a_task_outside_that_a_node_wakes_stays_outside(
    time: VirtualTime, end: Callable[[Node], None]
) -> None:
    """The context of who waits is not that of who answers."""

    async def answer_it() -> None:
        await asyncio.sleep(1)
        answer.set_result(7)
        await asyncio.sleep(100)

    answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    node = Node(time, "other")
    start(node, answer_it())
    assert await answer == 7
    end(node)
    assert NODE.get() is None
    await asyncio.sleep(10)  # this task runs on


async def test_what_a_node_starts_belongs_to_it_also_in_an_empty_context(time: VirtualTime) -> None:
    async def work() -> None:
        begun.append(asyncio.create_task(beat(told), context=Context()))
        await asyncio.sleep(1000)

    told: list[int] = []
    begun: list[asyncio.Task[None]] = []
    node = Node(time, "victim")
    start(node, work())
    await time.advance(1.5)
    node.kill()
    await time.advance(10)
    assert told == [0, 1]
