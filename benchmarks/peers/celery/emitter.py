"""The emitter of Celery, which is synchronous: one call at a time, without an event loop.

`enqueue` therefore has one call under way, whatever --in-flight says; `reply` keeps that many
tasks open and waits for the oldest.
"""

from __future__ import annotations

from collections import deque
from time import perf_counter

from benchmarks.measure import Flags, Line, Stopwatch, check, flags, report, with_quantiles
from benchmarks.peers.celery.worker import noop
from benchmarks.peers.emitting import STEPS, WARM_UP_SHARE


def enqueue(count: int) -> None:
    for n in range(count):
        noop.apply_async(kwargs={"n": n})


def ask(count: int, in_flight: int) -> list[float]:
    """Return the seconds of each of `count` tasks, `in_flight` of them open."""
    times: list[float] = []
    opened = deque()
    for n in range(count + in_flight):
        if n >= in_flight and opened:
            number, start, task = opened.popleft()
            check(number, task.get())
            times.append(perf_counter() - start)
        if n < count:
            opened.append((n, perf_counter(), noop.apply_async(kwargs={"n": n})))
    return times


def measure(given: Flags) -> Line:
    warm_up = max(1, given.count // WARM_UP_SHARE)
    if given.step in ("enqueue", "fill"):
        enqueue(warm_up if given.step == "enqueue" else 0)
        with Stopwatch(given.url) as watch:
            enqueue(given.count)
        return watch.line(given.count)
    ask(warm_up, given.in_flight)
    with Stopwatch(given.url) as watch:
        times = ask(given.count, given.in_flight)
    return with_quantiles(watch.line(given.count), times)


if __name__ == "__main__":
    report(measure(flags(STEPS)))
