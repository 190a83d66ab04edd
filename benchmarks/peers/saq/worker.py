"""SAQ's settings with the no-op function; the emitter uses its queue too. Run by `saq`."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import uvloop
from saq import Queue

from benchmarks.calls import calls

asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())  # its command makes a loop by the policy

queue = Queue.from_url(os.environ["BENCH_URL"])


async def noop(_context: dict[str, Any], *, n: int) -> int:
    calls.note()
    return n + 1


settings = {"queue": queue, "functions": [noop], "concurrency": 100}
