"""Declared errors come as they were raised: from handlers, `provider.sync`, flows, functions and children."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from importable.missing_articles import NotFound, find, missing, missing_in_thread

from eventbus import EventProvider, Retry
from workflows import FlowContext, StepContext, Workflow, WorkflowProvider, durable
from workflows.testing import run_inline

MakeProvider = Callable[..., EventProvider]


def check(error: BaseException) -> None:
    assert type(error) is NotFound
    assert (str(error), error.sku, error.left) == ("no article A1", "A1", 0)


@pytest.mark.parametrize("pool", ["loop", "thread", "process"])
async def test_of_events(make_provider: MakeProvider, pool: str) -> None:
    provider = make_provider()
    if pool == "loop":
        provider.on(find)(missing)
    else:
        provider.on(find, pool=pool)(missing_in_thread)
    async with provider, provider.worker():
        with pytest.raises(NotFound) as caught:
            await provider.emit(find, "A1")
        check(caught.value)
        with pytest.raises(NotFound) as caught:
            await asyncio.to_thread(lambda: provider.sync.emit(find, "A1").result())
        check(caught.value)


inner = Workflow("finds", input=str, errors=[NotFound], retry=Retry(1))


@inner.step()
async def look(ctx: StepContext[str]) -> None:
    raise NotFound(ctx.input, left=0)


outer = Workflow("asks", input=str, errors=[NotFound], retry=Retry(1))
outer.flow(inner)


@durable("asks-too", errors=[NotFound])
async def program(ctx: FlowContext[str]) -> None:
    try:
        await ctx.flow(inner, ctx.input)
    except NotFound as error:
        check(error)
    try:
        await ctx.step(missing, ctx.input)
    except NotFound as error:
        check(error)
    await ctx.emit(find, ctx.input)


async def test_of_flows_inline() -> None:
    with pytest.raises(NotFound) as caught:
        await run_inline(outer, "A1")
    check(caught.value)


@pytest.mark.parametrize("definition", [inner, outer, program], ids=["flow", "child", "durable"])
async def test_of_flows(make_provider: MakeProvider, definition: Any) -> None:
    provider = make_provider()
    provider.on(find)(missing)
    flows = WorkflowProvider(provider)
    for each in (inner, outer, program):
        flows.register(each)
    async with provider, provider.worker():
        with pytest.raises(NotFound) as caught:
            await (await flows.execute(definition, "A1")).result(timeout=240)
        check(caught.value)
