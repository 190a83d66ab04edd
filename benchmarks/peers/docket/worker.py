"""A worker of docket with the no-op task."""

from __future__ import annotations

import os

from docket import Docket, Worker

from benchmarks.calls import calls
from benchmarks.measure import run

NAME = "bench"


def place(url: str) -> str:
    """Return the URL with room for 500 calls at a time; its client has 100 connections by default."""
    return f"{url}?max_connections=1000"


async def noop(n: int) -> int:
    calls.note()
    return n + 1


async def main() -> None:
    async with Docket(name=NAME, url=place(os.environ["BENCH_URL"])) as docket:
        docket.register(noop)
        async with Worker(docket, concurrency=100) as worker:
            await worker.run_forever()


if __name__ == "__main__":
    run(main())
