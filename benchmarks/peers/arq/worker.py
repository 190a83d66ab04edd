"""arq's settings with the no-op function. Run by `arq`.

It polls; each 10 ms instead of each 500 ms, which is faster.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

import uvloop
from arq.connections import RedisSettings

from benchmarks.calls import calls

asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())  # its command makes a loop by the policy


async def noop(_context: dict[str, Any], *, n: int) -> int:
    calls.note()
    return n + 1


class WorkerSettings:
    functions = (noop,)
    max_jobs = 100
    poll_delay = 0.01
    redis_settings = RedisSettings.from_dsn(os.environ["BENCH_URL"])
