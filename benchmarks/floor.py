"""The floor: what plain redis-py costs for the same traffic, with nothing that makes it safe.

A list of jobs and a list of results, one command for each job and each result, batched in
pipelines; no leases, no records, no retries, no ids. A job lost here is lost. The synchronous
client, which is the cheapest one. Steps as in `ours.py`, and `worker` as the other end of
`reply` and `latency`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter
from typing import Any, cast

import msgspec
import redis

from benchmarks.measure import WARM_UP, Flags, Line, Stopwatch, check, flags, report, with_quantiles

JOBS = "floor:jobs"
RESULTS = "floor:results"
BATCH = 100
"""Jobs that the worker takes at a time: the concurrency of the other sides."""


class Noop(msgspec.Struct):
    """The payload, `{"n": n}`."""

    n: int


class Floor:
    """The commands of the floor on one connection, typed and named."""

    def __init__(self, url: str) -> None:
        # Redis-py types its answers as sync or async.
        self._commands = cast("Any", redis.Redis).from_url(url, socket_timeout=None)
        self._encode = msgspec.json.Encoder().encode
        self._job = msgspec.json.Decoder(Noop).decode
        self._result = msgspec.json.Decoder(int).decode

    def push(self, first: int, count: int) -> None:
        """Push the jobs `first..first+count-1` in one pipeline."""
        pipe = self._commands.pipeline(transaction=False)
        for n in range(first, first + count):
            pipe.rpush(JOBS, self._encode(Noop(n)))
        pipe.execute()

    def take(self) -> list[bytes]:
        """Take up to BATCH jobs, waiting up to a second for the first."""
        jobs: list[bytes] | None = self._commands.lpop(JOBS, BATCH)
        if jobs:
            return jobs
        popped: tuple[bytes, bytes] | None = self._commands.blpop([JOBS], timeout=1)
        return [popped[1]] if popped else []

    def answer(self, jobs: list[bytes]) -> list[bytes]:
        """Push the results of `jobs` and take the next ones, in one pipeline."""
        pipe = self._commands.pipeline(transaction=False)
        for job in jobs:
            pipe.rpush(RESULTS, self._encode(self._job(job).n + 1))
        pipe.lpop(JOBS, BATCH)
        return pipe.execute()[-1] or []

    def results(self, count: int) -> list[int]:
        """Wait for at least one result and take up to `count`."""
        popped: tuple[bytes, bytes] = self._commands.blpop([RESULTS], timeout=0)
        rest: list[bytes] = self._commands.lpop(RESULTS, count - 1) if count > 1 else []
        return [self._result(popped[1]), *map(self._result, rest or [])]


def push_all(floor: Floor, count: int, batch: int) -> None:
    """Push `count` jobs, `batch` in each pipeline."""
    for first in range(0, count, batch):
        floor.push(first, min(batch, count - first))


def measured_push(given: Flags, batch: int) -> Line:
    """Measure pushes of `batch` in each pipeline."""
    floor = Floor(given.url)
    push_all(floor, min(WARM_UP, given.count), batch)
    with Stopwatch(given.url) as watch:
        push_all(floor, given.count, batch)
    return watch.line(given.count)


def enqueue(given: Flags) -> Line:
    """Measure pushes, `in_flight` in each pipeline."""
    return measured_push(given, given.in_flight)


def bulk(given: Flags) -> Line:
    """Measure pushes, `chunk` in each pipeline."""
    return measured_push(given, given.chunk)


def fill(given: Flags) -> Line:
    """Fill the list for `drain`."""
    floor = Floor(given.url)
    with Stopwatch(given.url) as watch:
        push_all(floor, given.count, BATCH)
    return watch.line(given.count)


def drain(given: Flags) -> Line:
    """Measure taking and answering until the list is empty."""
    floor = Floor(given.url)
    done = 0
    with Stopwatch(given.url) as watch:
        jobs = floor.take()
        while jobs:
            done += len(jobs)
            jobs = floor.answer(jobs)
    if done != given.count:
        raise ValueError(f"expected {given.count} jobs, got: {done}")
    return watch.line(done)


def ask(floor: Floor, count: int, in_flight: int, times: list[float]) -> None:
    """Push jobs as results come back, `in_flight` open; one worker answers in order."""
    started: dict[int, float] = {}
    sent = received = 0
    while received < count:
        size = min(in_flight - (sent - received), count - sent)
        if size:
            now = perf_counter()
            started |= dict.fromkeys(range(sent, sent + size), now)
            floor.push(sent, size)
            sent += size
        results = floor.results(in_flight)
        now = perf_counter()
        for result in results:
            check(received, result)
            times[received] = now - started.pop(received)
            received += 1


def reply(given: Flags) -> Line:
    """Measure request and reply, `in_flight` at a time; the worker is another process."""
    floor = Floor(given.url)
    times = [0.0] * given.count
    ask(floor, min(WARM_UP, given.count), given.in_flight, times)
    with Stopwatch(given.url) as watch:
        ask(floor, given.count, given.in_flight, times)
    return with_quantiles(watch.line(given.count), times)


def latency(given: Flags) -> Line:
    """Measure request and reply, one at a time."""
    return reply(replace(given, in_flight=1))


def work(given: Flags) -> Line:
    """Answer jobs until the process is ended, or its parent is gone."""
    floor = Floor(given.url)
    parent = os.getppid()
    jobs: list[bytes] = []
    while os.getppid() == parent:
        jobs = floor.answer(jobs) if jobs else floor.take()
    raise SystemExit(0)


STEPS: dict[str, Callable[[Flags], Line]] = {
    "enqueue": enqueue,
    "bulk": bulk,
    "fill": fill,
    "drain": drain,
    "reply": reply,
    "latency": latency,
    "worker": work,
}

if __name__ == "__main__":
    _given = flags(list(STEPS))
    report(STEPS[_given.step](_given))
