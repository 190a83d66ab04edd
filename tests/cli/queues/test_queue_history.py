"""`eventbus queues history`: small charts of a queue for people, and its minutes as JSON for programs."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable

import pytest
from drivers.program import Program
from typer.testing import Result

from eventbus import EventProvider, Retry
from eventbus.cli.controls.history import sparkline

Invoke = Callable[..., Result]
MakeProvider = Callable[..., EventProvider]


@pytest.fixture
def _worked(make_provider: MakeProvider) -> None:
    """Three jobs completed, and one failed."""

    async def work() -> None:
        provider = make_provider()

        @provider.on("ask", retry=Retry(attempts=1))
        async def ask(payload: int) -> None:
            if payload < 0:
                raise ValueError(payload)

        async with provider, provider.worker():
            emissions = [provider.emit("ask", number) for number in (1, 2, 3, -1)]
            await asyncio.gather(*emissions, return_exceptions=True)

    asyncio.run(work())


@pytest.mark.usefixtures("_worked")
def test_people_see_bars_sums_and_percentiles(invoke: Invoke) -> None:
    result = invoke("queues", "history", "ask")
    assert result.exit_code == 0
    head, completed, failed, waited, ran = result.stdout.splitlines()
    assert head.split()[:3] == ["jobs", "total", "since"]
    assert completed.split()[:2] == ["completed", "3"]
    assert failed.split()[:2] == ["failed", "1"]
    assert completed.count("█") == failed.count("█") == 1
    assert waited.split()[:2] == ["waited", "p50"]
    assert ran.split()[:2] == ["ran", "p50"]


@pytest.mark.usefixtures("_worked")
def test_a_list_of_queues_tells_how_many_jobs_end_in_a_minute(invoke: Invoke) -> None:
    found = json.loads(invoke("queues", "list", "--json").stdout)
    assert 3 / 5 <= found["completed_per_minute"] <= 3 / 4
    assert 1 / 5 <= found["failed_per_minute"] <= 1 / 4
    head, line = (each.split() for each in invoke("queues").stdout.splitlines())
    rates = dict(zip(head, line, strict=True))
    assert rates["completed/min"] in ("0.6", "0.7", "0.8")
    assert rates["failed/min"] == "0.2"


@pytest.mark.usefixtures("_worked")
def test_programs_get_an_object_for_each_minute(invoke: Invoke) -> None:
    result = invoke("queues", "history", "event.ask", "--last", "30m", "--json")
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(rows) == 30
    assert (sum(row["completed"] for row in rows), sum(row["failed"] for row in rows)) == (3, 1)
    assert sum(row["runs"]["count"] for row in rows) == 4
    assert {"at_ms", "waiting", "oldest_ms", "retried", "cancelled", "stalled", "expired", "waits"} < set(
        rows[0]
    )
    hours = invoke("queues", "history", "ask", "--last", "2d", "--step", "1h", "--json").stdout.splitlines()
    assert len(hours) == 48


def test_a_queue_without_jobs_says_so(invoke: Invoke) -> None:
    invoke("queues", "pause", "ask")  # so that it is known
    assert invoke("queues", "history", "ask").stdout.startswith("no job ended since ")


def test_a_wrong_step_is_refused(invoke: Invoke) -> None:
    result = invoke("queues", "history", "ask", "--step", "5m")
    assert result.exit_code == 2
    assert 'expected step to be "1m" or "1h", got: \'5m\'' in result.stderr


@pytest.mark.parametrize(
    ("values", "bars"),
    [
        ([], ""),
        ([0, 0], "  "),
        ([1, 4, 8], "▁▄█"),
        ([1, 1000], "▁█"),
        ([3] * 120, "█" * 60),
        ([0] * 61, " " * 31),
    ],
)
def test_the_highest_bar_is_the_greatest_value_and_no_value_vanishes(values: list[int], bars: str) -> None:
    assert sparkline(values) == bars


@pytest.mark.slow
async def test_a_killed_worker_loses_only_what_it_had_not_told_and_the_next_one_counts_on(
    start: Callable[..., Program], make_provider: MakeProvider
) -> None:
    """`tallies-lost`"""
    async with make_provider() as provider:
        for ends, least in ((signal.SIGKILL, 0), (signal.SIGTERM, 20)):
            program = start("worker", "shop:provider")
            program.wait_for("worker ready")
            assert await asyncio.gather(*provider.emit_many("double", [1] * 20)) == [2] * 20
            program.send(ends)
            program.wait()
            counted = sum(each.completed for each in await provider.inspector.queues.history("double"))
            assert least <= counted <= least + 20
        assert await provider.inspector.queues.count("double", states=["completed"]) == {"completed": 40}
