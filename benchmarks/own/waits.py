"""What do flows cost that wait? Very many that sleep; one that a signal wakes."""

from __future__ import annotations

import time
from collections.abc import Iterator

from benchmarks.measure import server_cpu
from benchmarks.own.lab import Lab
from benchmarks.own.process import monitored
from benchmarks.own.row import Column, Limit

_SLEEPERS = 2  # times --count
_PARTS = 10


class Sleepers:
    """An idle worker, without any flow and beside 100,000 flows that sleep for 30 days."""

    name = "flow-sleepers"
    title = "an idle worker beside 100,000 flows that sleep for 30 days (2 times --count)"
    columns = (
        Column("sent", "commands sent, 1/s"),
        Column("cpu_ms", "server CPU, ms/s"),
        Column("bytes", "memory in the server, bytes/flow"),
    )
    variants = ("no flow", "100,000 asleep")
    limits = (Limit("sent", variants[1], 1.1, is_ratio=True),)
    most_rounds = 1

    def measure(self, lab: Lab) -> Iterator[tuple[str, dict[str, float]]]:
        """Watch the server without, then with."""
        none, many = self.variants
        window = 3.0 if lab.is_small else 15.0
        lab.server.empty()
        with lab.worker("waits") as worker:
            lab.wait("sleepers", 1, worker=worker, members=1)
            before = lab.server.used_memory()
            yield none, _watched(lab, window)
            count = lab.count * _SLEEPERS
            for part in range(1, _PARTS + 1):  # a program may take two minutes
                each = count // _PARTS
                lab.wait("sleepers", each, worker=worker, members=1 + part * each)
            size = (lab.server.used_memory() - before) / count
            yield many, {**_watched(lab, window), "bytes": size}
            worker.check_runs()
        lab.server.empty()


class Signals:
    """From a signal to a sleeping flow until its code has gone on, ended, and its caller knows; one at a
    time.
    """

    name = "flow-signal"
    title = "a signal to a sleeping flow, until the caller has its result, one at a time"
    columns = (Column("p50_ms", "p50, ms"),)
    variants = ("request-reply", "signal")
    limits = (Limit("p50_ms", variants[1], 2.0, is_ratio=True),)
    most_rounds = 3

    def measure(self, lab: Lab) -> Iterator[tuple[str, dict[str, float]]]:
        """Measure a request with its reply, then a signal with its result."""
        count = max(20, int(lab.count * 0.01))
        lab.server.empty()
        with lab.worker() as worker:
            line = lab.emit("latency", count, worker=worker, in_flight=1)
            yield self.variants[0], {"p50_ms": line.p50_ms or 0.0}
        lab.server.empty()
        with lab.worker("waits") as worker:
            line = lab.wait("signal", count, worker=worker)
            yield self.variants[1], {"p50_ms": line.p50_ms or 0.0}


def _watched(lab: Lab, window: float) -> dict[str, float]:
    """Return what the server did in a window of time."""
    cpu, start = server_cpu(lab.server.url), time.perf_counter()
    time.sleep(window)
    used = (server_cpu(lab.server.url) - cpu) / (time.perf_counter() - start)
    sent, _ = monitored(lab.server.url, window)
    return {"sent": sent / window, "cpu_ms": used * 1000}
