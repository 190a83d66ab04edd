"""Durable functions, as users write them: what the type checkers infer."""

from __future__ import annotations

from typing import assert_type

from eventbus import EventProvider
from workflows import FlowContext, FlowHandle, Signal, Winner, Workflow, WorkflowProvider, durable, task
from workflows.testing import run_inline

approval = Signal("approval", bool)


@task(timeout="30s")
async def charge(order: str, total: int = 1) -> float:
    return total / 2


@charge.rollback
async def refund(paid: float) -> None: ...


@task
def name(number: int) -> str:
    return str(number)


@task(pool="render", timeout="30s")
def draw(number: int) -> str:
    return str(number)


task(pool=4)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]


async def plain(number: int) -> bytes:
    return bytes(number)


async def branch(ctx: FlowContext[str]) -> int:
    return len(ctx.input)


@durable("order", timeout="1 day")
async def order(ctx: FlowContext[str]) -> int:
    assert_type(ctx.input, str)
    assert_type(await ctx.step(charge, ctx.input, total=3), float)
    assert_type(await ctx.step(charge.using(timeout=5), "o"), float)
    assert_type(await ctx.step(name, 3), str)
    assert_type(await ctx.step(draw, 3), str)
    assert_type(await ctx.step(plain, 3), bytes)
    await ctx.step(  # type: ignore[call-overload]
        charge,
        3,  # pyright: ignore[reportArgumentType, reportCallIssue]
    )
    assert_type(await ctx.wait_for(approval), bool)
    assert_type(await ctx.gather(branch(ctx), ctx.step(name, 3)), tuple[int, str])
    assert_type(await ctx.race(ctx.wait_for(approval), ctx.wait_for(approval)), Winner[bool])
    ctx.rollback(charge, "o", total=3)
    return await branch(ctx)


invoices = Workflow("invoices", input=str, output=bytes)


@durable("orders")
async def orders(ctx: FlowContext[list[str]]) -> list[int]:
    assert_type(await ctx.flow(order, "o-1", timeout="1 hour"), int)
    assert_type(await ctx.flow(invoices, "o-1"), bytes)
    await ctx.flow(order, 1)  # type: ignore[misc]  # pyright: ignore[reportArgumentType, reportCallIssue]
    assert_type(await ctx.map(name, [1, 2], limit=3), list[str])
    assert_type(await ctx.map(name, range(3), local=True), list[str])
    assert_type(await ctx.map(name, [1], return_exceptions=True), list[str | Exception])
    await ctx.map(name, ["a"])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await ctx.map(plain, [1])  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    both = await ctx.gather(ctx.flow(order, "o-1"), ctx.map(name, [1]))
    assert_type(both, tuple[int, list[str]])
    assert_type(await ctx.race(ctx.flow(order, "o-1"), ctx.flow(order, "o-2")), Winner[int])
    return [await ctx.flow(order, each) for each in ctx.input]


async def use(provider: EventProvider) -> None:
    flows = WorkflowProvider(provider)
    flows.register(order)
    handle = await flows.execute(order, "o-1")
    assert_type(handle, FlowHandle[int])
    assert_type(await handle.result(), int)
    assert_type(flows.handle(handle.id, order), FlowHandle[int])
    await handle.signal(approval, payload=True)
    assert_type(await run_inline(order, "o-1"), int)
    assert_type(await charge("o"), float)
    assert_type(name(3), str)
