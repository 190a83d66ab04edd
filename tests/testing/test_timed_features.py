"""Each feature with a duration, in virtual time and with a hundredth of its durations in real time: both lead
to the same state.

What a test expects holds on a machine of any speed: a moment is "not before", and what must come within a
duration is sent in one call, for which the server takes one moment.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from eventbus import (
    Emission,
    EmissionExpired,
    Event,
    EventContext,
    EventProvider,
    Keep,
    Later,
    Limit,
    Retry,
    UnknownJob,
)
from eventbus.testing import TestBus
from workflows import (
    END,
    FlowContext,
    FlowTimeout,
    MachineContext,
    Signal,
    StateMachine,
    WorkflowProvider,
    durable,
    transition,
)

_SHORTER = 100
"""By how much durations are shorter in real time."""

_DOOMED = """
import asyncio, sys
from eventbus import EventProvider

url, prefix, lease = sys.argv[1:]
provider = EventProvider(url, prefix=prefix, lease=float(lease))

@provider.on("hangs")
async def hang(_: None) -> None:
    await asyncio.Event().wait()

async def main():
    async with provider, provider.worker():
        await asyncio.Event().wait()

asyncio.run(main())
"""

asked = Signal("asked", bool)


class World:
    """Real or virtual time, and what ran in it."""

    def __init__(self, url: str, prefix: str, *, is_virtual: bool) -> None:
        self.is_virtual = is_virtual
        self.runs: list[tuple[Any, float]] = []
        """The payload of each run, and when it began."""
        self._url, self._prefix = url, prefix
        self._bus: TestBus | None = None
        self._worker = AsyncExitStack()

    def of(self, seconds: float) -> float:
        """Return a duration of production as it is here, in seconds."""
        return seconds if self.is_virtual else seconds / _SHORTER

    def now(self) -> float:
        assert self._bus is not None or not self.is_virtual
        return time.time() if self._bus is None else self._bus.now.timestamp()

    async def wait(self, seconds: float) -> None:
        """Let a duration of production pass."""
        if self._bus is None:
            await asyncio.sleep(self.of(seconds))
        else:
            await self._bus.advance(seconds)

    async def until(self, condition: Callable[[], Any]) -> None:
        """Let time pass until something holds."""
        while not condition():
            await self.wait(5)

    def make(self, **settings: Any) -> EventProvider:
        return EventProvider(self._url, prefix=self._prefix, **settings)

    @asynccontextmanager
    async def serve(self, provider: EventProvider) -> AsyncGenerator[None]:
        """Run a provider with a worker."""
        if self.is_virtual:
            lease = provider.settings.lease
            async with TestBus(provider, schedules=True, lease=lease) as self._bus:
                yield
        else:
            async with provider, AsyncExitStack() as self._worker:
                await self._worker.enter_async_context(provider.worker())
                yield

    async def stop_worker(self) -> None:
        """Stop the worker in an orderly way."""
        await (self._worker.aclose() if self._bus is None else self._bus.stop_worker())

    async def lose_worker(self, provider: EventProvider, emission: Emission[Any]) -> None:
        """Have a worker die that runs a job, and another one serve from then on."""
        job = emission.job_id
        if self._bus is not None:
            await self.until(lambda: self.runs)
            self._bus.kill_worker()
            await self._bus.start_worker()
            return
        words = [self._url, self._prefix, str(provider.settings.lease)]
        other = await asyncio.create_subprocess_exec(sys.executable, "-c", _DOOMED, *words)
        while (await provider.inspector.jobs.get(job)).state != "active":
            await self.wait(1)
        other.kill()
        await other.wait()
        await self._worker.enter_async_context(provider.worker())

    async def note(self, payload: Any) -> Any:
        """Handle an event: note the run."""
        self.runs.append((payload, self.now()))
        return payload

    @property
    def payloads(self) -> list[Any]:
        return [payload for payload, _ in self.runs]

    def gaps(self, least: float) -> list[bool]:
        """Return of each run but the first whether it came no sooner behind the one before."""
        return [
            b - a >= self.of(least) - 0.001 for (_, a), (_, b) in zip(self.runs, self.runs[1:], strict=False)
        ]


Scenario = Callable[[World], Awaitable[Any]]
_TABLE: dict[str, tuple[Scenario, Any]] = {}


def gives(expected: Any) -> Callable[[Scenario], Scenario]:
    """Put a scenario into the table, with the state that it leads to."""

    def put(scenario: Scenario) -> Scenario:
        _TABLE[scenario.__name__] = scenario, expected
        return scenario

    return put


@gives(("completed", True))
async def delay(world: World) -> Any:
    provider = world.make()
    provider.on("noted")(world.note)
    async with world.serve(provider):
        emission = provider.emit("noted", 1, delay=world.of(60))
        await emission
        job = await provider.inspector.jobs.get(emission.job_id)
        return job.state, job.started_ms >= job.emitted_ms + 1000 * world.of(60)


@gives(([1, 1, 1], [True, True]))
async def retry(world: World) -> Any:
    provider = world.make()

    @provider.on("noted", retry=Retry(5, delay=world.of(60), backoff="fixed", jitter=0))
    async def fail_twice(payload: int, ctx: EventContext) -> None:
        await world.note(payload)
        if ctx.attempt < 3:
            raise ConnectionError("not yet")

    async with world.serve(provider):
        await provider.emit("noted", 1, reply_timeout=None)
    return world.payloads, world.gaps(60)


@gives((True, []))
async def ttl(world: World) -> Any:
    provider = world.make()
    provider.on("noted")(world.note)
    async with world.serve(provider):
        await provider.pause("noted")
        emission = provider.emit("noted", 1, ttl=world.of(60), reply_timeout=None)
        await emission.enqueued()
        await world.wait(120)
        await provider.resume("noted")
        try:
            await emission
        except EmissionExpired:
            return True, world.payloads
        return False, world.payloads


@gives(([1, 1], [True], 1))
async def later(world: World) -> Any:
    provider = world.make()
    attempts: list[int] = []

    @provider.on("noted")
    async def put_off(payload: int, ctx: EventContext) -> None:
        await world.note(payload)
        attempts.append(ctx.attempt)
        if len(world.runs) == 1:
            raise Later(world.of(60))

    async with world.serve(provider):
        await provider.emit("noted", 1, reply_timeout=None)
    return world.payloads, world.gaps(60), attempts[-1]


def _keyed() -> Event[int, int]:
    return Event("keyed", payload=int, result=int, key=lambda _: "one")


@gives([3])
async def debounce(world: World) -> Any:
    provider = world.make()
    keyed = _keyed()
    provider.on(keyed)(world.note)
    async with world.serve(provider):
        for emission in provider.emit_many(keyed, [1, 2, 3], debounce=world.of(60), reply_timeout=None):
            await emission
        await world.wait(120)
    return world.payloads


@gives([1, 4])
async def throttle(world: World) -> Any:
    provider = world.make()
    keyed = _keyed()
    provider.on(keyed)(world.note)
    async with world.serve(provider):
        for emission in provider.emit_many(keyed, [1, 2, 3], throttle=world.of(60), reply_timeout=None):
            await emission
        await world.wait(90)
        await provider.emit(keyed, 4, throttle=world.of(60))
    return world.payloads


@gives([1, 3])
async def keep_last(world: World) -> Any:
    provider = world.make()
    keyed = _keyed()
    is_open = asyncio.Event()

    @provider.on(keyed)
    async def wait(payload: int) -> int:
        await world.note(payload)
        await is_open.wait()
        return payload

    async with world.serve(provider):
        first = provider.emit(keyed, 1, keep_last=True, reply_timeout=None)
        await world.until(lambda: world.runs)
        others = provider.emit_many(keyed, [2, 3], keep_last=True, reply_timeout=None)
        await provider.flush()
        is_open.set()
        for emission in (first, *others):
            await emission
    return world.payloads


@gives((4, True))
async def rate(world: World) -> Any:
    provider = world.make()
    bounded = Event("bounded", payload=int, limit=Limit(rate=f"2/{world.of(60):g}s"))
    provider.on(bounded)(world.note)
    async with world.serve(provider):
        for emission in provider.emit_many(bounded, [1, 2, 3, 4], reply_timeout=None):
            await emission
    return len(world.runs), world.runs[3][1] - world.runs[0][1] >= world.of(60) - 0.001


@gives((True, True))
async def cron(world: World) -> Any:
    provider = world.make()
    slots: list[int] = []

    @provider.on("noted")
    async def note(_: None, ctx: EventContext) -> None:
        slots.append((ctx.meta or {})["slot"])

    # A cron expression cannot be shortened, so real time has one of seconds.
    provider.schedules.cron("*/5 * * * *" if world.is_virtual else "* * * * * *", "noted", id="c")
    step = 300_000 if world.is_virtual else 1000
    async with world.serve(provider):
        await world.until(lambda: len(slots) >= 3)
    return slots == sorted(set(slots)), all(slot % step == 0 for slot in slots)


@gives((True, True))
async def interval(world: World) -> Any:
    provider = world.make()
    slots: list[int] = []

    @provider.on("noted")
    async def note(_: None, ctx: EventContext) -> None:
        slots.append((ctx.meta or {})["slot"])

    provider.schedules.every(world.of(60), "noted", id="i")
    async with world.serve(provider):
        await world.until(lambda: len(slots) >= 3)
    step = round(1000 * world.of(60))
    return slots == sorted(set(slots)), all((slot - slots[0]) % step == 0 for slot in slots)


@gives(("timeout", True))
async def flow_timeout(world: World) -> Any:
    provider = world.make(lease=world.of(120))  # a lease is added to the timeout
    flows = WorkflowProvider(provider)

    @durable("asks", timeout=world.of(60))
    async def asks(ctx: FlowContext[None]) -> None:
        await ctx.wait_for(asked)

    flows.register(asks)
    async with world.serve(provider):
        flow = await flows.execute(asks, None)
        with pytest.raises(FlowTimeout):
            await flow.result()
        job = await provider.inspector.jobs.get(flow.id)
        return job.stop, job.ended_ms - job.emitted_ms >= 1000 * world.of(60)


@gives("nobody")
async def signal_timeout(world: World) -> Any:
    provider = world.make()
    flows = WorkflowProvider(provider)

    @durable("asks")
    async def asks(ctx: FlowContext[None]) -> str:
        try:
            await ctx.wait_for(asked, timeout=world.of(60))
        except TimeoutError:
            return "nobody"
        return "somebody"

    flows.register(asks)
    async with world.serve(provider):
        return await (await flows.execute(asks, None)).result()


@gives((["renew", "renew", "end"], [True, True]))
async def machine_delay(world: World) -> Any:
    provider = world.make()
    flows = WorkflowProvider(provider)

    class Renewal(StateMachine[int], name="renewal", start="active"):
        @transition("active", to="active", delay=world.of(60), when=lambda ctx: ctx.state < 2)
        async def renew(self, ctx: MachineContext[int]) -> None:
            await world.note("renew")
            ctx.state += 1

        @transition("active", to=END, delay=world.of(120))
        async def end(self, ctx: MachineContext[int]) -> int:
            await world.note("end")
            return 0

    flows.register(Renewal)
    async with world.serve(provider):
        await (await flows.execute(Renewal, 0)).result()
    return world.payloads, world.gaps(60)


@gives(True)
async def retention(world: World) -> Any:
    provider = world.make(keep_completed=Keep(age=timedelta(seconds=world.of(60))))
    provider.on("noted")(world.note)
    async with world.serve(provider):
        emission = provider.emit("noted", 1)
        await emission
        ended = (await provider.inspector.jobs.get(emission.job_id)).ended_ms
        while True:
            await world.wait(5)
            await provider.emit("noted", 2)
            try:
                await provider.inspector.jobs.get(emission.job_id)
            except UnknownJob:
                return 1000 * world.now() >= ended + 1000 * world.of(60)


@gives(([1, 2], True))
async def key_ttl(world: World) -> Any:
    provider = world.make(
        key_ttl=world.of(60),
        keep_completed=Keep(age=timedelta(seconds=world.of(60))),
        keep_failed=Keep(age=0),
    )
    keyed = _keyed()
    provider.on(keyed)(world.note)
    async with world.serve(provider):
        first = provider.emit(keyed, 1)
        await first
        await world.wait(90)
        second = provider.emit(keyed, 2)
        await second
    return world.payloads, first.job_id != second.job_id


@gives(("completed", 1))
async def lease(world: World) -> Any:
    provider = world.make(lease=world.of(120))

    @provider.on("hangs")
    async def hang(_: None) -> None:
        await world.note(None)
        if world.is_virtual and len(world.runs) == 1:  # in real time that run is in another process
            await asyncio.Event().wait()

    async with world.serve(provider):
        if not world.is_virtual:
            await world.stop_worker()
        emission = provider.emit("hangs", reply_timeout=None)
        await world.lose_worker(provider, emission)
        await emission
        job = await provider.inspector.jobs.get(emission.job_id)
    return job.state, job.stalls


@gives(("waiting", 0, True))
async def grace(world: World) -> Any:
    provider = world.make(grace=world.of(60))
    ended: list[float] = []

    @provider.on("hangs")
    async def hang(_: None) -> None:
        await world.note(None)
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(world.now())

    async with world.serve(provider):
        emission = provider.emit("hangs", reply_timeout=None)
        await world.until(lambda: world.runs)
        began = world.now()
        await world.stop_worker()
        job = await provider.inspector.jobs.get(emission.job_id)
        await emission.cancel()
    return job.state, job.attempts, ended[0] - began >= world.of(60) - 0.001


@pytest.mark.parametrize("name", _TABLE)
@pytest.mark.parametrize("is_virtual", [True, False], ids=["virtual", "real"])
async def test_a_timed_feature_leads_to_the_same_state(
    name: str, server_url: str, prefix: str, *, is_virtual: bool
) -> None:
    scenario, expected = _TABLE[name]
    assert await scenario(World(server_url, prefix, is_virtual=is_virtual)) == expected
