"""Which steps of a local flow are in doubt after its worker died."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from eventbus import Retry
from workflows import StepContext, Workflow
from workflows.distributed.undo.doubts import find_doubts
from workflows.distributed.worker_runtime import Flow
from workflows.records.entries import Entry
from workflows.records.graph_history import read_graph
from workflows.records.records import FlowMessage

_ERROR = msgspec.Raw(b'{"type":"ValueError","message":"no"}')
_FIRST = Entry(kind="run", run=1, version="1", steps=("a", "b", "c", "d"))


async def _act(ctx: StepContext[Any]) -> None:
    pass


def _workflow() -> Workflow[Any, Any]:
    """Make `a`, then `b` and `c`, then `d`."""
    made = Workflow[Any, Any]("w", retry=Retry(attempts=3))
    made.step(_act, name="a")
    for name in ("b", "c"):
        made.step(_act, name=name, after="a")
    made.step(_act, name="d", after=["b", "c"])
    return made


def _doubts(*entries: Entry, run: int = 1, kept: dict[str, int] | None = None) -> dict[str, Entry]:
    message = FlowMessage(input=msgspec.Raw(b"null"), run=run, kept=kept or {})
    flow = cast("Flow", SimpleNamespace(workflow=_workflow(), message=message))
    return find_doubts(flow, read_graph(entries, message), created_ms=3, now_ms=1000)


def _done(name: str, started_ms: int = 100) -> Entry:
    return Entry(kind="step", place=name, started_ms=started_ms, took_ms=20)


def test_the_first_steps_may_have_run_before_anything_was_recorded() -> None:
    doubts = _doubts()
    assert doubts == {"a": Entry(kind="cut", place="a", started_ms=3, took_ms=997, is_lost=True)}


def test_what_could_begin_is_in_doubt_from_the_end_of_what_it_needs_and_what_waited_is_not() -> None:
    doubts = _doubts(_FIRST, _done("a"))
    assert {name: (each.started_ms, each.took_ms) for name, each in doubts.items()} == {
        "b": (120, 880),
        "c": (120, 880),
    }


@pytest.mark.parametrize(
    ("entry", "in_doubt"),
    [
        (_done("b"), False),
        (Entry(kind="step", place="b", skipped=True), False),
        (Entry(kind="failed", place="b", attempts=3, error=_ERROR), False),
        (Entry(kind="cut", place="b", is_lost=True), False),  # that is recorded already
        (Entry(kind="cut", place="b", attempts=1), True),  # it may have run again since
        (Entry(kind="try", place="b", attempts=1, due_ms=1000, error=_ERROR), True),
        (Entry(kind="try", place="b", attempts=1, due_ms=1001, error=_ERROR), False),
    ],
    ids=["completed", "skipped", "failed", "lost", "cut", "due", "not due"],
)
def test_the_last_entry_of_a_step_says_whether_it_may_have_run_since(entry: Entry, in_doubt: bool) -> None:
    doubts = _doubts(_FIRST, _done("a"), entry)
    assert ("b" in doubts) == in_doubt
    if in_doubt:
        assert doubts["b"].attempts == entry.attempts


def test_in_a_retry_by_hand_a_step_waits_for_what_the_kept_ones_waited_for() -> None:
    second = Entry(kind="run", run=2, version="1", steps=_FIRST.steps)
    doubts = _doubts(_FIRST, _done("a"), _done("b"), second, run=2, kept={"a": 1, "b": 1})
    assert list(doubts) == ["c"]


@pytest.mark.parametrize(("recorded", "now", "doubtful"), [(3, 2, 3), (2, 3, 3), (0, 2, 2)])
def test_as_many_items_are_in_doubt_as_any_release_may_have_begun(
    recorded: int, now: int, doubtful: int
) -> None:
    graph = Workflow[Any, Any]("w")

    async def convert(ctx: StepContext[Any], item: int) -> None: ...

    graph.each(over=lambda ctx: [], at_once=now, name="a")(convert)
    message = FlowMessage(input=msgspec.Raw(b"null"), bare=True)
    items = msgspec.Raw(b"[1,2,3,4,5]")
    history = read_graph([_FIRST, Entry(kind="each", place="a", result=items, at_once=recorded)], message)
    flow = cast("Flow", SimpleNamespace(workflow=graph, message=message))
    doubts = find_doubts(flow, history, created_ms=3, now_ms=1000)
    assert list(doubts) == [f"a[{index}]" for index in range(doubtful)]
