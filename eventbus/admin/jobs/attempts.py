"""Reports on the failed attempts and the stalls of a job, read from the job's records.

The job's log holds the failures that were followed by another attempt, and every stall. Its outcome holds the
last failure. What must always hold: each failure is reported once, oldest first; a record that is damaged or
foreign is reported as text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec

from eventbus.model.redaction.hidden_values import HiddenValues
from eventbus.store.bounds import LOG_ERRORS
from eventbus.store.calls.error_text import plain
from eventbus.telemetry.failure import Failure


class RunTimes(NamedTuple):
    """When a run was due, began and ended, Unix times in ms, and the id of its worker. 0 and empty: not
    recorded.
    """

    due_ms: int = 0
    started_ms: int = 0
    ended_ms: int = 0
    worker: str = ""


NO_RUN = RunTimes()

NO_VALUES = HiddenValues("")
"""Hides what a text itself says is hidden."""


class FailureReport(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt of a job that ended in an error, or one stall.

    `attempt` counts from 1; 0 means that it was not recorded. A stall, and a run that was `put-off` because
    something was away, has the number of the attempt that ran then. `type`, `message`, `traceback` and
    `causes` describe the error, as in a HandlerError. `worker` is the id of the worker that ran the attempt,
    or held the lease of a stall.

    `started_ms` is when a worker began the attempt, `ended_ms` when its end was recorded, and `due_ms` what
    it was delayed until: Unix times in ms of the server's clock. Records of older releases have no worker and
    no times: empty and 0.
    """

    kind: Literal["failed", "stalled", "put-off"]
    attempt: int = 0
    type: str
    message: str = ""
    traceback: str = ""
    causes: list[tuple[str, str]] = []
    worker: str = ""
    due_ms: int = 0
    started_ms: int = 0
    ended_ms: int = 0

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type


class _Record(Failure):
    """The record of an error in a log. `lib/records.lua` adds when the run was due, began and ended, and by
    which worker.
    """

    worker: str = ""
    kind: str = ""
    due: int = 0
    began: int = 0
    ended: int = 0


_decode = msgspec.json.Decoder(_Record).decode


def read_failures(
    state: str, text: str, log: Sequence[str], last: RunTimes = NO_RUN, hidden: HiddenValues = NO_VALUES
) -> list[FailureReport]:
    """Return the newest 50 failures in the log of a job and in the `text` of its outcome, oldest first,
    without what is hidden.

    `last` is the run that ended the job.
    """
    found = [_read(record, NO_RUN) for record in log]
    # A stall past the limit is in both the log and the outcome. A job that expired had no attempt.
    if state == "failed" and text and (not log or log[-1] != text) and not _is_expired(text):
        found.append(_read(text, last))
    return [_without(failure, hidden) for failure in found[-LOG_ERRORS:]]


def _without(failure: FailureReport, hidden: HiddenValues) -> FailureReport:
    return msgspec.structs.replace(
        failure,
        message=hidden.in_text(failure.message),
        traceback=hidden.in_text(failure.traceback),
        causes=[(kind, hidden.in_text(text)) for kind, text in failure.causes],
    )


def error_line(text: str, hidden: HiddenValues = NO_VALUES) -> str:
    """Return the record of an error as a text of type and message, without what is hidden; empty for an empty
    record.
    """
    return hidden.in_text(str(_read(text, NO_RUN))) if text else ""


def _is_expired(text: str) -> bool:
    """Tell whether the record of an outcome says that the job expired, so that it never ran."""
    try:
        return _decode(text).expired
    except (msgspec.MsgspecError, UnicodeError):
        return False


def _read(text: str, run: RunTimes) -> FailureReport:
    """Read one record; `run` has what is not recorded in it."""
    try:
        record = _decode(text)
    except (msgspec.MsgspecError, UnicodeError):
        return FailureReport(kind="failed", type=plain(text), **run._asdict())
    is_put_off = record.kind == "put-off"
    return FailureReport(
        kind="stalled" if record.stalls else "put-off" if is_put_off else "failed",
        # a stalled attempt is not counted, and neither is one that was put off
        attempt=record.attempts + 1 if record.stalls or is_put_off else record.attempts,
        type=record.type,
        message=record.message,
        traceback=record.traceback,
        causes=record.causes,
        worker=record.worker or run.worker,
        due_ms=record.due or run.due_ms,
        started_ms=record.began or run.started_ms,
        ended_ms=record.ended or run.ended_ms,
    )
