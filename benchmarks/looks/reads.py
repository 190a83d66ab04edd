"""How long an operator's reads take, with very many jobs: `python -m benchmarks.looks.reads --count 100000`.

It starts a server of its own, fills one queue with jobs in each state and 199 queues with one job each, and
prints the milliseconds of each read with the CPU of this process and of the server, and the milliseconds and
the CPU of the command lines that read (whole processes, medians of 3). It ends with 1 if one of these takes
more than `GOAL` of CPU.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from time import perf_counter, process_time
from typing import Annotated, Any

import structlog
import typer

from eventbus import EventProvider, Retry

_EVENT = "bulk"
_OTHERS = 199
_CHUNK = 5000
GOAL = 500.0
"""ms of CPU that a command line which reads may take."""
_LINES = (
    "queues",
    "queues --json",
    f"queues list {_EVENT}",
    "queues controls",
    f"queues history {_EVENT}",
    f"queues history {_EVENT} --last 7d --json",
    "workers",
    "top --once",
    "top --once --json",
    f"jobs count {_EVENT}",
    *(
        f"jobs list {_EVENT} --state {state}"
        for state in ("waiting", "delayed", "active", "failed", "completed")
    ),
    f"jobs list {_EVENT} --state failed --since 1h --limit 1000",
    "jobs failures",
    "jobs show {job} --full",
    "jobs why {job}",
    "jobs find other.7 --key key-7",
    f"jobs find {_EVENT} --correlation-id none",
    f"jobs find {_EVENT} --field n:1 --state waiting",
    f"jobs retry-all {_EVENT} --dry-run",
    f"jobs purge {_EVENT} --dry-run",
    "groups",
    "schedules",
    "operations list",
    "audit",
    "flows",
    "flows waiting",
    "check",
)  # fmt: skip


async def _fill(provider: EventProvider, count: int) -> None:
    left = count

    @provider.on(_EVENT, retry=Retry(attempts=1), concurrency=500)
    async def handle(n: int) -> int:
        if n % 2:
            raise (ValueError if n % 3 else ConnectionError)(f"no {n}")
        return n

    async with provider.worker():
        while left > 0:
            size = min(_CHUNK, left)
            emissions = provider.emit_many(_EVENT, range(size))
            await asyncio.gather(*emissions, return_exceptions=True)
            left -= size
    for state in ("waiting", "delayed"):
        for first in range(0, count, _CHUNK):
            delay = "1 day" if state == "delayed" else None
            size = min(_CHUNK, count - first)
            for each in provider.emit_many(_EVENT, range(size), delay=delay, reply=False):
                await each
    for n in range(_OTHERS):
        await provider.emit(f"other.{n}", n, reply=False, idempotency_key=f"key-{n}")


async def _server_cpu(provider: EventProvider) -> float:
    """Return the CPU that the server has used, seconds."""
    store = provider._life.running("measure").store  # noqa: SLF001
    text = await store._caller.command("INFO", "cpu")  # noqa: SLF001
    facts = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return float(facts["used_cpu_user"]) + float(facts["used_cpu_sys"])


async def _time(provider: EventProvider, read: Callable[[], Awaitable[Any]]) -> tuple[float, float, float]:
    """Return how long a read takes, and the CPU of this process and of the server that it takes; ms, medians
    of 5.
    """
    rows: list[tuple[float, float, float]] = []
    for _ in range(5):
        server, own, begin = await _server_cpu(provider), process_time(), perf_counter()
        await read()
        took, mine = perf_counter() - begin, process_time() - own
        rows.append((took, mine, await _server_cpu(provider) - server))
    whole, own, server = (statistics.median(column) * 1000 for column in zip(*rows, strict=True))
    return whole, own, server


async def _measure(url: str, count: int) -> str:
    """Fill the server and time its inspector. Return the id of a job that failed."""
    settings: dict[str, Any] = {
        "reply_timeout": "10 minutes",
        "keep_failed": 10 * count,
        "keep_completed": 10 * count,
    }
    async with EventProvider(url, **settings) as provider:
        await _fill(provider, count)
        look = provider.inspector
        job = (await look.jobs.list(_EVENT, state="failed", limit=1)).jobs[0].id
        reads: dict[str, Callable[[], Awaitable[Any]]] = {
            "queues.list()": look.queues.list,
            "workers.list()": look.workers.list,
            "queues.count()": lambda: look.queues.count(_EVENT),
            "queues.failures()": look.queues.failures,
            "jobs.list(failed, 50)": lambda: look.jobs.list(_EVENT, state="failed"),
            "jobs.list(waiting, 1000)": lambda: look.jobs.list(_EVENT, state="waiting", limit=1000),
            "jobs.get()": lambda: look.jobs.get(job),
            "jobs.why()": lambda: look.jobs.why(job),
            "jobs.find(key)": lambda: look.jobs.find("other.7", idempotency_key="key-7"),
            "jobs.find(correlation_id)": lambda: look.jobs.find(_EVENT, correlation_id="none"),
            "jobs.list(failed, since)": lambda: look.jobs.list(_EVENT, state="failed", since="1 hour"),
            "queues.retry_all(dry_run)": lambda: look.queues.retry_all(_EVENT, dry_run=True),
        }
        for name, read in reads.items():
            took, own, server = await _time(provider, read)
            print(f"{took:9.1f} ms ({own:7.1f} and {server:7.1f} ms of CPU)  inspector.{name}", flush=True)
    return job


def main(
    *,
    count: Annotated[int, typer.Option(min=100, help="Jobs in each of the states.")] = 100_000,
    url: Annotated[str, typer.Option(help="The server, which must be empty; default: one of its own.")] = "",
) -> None:
    """Fill a server, and time the reads of an operator."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    with tempfile.TemporaryDirectory() as folder:
        server = url or f"embedded:{folder}/server"
        most = asyncio.run(_hold(server, count))
    print(f"{most:.0f} ms of CPU at most; the goal is {GOAL:.0f} ms")
    raise typer.Exit(most > GOAL)


async def _hold(server: str, count: int) -> float:
    """Time all reads. Return the CPU of the command line that takes most of it, ms."""
    most = 0.0
    async with EventProvider(server):  # so that an embedded server stays until the end
        job = await _measure(server, count)
        for line in _LINES:
            words = [*line.format(job=job).split(), "--url", server]
            rows = [await asyncio.to_thread(_run, words) for _ in range(3)]
            took, own = (statistics.median(row[place] for row in rows) for place in (0, 1))
            most = max(most, own)
            code = f" (exit {rows[-1][2]})" if rows[-1][2] else ""
            print(f"{took:9.1f} ms ({own:7.1f} ms of CPU)  eventbus {line}{code}", flush=True)
    return most


def _run(words: list[str]) -> tuple[float, float, int]:
    """Run a command line. Return how long it took and its CPU, ms, and its exit code."""
    # With the bytecode that an installed package has, whatever this machine says of writing it.
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    begin, before = perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "eventbus", *words]
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    took, after = perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    own = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return took * 1000, own * 1000, done.returncode


if __name__ == "__main__":
    typer.run(main)
