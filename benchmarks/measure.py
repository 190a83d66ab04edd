"""What the Python programs of all sides share: flags, the stopwatch with the server's CPU, the JSON line.

The standard library only: a peer's program runs in the peer's own environment, which has
nothing of ours. The keys of the line are those of `peers/bullmq/measure.js`, so that all sides
read alike.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from time import perf_counter
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

WARM_UP = 5000
"""Jobs before the clock starts: connections are made, scripts loaded, code paths warm."""

_T = TypeVar("_T")


@dataclasses.dataclass
class Flags:
    """The command line of a program: what to measure, where, and how much of it.

    The last four are for our own programs: the number of event types and of emitters, the
    bytes of the payload beside `n`, and the steps of a flow.
    """

    step: str
    url: str
    count: int
    in_flight: int
    chunk: int
    types: int
    emitters: int
    size: int
    members: int


@dataclasses.dataclass
class Line:
    """What one program measured, printed as one JSON line.

    `server_cpu_us` is the server's CPU for each job in microseconds, all its threads;
    `worker_user_us`, `worker_system_us` and `loop_user_us` are the worker process's own, and that
    of the thread of its event loop, between its first handler call and its last.
    """

    count: int
    seconds: float
    per_second: float
    server_cpu_us: float
    p50_ms: float | None = None
    p99_ms: float | None = None
    worker_user_us: float | None = None
    worker_system_us: float | None = None
    loop_user_us: float | None = None


def flags(steps: Sequence[str]) -> Flags:
    """Read the command line; the first word is one of `steps`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("step", choices=steps)
    parser.add_argument("--url", default="redis://127.0.0.1:6379/0")
    for name, default in (("count", 1000), ("in-flight", 500), ("chunk", 0), ("types", 1), ("emitters", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    for name in ("size", "members"):
        parser.add_argument(f"--{name}", type=int, default=0)
    return Flags(**vars(parser.parse_args()))


def info(url: str, section: str) -> dict[str, str]:
    """Ask the server for a section of INFO over a connection of its own, and return its fields."""
    place = urlsplit(url)
    with socket.create_connection((place.hostname or "127.0.0.1", place.port or 6379)) as link:
        link.sendall(f"*2\r\n$4\r\nINFO\r\n${len(section)}\r\n{section}\r\n".encode())
        with link.makefile("rb") as answer:
            text = answer.read(int(answer.readline()[1:])).decode()
    fields = (line.partition(":") for line in text.splitlines() if ":" in line)
    return {name: value for name, _, value in fields}


def server_cpu(url: str) -> float:
    """Return the CPU seconds that the server has used so far, user and system, all its threads."""
    found = info(url, "cpu")
    return float(found["used_cpu_user"]) + float(found["used_cpu_sys"])


class Stopwatch:
    """A context that measures its body's seconds and the server's CPU in them."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._cpu = 0.0
        self._start = 0.0
        self.seconds = 0.0

    def __enter__(self) -> Self:
        self._cpu = server_cpu(self._url)
        self._start = perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.seconds = perf_counter() - self._start
        self._cpu = server_cpu(self._url) - self._cpu

    def line(self, count: int, seconds: float | None = None) -> Line:
        """Return the figures for `count` jobs; `seconds`, if given, replaces the measured ones."""
        seconds = self.seconds if seconds is None else seconds
        return Line(count, seconds, count / seconds, self._cpu * 1e6 / count)


async def in_lanes(count: int, in_flight: int, one: Callable[[int], Awaitable[object]]) -> None:
    """Await `one(n)` for n in 0..count-1 with `in_flight` of them open at a time."""
    numbers = iter(range(count))

    async def lane() -> None:
        for n in numbers:
            await one(n)

    await asyncio.gather(*(lane() for _ in range(min(in_flight, count))))


def run(main: Coroutine[Any, Any, _T]) -> _T:
    """Run `main` on uvloop where that is installed, else on asyncio's own loop."""
    try:
        import uvloop  # noqa: PLC0415  (may be missing)
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def with_quantiles(line: Line, times: Sequence[float]) -> Line:
    """Return `line` with the median and 99th percentile of `times`, which are seconds."""
    ordered = sorted(times)
    at = [ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000 for share in (0.5, 0.99)]
    return dataclasses.replace(line, p50_ms=at[0], p99_ms=at[1])


def check(n: int, result: object) -> None:
    """Fail unless `result` is what the no-op handler answers to `n`."""
    if result != n + 1:
        raise ValueError(f"expected {n + 1} as the result of {n}, got: {result!r}")


def report(line: Line) -> None:
    """Print the line that the harness reads."""
    sys.stdout.write(json.dumps(dataclasses.asdict(line)) + "\n")
