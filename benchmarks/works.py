"""The works that all sides do: their sizes, their steps, and the goals of our ratio to others."""

from __future__ import annotations

import msgspec

MIN_COUNT = 20

SHAPES = ("chain", "fan", "chain-spread", "fan-spread", "fan-apart", "program", "pipeline", "machine")
"""The shapes of flows (see `flows.py`); a step of such a name runs flows."""


def flow_jobs(shape: str, members: int) -> int:
    """Return how many jobs a flow of a shape has if it is spread: its steps, and its root."""
    return members + (3 if shape.startswith("fan") else 1)


class Step(msgspec.Struct, frozen=True):
    """One program to run on each side, with what its flags say."""

    name: str
    count: int
    in_flight: int
    chunk: int = 0
    members: int = 0

    @property
    def serves(self) -> str:
        """Return what a worker of ours must be told to serve; empty for its usual event."""
        return f"{self.name}:{self.members}" if self.members else ""


class Goal(msgspec.Struct, frozen=True):
    """What a figure's ratio to the same figure of `against`, a side's name, must be at least or at most."""

    field: str
    against: str
    limit: float
    at_least: bool = True


class Work(msgspec.Struct, frozen=True):
    """One thing to measure.

    `share` is the work's part of --count; `chunk` 0 means single calls, `ALL` one call for
    everything. `filled`: the queue is filled first, not measured. `answered`: a worker process
    runs meanwhile. `shape`: it is flows of that shape, with `members` steps (see `flows.py`); a
    flow is then what is counted.
    """

    name: str
    title: str
    goals: tuple[Goal, ...] = ()
    share: float = 1.0
    in_flight: int = 500
    chunk: int = 0
    filled: bool = False
    answered: bool = False
    shape: str = ""
    members: int = 0

    def count(self, full: float) -> int:
        """Return how many jobs this work has when --count is `full`."""
        return max(MIN_COUNT, int(full * self.share))

    def steps(self, full: float) -> list[Step]:
        """Return the programs to run, one after the other; the last one is measured."""
        count = self.count(full)
        fill = [Step("fill", count, self.in_flight, FILL_CHUNK)] if self.filled else []
        return [*fill, Step(self.step, count, self.in_flight, min(self.chunk, count), self.members)]

    @property
    def step(self) -> str:
        """Return the name of the measured program."""
        return "bulk" if self.chunk else self.shape or self.name

    @property
    def unit(self) -> str:
        """Return what is counted, in a word."""
        return "flow" if self.shape else "job"


ALL = 1_000_000_000
FILL_CHUNK = 1000

_SPEED = "per_second"
_FLOOR = Goal(_SPEED, "floor", 0.5)
_SLOWER = ("streaq", "SAQ", "taskiq", "docket")

WORKS = (
    Work("enqueue", "enqueue, single calls, 500 in flight", (Goal(_SPEED, "BullMQ", 4), _FLOOR)),
    Work("bulk", "enqueue, one bulk call", (Goal(_SPEED, "BullMQ", 4.5), _FLOOR), chunk=ALL),
    Work("bulk-1000", "enqueue, bulk calls of 1,000", chunk=1000),
    Work(
        "drain",
        "drain, one worker, concurrency 100",
        (Goal(_SPEED, "BullMQ", 4), *(Goal(_SPEED, name, 20) for name in _SLOWER), _FLOOR),
        filled=True,
    ),
    Work(
        "reply",
        "request-reply, 100 in flight",
        (Goal(_SPEED, "BullMQ", 8), Goal("server_cpu_us", "BullMQ", 0.125, at_least=False), _FLOOR),
        share=0.4,
        in_flight=100,
        answered=True,
    ),
    Work(
        "latency",
        "request-reply, one at a time",
        (Goal("p50_ms", "BullMQ", 0.5, at_least=False),),
        share=0.04,
        in_flight=1,
        answered=True,
    ),
    Work(
        "flow-3",
        "flow of 3 steps, one after the other, 50 in flight",
        (
            Goal(_SPEED, "BullMQ", 7),
            Goal("server_cpu_us", "BullMQ", 1 / 6, at_least=False),
            Goal(_SPEED, "DBOS", 30),
        ),
        share=0.1,
        in_flight=50,
        answered=True,
        shape="chain",
        members=3,
    ),
    Work(
        "flow-3-spread",
        "the same, spread: a job for each step",
        (Goal(_SPEED, "BullMQ", 3),),
        share=0.1,
        in_flight=50,
        answered=True,
        shape="chain-spread",
        members=3,
    ),
    Work(
        "flow-3-durable",
        "a durable function of 3 steps, one after the other, 50 in flight",
        (Goal(_SPEED, "BullMQ", 7), Goal(_SPEED, "DBOS", 30)),
        share=0.1,
        in_flight=50,
        answered=True,
        shape="program",
        members=3,
    ),
    Work(
        "flow-3-100",
        "flow of 3 steps, one after the other, 100 in flight",
        (Goal(_SPEED, "BullMQ", 7),),
        share=0.1,
        in_flight=100,
        answered=True,
        shape="chain",
        members=3,
    ),
    Work(
        "flow-3-durable-100",
        "a durable function of 3 steps, one after the other, 100 in flight",
        (Goal(_SPEED, "BullMQ", 7),),
        share=0.1,
        in_flight=100,
        answered=True,
        shape="program",
        members=3,
    ),
    Work(
        "flow-1-10-1",
        "flow of 12 steps, 1, then 10 side by side, then 1, 50 in flight",
        (Goal(_SPEED, "BullMQ", 6),),
        share=0.04,
        in_flight=50,
        answered=True,
        shape="fan",
        members=10,
    ),
    Work(
        "flow-1-10-1-spread",
        "the flow of 12 steps, spread: a job for each step",
        (Goal(_SPEED, "BullMQ", 2.5),),
        share=0.04,
        in_flight=50,
        answered=True,
        shape="fan-spread",
        members=10,
    ),
    Work(
        "pipeline-5",
        "a pipeline of 5 steps, one after the other, 50 in flight",
        share=0.06,
        in_flight=50,
        answered=True,
        shape="pipeline",
        members=5,
    ),
    Work(
        "machine-10",
        "a state machine of 10 moves, 50 in flight",
        share=0.04,
        in_flight=50,
        answered=True,
        shape="machine",
        members=10,
    ),
)
"""All works, in the order of the table."""
