"""What errors around the caller must not quote: the sensitive values of the job that runs here.

Whoever runs a job whose errors are recorded at many places, such as a flow, says so once, at the beginning of its run. The values
are looked for only when there is an error. What must hold: they are those of one task and of the tasks that it begins.
"""

from __future__ import annotations

from contextvars import ContextVar

from eventbus.model.message import HIDDEN_FIELD
from eventbus.model.redaction.hidden_values import HiddenValues

__all__ = ["hidden_around", "hide_around", "is_hiding_around"]

_MARK = f'"{HIDDEN_FIELD}":'

_body: ContextVar[str] = ContextVar("eventbus_hidden_around", default="")


def hide_around(body: str) -> None:
    """Let errors that are recorded from here on hide what is marked as sensitive in the body of a job."""
    if _MARK in body:
        _body.set(body)


def is_hiding_around() -> bool:
    """Return whether there may be any such value."""
    return bool(_body.get())


def hidden_around() -> list[str]:
    """Return the values that errors must not quote, longest first."""
    body = _body.get()
    return HiddenValues(body).texts if body else []
