"""A handler for the process pool that awaits events of another program, and raises what came of them."""

from __future__ import annotations

import asyncio

import msgspec

from eventbus import EventProvider, HandlerError, Unrecoverable

__all__ = ["Asked", "ask_in_process", "ask_twice"]


class Asked(msgspec.Struct):
    how: str
    url: str = ""
    prefix: str = ""


async def _raise(error: Exception) -> None:
    raise error


async def ask_twice(provider: EventProvider, how: str) -> None:
    """Await an event that fails, alone or in task groups, beside what `how` says."""
    failed: Exception | None = None
    try:
        await provider.emit("below")
    except HandlerError as error:
        if how == "alone":
            raise
        failed = error
    assert failed is not None
    async with asyncio.TaskGroup() as group:
        group.create_task(_raise(failed))
        if how == "nested":
            group.create_task(_raise(ExceptionGroup("of the code", [ExceptionGroup("inside", [failed])])))
        if how == "beside a final one":
            group.create_task(_raise(Unrecoverable("never")))
        if how == "beside another":
            group.create_task(_raise(ConnectionError("away")))


def ask_in_process(given: dict[str, str]) -> None:
    asked = msgspec.convert(given, Asked)

    async def ask() -> None:
        async with EventProvider(asked.url, prefix=asked.prefix) as provider:
            await ask_twice(provider, asked.how)

    asyncio.run(ask())
