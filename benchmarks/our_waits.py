"""Our side's program for flows that wait; its worker is another process that serves `waits`.

`sleepers` executes --count flows that sleep for 30 days, and ends when --members of them sleep. `signal`
executes --count flows, one at a time, that wait for a signal: it times from the signal to the flow's result.
"""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Literal

from benchmarks.flows import Start, going, serve_waits
from benchmarks.measure import Flags, Line, Stopwatch, check, flags, in_lanes, report, run, with_quantiles
from eventbus import EventProvider

_LOOK_SECONDS = 0.02


async def _sleep(provider: EventProvider, given: Flags) -> Line:
    flows, sleeper, _ = serve_waits(provider)

    async def begin(n: int) -> None:
        await flows.execute(sleeper, Start(n))

    async with provider:
        with Stopwatch(given.url) as watch:
            await in_lanes(given.count, given.in_flight, begin)
            await _until(provider, sleeper.name, "delayed", given.members)
    return watch.line(given.count)


async def _signal(provider: EventProvider, given: Flags) -> Line:
    flows, _, hearer = serve_waits(provider)
    times: list[float] = []

    async with provider:
        with Stopwatch(given.url) as watch:
            for n in range(given.count):
                flow = await flows.execute(hearer, Start(n))
                result = asyncio.ensure_future(flow.result())
                await _until(provider, hearer.name, "waiting-children", 1)
                start = perf_counter()
                await flow.signal(going, n)
                check(n, await result)
                times.append(perf_counter() - start)
    return with_quantiles(watch.line(given.count), times)


async def _until(
    provider: EventProvider, workflow: str, state: Literal["delayed", "waiting-children"], count: int
) -> None:
    """Wait until so many flows are in a state."""
    queue = f"workflow.{workflow}"
    while (await provider.inspector.queues.count(queue, states=(state,)))[state] < count:  # noqa: ASYNC110  (nobody tells)
        await asyncio.sleep(_LOOK_SECONDS)


async def main(given: Flags) -> Line:
    """Run one of both."""
    provider = EventProvider(given.url)
    return await (_sleep if given.step == "sleepers" else _signal)(provider, given)


if __name__ == "__main__":
    report(run(main(flags(("sleepers", "signal")))))
