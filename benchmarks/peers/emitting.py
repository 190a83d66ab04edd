"""What the emitter programs of the Python peers share: the steps, each measured alike.

The standard library only: they run in the peers' own environments. Steps: `enqueue` (single
calls, --in-flight of them open), `fill` (as many as fast as the peer can, not measured),
`reply` and `latency` (enqueue and await the result; the worker is another process).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from time import perf_counter
from typing import Protocol

from benchmarks.measure import Flags, Line, Stopwatch, check, flags, in_lanes, report, run, with_quantiles

STEPS = ("enqueue", "fill", "reply", "latency")

WARM_UP_SHARE = 10
"""One part in this many of the jobs runs before the clock starts."""


class Emitter(Protocol):
    """A peer's client, with the three things that are asked of it."""

    async def enqueue(self, n: int) -> object:
        """Enqueue one job; returns when the server has it."""
        ...

    async def fill(self, numbers: range) -> object:
        """Enqueue a job for each number, by the fastest documented way."""
        ...

    async def ask(self, n: int) -> object:
        """Enqueue one job and return its result."""
        ...


Opened = Callable[[str], AbstractAsyncContextManager[Emitter]]
"""Opens a peer's client at a URL."""


async def measure(given: Flags, opened: Opened) -> Line:
    """Run one step on a client of its own."""
    async with opened(given.url) as emitter:
        if given.step == "fill":
            with Stopwatch(given.url) as watch:
                await emitter.fill(range(given.count))
            return watch.line(given.count)
        times = [0.0] * given.count

        async def ask(n: int) -> None:
            start = perf_counter()
            check(n, await emitter.ask(n))
            times[n] = perf_counter() - start

        one = emitter.enqueue if given.step == "enqueue" else ask
        await in_lanes(max(1, given.count // WARM_UP_SHARE), given.in_flight, one)
        with Stopwatch(given.url) as watch:
            await in_lanes(given.count, given.in_flight, one)
    line = watch.line(given.count)
    return line if given.step == "enqueue" else with_quantiles(line, times)


def main(opened: Opened) -> None:
    """Be the program: read the flags, run the step, print the line."""
    report(run(measure(flags(STEPS), opened)))
