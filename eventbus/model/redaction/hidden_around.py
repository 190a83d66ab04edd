"""What errors around the caller must not quote: the hidden values of the job that runs here.

Whoever runs a job whose errors are recorded at many places, such as a flow, says so once, at the beginning of
its run. It adds what the job gets from others, such as the results of steps and the payloads of signals,
because an error may quote these as well as its input. The values are looked for only when somebody asks, as
an error does. What must hold: they are those of one task and of the tasks that it begins.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeAlias

import msgspec

from eventbus.model.redaction.hidden_values import NOTHING_HIDDEN, HiddenTexts, HiddenValues, find_texts
from eventbus.model.redaction.marks import find_marks
from eventbus.model.redaction.redacting import is_secret_name

Given: TypeAlias = str | bytes | msgspec.Raw


class _Around:
    """One job: its body, and by name what else there is to search."""

    def __init__(self, read: Callable[[], str]) -> None:
        self._lock = threading.Lock()  # a plain function of the job runs in a thread
        self._fresh: dict[str, Callable[[], HiddenTexts]] = {"": lambda: _texts_in(read())}
        self._found = NOTHING_HIDDEN

    def note(self, name: str, search: Callable[[], HiddenTexts]) -> None:
        with self._lock:
            self._fresh[name] = search

    def add(self, forms: set[str]) -> None:
        with self._lock:
            self._found = self._found.joined([NOTHING_HIDDEN.with_secret(forms)])

    def texts(self) -> HiddenTexts:
        """Return what is hidden in all of it. Each part is searched once, when this is first asked for it."""
        with self._lock:
            if self._fresh:
                self._found = self._found.joined([search() for search in self._fresh.values()])
                self._fresh.clear()
            return self._found


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
        around.note(name, partial(_texts_of, given, type_))


def note_body_around(name: str, body: str) -> None:
    """Let them hide what is hidden in the body of another job, too, such as that of a nested flow."""
    around = _around.get()
    if around is not None:
        around.note(name, partial(_texts_in, body))


def note_forms_around(forms: set[str]) -> None:
    """Let them hide these texts, too, which the error of another job has hidden."""
    around = _around.get()
    if around is not None and forms:
        around.add(forms)


def hidden_around() -> HiddenTexts:
    """Return what errors must not quote."""
    around = _around.get()
    return NOTHING_HIDDEN if around is None else around.texts()


def is_quoting(given: str | bytes) -> bool:
    """Return whether a JSON text repeats what errors must not quote."""
    hidden = hidden_around()
    return bool(hidden) and hidden.are_in(msgspec.json.decode(given))


def _texts_in(body: str) -> HiddenTexts:
    return HiddenValues(body, names=is_secret_name).texts


def _texts_of(given: Given, type_: Any) -> HiddenTexts:
    marks = find_marks(type_)
    try:
        value = msgspec.json.decode(given if isinstance(given, str) else bytes(given))
        return find_texts({"": value}, {} if marks is None else {"": [marks]})
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return NOTHING_HIDDEN
