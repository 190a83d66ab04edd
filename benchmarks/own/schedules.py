"""What does the server need when very many schedules are due in one second?"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from benchmarks.own.lab import Lab
from benchmarks.own.row import Column, Limit
from benchmarks.schedules import measure_firing


class Firing:
    """Schedules that are due in the same second, fired as a worker does, without any other load."""

    name = "schedules"
    title = "10,000 schedules that are due in one second (0.2 times --count)"
    columns = (
        Column("us", "server, us each"),
        Column("longest_ms", "longest call, ms"),
        Column("seconds", "all fired within, s"),
    )
    variants = ("fired",)
    limits = (Limit("longest_ms", "fired", 10.0),)
    most_rounds = 1

    def measure(self, lab: Lab) -> Iterator[tuple[str, dict[str, float]]]:
        """Fire them once."""
        lab.server.empty()
        yield "fired", asyncio.run(measure_firing(lab.server.url, max(200, lab.count // 5)))
        lab.server.empty()
