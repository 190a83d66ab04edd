"""Reports on the failed attempts and the stalls of a job, read from the job's records.

The job's log holds the failures that were followed by another attempt, and every stall. Its outcome holds the
last failure. What must always hold: each failure is reported once, oldest first; a record that is damaged or
foreign is reported as text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from eventbus.model.redaction.hidden_values import HiddenValues
from eventbus.telemetry.failure import Failure

__all__ = ["FailureReport", "error_line", "plain", "read_failures", "without"]

_MOST = 50
"""The most failures that are reported of one job."""


class FailureReport(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt of a job that ended in an error, or one stall.

    `attempt` counts from 1; 0 means that it was not recorded. A stall has the number of the attempt that ran
    then. `type`, `message`, `traceback` and `causes` describe the error, as in a HandlerError. `worker` is
    the worker that held the lease of a stall.
    """

    kind: Literal["failed", "stalled"]
    attempt: int = 0
    type: str
    message: str = ""
    traceback: str = ""
    causes: list[tuple[str, str]] = []
    worker: str = ""

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type


class _Record(Failure):
    """The record of an error. The record of a stall names its worker too."""

    worker: str = ""


_decode = msgspec.json.Decoder(_Record).decode


def read_failures(state: str, text: str, log: Sequence[str]) -> list[FailureReport]:
    """Return the newest 50 failures in the log of a job and in the `text` of its outcome, oldest first."""
    texts = list(log)
    # A stall past the limit is in both the log and the outcome. A job that expired had no attempt.
    if state == "failed" and text and (not texts or texts[-1] != text) and not _is_expired(text):
        texts.append(text)
    return [_read(record) for record in texts[-_MOST:]]


def without(failures: Sequence[FailureReport], hidden: HiddenValues) -> list[FailureReport]:
    """Return failures without the job's sensitive values in their texts."""
    return [
        msgspec.structs.replace(
            failure,
            message=hidden.in_text(failure.message),
            traceback=hidden.in_text(failure.traceback),
            causes=[(kind, hidden.in_text(text)) for kind, text in failure.causes],
        )
        for failure in failures
    ]


def error_line(text: str) -> str:
    """Return the record of an error as a text of type and message; empty for an empty record."""
    return str(_read(text)) if text else ""


def plain(text: str) -> str:
    """Return the text with `?` for characters that UTF-8 cannot hold, so that it can be shown and sent."""
    return text.encode(errors="replace").decode()


def _read(text: str) -> FailureReport:
    try:
        record = _decode(text)
    except (msgspec.MsgspecError, UnicodeError):
        return FailureReport(kind="failed", type=plain(text))
    return FailureReport(
        kind="stalled" if record.stalls else "failed",
        attempt=record.attempts + 1 if record.stalls else record.attempts,  # a stalled attempt is not counted
        type=record.type,
        message=record.message,
        traceback=record.traceback,
        causes=record.causes,
        worker=record.worker,
    )


def _is_expired(text: str) -> bool:
    try:
        return _decode(text).expired
    except (msgspec.MsgspecError, UnicodeError):
        return False
