"""What a bus does with random programs: leaps change nothing but upkeep, and one seed has one history.

A program is a list of actions: emissions with delays, retries, limits and merges, durable functions that
sleep and wait, schedules, workers that are killed or stopped, connections that are cut, and time that passes.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from eventbus import Event, EventContext, EventProvider, Keep, Later, Limit, Retry
from eventbus.model import chance
from eventbus.testing import TestBus
from eventbus.testing.network import Network
from eventbus.testing.virtual_time import VirtualTime
from workflows import FlowContext, Signal, WorkflowProvider, durable, task

_SEEDS = range(8)

said = Signal("said", int)
plain = Event("plain", payload=int, result=int)
flaky = Event("flaky", payload=int, result=int)
later = Event("later", payload=int)
bounded = Event("bounded", payload=int, limit=Limit(rate="3/20s", at_once=2))
merged = Event("merged", payload=int, key=lambda number: str(number % 3))


def _make() -> tuple[EventProvider, WorkflowProvider, Any]:
    keep = Keep(age="90 days")
    provider = EventProvider(name="drawn", keep_completed=keep, keep_failed=keep)
    flows = WorkflowProvider(provider)

    @provider.on(plain)
    async def run_plain(number: int, ctx: EventContext) -> int:
        if number % 5 == 0:
            ctx.emit(flaky, number, delay="2 minutes")
        return number

    @provider.on(flaky, retry=Retry(4, delay="5s", backoff="exponential", jitter=0))
    async def run_flaky(number: int, ctx: EventContext) -> int:
        if ctx.attempt <= number % 6:
            raise ConnectionError("not yet")
        return number

    @provider.on(later)
    async def run_later(number: int, ctx: EventContext) -> None:
        done = await ctx.saved(int, default=0)
        if done < number % 3:
            await ctx.save(done + 1)
            raise Later("3 minutes")

    @provider.on(bounded)
    async def run_bounded(_: int) -> None: ...

    @provider.on(merged)
    async def run_merged(_: int) -> None: ...

    provider.schedules.cron("*/7 * * * *", plain, id="often", payload=1, tz="Europe/Berlin")
    provider.schedules.every("11 minutes", plain, id="sometimes", payload=2)

    @task(retry=Retry(3, delay="10s", jitter=0))
    async def work(number: int) -> int:
        return number

    @durable("waits", timeout="50 minutes")
    async def waits(ctx: FlowContext[int]) -> int:
        await ctx.step(work, ctx.input)
        await ctx.sleep(timedelta(seconds=20 * ctx.input))
        number, answer = await ctx.race(ctx.wait_for(said), ctx.sleep("20 minutes"))
        return await ctx.step(work, answer if number == 0 and answer is not None else -1)

    flows.register(waits)
    return provider, flows, waits


def _ms(at: datetime) -> float:
    """Return a time in whole milliseconds: the timer of a worker may be a part of one late."""
    return at.timestamp() * 1000 // 1


async def _run(seed: int, monkeypatch: pytest.MonkeyPatch, *, leaps: bool) -> list[Any]:
    """Run the program of a seed; return what can be seen of it, without ids."""
    rng = random.Random(seed)
    provider, flows, waits = _make()
    handles: list[Any] = []
    async with TestBus(provider, schedules=True, seed=seed, leaps=leaps) as bus:
        monkeypatch.setattr(chance, "jitter", lambda: 0.5)  # upkeep draws, too
        for _ in range(rng.randint(5, 12)):
            number = rng.randrange(60)
            delay = rng.choice(["0s", "3s", "90s", "20 minutes"])
            match rng.choice(
                ["plain", "flaky", "later", "bounded", "merged", "flow", "signal", "fault", "time"]
            ):
                case "merged":
                    key = rng.choice(["debounce", "throttle"])
                    options: dict[str, Any] = {"debounce": "1m"} if key == "debounce" else {"throttle": "1m"}
                    provider.emit(merged, number, **options)
                case "flow":
                    handles.append(await flows.execute(waits, number))
                case "signal" if handles:
                    await bus.settle()
                    handle = rng.choice(handles)
                    if (await handle.status()).state not in ("completed", "failed", "cancelled"):
                        await handle.signal(said, number)
                case "fault":
                    await bus.settle()
                    fault = rng.choice(["kill", "stop", "cut", "away"])
                    if fault == "kill":
                        bus.kill_worker()
                    elif fault == "stop":
                        await bus.stop_worker()
                    elif fault == "cut":
                        bus.lose_connections()
                    else:
                        await bus.server_away("20s")
                    if fault in ("kill", "stop"):
                        await bus.advance(timedelta(minutes=rng.randrange(3)))
                        await bus.start_worker()
                case "time":
                    await bus.advance(timedelta(minutes=rng.choice([1, 5, 15])))
                case "signal":
                    pass
                case event:
                    provider.emit(event, number, delay=delay, reply=False)
        await bus.advance("40 minutes")
        ran = sorted((_ms(run.at), run.name, run.attempt) for run in bus.ran)
        emitted = sorted((_ms(each.at), each.event, each.payload, each.delay) for each in bus._emissions)
        return [ran, emitted, [(await handle.status()).state for handle in handles], _ms(bus.now)]


@pytest.mark.slow
@pytest.mark.parametrize("seed", _SEEDS)
async def test_a_leap_changes_nothing_that_a_program_does(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    leapt = await _run(seed, monkeypatch, leaps=True)
    assert leapt == await _run(seed, monkeypatch, leaps=False)


@pytest.mark.parametrize("seed", _SEEDS)
async def test_one_seed_has_one_history(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tape: list[Any] = []
    histories: list[list[Any]] = []
    begins = random.Random(f"begins of {seed}")
    run: Callable[..., list[Any]] = Network.run

    def note(self: Network, commands: list[Any], *, raw: bool = False) -> list[Any]:
        replies = run(self, commands, raw=raw)
        tape.extend(
            (command, getattr(reply, "line", reply))
            for command, reply in zip(commands, replies, strict=True)
            if command[0] != "INFO"  # it tells of the server's memory and real time
        )
        return replies

    install: Callable[..., None] = VirtualTime.install

    def install_later(self: VirtualTime) -> None:
        """Begin at a time that the seed decides, and not the machine: sums of floats are others."""
        install(self)
        self.began = self.now = float(begins.randrange(10**6, 10**7))

    monkeypatch.setattr(Network, "run", note)
    monkeypatch.setattr(VirtualTime, "install", install_later)
    await _run(seed, monkeypatch, leaps=True)  # the first one may send the library
    for _ in range(2):
        tape.clear()
        await _run(seed, monkeypatch, leaps=True)
        histories.append(list(tape))
    assert histories[0] == histories[1]
    assert len(histories[0]) > 50
