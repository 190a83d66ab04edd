"""What very many schedules that are due in one second cost the server: `python -m benchmarks.schedules URL`.

It makes `--count` schedules that are due in the same second, waits until they are, and fires them as a worker
does, with no other load. It prints the server's time for each schedule, and its longest call (`SLOWLOG`,
which is time on the clock). The prefix is its own, and its jobs and schedules are removed at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import time
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import redis

from eventbus import EventProvider, ScheduleClient
from eventbus.schedules.runner import ScheduleRunner

_PARALLEL = 100


async def _plant(schedules: ScheduleClient, count: int, start: datetime) -> None:
    async def plant(numbers: range) -> None:
        for number in numbers:
            await schedules.add("bench.tick", id=f"s{number}", every="1 day", start=start, payload=number)

    await asyncio.gather(*(plant(range(first, count, _PARALLEL)) for first in range(_PARALLEL)))


async def measure_firing(url: str, count: int) -> dict[str, float]:
    """Make `count` schedules, fire them, and remove all of it. Returns `us` each, `longest_ms` of a call, and
    `seconds` of all.
    """
    client = cast("Any", redis.Redis).from_url(url)
    prefix = f"bench-{secrets.token_hex(4)}"
    async with EventProvider(url, prefix=prefix) as provider:
        start = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=10 + count / 500)
        await _plant(provider.schedules, count, start)
        await asyncio.sleep((start - datetime.now(UTC)).total_seconds() + 0.1)
        store = provider.schedules._store  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        runner = ScheduleRunner(store, key_ttl=604_800.0)
        threshold = client.config_get("slowlog-log-slower-than")["slowlog-log-slower-than"]
        client.config_set("slowlog-log-slower-than", 100)
        client.slowlog_reset()
        client.config_resetstat()
        began = time.perf_counter()
        made = await runner.fire_all()
        took = time.perf_counter() - began
        stats = client.info("commandstats")  # of calls of scripts; what these call is in their time
        busy = sum(found["usec"] for name, found in stats.items() if "fcall" in name or "evalsha" in name)
        calls = [entry["duration"] for entry in client.slowlog_get(10_000)]
        client.config_set("slowlog-log-slower-than", threshold)
        assert made == count, f"{made} jobs of {count} schedules"
    keys = list(client.scan_iter(f"{prefix}:*", count=1000))
    for first in range(0, len(keys), 1000):
        client.unlink(*keys[first : first + 1000])
    return {"us": busy / count, "longest_ms": max(calls, default=0) / 1000, "seconds": took}


def main() -> None:
    """Measure once, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="a server on which nothing else runs")
    parser.add_argument("--count", type=int, default=10_000)
    given = parser.parse_args()
    found = asyncio.run(measure_firing(given.url, given.count))
    print(f"{given.count} schedules due in one second: all fired in {found['seconds']:.2f} s")
    print(f"server: {found['us']:.1f} us each, longest call {found['longest_ms']:.1f} ms")


if __name__ == "__main__":
    main()
