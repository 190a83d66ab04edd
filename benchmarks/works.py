"""The works that are measured: their sizes, their steps, the figures shown and their goals."""

from __future__ import annotations

import msgspec

MIN_COUNT = 20


class Step(msgspec.Struct, frozen=True):
    """One program to run on each side, with what its flags say."""

    name: str
    count: int
    in_flight: int
    chunk: int = 0


class Figure(msgspec.Struct, frozen=True):
    """One figure of a work: a field of `Line`, how it is called, and the goal of its ratio to BullMQ."""

    field: str
    unit: str
    goal: float | None = None
    more_is_better: bool = False


class Work(msgspec.Struct, frozen=True):
    """One thing to measure.

    `share` is the work's part of --count; `chunk` 0 means single calls, `ALL` one call for
    everything. `filled`: the queue is filled first, not measured. `answered`: a worker process
    runs meanwhile.
    """

    name: str
    title: str
    figures: tuple[Figure, ...]
    share: float = 1.0
    in_flight: int = 500
    chunk: int = 0
    filled: bool = False
    answered: bool = False

    def count(self, full: int) -> int:
        """Return how many jobs this work has when --count is `full`."""
        return max(MIN_COUNT, int(full * self.share))

    def steps(self, full: int) -> list[Step]:
        """Return the programs to run, one after the other; the last one is measured."""
        count = self.count(full)
        fill = [Step("fill", count, self.in_flight, FILL_CHUNK)] if self.filled else []
        return [*fill, Step(self.step, count, self.in_flight, min(self.chunk, count))]

    @property
    def step(self) -> str:
        """Return the name of the measured program."""
        return "bulk" if self.chunk else self.name


ALL = 1_000_000_000
FILL_CHUNK = 1000


def _per_second(goal: float) -> Figure:
    return Figure("per_second", "jobs/s", goal, more_is_better=True)


_CPU = Figure("server_cpu_us", "server CPU, µs/job")

WORKS = (
    Work("enqueue", "enqueue, single calls, 500 in flight", (_per_second(4), _CPU)),
    Work("bulk", "enqueue, one bulk call", (_per_second(4), _CPU), chunk=ALL),
    Work("bulk-1000", "enqueue, bulk calls of 1,000", (_per_second(4), _CPU), chunk=1000),
    Work("drain", "drain, one worker, concurrency 100", (_per_second(4), _CPU), filled=True),
    Work(
        "reply",
        "request-reply, 100 in flight",
        (_per_second(6), Figure("server_cpu_us", "server CPU, µs/job", 0.2)),
        share=0.4,
        in_flight=100,
        answered=True,
    ),
    Work(
        "latency",
        "request-reply, one at a time",
        (Figure("p50_ms", "p50, ms", 0.5), Figure("p99_ms", "p99, ms"), _CPU),
        share=0.04,
        in_flight=1,
        answered=True,
    ),
)
"""All works, in the order of the table."""
