"""What the journal of a graph says about a run."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from drivers.counting import count_lines

from eventbus import StoreCorrupt
from workflows import StepContext, Workflow
from workflows.execution.graph_entries import find_lost_undo
from workflows.records.entries import Entry, encode_entry, read_entries
from workflows.records.graph_history import GraphHistory, read_graph
from workflows.records.records import FlowMessage

_NULL = msgspec.Raw(b"null")
_ERROR = msgspec.Raw(b'{"type":"ValueError","message":"no"}')


def _run(number: int, *steps: str) -> Entry:
    return Entry(kind="run", run=number, version="1", steps=steps)


def _done(name: str, result: bytes = b"1") -> Entry:
    return Entry(kind="step", place=name, result=msgspec.Raw(result))


def _read(*entries: Entry, run: int = 1, kept: dict[str, int] | None = None) -> GraphHistory:
    message = FlowMessage(input=_NULL, run=run, kept=kept or {}, bare=True)
    return read_graph(read_entries("f", [encode_entry(each) for each in entries]), message)


def _states(history: GraphHistory) -> dict[str, str]:
    return {name: step.state for name, step in history.steps.items()}


def test_an_entry_is_short_and_reads_back_as_it_was() -> None:
    entry = Entry(kind="try", place="a", error=_ERROR, attempts=2, started_ms=5, took_ms=1, due_ms=9)
    text = encode_entry(entry)
    assert text == '{"k":"try","p":"a","e":{"type":"ValueError","message":"no"},"a":2,"t":5,"d":1,"w":9}'
    (read,) = read_entries("f", [text])
    assert (read.kind, read.failure, read.attempts, read.due_ms) == ("try", bytes(_ERROR).decode(), 2, 9)
    assert encode_entry(Entry(kind="stop")) == '{"k":"stop"}'


def test_an_unknown_key_or_kind_of_a_later_release_is_ignored() -> None:
    entries = read_entries("f", ['{"k":"run","x":1,"new":[1]}', '{"k":"sparkle","p":"a"}'])
    history = read_graph(entries, FlowMessage(input=_NULL, bare=True))
    assert (history.is_local, history.steps) == (True, {})


@pytest.mark.parametrize("text", ["", "no", "[]", '{"p":"a"}', '{"k":1}'])
def test_what_is_no_entry_is_corrupt(text: str) -> None:
    with pytest.raises(StoreCorrupt, match="the journal of flow f cannot be read"):
        read_entries("f", [encode_entry(_done("a")), text])


def test_the_last_entry_of_a_step_counts_and_orders_it() -> None:
    history = _read(
        _run(1, "a", "b", "c"),
        Entry(kind="try", place="b", error=_ERROR, attempts=1, due_ms=3),
        Entry(kind="cut", place="a"),
        Entry(kind="step", place="b", skipped=True),
        _done("a"),
        Entry(kind="cut", place="c", is_lost=True),
    )
    assert _states(history) == {"b": "skipped", "a": "completed", "c": "unknown"}
    assert list(history.order) == ["b", "a", "c"]
    assert history.completed() == ["a"]
    assert history.steps["b"].errors == [bytes(_ERROR).decode()]
    assert (history.names, history.version, history.is_local) == (("a", "b", "c"), "1", True)


def test_reading_ten_times_as_many_items_costs_about_ten_times_as_much() -> None:
    message = FlowMessage(input=_NULL, bare=True)

    def cost(count: int) -> int:
        entries = [
            Entry(kind=kind, place=f"a[{index}]") for index in range(count) for kind in ("try", "step")
        ]
        with count_lines() as lines:
            history = read_graph([_run(1, "a"), *entries], message)
        assert len(history.order) == count
        return lines.count

    few, many = cost(300), cost(3_000)
    assert many < 12 * few, (few, many)  # 100 times if each entry read those before it


def test_a_run_has_its_own_entries_and_those_of_the_steps_that_were_kept() -> None:
    entries = [
        _run(1, "a", "b", "c"),
        _done("a", b"1"),
        _done("b", b"1"),
        Entry(kind="failed", place="c", error=_ERROR, attempts=1),
        Entry(kind="stop"),
        Entry(kind="undo", place="b"),
        Entry(kind="undo", place="a", error=_ERROR),
        Entry(kind="hook", place="failed"),
        _run(2, "a", "b", "c"),
        _done("b", b"2"),
    ]
    first = _read(*entries, run=1)
    assert _states(first) == {"a": "completed", "b": "completed", "c": "failed"}
    assert first.undone == {"b": "", "a": bytes(_ERROR).decode()}
    assert first.failed is not None
    assert (first.failed.step, first.is_stopped, first.hooks) == ("c", True, {"failed"})
    second = _read(*entries, run=2, kept={"a": 1})
    assert _states(second) == {"a": "completed", "b": "completed"}
    assert bytes(second.steps["b"].last.result) == b"2"
    assert (second.undone, second.is_stopped, second.failed) == ({}, False, None)


def test_a_run_whose_steps_are_jobs_is_not_local() -> None:
    history = _read(_run(1, "a"), _done("a"), Entry(kind="spread", run=2, version="1"), run=2)
    assert (history.is_begun, history.mode, history.is_local) == (True, "spread", False)
    assert not _read().is_begun


def test_a_rollback_that_is_gone_is_missed_until_it_has_run() -> None:
    workflow = Workflow[Any, Any]("w")

    @workflow.step
    async def a(ctx: StepContext[Any]) -> None: ...

    done = Entry(kind="step", place="a", undo="rollback")
    assert find_lost_undo(_read(_run(1, "a"), done), workflow) == "a"
    assert not find_lost_undo(_read(_run(1, "a"), _done("a")), workflow)
    assert not find_lost_undo(_read(_run(1, "a"), done, Entry(kind="undo", place="a")), workflow)
    assert not find_lost_undo(
        _read(_run(1, "a"), done, Entry(kind="undo", place="a", error=_ERROR)), workflow
    )

    @a.rollback
    async def undo(ctx: StepContext[Any], result: None) -> None: ...

    assert not find_lost_undo(_read(_run(1, "a"), done), workflow)
