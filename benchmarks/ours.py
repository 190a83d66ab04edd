"""Our side: one program for each step, against the public interface only.

Steps: `enqueue` (single emits, --in-flight of them open at a time), `bulk` (emit_many, in calls of --chunk),
`fill` (the same, without a warm-up), `cancel` (of jobs that wait), `reply` and `latency` (emit and await; the
worker is another process), `echo` (the same with a text as result). --types spreads the jobs over that many
events, --emitters over that many providers in this process, and --size gives the payload that many bytes of
text.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from time import perf_counter
from typing import Any

from benchmarks.app import Noop, Sized, echo, noops, sized
from benchmarks.measure import (
    WARM_UP,
    Flags,
    Line,
    Stopwatch,
    check,
    flags,
    in_lanes,
    report,
    run,
    with_quantiles,
)
from eventbus import Emission, Event, EventProvider

_UNSENT = 5_000
"""Emissions awaited together; a provider refuses more than 10,000 that it has not sent."""


class Emitters:
    """The providers of this process, and what they emit."""

    def __init__(self, providers: list[EventProvider], given: Flags) -> None:
        self._providers = providers
        self._text = "x" * given.size
        self._events: list[Event[Any, Any]] = [sized] if given.size else [*noops(given.types)]
        self._events = [echo] if given.step == "echo" else self._events

    def payload(self, n: int) -> Noop | Sized:
        """Return the payload number `n`."""
        return Sized(n, self._text) if self._text else Noop(n)

    def emit(self, n: int, *, reply: bool) -> Emission[Any]:
        """Emit number `n`, by its provider and as its event."""
        provider = self._providers[n % len(self._providers)]
        return provider.emit(self._events[n % len(self._events)], self.payload(n), reply=reply)

    async def emit_in_bulk(self, count: int, chunk: int) -> None:
        """Emit `count` jobs in calls of `chunk` for each event; return when all are in the server."""
        provider, kinds = self._providers[0], len(self._events)
        for start in range(0, count, chunk):
            end = min(start + chunk, count)
            emissions = [
                emission
                for kind, event in enumerate(self._events)
                for emission in provider.emit_many(
                    event, [self.payload(n) for n in range(start + kind, end, kinds)], reply=False
                )
            ]
            for emission in emissions:
                await emission


@asynccontextmanager
async def opened(given: Flags) -> AsyncGenerator[Emitters]:
    """Start as many providers as asked for."""
    async with AsyncExitStack() as stack:
        started = [await stack.enter_async_context(EventProvider(given.url)) for _ in range(given.emitters)]
        yield Emitters(started, given)


async def enqueue(given: Flags) -> Line:
    """Measure single emits without a reply."""
    async with opened(given) as emitters:

        async def one(n: int) -> None:
            await emitters.emit(n, reply=False)

        await in_lanes(min(WARM_UP, given.count), given.in_flight, one)
        with Stopwatch(given.url) as watch:
            await in_lanes(given.count, given.in_flight, one)
    return watch.line(given.count)


async def bulk(given: Flags) -> Line:
    """Measure emit_many without a reply."""
    async with opened(given) as emitters:
        await emitters.emit_in_bulk(min(WARM_UP, given.count), given.chunk)
        with Stopwatch(given.url) as watch:
            await emitters.emit_in_bulk(given.count, given.chunk)
    return watch.line(given.count)


async def fill(given: Flags) -> Line:
    """Fill the queue for what comes next; exactly `count` jobs, so without a warm-up."""
    async with opened(given) as emitters:
        with Stopwatch(given.url) as watch:
            await emitters.emit_in_bulk(given.count, given.chunk or given.count)
    return watch.line(given.count)


async def cancel(given: Flags) -> Line:
    """Measure cancels of waiting jobs; emitting them is no part of it."""
    async with opened(given) as emitters:
        emissions: list[Emission[None]] = []
        for first in range(0, given.count, _UNSENT):
            some = [emitters.emit(n, reply=False) for n in range(first, min(first + _UNSENT, given.count))]
            for emission in some:
                await emission
            emissions += some

        async def one(n: int) -> None:
            if not await emissions[n].cancel():
                raise ValueError(f"job {n} was not cancelled")

        with Stopwatch(given.url) as watch:
            await in_lanes(given.count, given.in_flight, one)
    return watch.line(given.count)


async def reply(given: Flags) -> Line:
    """Measure emit and await, `in_flight` at a time."""
    times = [0.0] * given.count
    async with opened(given) as emitters:

        async def one(n: int) -> None:
            start = perf_counter()
            check(n, await emitters.emit(n, reply=True))
            times[n] = perf_counter() - start

        await in_lanes(min(WARM_UP, given.count), given.in_flight, one)
        with Stopwatch(given.url) as watch:
            await in_lanes(given.count, given.in_flight, one)
    return with_quantiles(watch.line(given.count), times)


async def echoed(given: Flags) -> Line:
    """Emit and await texts; exactly `count` jobs, so without a warm-up."""
    async with opened(given) as emitters:

        async def one(n: int) -> None:
            if len(await emitters.emit(n, reply=True)) != given.size:
                raise ValueError(f"expected {given.size} bytes back")

        with Stopwatch(given.url) as watch:
            await in_lanes(given.count, given.in_flight, one)
    return watch.line(given.count)


STEPS: dict[str, Callable[[Flags], Awaitable[Line]]] = {
    "enqueue": enqueue,
    "bulk": bulk,
    "fill": fill,
    "cancel": cancel,
    "reply": reply,
    "latency": reply,
    "echo": echoed,
}


async def main(given: Flags) -> Line:
    """Run one step."""
    return await STEPS[given.step](given)


if __name__ == "__main__":
    report(run(main(flags(list(STEPS)))))
