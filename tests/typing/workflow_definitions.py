# pyright: reportUnnecessaryTypeIgnoreComment=true
"""The types of workflow definitions, as a type checker sees them; nothing here is run."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, assert_type

import msgspec

from eventbus import Retry
from workflows.context import StepContext
from workflows.definition import Workflow
from workflows.registry import StepRegistry
from workflows.step import AsyncStep, Step, SyncStep, step


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
bare = Workflow("bare", version="1", errors=[ValueError])

assert_type(checkout, Workflow[Order, Receipt])
assert_type(quiet, Workflow[Order, None])
assert_type(loose, Workflow[Order, Any])
assert_type(reading, Workflow[Any, int])
assert_type(bare, Workflow[Any, Any])

Workflow("retry", retry=3)  # pyright: ignore[reportArgumentType]
Workflow("names", outputs=int)  # pyright: ignore[reportCallIssue]


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


async def pack(ctx: StepContext[Order]) -> Reservation: ...
async def of_receipt(ctx: StepContext[Receipt]) -> int: ...
async def undo_pack(ctx: StepContext[Order], packed: Reservation) -> None: ...
async def undo_text(ctx: StepContext[Order], packed: str) -> None: ...


packed = step(pack, retry=Retry(attempts=2), rollback=undo_pack)
assert_type(packed, AsyncStep[Order, Reservation])
assert_type(Workflow("built", input=Order).then(pack, packed).parallel(pack, pay), Workflow[Order, Any])

step(pack, rollback=undo_text)  # pyright: ignore[reportCallIssue, reportArgumentType]
checkout.then(of_receipt)  # pyright: ignore[reportArgumentType]
checkout.then(step(of_receipt))  # pyright: ignore[reportArgumentType]
checkout.step(of_receipt)  # pyright: ignore[reportCallIssue, reportArgumentType]
checkout.step()(of_receipt)  # pyright: ignore[reportCallIssue, reportArgumentType]
checkout.step(pack, retry=3)  # pyright: ignore[reportCallIssue, reportArgumentType]
checkout.step(pack, after=5)  # pyright: ignore[reportCallIssue, reportArgumentType]
checkout.step(when=lambda ctx: ctx.input.nothing)  # pyright: ignore[reportAttributeAccessIssue]
checkout.completed(of_receipt)  # pyright: ignore[reportArgumentType]
checkout.flow(pack)  # pyright: ignore[reportArgumentType]


@reserve.rollback  # pyright: ignore[reportArgumentType, reportCallIssue, reportUntypedFunctionDecorator]
async def wrong(ctx: StepContext[Order], reservation: Receipt) -> None: ...


registry = StepRegistry()
assert_type(registry.register(checkout), list[Workflow[Any, Any]])
assert_type(registry.get("checkout", "charge"), Step[Any, Any])
