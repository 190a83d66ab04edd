"""Does a step's cost stay flat in a large flow? And does any one call hold the server for long?"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.own.lab import Lab
from benchmarks.own.row import Column, Limit, flat_costs
from benchmarks.works import flow_jobs

_SMALL, _LARGE = 10, 1000
_SHARE = 0.2
_COLUMNS = (
    Column("us", "µs/job"),
    Column("cpu_us", "server CPU, µs/job"),
    Column("longest_ms", "the server's longest call, ms"),
)
_LONGEST_MS = 10.0


def _whole_turns(count: int, in_flight: int) -> int:
    """Return about `count`, at least 1: a multiple of `in_flight`, so that no place is empty for long."""
    return max(1, count - count % in_flight if count > in_flight else count)


class _Size:
    """What both rows do: the same number of jobs in small flows, then in large ones.

    As many of them can run at a time in both, so that only the size of a flow differs.
    """

    columns = _COLUMNS
    most_rounds = 2

    def __init__(
        self, shape: str, variants: tuple[str, str], in_flight: tuple[int, int], large: int = _LARGE
    ) -> None:
        self.variants = variants
        self.limits = (
            *flat_costs(variants[1], "us", "cpu_us"),
            *(Limit("longest_ms", variant, _LONGEST_MS) for variant in variants),
        )
        self._shape = shape
        self._in_flight = in_flight
        self._sizes = (_SMALL, large)

    def measure(self, lab: Lab) -> Iterator[tuple[str, dict[str, float]]]:
        """Measure small flows, then large ones."""
        for variant, members, in_flight in zip(self.variants, self._sizes, self._in_flight, strict=True):
            size = flow_jobs(self._shape, members)
            count = _whole_turns(int(lab.count * _SHARE / size), in_flight)
            lab.server.empty()
            with lab.worker(f"{self._shape}:{members}") as worker, lab.server.watched() as calls:
                line = lab.execute(self._shape, count, worker=worker, in_flight=in_flight, members=members)
            yield (
                variant,
                {
                    "us": 1e6 / line.per_second / size,
                    "cpu_us": line.server_cpu_us / size,
                    "longest_ms": calls.longest_ms,
                },
            )
        lab.server.empty()


class Sequence(_Size):
    """Flows of steps one after the other: five flows at a time, so five steps."""

    name = "flow-sequence"
    title = "spread flows of 10 and of 1,000 steps, one after the other, 5 flows in flight"

    def __init__(self) -> None:
        super().__init__("chain-spread", ("10 steps", "1,000 steps"), (5, 5))


class Breadth(_Size):
    """Flows of steps side by side: 2,000 of these in flight, in 200 flows or in two."""

    name = "flow-breadth"
    title = "spread flows of 10 and of 1,000 steps side by side, between a first and a last, 2,000 in flight"

    def __init__(self) -> None:
        super().__init__("fan-spread", ("10 side by side", "1,000 side by side"), (200, 2))


class LocalSequence(_Size):
    """Local flows of steps one after the other: what an entry costs in a long journal."""

    name = "flow-journal"
    title = "local flows of 10 and of 1,000 steps, one after the other, 5 flows in flight"

    def __init__(self) -> None:
        super().__init__("chain", ("10 steps", "1,000 steps"), (5, 5))


class DurableSequence(_Size):
    """Durable functions with few steps and with very many: what a step costs behind 10,000 entries."""

    name = "flow-history"
    title = "durable functions of 10 and of 9,000 steps, one flow at a time"

    def __init__(self) -> None:
        super().__init__("program", ("10 steps", "9,000 steps"), (1, 1), large=9000)


class MachineMoves(_Size):
    """State machines that make few moves and very many: what a move costs does not depend on how many there
    were.
    """

    name = "machine-moves"
    title = "state machines that make 10 and 9,000 moves, one flow at a time"

    def __init__(self) -> None:
        super().__init__("machine", ("10 moves", "9,000 moves"), (1, 1), large=9000)
