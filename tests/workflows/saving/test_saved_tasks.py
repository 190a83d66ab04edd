"""What a task of a durable function saves for its next attempt, and how it hears that it should end early."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from eventbus import EventProvider, Later, Retry, StoreRefused, UsageError
from workflows import (
    Durable,
    FlowCancelled,
    FlowContext,
    StepError,
    WorkflowProvider,
    durable,
    task,
    task_context,
)
from workflows.testing import run_inline

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]

found: list[Any] = []
began, go_on = threading.Event(), threading.Event()


@pytest.fixture(autouse=True)
def nothing_found() -> None:
    found.clear()
    began.clear()
    go_on.clear()


@pytest.fixture
async def flows(make_provider: MakeProvider, stack: AsyncExitStack) -> WorkflowProvider:
    provider = make_provider(lease=1, grace=1)
    flows = WorkflowProvider(provider)
    functions: tuple[Durable[Any, Any], ...] = (counts, grinds, undoes)
    for function in functions:
        flows.register(function)
    await stack.enter_async_context(provider)
    await stack.enter_async_context(provider.worker())
    return flows


@task(retry=Retry(3, delay=0))
async def count(to: int) -> int:
    context = task_context()
    done = await context.saved(int, default=0)
    found.append((to, done))
    if done < to:
        await context.save(done + 1)
        if done == 0:
            raise Later(0)
        raise ValueError("again")
    assert context.key.rpartition("/")[2]
    return done


@task(retry=Retry(3, delay=0))
def count_in_a_thread(to: int) -> int:
    context = task_context()
    done = context.saved(int, default=0).result(240)
    if done < to:
        context.save(done + 1)
        raise ValueError("again")
    return done


@durable("counts")
async def counts(ctx: FlowContext[int]) -> list[int]:
    first = await ctx.step(count, ctx.input)
    second = await ctx.step(count_in_a_thread, ctx.input)
    jobs = await ctx.map(count, [1, 2])
    here = await ctx.map(count, [1, 2], local=True)
    return [first, second, *jobs, *here]


async def test_an_attempt_goes_on_behind_what_the_last_one_saved_in_each_call_by_itself(
    flows: WorkflowProvider,
) -> None:
    flow = await flows.execute(counts, 2)
    assert await flow.result() == [2, 2, 1, 2, 1, 2]
    assert found[:3] == [(2, 0), (2, 1), (2, 2)]
    assert sorted(found[3:]) == sorted(2 * [(1, 0), (1, 1), (2, 0), (2, 1), (2, 2)])
    store = flows.provider._life.store
    assert store is not None
    live = await store._caller.command("HKEYS", store.keys.of("live", flow.id))
    assert live == [], "it is gone with the end of the call"


@pytest.mark.parametrize("replay", [None, "always"])
async def test_an_inline_flow_keeps_it_too(replay: Any) -> None:
    options = {} if replay is None else {"replay": replay}
    assert await run_inline(counts, 2, **options) == [2, 2, 1, 2, 1, 2]


@task(retry=Retry(1))
def grind(what: str) -> str:
    context = task_context()
    found.append(context.stopping)
    began.set()
    end = threading.Event()
    while not context.stopping and not end.wait(0.005):
        pass
    found.append(context.stopping)
    return what


@durable("grinds")
async def grinds(ctx: FlowContext[str]) -> str:
    if ctx.input == "timeout":
        return await ctx.step(grind.using(timeout="200ms"), "late")
    if ctx.input == "job":
        return (await ctx.map(grind, ["job"]))[0]
    return await ctx.step(grind, "cancel")


@pytest.mark.parametrize("reason", ["timeout", "cancel", "job"])
@pytest.mark.real  # its thread runs while time passes
async def test_a_thread_hears_why_it_should_end(flows: WorkflowProvider, until: Until, reason: str) -> None:
    flow = await flows.execute(grinds, reason)
    await until(began.is_set, "the thread runs")
    if reason != "timeout":
        await flow.cancel("enough")
    with pytest.raises(StepError if reason == "timeout" else FlowCancelled):
        await flow.result()
    await until(lambda: len(found) == 2, "the thread has heard of it")
    assert found == [None, "timeout" if reason == "timeout" else "cancel"]


@task(retry=Retry(2, delay=0))
async def leave() -> str:
    context = task_context()
    if context.attempt == 2:
        assert await context.saved(str) == "mine"
        go_on.set()
        return "second"
    await context.save("mine")

    def save_late() -> None:
        go_on.wait(240)
        try:
            context.save("late")
        except StoreRefused as error:
            found.append(str(error))

    threading.Thread(target=save_late, daemon=True).start()
    raise ValueError("again")


@leave.rollback
async def come_back(_: str) -> None:
    try:
        refused = task_context().save("undone")  # by the call
        await refused
    except UsageError as error:
        found.append(str(error))


@durable("undoes", retry=Retry(1))
async def undoes(ctx: FlowContext[None]) -> None:
    await ctx.step(leave)
    raise ValueError("down")


@pytest.mark.real  # its thread runs while time passes
async def test_an_attempt_that_has_ended_saves_nothing_and_a_rollback_has_none(
    flows: WorkflowProvider, until: Until
) -> None:
    flow = await flows.execute(undoes, None)
    with pytest.raises(StepError):
        await flow.result()
    await until(lambda: len(found) == 2, "both were refused")
    late, undo = sorted(found)
    assert late.startswith("nothing was saved for step 'leave@0'"), late
    assert undo == "save is for tasks: the rollback of 'leave@0' has nothing saved"


@task(retry=Retry(2, delay=0))
async def walk(how: str) -> str:
    context = task_context()
    found.append((how, await context.saved(str, default="new"), context.stopping))
    if found[-1][1] == "new":
        await context.save("half")
        while not context.stopping:  # noqa: ASYNC110  (that is what a task has)
            await asyncio.sleep(0.005)
        raise Later(0) if how == "later" else ValueError("again")
    return how


@durable("walks")
async def walks(ctx: FlowContext[None]) -> list[str]:
    return list(await ctx.gather(ctx.step(walk, "later"), ctx.step(walk, "retry")))


async def test_a_worker_that_stops_begins_no_further_attempt_of_a_task(
    make_provider: MakeProvider, until: Until
) -> None:
    provider = make_provider(grace="20s")
    flows = WorkflowProvider(provider)
    flows.register(walks)
    async with provider:
        async with provider.worker():
            flow = await flows.execute(walks, None)
            await until(lambda: len(found) == 2, "both run")
        assert len(found) == 2, "what was put off, and what failed, is another worker's"
        async with provider.worker():
            assert await flow.result() == ["later", "retry"]
    assert sorted(found[2:]) == [("later", "half", None), ("retry", "half", None)]


def test_outside_of_a_task_there_is_none() -> None:
    with pytest.raises(UsageError, match="outside of a task"):
        task_context()
