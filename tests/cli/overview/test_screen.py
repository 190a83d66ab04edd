"""Tables on a narrow screen: ids and counts stay whole, and an error gets what is left."""

from __future__ import annotations

import io

import pytest
from drivers.counting import count_lines
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from eventbus.admin.queues import QueueReport
from eventbus.admin.workers import WorkerReport
from eventbus.cli.controls.overview import list_workers
from eventbus.cli.controls.queues import QUEUES
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
    head, line = _print(QUEUES.table([queue]), width)
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
    head, line = _print(list_workers(0).table([worker]), width)
    assert {"468ba33c0f6d", "shop", "host-1", "4321"} <= set(line.split())


@pytest.mark.parametrize(
    ("rate", "shown"), [(0, "0"), (0.25, "0.2"), (9.94, "9.9"), (12.4, "12"), (81234.5, "81234")]
)
def test_a_rate_has_as_many_digits_as_say_something(rate: float, shown: str) -> None:
    queue = QueueReport(name="event.order", completed_per_minute=rate)
    head, line = _print(QUEUES.table([queue]), 400)
    assert line.split()[head.split().index("completed/min")] == shown


def test_other_objects_are_printed_as_ever() -> None:
    assert _print(Text("plain"), 40) == ["plain"]


_texts = st.text(st.characters(exclude_categories=("C", "Z", "Mn")), max_size=12)


@given(st.data())
def test_a_plain_table_is_laid_out_as_rich_lays_it_out(data: st.DataObject) -> None:
    heads = data.draw(st.lists(_texts.filter(bool), min_size=1, max_size=4))
    rows = data.draw(st.lists(st.tuples(*(_texts for _ in heads)), min_size=1, max_size=5))
    table = Table(box=None, pad_edge=False, show_header=data.draw(st.booleans()))
    for head in heads:
        table.add_column(head, no_wrap=True, justify=data.draw(st.sampled_from(["left", "right"])))
    for row in rows:
        table.add_row(*map(Text, row))
    out = io.StringIO()
    Console(file=out, width=400, highlight=False, markup=False, emoji=False).print(table)
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert [line.rstrip() for line in _print(table, 400)] == lines
    grouped = _print(Group(Text("first"), table, Text("last")), 400)
    assert [line.rstrip() for line in grouped] == ["first", *lines, "last"]


def test_heads_and_what_is_marked_keep_their_colours() -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("workers", no_wrap=True, justify="right")
    table.add_row(Text("0", "bold red"))
    out = io.StringIO()
    Screen(file=out, width=80, force_terminal=True, color_system="standard").print(table)
    assert out.getvalue() == "\x1b[1mworkers\x1b[0m\n      \x1b[1;31m0\x1b[0m\n"


def test_a_table_of_200_queues_costs_about_ten_times_as_much_as_one_of_20() -> None:
    queues = [QueueReport(name=f"event.order.{n}", waiting=n, oldest=12.5) for n in range(200)]
    _print(QUEUES.table(queues[:1]), 120)

    def cost(count: int) -> int:
        with count_lines() as lines:
            assert len(_print(QUEUES.table(queues[:count]), 120)) == count + 1
        return lines.count

    few, many = cost(20), cost(200)
    assert many < 12 * few, (few, many)
    assert many < 700_000, "rich lays it out in ten times as many lines of Python"
