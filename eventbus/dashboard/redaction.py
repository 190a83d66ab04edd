"""Redaction: which values of payloads, results and errors a caller sees.

    payload.read  redact      values                                errors
    yes           patterns    without those that have secret names  without what they quote of these
    yes           a function  without those that it names, too      on a job's own page as above,
                                                                    else the type alone
    yes           none        all but those marked as Sensitive     without what they quote of secret names
    yes           all         names and types                       the type alone
    no            -           nothing                               the type alone

What is hidden in an error was found by the worker that recorded it (`model.redaction`), so nothing is
searched here. What must always hold: whatever leaves by a page or by the API has passed here; only
`payload.reveal` goes around it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias, cast

from eventbus.model.redaction.redacting import Names, hide, hide_all, is_secret_name

Redact: TypeAlias = "Literal['patterns', 'all', 'none'] | Callable[[str, str], bool]"
"""`patterns` hides values by their names, `all` hides every value and keeps names and types, `none` hides
nothing.

A function gets the name of the event and that of the field, and returns whether its value is hidden, beside
those that the patterns hide.
"""

_ERRORS = ("error", "errors", "note")
_EMPTIED: dict[str, Any] = {"message": "", "traceback": "", "causes": [], "lines": []}


class Redaction:
    """What one caller sees of one job or flow."""

    def __init__(self, redact: Redact, event: str, where: str, *, may_read: bool) -> None:
        """`where` is the id of the job or flow, and `may_read` whether the caller may read payloads."""
        self.may_read: bool = may_read
        self.hides_all: bool = redact == "all" or not may_read
        self._where = where
        self.names: Names | None = None
        """Says of the name of a field whether its value is hidden; None if the names say nothing."""
        if callable(redact):
            self.names = lambda name: is_secret_name(name) or redact(event, name)
        elif redact == "patterns":
            self.names = is_secret_name
        self.hides_errors: bool = self.hides_all or callable(redact)
        """Whether no more than the types of errors are shown."""

    def value(self, given: Any, field: str) -> Any:
        """Return a value of JSON, such as that of the field `result`, without what is hidden."""
        if not self.may_read:
            return None
        where = f"{self._where}/{field}"
        return (
            hide_all(given, where=where)
            if self.hides_all
            else hide(given, None, names=self.names, where=where)
        )

    def errors(self, report: Any, *, are_searched: bool = False) -> Any:
        """Return a report, made of dicts, lists and texts, with no more than the types of errors where these
        may quote what is hidden.

        `are_searched` says that the inspector has hidden in it what the names of fields say.
        """
        is_whole = not self.hides_errors or (are_searched and not self.hides_all)
        return report if is_whole else _without_texts(report)

    def error(self, text: str) -> str:
        """Return an error of a list."""
        return _type_in(text) if self.hides_errors else text


def _without_texts(report: Any) -> Any:
    if isinstance(report, dict):
        return {
            name: _EMPTIED[name]
            if name in _EMPTIED
            else _types_in(value)
            if name in _ERRORS
            else _without_texts(value)
            for name, value in cast("dict[str, Any]", report).items()
        }
    if isinstance(report, list):
        return [_without_texts(part) for part in cast("list[Any]", report)]
    return report


def _types_in(value: Any) -> Any:
    if isinstance(value, str):
        return _type_in(value)
    if isinstance(value, dict):
        return {name: _types_in(part) for name, part in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_types_in(part) for part in cast("list[Any]", value)]
    return value


def _type_in(text: str) -> str:
    return text.partition(":")[0]
