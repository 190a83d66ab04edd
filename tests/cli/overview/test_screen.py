"""Tables on a narrow screen: ids and counts stay whole, and an error gets what is left."""

from __future__ import annotations

import io

import pytest
from rich.table import Table
from rich.text import Text

from eventbus.admin.overview import QueueReport, WorkerReport
from eventbus.cli.controls.overview_views import tabulate_queues, tabulate_workers
from eventbus.cli.screen import Screen

_ID = "0-e650423c0f6d4b1a9d3e5c7a-order.placed"
_ERROR = "ConnectionError: the bank is away and does not answer " * 4


def _print(table: object, width: int) -> list[str]:
    out = io.StringIO()
    Screen(file=out, width=width, highlight=False, markup=False, emoji=False).print(table)
    return out.getvalue().splitlines()


@pytest.mark.parametrize("width", [40, 80, 100, 120, 400])
def test_an_id_is_whole_and_an_error_is_cut(width: int) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("job", no_wrap=True)
    table.add_column("attempts", no_wrap=True, justify="right")
    table.add_column("error", no_wrap=True, overflow="ellipsis")
    table.add_row(Text(_ID), Text("12"), Text(_ERROR))
    head, line = _print(table, width)
    assert head.split() == ["job", "attempts", "error"]
    assert _ID in line
    assert " 12 " in line
    assert "ConnectionError" in line
    assert len(line.rstrip()) <= max(width, len(_ID) + 2 + 8 + 2 + 24)


@pytest.mark.parametrize("width", [80, 100, 120])
def test_queues_and_workers_have_all_their_heads_names_and_counts(width: int) -> None:
    queue = QueueReport(name="event.order.placed@billing", waiting=12345, failed=67, oldest=12.5)
    head, line = _print(tabulate_queues([queue]), width)
    for name in (
        "queue",
        "oldest",
        "waiting",
        "delayed",
        "completed",
        "cancelled",
        "workers",
        "paused",
        "limit",
    ):
        assert name in head.split()
    assert line.split()[0] == queue.name
    assert {"12345", "67"} <= set(line.split())
    worker = WorkerReport(
        id="468ba33c0f6d", name="shop", host="host-1", pid=4321, queues=[f"event.{n}" for n in range(9)]
    )
    head, line = _print(tabulate_workers([worker], 0), width)
    assert {"468ba33c0f6d", "shop", "host-1", "4321"} <= set(line.split())


@pytest.mark.parametrize(
    ("rate", "shown"), [(0, "0"), (0.25, "0.2"), (9.94, "9.9"), (12.4, "12"), (81234.5, "81234")]
)
def test_a_rate_has_as_many_digits_as_say_something(rate: float, shown: str) -> None:
    queue = QueueReport(name="event.order", completed_per_minute=rate)
    head, line = _print(tabulate_queues([queue]), 400)
    assert line.split()[head.split().index("completed/min")] == shown


def test_other_objects_are_printed_as_ever() -> None:
    assert _print(Text("plain"), 40) == ["plain"]
