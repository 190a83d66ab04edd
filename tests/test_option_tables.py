"""The tables of options in `docs/` name every option that there is, and no other."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from eventbus import EmitKeywords, Event, EventKeywords, HandlerKeywords, ScheduleKeywords
from workflows import WorkflowProvider, task
from workflows.definition.keywords import DurableKeywords

_DOCS = Path(__file__).parent.parent / "docs"


def _options(call: Callable[..., Any]) -> set[str]:
    parameters = inspect.signature(call).parameters.values()
    return {parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}


def _tables(page: str, heads: Iterable[str]) -> set[str]:
    """Return what stands in backticks in the first column of the tables of a page that begin so."""
    text = (_DOCS / page).read_text()
    named: set[str] = set()
    for head in heads:
        assert text.count(f"\n{head}") == 1, head
        rows = text.partition(f"\n{head}")[2].partition("\n\n")[0].splitlines()[2:]
        for row in rows:
            named.update(re.findall(r"`(\w+)`", row.split("|")[1]))
    return named


@pytest.mark.parametrize(
    ("page", "heads", "options"),
    [
        ("quickstart.md", ["| `Event(name, …)` |"], {*EventKeywords.__annotations__, "payload", "result"}),
        ("quickstart.md", ["| `emit(event, payload, …)` |"], {*EmitKeywords.__annotations__}),
        (
            "quickstart.md",
            ["| `@provider.on(event, …)` |"],
            {*HandlerKeywords.__annotations__, "group", "batch"},
        ),
        ("workflows.md", ["| option of `execute` |"], _options(WorkflowProvider.execute)),
        ("durable.md", ["| option of `@durable(name, …)` |"], {*DurableKeywords.__annotations__}),
        ("durable.md", ["| option of `@task` |"], _options(task)),
        (
            "schedules.md",
            ["| option | default | meaning |", "| option | value | what happens |"],
            {*ScheduleKeywords.__annotations__, "id", "payload"},
        ),
    ],
    ids=["Event", "emit", "on", "execute", "durable", "task", "schedules"],
)
def test_a_table_of_options_names_each_of_them(page: str, heads: list[str], options: set[str]) -> None:
    assert _tables(page, heads) == options


def test_an_event_takes_just_the_options_that_have_types_for_wrappers() -> None:
    assert _options(Event.__init__) == {*EventKeywords.__annotations__, "payload", "result"}
