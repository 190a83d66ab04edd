"""Several worker processes on one server."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.own.lab import Lab
from benchmarks.own.row import Column, Limit


class Fleet:
    """Drain one queue with 1, 2, 4 and 8 worker processes, which begin together."""

    name = "fleet"
    title = "several worker processes on one server, drain"
    columns = (Column("per_second", "jobs/s"), Column("server_cpu_us", "server CPU, µs/job"))
    variants = ("1 worker", "2 workers", "4 workers", "8 workers")
    limits: tuple[Limit, ...] = ()
    most_rounds = 3

    def measure(self, lab: Lab) -> Iterator[tuple[str, dict[str, float]]]:
        """Measure each size."""
        for variant in self.variants:
            lab.server.empty()
            lab.fill(lab.count)
            line = lab.drain_as_fleet(lab.count, int(variant.split()[0]))
            yield variant, {"per_second": line.per_second, "server_cpu_us": line.server_cpu_us}
