"""What our programs share: flags, the stopwatch with the server's CPU, the JSON line.

The keys of the line are those of `peers/bullmq/measure.js`, so that all sides read alike.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from time import perf_counter
from types import TracebackType
from typing import Self

import msgspec
import redis

WARM_UP = 5000
"""Jobs before the clock starts: connections are made, scripts loaded, code paths warm."""


class Flags(msgspec.Struct):
    """The command line of a program: what to measure, where, and how much of it."""

    step: str
    url: str
    count: int
    in_flight: int
    chunk: int


class Line(msgspec.Struct, omit_defaults=True):
    """What one program measured, printed as one JSON line.

    `server_cpu_us` is the server's CPU for each job in microseconds, all its threads;
    `settled_seconds` is there for comparison only.
    """

    count: int
    seconds: float
    per_second: float
    server_cpu_us: float
    p50_ms: float | None = None
    p99_ms: float | None = None
    settled_seconds: float | None = None


def flags(steps: Sequence[str]) -> Flags:
    """Read the command line; the first word is one of `steps`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("step", choices=steps)
    parser.add_argument("--url", default="redis://127.0.0.1:6379/0")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--in-flight", type=int, default=500)
    parser.add_argument("--chunk", type=int, default=0)
    return Flags(**vars(parser.parse_args()))


def connect(url: str) -> redis.Redis:
    """Return a plain client of the server."""
    return redis.Redis.from_url(url, socket_timeout=None)  # pyright: ignore[reportUnknownMemberType]


def server_cpu(server: redis.Redis) -> float:
    """Return the CPU seconds that the server has used so far, user and system, all its threads."""
    info = server.info("cpu")  # pyright: ignore[reportUnknownMemberType]
    return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])


class Stopwatch:
    """A context that measures its body's seconds and the server's CPU in them."""

    def __init__(self, url: str) -> None:
        self._server = connect(url)
        self._cpu = 0.0
        self._start = 0.0
        self.seconds = 0.0

    def __enter__(self) -> Self:
        self._cpu = server_cpu(self._server)
        self._start = perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.seconds = perf_counter() - self._start
        self._cpu = server_cpu(self._server) - self._cpu
        self._server.close()

    def line(self, count: int, seconds: float | None = None) -> Line:
        """Return the figures for `count` jobs; `seconds`, if given, replaces the measured ones."""
        seconds = self.seconds if seconds is None else seconds
        return Line(count, seconds, count / seconds, self._cpu * 1e6 / count)


def with_quantiles(line: Line, times: Sequence[float]) -> Line:
    """Return `line` with the median and 99th percentile of `times`, which are seconds."""
    ordered = sorted(times)
    at = [ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000 for share in (0.5, 0.99)]
    return msgspec.structs.replace(line, p50_ms=at[0], p99_ms=at[1])


def check(n: int, result: object) -> None:
    """Fail unless `result` is what the no-op handler answers to `n`."""
    if result != n + 1:
        raise ValueError(f"expected {n + 1} as the result of {n}, got: {result!r}")


def report(line: Line) -> None:
    """Print the line that the harness reads."""
    sys.stdout.write(msgspec.json.encode(line).decode() + "\n")
