"""The app of the workers in these tests; each handler does what one test needs."""

from __future__ import annotations

import asyncio
import gc
import time
from pathlib import Path

import msgspec

from eventbus import Event, EventContext, EventProvider, Retry


class Item(msgspec.Struct):
    name: str
    count: int = 1


class SoldOut(Exception):
    pass


item_sold = Event("item.sold", payload=Item, result=Item, errors=[SoldOut], retry=Retry(attempts=1))
only_defined = Event("only.defined", payload=int)
provider = EventProvider()


@provider.on("double")
async def double(number: int) -> int:
    if number < 0:
        raise ValueError("below zero")
    return 2 * number


@provider.on(item_sold)
async def sell(item: Item) -> Item:
    if item.count > 10:
        raise SoldOut(item.name)
    return Item(item.name.upper(), item.count)


@provider.on("wait")
async def wait(path: str, ctx: EventContext) -> int:
    """Wait until a file exists; return the attempt."""
    ctx.log.info("waiting for a file")
    while not await asyncio.to_thread(Path(path).exists):  # noqa: ASYNC110  (the file of another process)
        await asyncio.sleep(0.01)
    return ctx.attempt


@provider.on("frozen")
def frozen(payload: None) -> int:
    """Return how many objects full collections leave out."""
    return gc.get_freeze_count()


@provider.on("block")
def block(seconds: float) -> None:
    """Occupy a thread, which nothing can cancel."""
    provider_log("blocking")
    time.sleep(seconds)


@provider.on("chain")
async def chain(left: int, ctx: EventContext) -> None:
    """Emit the next one without waiting for it."""
    if left:
        ctx.emit("chain", left - 1, reply=False)


@provider.on("double", group="audit")
async def audit(number: int) -> None:
    pass


def provider_log(text: str) -> None:
    import structlog

    structlog.get_logger("shop").info(text)


@provider.on("freeze")
async def freeze(path: str) -> None:
    """Block the event loop until a file exists."""
    provider_log("freezing")
    while not Path(path).exists():  # noqa: ASYNC240  (the fault itself)
        time.sleep(0.01)  # noqa: ASYNC251
