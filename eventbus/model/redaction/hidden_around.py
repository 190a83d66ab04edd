"""What errors around the caller must not quote: the hidden values of the job that runs here.

Whoever runs a job whose errors are recorded at many places, such as a flow, says so once, at the beginning of
its run. It adds what the job gets from others, such as the results of steps and the payloads of signals,
because an error may quote these as well as its input. The values are looked for only when somebody asks, as
an error does. What must hold: they are those of one task and of the tasks that it begins.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from functools import cached_property
from typing import Any, TypeAlias

import msgspec

from eventbus.model.redaction.hidden_values import NOTHING_HIDDEN, HiddenTexts, HiddenValues, find_texts
from eventbus.model.redaction.marks import find_marks
from eventbus.model.redaction.redacting import is_secret_name

__all__ = [
    "hidden_around",
    "hide_around",
    "is_quoting",
    "note_around",
    "note_forms_around",
]

Given: TypeAlias = str | bytes | msgspec.Raw


class _Around:
    """One job: its body, and what it got: JSON, and the type, by name."""

    def __init__(self, read: Callable[[], str]) -> None:
        self._read = read
        self._given: dict[str, tuple[Given, Any]] = {}
        self._found = NOTHING_HIDDEN

    @cached_property
    def _in_body(self) -> HiddenTexts:
        return HiddenValues(self._read(), names=is_secret_name).texts

    def note(self, name: str, given: Given, type_: Any) -> None:
        self._given[name] = (given, type_)

    def add(self, forms: set[str]) -> None:
        self._found = self._found.with_secret(forms)

    def texts(self) -> HiddenTexts:
        """Return what is hidden in all of it. Each value is searched once, when this is first asked
        for it.
        """
        fresh: list[HiddenTexts] = []
        while self._given:
            fresh.append(_texts_of(*self._given.popitem()[1]))  # a thread may note others meanwhile
        self._found = self._found.joined(fresh)
        return self._in_body.joined([self._found]) if self._found else self._in_body


_around: ContextVar[_Around | None] = ContextVar("eventbus_hidden_around", default=None)


def hide_around(body: str | Callable[[], str]) -> None:
    """Let errors that are recorded from here on hide what is hidden in the body of a job, or in what the
    function makes of it.
    """
    _around.set(_Around((lambda: body) if isinstance(body, str) else body))


def note_around(name: str, given: Given, type_: Any = Any) -> None:
    """Let them hide what has a secret name in a value that the job got, or is sensitive by its type, too; at
    least in the last one of this name.
    """
    around = _around.get()
    if around is not None:
        around.note(name, given, type_)


def note_forms_around(forms: set[str]) -> None:
    """Let them hide these texts, too, which the error of another job has hidden."""
    around = _around.get()
    if around is not None and forms:
        around.add(forms)


def hidden_around() -> HiddenTexts:
    """Return what errors must not quote."""
    around = _around.get()
    return NOTHING_HIDDEN if around is None else around.texts()


def is_quoting(text: str) -> bool:
    """Return whether a text repeats what errors must not quote."""
    return hidden_around().recorded(text) != text


def _texts_of(given: Given, type_: Any) -> HiddenTexts:
    marks = find_marks(type_)
    try:
        value = msgspec.json.decode(given if isinstance(given, str) else bytes(given))
        return find_texts({"": value}, {} if marks is None else {"": [marks]})
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return NOTHING_HIDDEN
