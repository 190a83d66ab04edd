"""Lists of jobs: their cursors as text, the states that somebody names, and where a list by time ends."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import get_args

from eventbus.errors import DefinitionError
from eventbus.model.names import shown
from eventbus.model.states import JobState
from eventbus.store.calls.queries import Cursor, JobRow, RowPage

_OF_STATE = "~"
"""Stands between the state and the rest, in a cursor of a list of several states."""


def check_state(state: str) -> str:
    """Return `state` if jobs may be in it. Raises DefinitionError."""
    if state not in get_args(JobState):
        known = ", ".join(get_args(JobState))
        raise DefinitionError(f"expected a state of jobs, one of {known}, got: {shown(state)}")
    return state


def check_states(states: str | Iterable[str]) -> list[str]:
    """Return one state or several as a list without repeats, in the order in which they are given. Raises
    DefinitionError.
    """
    given = [states] if isinstance(states, str) else list(dict.fromkeys(states))
    if not given:
        raise DefinitionError("expected a state of jobs, or several, got none")
    return [check_state(each) for each in given]


def check_ended(state: str) -> None:
    """Raise DefinitionError unless `state` is one in which jobs have ended."""
    if state not in ("completed", "failed", "cancelled"):
        raise DefinitionError(
            "expected since with state completed, failed or cancelled, because others have no end; "
            f"got: {shown(state)}"
        )


def read_cursor(cursor: str | None) -> Cursor:
    """Return the place that a cursor names, the first one for None. Raises DefinitionError for other text."""
    if cursor is None:
        return Cursor()
    try:
        text = base64.urlsafe_b64decode(cursor.encode("ascii")).decode("utf-8", "surrogateescape")
    except (ValueError, UnicodeError):
        text = ""
    length, _, rest = text.partition(":")
    score, after = (rest[: int(length)], rest[int(length) :]) if length.isdecimal() else ("", "")
    if not score or not after.startswith(":") or after == ":":
        raise DefinitionError(f"expected the cursor of an earlier list of jobs, got: {shown(cursor)}")
    return Cursor(after[1:], score)


def write_cursor(cursor: Cursor) -> str:
    """Return it as text that may stand on a command line and in a URL."""
    text = f"{len(cursor.score)}:{cursor.score}:{cursor.after}"
    return base64.urlsafe_b64encode(text.encode("utf-8", "surrogateescape")).decode("ascii")


def read_place(cursor: str | None, states: list[str]) -> tuple[str, Cursor]:
    """Return the state and the place in it where a page begins. Raises DefinitionError for a cursor of
    another list.
    """
    state, mark, rest = (cursor or "").rpartition(_OF_STATE)
    if not mark:
        return states[0], read_cursor(cursor)
    if state not in states:
        raise DefinitionError(
            f"expected the cursor of a list of {', '.join(states)}, got one of: {shown(state)}"
        )
    return state, read_cursor(rest) if rest else Cursor()


def write_place(state: str, place: Cursor, states: list[str]) -> str:
    """Return it as text; that of one state alone is as it always was."""
    text = write_cursor(place) if place.after else ""
    return text if len(states) == 1 else f"{state}{_OF_STATE}{text}"


def cut_older(page: RowPage, oldest_ms: int) -> tuple[list[JobRow], Cursor | None]:
    """Return the jobs of a page that ended at `oldest_ms` or later, and where to go on.

    Jobs come newest first, so behind an older one there are none. Those that go at a time of their own come
    last, in the order of that time; so these are all looked at.
    """
    rows = [row for row in page.jobs if row.ended >= oldest_ms]
    is_leaving = page.cursor is not None and page.cursor.score.startswith("l")
    if oldest_ms and len(rows) < len(page.jobs) and not is_leaving:
        return rows, Cursor("leaving", "l") if page.cursor is not None else None
    return rows, page.cursor
