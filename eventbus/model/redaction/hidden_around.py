"""What errors around the caller must not quote: the hidden values of the job that runs here.

Whoever runs a job whose errors are recorded at many places, such as a flow, says so once, at the beginning of
its run. It adds the results that the job gets from others, because an error may quote these as well as its
input. The values are looked for only when there is an error. What must hold: they are those of one task and
of the tasks that it begins.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from functools import cached_property

import msgspec

from eventbus.model.message import HIDDEN_FIELD
from eventbus.model.redaction.hidden_values import NOTHING_HIDDEN, HiddenTexts, HiddenValues, find_texts
from eventbus.model.redaction.redacting import is_secret_name

__all__ = ["hidden_around", "hide_around", "is_hiding_around", "note_around"]

_MARK = f'"{HIDDEN_FIELD}":'


class _Around:
    """One job: its body, and the results that it got, as JSON."""

    def __init__(self, read: Callable[[], str]) -> None:
        self.results: dict[str, str | bytes | msgspec.Raw] = {}
        self._read = read

    @cached_property
    def body(self) -> str:
        return self._read()


_around: ContextVar[_Around | None] = ContextVar("eventbus_hidden_around", default=None)


def hide_around(body: str | Callable[[], str]) -> None:
    """Let errors that are recorded from here on hide what is hidden in the body of a job, or in what the
    function makes of it.
    """
    _around.set(_Around((lambda: body) if isinstance(body, str) else body))


def note_around(name: str, result: str | bytes | msgspec.Raw) -> None:
    """Let them hide what has a secret name in a result, too; the last one of this name."""
    around = _around.get()
    if around is not None:
        around.results[name] = result


def is_hiding_around() -> bool:
    """Return whether the job that runs here has sensitive values."""
    around = _around.get()
    return around is not None and _MARK in around.body


def hidden_around() -> HiddenTexts:
    """Return what errors must not quote."""
    around = _around.get()
    if around is None:
        return NOTHING_HIDDEN
    found = HiddenValues(around.body, names=is_secret_name).texts
    return (
        found.joined([_texts_of(result) for result in around.results.values()]) if around.results else found
    )


def _texts_of(result: str | bytes | msgspec.Raw) -> HiddenTexts:
    given = result if isinstance(result, str) else bytes(result)
    try:
        return find_texts({"": msgspec.json.decode(given)}, {})
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return NOTHING_HIDDEN
