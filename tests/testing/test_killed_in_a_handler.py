"""A worker that is killed leaves its provider as it was, whatever it was about to do on what both share."""

from __future__ import annotations

import asyncio

import pytest

from eventbus import EventProvider, ResponseTimeout
from eventbus.testing import TestBus


@pytest.mark.parametrize("then", ["returns", "waits", "begins a task", "emits"])
async def test_a_handler_that_kills_its_worker_behind_an_emission(then: str) -> None:
    provider = EventProvider(name="shop")
    dies = [True]

    @provider.on("told")
    async def told(_: str) -> None: ...

    @provider.on("asked")
    async def ask(_: int) -> None:
        provider.emit("told", "before")
        if not dies:
            return
        dies.pop()
        bus.kill_worker()
        match then:
            case "waits":
                await asyncio.sleep(1)
            case "begins a task":
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(asyncio.sleep(0))
            case "emits":
                await provider.emit("told", "after")
            case _:
                pass
        if then != "returns":
            provider.emit("told", "never")

    async with TestBus(provider) as bus:
        asked = provider.emit("asked", 1, reply_timeout="1h")
        await bus.settle()
        await bus.start_worker()
        await provider.emit("told", "another")
        await asked
        await bus.settle()
        assert [run.name for run in bus.ran if run.name == "asked"] == ["asked", "asked"]
        said = [each.payload for each in bus.emitted("told").records]
        assert "never" not in said
        assert said.count("before") == 2


async def test_a_killed_worker_had_set_the_first_timer() -> None:
    provider = EventProvider(name="shop")

    @provider.on("never")
    async def never(_: int) -> None:
        await asyncio.sleep(3600)

    @provider.on("asked")
    async def ask(_: int) -> None:
        await provider.emit("never", 1, reply_timeout="5s")

    async with TestBus(provider) as bus:
        provider.emit("asked", 1, reply=False)
        await bus.settle()
        waits = asyncio.ensure_future(_outcome_of(provider))
        await bus.settle()
        bus.kill_worker()
        assert await waits == "no outcome"


async def _outcome_of(provider: EventProvider) -> str:
    try:
        await provider.emit("never", 2, reply_timeout="10s")
    except ResponseTimeout:
        return "no outcome"
    return "an outcome"
