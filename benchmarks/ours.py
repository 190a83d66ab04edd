"""Our side: one program for each step, against the public interface only.

Steps: `enqueue` (single emits, --in-flight of them open at a time), `bulk` (emit_many, in
calls of --chunk), `fill` (the same, not measured), `drain` (one worker process empties what
`fill` left), `reply` and `latency` (emit and await; the worker is another process).
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import perf_counter

import msgspec

from benchmarks.app import REPORT_VARIABLE, Calls, Noop, noop
from benchmarks.measure import WARM_UP, Flags, Line, Stopwatch, check, flags, report, with_quantiles
from benchmarks.sides import OUR_WORKER
from eventbus import EventProvider


async def in_lanes(count: int, in_flight: int, one: Callable[[int], Awaitable[None]]) -> None:
    """Await `one(n)` for n in 0..count-1 with `in_flight` of them open at a time."""
    numbers = iter(range(count))

    async def lane() -> None:
        for n in numbers:
            await one(n)

    await asyncio.gather(*(lane() for _ in range(min(in_flight, count))))


async def emit_in_bulk(provider: EventProvider, count: int, chunk: int) -> None:
    """Emit `count` jobs in calls of `chunk`; return when all are in the server."""
    for start in range(0, count, chunk):
        payloads = [Noop(n) for n in range(start, min(start + chunk, count))]
        for emission in provider.emit_many(noop, payloads, reply=False):
            await emission


async def enqueue(given: Flags) -> Line:
    """Measure single emits without a reply."""
    async with EventProvider(given.url) as provider:

        async def one(n: int) -> None:
            await provider.emit(noop, Noop(n), reply=False)

        await in_lanes(min(WARM_UP, given.count), given.in_flight, one)
        with Stopwatch(given.url) as watch:
            await in_lanes(given.count, given.in_flight, one)
    return watch.line(given.count)


async def bulk(given: Flags) -> Line:
    """Measure emit_many without a reply."""
    async with EventProvider(given.url) as provider:
        await emit_in_bulk(provider, min(WARM_UP, given.count), given.chunk)
        with Stopwatch(given.url) as watch:
            await emit_in_bulk(provider, given.count, given.chunk)
    return watch.line(given.count)


async def fill(given: Flags) -> Line:
    """Fill the queue for `drain`."""
    async with EventProvider(given.url) as provider:
        with Stopwatch(given.url) as watch:
            await emit_in_bulk(provider, given.count, given.chunk or given.count)
    return watch.line(given.count)


def drain(given: Flags) -> Line:
    """Measure one worker process, from its first handler call to its last."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "calls.json")
        environment = os.environ | {"EVENTBUS_URL": given.url, REPORT_VARIABLE: str(path)}
        with Stopwatch(given.url) as watch:
            subprocess.run([*OUR_WORKER, "--burst"], check=True, env=environment, stdout=subprocess.DEVNULL)
        calls = msgspec.json.decode(path.read_bytes(), type=Calls)
    if calls.count != given.count:
        raise ValueError(f"expected {given.count} handler calls, got: {calls.count}")
    line = watch.line(calls.count, calls.last - calls.first)
    return msgspec.structs.replace(line, settled_seconds=watch.seconds)


async def reply(given: Flags) -> Line:
    """Measure emit and await, `in_flight` at a time."""
    times = [0.0] * given.count
    async with EventProvider(given.url) as provider:

        async def one(n: int) -> None:
            start = perf_counter()
            check(n, await provider.emit(noop, Noop(n)))
            times[n] = perf_counter() - start

        await in_lanes(min(WARM_UP, given.count), given.in_flight, one)
        with Stopwatch(given.url) as watch:
            await in_lanes(given.count, given.in_flight, one)
    return with_quantiles(watch.line(given.count), times)


async def latency(given: Flags) -> Line:
    """Measure emit and await, one at a time."""
    return await reply(msgspec.structs.replace(given, in_flight=1))


STEPS = {"enqueue": enqueue, "bulk": bulk, "fill": fill, "reply": reply, "latency": latency}

if __name__ == "__main__":
    _given = flags([*STEPS, "drain"])
    report(drain(_given) if _given.step == "drain" else asyncio.run(STEPS[_given.step](_given)))
