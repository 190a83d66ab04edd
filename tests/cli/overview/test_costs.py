"""What commands that read cost with very many jobs: as much as with a tenth of them. How many seconds
that are, `python -m benchmarks.looks.reads` tells, of 100,000 jobs and whole processes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from drivers.counting import count_commands, count_lines
from typer.testing import Result

from eventbus import EventProvider

_FEW, _MANY = 1_000, 10_000
_QUEUES = 200
_MOST_LINES, _MOST_COMMANDS = 1_600_000, 50 * _QUEUES
"""Twice what the dearest read takes: a table of 1,000 jobs, and all about 200 queues."""
_READS = (
    *("queues", "queues --json", "queues list bulk", "queues controls", "queues history bulk --last 7d"),
    *("workers", "top --once", "groups", "schedules", "operations list", "audit", "flows", "flows waiting"),
    *(
        f"jobs list bulk --state {state}"
        for state in ("waiting", "delayed", "active", "cancelled", "completed")
    ),
    *("jobs count bulk", "jobs list bulk --limit 1000", "jobs failures", "jobs find bulk --key none"),
    *("jobs find bulk --correlation-id none", "jobs find bulk --field n:1", "jobs purge bulk --dry-run"),
)  # fmt: skip
_SEARCHES = ("jobs find bulk --correlation-id none", "jobs find bulk --field n:1")
"""They look at all jobs, in slices of time: a busy server makes more of them."""


async def _plant(provider: EventProvider, count: int) -> None:
    async with provider:
        for delay in (None, "1 day"):
            provider.emit_many("bulk", [{"n": 0}] * count, delay=delay, reply=False)
            await provider.flush()


async def _plant_queues(provider: EventProvider) -> None:
    async with provider:
        for n in range(_QUEUES):
            provider.emit(f"other.{n}", n, reply=False)
        await provider.flush()


@pytest.mark.once
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_no_read_costs_more_with_ten_times_as_many_jobs(
    make_provider: Callable[..., EventProvider], invoke: Callable[..., Result], admin: Callable[..., Any]
) -> None:
    def cost(line: str) -> tuple[int, int]:
        assert invoke(*line.split()).exit_code == 0, line  # it imports what the command needs
        with count_lines() as lines, count_commands(admin) as commands:
            assert invoke(*line.split()).exit_code == 0, line
        return lines.count, commands.count

    asyncio.run(_plant_queues(make_provider()))
    asyncio.run(_plant(make_provider(), _FEW))
    few = {line: cost(line) for line in _READS}
    asyncio.run(_plant(make_provider(), _MANY - _FEW))
    many = {line: cost(line) for line in _READS}
    for place, what in enumerate(("lines of Python", "commands")):
        more = {line: (few[line][place], many[line][place]) for line in _READS if line not in _SEARCHES}
        assert {line: each for line, each in more.items() if each[1] > 1.5 * each[0]} == {}, what
    assert {
        line: each for line, each in many.items() if each[0] > _MOST_LINES or each[1] > _MOST_COMMANDS
    } == {}
