"""Our side's program for flows, against the public interface only; its worker is another process.

Steps: the shapes of `flows.py`, with --members steps. It executes --count flows with --in-flight
of them open at a time, awaits each result and compares it.
"""

from __future__ import annotations

from time import perf_counter

from benchmarks.flows import Start, serve
from benchmarks.measure import Flags, Line, Stopwatch, check, flags, in_lanes, report, run, with_quantiles
from benchmarks.works import SHAPES
from eventbus import EventProvider

WARM_UP_SHARE = 5
"""One part in this many of the flows runs before the clock starts; the same for the peer."""


async def main(given: Flags) -> Line:
    """Run flows of one shape."""
    times = [0.0] * given.count
    provider = EventProvider(given.url)
    flows, workflow = serve(provider, given.step, given.members)

    async def one(n: int) -> None:
        start = perf_counter()
        handle = await flows.execute(workflow, Start(n))
        check(n, await handle.result())
        times[n] = perf_counter() - start

    async with provider:
        await in_lanes(max(1, given.count // WARM_UP_SHARE), given.in_flight, one)
        with Stopwatch(given.url) as watch:
            await in_lanes(given.count, given.in_flight, one)
    return with_quantiles(watch.line(given.count), times)


if __name__ == "__main__":
    report(run(main(flags(SHAPES))))
