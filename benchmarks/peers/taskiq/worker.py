"""taskiq's broker with the no-op task; the emitter uses it too. Run by `taskiq worker`.

The stream broker acknowledges; the list broker of the same package loses what a killed worker held.
"""

from __future__ import annotations

import os

from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

from benchmarks.calls import calls

_URL = os.environ["BENCH_URL"]

broker = RedisStreamBroker(url=_URL).with_result_backend(RedisAsyncResultBackend(redis_url=_URL))


@broker.task(task_name="noop")
async def noop(n: int) -> int:
    calls.note()
    return n + 1
