"""Payloads of some size: jobs and bytes a second, and whose CPU they cost."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.measure import Line
from benchmarks.own.lab import Lab
from benchmarks.own.row import Column, Limit

_MEGA = 1_000_000
_SIZES = (100, 10 * 1024, 500 * 1024)
_SHARES = (0.4, 0.1, 0.008)


def _flow(prefix: str, line: Line, size: int) -> dict[str, float]:
    return {
        f"{prefix}_per_second": line.per_second,
        f"{prefix}_mb": line.per_second * size / _MEGA,
        f"{prefix}_cpu_us": line.server_cpu_us,
    }


class Payloads:
    """Enqueue (single calls, 100 in flight) and drain payloads of three sizes."""

    name = "payloads"
    title = "payloads of 100 B, 10 KiB and 500 KiB"
    columns = (
        Column("enqueue_per_second", "enqueue, jobs/s"),
        Column("enqueue_mb", "MB/s"),
        Column("enqueue_cpu_us", "server CPU, µs/job"),
        Column("drain_per_second", "drain, jobs/s"),
        Column("drain_mb", "MB/s"),
        Column("drain_cpu_us", "server CPU, µs/job"),
        Column("worker_cpu_us", "worker CPU, µs/job"),
    )
    variants = ("100 B", "10 KiB", "500 KiB")
    limits: tuple[Limit, ...] = ()
    most_rounds = 2

    def measure(self, lab: Lab) -> Iterator[tuple[str, dict[str, float]]]:
        """Measure each size."""
        for variant, size, share in zip(self.variants, _SIZES, _SHARES, strict=True):
            count = max(20, int(lab.count * share))
            lab.server.empty()
            yield variant, _flow("enqueue", lab.emit("enqueue", count, in_flight=100, size=size), size)
            lab.server.empty()
            lab.fill(count, size=size)
            line = lab.drain(count, "sized")
            cpu = (line.worker_user_us or 0.0) + (line.worker_system_us or 0.0)
            yield variant, _flow("drain", line, size) | {"worker_cpu_us": cpu}
        lab.server.empty()
