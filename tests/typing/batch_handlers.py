# pyright: reportUnnecessaryTypeIgnoreComment=true
"""Batch handlers, as a type checker sees them; nothing here is run.

A line that stops being an error is found too: pyright and mypy report an `ignore` that they do not need.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_type

import msgspec

from eventbus import (
    Batch,
    BatchContext,
    Emission,
    Event,
    EventContext,
    EventProvider,
    Handlers,
    SyncBatchContext,
    SyncContext,
)


class Order(msgspec.Struct):
    order_id: str


class Receipt(msgspec.Struct):
    number: int


placed = Event("order.placed", payload=Order, result=Receipt)
noted = Event("noted", payload=Order, result=None)
provider = EventProvider()
handlers = Handlers()
some = Batch(size=100, wait="200ms")


@provider.on(placed, batch=some, concurrency=2, timeout="10s")
async def price(orders: list[Order], ctx: BatchContext) -> list[Receipt | Exception]:
    assert_type(ctx.items, Sequence[EventContext])
    for order, item in zip(orders, ctx.items, strict=True):
        assert_type(item.emit(placed, order), Emission[Receipt])
        await item.save(1)
    return [Receipt(1), ValueError("no")]


@provider.on(placed, batch=some)
def in_thread(orders: Sequence[Order], ctx: SyncBatchContext) -> list[Receipt]:
    assert_type(ctx.items, Sequence[SyncContext])
    return [Receipt(1)]


@handlers.on(noted, batch=some)
async def note(orders: list[Order]) -> None: ...


@handlers.on(noted, batch=some)
async def note_some(orders: list[Order]) -> list[ValueError | None]:
    return [None, ValueError("no")]


@provider.on(placed, batch=some, group="audit")
async def audit(orders: list[Order]) -> None: ...


@provider.on("by.name", batch=some)
def by_name(texts: list[str]) -> list[int]:
    return [len(text) for text in texts]


async def using(ctx: BatchContext, sync: SyncBatchContext) -> None:
    assert_type(await price([Order("1")], ctx), Sequence[Receipt | Exception])
    assert_type(in_thread([Order("1")], sync), Sequence[Receipt | Exception])
    assert_type(by_name(["a"]), list[int])
    await provider.subscribe(placed, price, batch=some)


@provider.on(  # type: ignore[arg-type]
    placed,
    batch=some,  # pyright: ignore[reportCallIssue, reportArgumentType, reportUntypedFunctionDecorator]
)
async def one(order: Order) -> Receipt:
    return Receipt(1)


@provider.on(  # type: ignore[arg-type]
    placed,
    batch=some,  # pyright: ignore[reportCallIssue, reportArgumentType, reportUntypedFunctionDecorator]
)
async def of_others(orders: list[str]) -> list[Receipt]:
    return []


@provider.on(  # type: ignore[arg-type]
    placed,
    batch=some,  # pyright: ignore[reportCallIssue, reportArgumentType, reportUntypedFunctionDecorator]
)
async def to_others(orders: list[Order]) -> list[str]:
    return []


@handlers.on(  # type: ignore[arg-type]
    placed,
    batch=some,  # pyright: ignore[reportCallIssue, reportArgumentType, reportUntypedFunctionDecorator]
)
async def nothing(orders: list[Order]) -> None: ...


provider.on(  # type: ignore[call-overload]
    placed,
    batch=100,  # pyright: ignore[reportCallIssue, reportArgumentType]
)
