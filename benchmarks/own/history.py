"""What the history of queues costs: `python -m benchmarks.own.history URL`.

Jobs are drained, and asked for one after the other by ten callers, by a worker that keeps a history and by
one that keeps none. The two take rounds in turns, in an order that changes, and each round is compared with
the other one beside it. It prints the medians of `on ÷ off` in jobs per second and in time of processors, of
the server and of the worker's process; then what a tally takes of the server, and what a job takes of the
worker to be counted. The prefix is its own, and all its keys are removed at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import secrets
import statistics
import time
from typing import Any, NamedTuple, cast

import redis

from eventbus import Event, EventProvider
from eventbus.engine import job as jobs
from eventbus.engine.job import Job
from eventbus.engine.reporting.tallies import Tallies
from eventbus.model import clock
from eventbus.model.histogram import bucket_of
from eventbus.store.calls.history_store import COMPLETED, RUNS, WAITS, QueueTally

_EVENT = Event("bench", payload=int, result=int)
_CALLERS = 10
_DAY = 86_400_000


class _Round(NamedTuple):
    """What one round took: seconds, and seconds of processors of the server and of this process."""

    seconds: float
    server: float
    own: float


def _busy(client: Any) -> float:
    used = client.info("cpu")
    return float(used["used_cpu_user"]) + float(used["used_cpu_sys"])


async def _ask(provider: EventProvider, count: int) -> None:
    for number in range(count):
        await provider.emit(_EVENT, number)


async def _run(url: str, prefix: str, client: Any, count: int, *, drains: bool, is_on: bool) -> _Round:
    provider = EventProvider(url, prefix=prefix, history="48h,90d" if is_on else None)
    provider.on(_EVENT)(_answer)
    async with provider:
        if drains:
            await asyncio.gather(
                *(each.enqueued() for each in provider.emit_many(_EVENT, range(count), reply=False))
            )
        gc.collect()
        before, own, began = _busy(client), time.process_time(), time.perf_counter()
        async with provider.worker() as worker:
            if drains:
                await worker.wait_drained(provider.flush)
            else:
                await asyncio.gather(*(_ask(provider, count // _CALLERS) for _ in range(_CALLERS)))
        return _Round(time.perf_counter() - began, _busy(client) - before, time.process_time() - own)


async def _answer(payload: int) -> int:
    return payload


def _compare(name: str, pairs: list[tuple[_Round, _Round]]) -> None:
    """Print medians of all pairs of a round with a history and one without."""
    speed = statistics.median(off.seconds / on.seconds for on, off in pairs)
    server = statistics.median(on.server / off.server for on, off in pairs)
    own = statistics.median(on.own / off.own for on, off in pairs)
    least = min(on.own for on, _ in pairs) / min(off.own for _, off in pairs)
    print(
        f"{name}, on ÷ off: jobs/s {speed:.3f}, server {server:.3f}, worker {own:.3f}, "
        f"the least of all {least:.3f}"
    )


def _tally(count: int) -> QueueTally:
    counts = {COMPLETED: count}
    for _ in range(count):
        for base in (WAITS, RUNS):
            code = base + bucket_of(int(random.lognormvariate(3, 1)))
            counts[code] = counts.get(code, 0) + 1
    return QueueTally("event.bench", "", "", counts)


async def _measure_calls(url: str, prefix: str, client: Any) -> None:
    async with EventProvider(url, prefix=prefix) as provider:
        history = provider.schedules._store.history  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        for count in (1, 20, 100, 500, 5000):
            calls, before = [_tally(count) for _ in range(300)], _busy(client)
            for number, each in enumerate(calls, start=1):
                await history.tally(f"w{count}", number, [each], minutes_ms=2 * _DAY, hours_ms=90 * _DAY)
            took = (_busy(client) - before) / len(calls) * 1e6
            print(f"a tally of {count} jobs: {took:.0f} us of the server, {took / count:.3f} us a job")


def _measure_counting(count: int = 200_000) -> None:
    tallies, settle = Tallies(), jobs.complete("1")
    given = [Job("a", "w:1", "q", "", 0, 0, 0, 0, n % 700, began=clock.monotonic()) for n in range(1000)]
    least = 1.0
    for _ in range(5):
        began = time.perf_counter()
        for number in range(count):
            tallies.note(given[number % 1000], settle)
        tallies.take()
        middle = time.perf_counter()
        for number in range(count):
            given[number % 1000]
        least = min(least, 2 * middle - began - time.perf_counter())
    print(f"a job that is counted: {least / count * 1e6:.2f} us of the worker")


async def _measure(url: str, count: int, rounds: int) -> None:
    client, prefix = cast("Any", redis.Redis).from_url(url), f"bench-{secrets.token_hex(4)}"
    for name, drains in (("drain", True), ("request-reply", False)):
        pairs: list[tuple[_Round, _Round]] = []
        for number in range(rounds + 1):
            took: dict[bool, _Round] = {}
            for is_on in random.sample((True, False), 2):
                took[is_on] = await _run(url, prefix, client, count, drains=drains, is_on=is_on)
            if number:  # the first one warms up
                pairs.append((took[True], took[False]))
        _compare(name, pairs)
    await _measure_calls(url, prefix, client)
    _measure_counting()
    keys = list(client.scan_iter(f"{prefix}:*", count=1000))
    for first in range(0, len(keys), 1000):
        client.unlink(*keys[first : first + 1000])


def main() -> None:
    """Measure once, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="a server on which nothing else runs")
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    asyncio.run(_measure(given.url, given.count, given.rounds))


if __name__ == "__main__":
    main()
