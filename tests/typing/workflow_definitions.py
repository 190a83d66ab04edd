# pyright: reportUnnecessaryTypeIgnoreComment=true
"""The types of workflow definitions, as a type checker sees them; nothing here is run."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, assert_type

import msgspec

from eventbus import CallNext, Emission, Event, EventContext, EventProvider, Retry
from workflows import AttemptContext, WorkflowProvider
from workflows.client.handle import FlowHandle
from workflows.definition.context import StepContext
from workflows.definition.step import AsyncStep, Step, SyncStep, step
from workflows.definition.workflow import Workflow
from workflows.registry import StepRegistry


class Order(msgspec.Struct):
    total: int


class Reservation(msgspec.Struct):
    number: int


class Receipt(msgspec.Struct):
    number: int


checkout = Workflow("checkout", input=Order, output=Receipt, retry=Retry(attempts=3), timeout="5m")
quiet = Workflow("quiet", input=Order, output=None)
loose = Workflow("loose", input=Order)
reading = Workflow("reading", output=int)
bare = Workflow("bare", version="1", errors=[ValueError], retry_on=[ValueError])

assert_type(checkout, Workflow[Order, Receipt])
assert_type(quiet, Workflow[Order, None])
assert_type(loose, Workflow[Order, Any])
assert_type(reading, Workflow[Any, int])
assert_type(bare, Workflow[Any, Any])

Workflow("retry", retry=3)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
Workflow("names", outputs=int)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]


@checkout.step()
async def reserve(ctx: StepContext[Order]) -> Reservation:
    assert_type(ctx.input, Order)
    return Reservation(ctx.input.total)


@reserve.rollback
async def release(ctx: StepContext[Order], reservation: Reservation) -> None: ...


@checkout.step(after=reserve, retry=Retry(attempts=5), timeout="30s", when=lambda ctx: ctx.input.total > 0)
async def charge(ctx: StepContext[Order]) -> int:
    assert_type(ctx.result(reserve), Reservation)
    assert_type(ctx.result(reserve, None), Reservation | None)
    assert_type(await ctx.load(reserve), Reservation)
    return 1


@charge.rollback(retry=Retry(attempts=9), timeout="1m")
def refund(ctx: StepContext[Order], amount: int | None) -> None: ...


@checkout.step(name="parcel", after=[reserve, "charge"])
def ship(ctx: StepContext[Order]) -> list[str]:
    assert_type(ctx.result(charge), int)
    return []


@checkout.step
async def mail(ctx: StepContext[Order]) -> None:
    assert_type(ctx.result(ship), list[str])
    assert_type(ctx.result(paid), Receipt)
    assert_type(ctx.result(packed), Reservation)
    assert_type(ctx.result("parcel"), Any)


priced = Event("priced", payload=Order, result=int)


@checkout.step(name=None, retry=None, timeout=None, when=None, after=None)
async def price(ctx: StepContext[Order]) -> int:
    assert_type(ctx.emit_many(priced, [ctx.input])[0].job_id, str)
    await ctx.emit(priced, ctx.input, delay=None).enqueued()
    emission: Emission[int] = ctx.emit(priced, ctx.input)
    assert_type(await emission, int)
    assert_type(await ctx.emit("by.name"), Any)
    ctx.emit(priced, 5)  # type: ignore[misc]  # pyright: ignore[reportCallIssue, reportArgumentType]
    return await ctx.emit(priced, ctx.input)


@checkout.step
def price_in_a_thread(ctx: StepContext[Order]) -> int:
    ctx.emit(priced, ctx.input).enqueued()
    return ctx.emit(priced, ctx.input, idempotency_key=None).result(timeout=5)


def loading(ctx: StepContext[Order]) -> int:
    assert_type(ctx.load(charge).result(), int)
    assert_type(ctx.load(charge, default=None).result(timeout=5), int | None)
    ctx.progress(50)
    return 1


async def loading_in_the_loop(ctx: StepContext[Order]) -> int:
    assert_type(await ctx.load(charge), int)
    await ctx.progress({"done": 1})
    task = asyncio.create_task(ctx.load(charge))
    assert_type(await task, int)
    return 1


checkout.step(loading, after=charge, concurrency=2, pool="process")
checkout.step(loading, name="named", pool="render")
checkout.step(  # type: ignore[call-overload]
    loading,
    name="fork",
    pool=4,  # pyright: ignore[reportArgumentType, reportCallIssue]
)
checkout.step(  # type: ignore[call-overload]
    loading_in_the_loop,
    after=charge,
    concurrency=1.5,  # pyright: ignore[reportArgumentType, reportCallIssue]
)


async def around(value: Any, ctx: EventContext | AttemptContext, call: CallNext) -> Any:
    assert_type(ctx.attempt, int)
    return await call(value)


def using(flows: WorkflowProvider, provider: EventProvider) -> None:
    provider.use(flows.use(around))
    flows.use(charge)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]


async def executing(flows: WorkflowProvider) -> None:
    flow = await flows.execute(checkout, Order(1), idempotency_key=None, timeout=None, delay=None, meta=None)
    assert_type(await flow.result(timeout=None), Receipt)


@checkout.completed
async def receipt(ctx: StepContext[Order]) -> Receipt:
    return Receipt(ctx.result(reserve).number)


@checkout.failed
def report(ctx: StepContext[Order], error: Exception) -> None: ...


assert_type(reserve, AsyncStep[Order, Reservation])
assert_type(charge, AsyncStep[Order, int])
assert_type(ship, SyncStep[Order, list[str]])
assert_type(mail, AsyncStep[Order, None])
assert_type(checkout.step(reserve.function, name="a"), Any)  # pyright: ignore[reportAssertTypeFailure]
assert_type(checkout.find("charge"), Step[Order, Any])

pay = Workflow("pay", input=Order, output=Receipt)
paid = checkout.flow(pay, after=reserve, when=lambda ctx: ctx.input.total > 0)
assert_type(paid, Step[Order, Receipt])
assert_type(checkout.flow(reading, input=lambda ctx: ctx.input.total), Step[Order, int])


# What was decorated can still be called, in a test for example.
async def using_steps(ctx: StepContext[Order]) -> None:
    assert_type(await reserve(ctx), Reservation)
    coroutine: Coroutine[Any, Any, Reservation] = reserve(ctx)
    await coroutine
    assert_type(ship(ctx), list[str])
    await release(ctx, Reservation(1))
    refund(ctx, 1)
    assert_type(await receipt(ctx), Receipt)
    report(ctx, ValueError())


async def pack(ctx: StepContext[Order]) -> Reservation:
    return Reservation(ctx.input.total)


async def of_receipt(ctx: StepContext[Receipt]) -> int:
    return ctx.input.number


async def undo_pack(ctx: StepContext[Order], packed: Reservation) -> None: ...
async def undo_text(ctx: StepContext[Order], packed: str) -> None: ...


packed = step(pack, retry=Retry(attempts=2), rollback=undo_pack)
assert_type(packed, AsyncStep[Order, Reservation])
assert_type(Workflow("built", input=Order).then(pack, packed).parallel(pack, pay), Workflow[Order, Any])
assert_type(Workflow("wide", input=Order).parallel(pack, pay, spread=True), Workflow[Order, Any])
assert_type(step(pack, spread=True), AsyncStep[Order, Reservation])
checkout.step(spread="yes")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]

step(pack, rollback=undo_text)  # type: ignore[misc]  # pyright: ignore[reportCallIssue, reportArgumentType]
checkout.then(of_receipt)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
checkout.then(step(of_receipt))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
checkout.step(of_receipt)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
checkout.step()(of_receipt)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
checkout.step(  # type: ignore[call-overload]
    pack,
    retry=3,  # pyright: ignore[reportCallIssue, reportArgumentType]
)
checkout.step(  # type: ignore[call-overload]
    pack,
    after=5,  # pyright: ignore[reportCallIssue, reportArgumentType]
)
checkout.step(
    when=lambda ctx: (
        (
            ctx.input  # pyright: ignore[reportUnknownLambdaType, reportUnknownMemberType]
        ).nothing  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    )
)
checkout.completed(of_receipt)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
checkout.flow(pack)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]


async def wrong(ctx: StepContext[Order], reservation: Receipt) -> None: ...


reserve.rollback(wrong)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportCallIssue]


registry = StepRegistry()
assert_type(registry.workflow("checkout"), Workflow[Any, Any])
assert_type(registry.get("checkout", "charge"), Step[Any, Any])


async def handles(flows: WorkflowProvider, key: str | None) -> None:
    assert_type(await flows.execute(checkout, Order(1), idempotency_key=key), FlowHandle[Receipt])
    assert_type(flows.handle("text"), FlowHandle[Any])
    assert_type(flows.handle("text", checkout), FlowHandle[Receipt])
    assert_type(await flows.handle("text", quiet).result(), None)
    assert_type(await flows.retry("text"), FlowHandle[Any])
    assert_type(await flows.retry("text", resume=True, workflow=reading), FlowHandle[int])
