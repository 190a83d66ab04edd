"""What happened to a job, in order: its attempts, and the timeline made of them.

A job has no list of events. Its timeline follows from its record, the log of its failed attempts and the hold
of who runs it, so it costs nothing while jobs run. Hence a run that ended without a failure, as by `Later`,
is known only while it is the last one.

What must always hold: each attempt and each stall is told once, the oldest first; what is not recorded is 0
or empty, and never guessed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec

from eventbus.admin.jobs.attempts import FailureReport, RunTimes
from eventbus.store.readable import number_in

Outcome: TypeAlias = Literal[
    "failed", "stalled", "put-off", "suspended", "given-back", "completed", "cancelled", "running"
]
Happening: TypeAlias = Literal[
    "emitted",
    "delayed-until",
    "started",
    "failed",
    "stalled",
    "put-off",
    "suspended",
    "given-back",
    "retry-at",
    "parked",
    "ended",
]


class AttemptReport(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt of a job, or one stall. Times are Unix times in ms, 0 where they are not known.

    `attempt` counts from 1; 0 means that it was not recorded. A run that stalled, was put off (`Later`),
    slept or was given back by a worker that stopped does not count, so the next one has the same number.
    `due_ms` is what the attempt was delayed until. `started_ms` is when the worker claimed the job for it,
    and `ended_ms` when its end was recorded. `worker` is the worker's id. `type`, `message`, `traceback` and
    `causes` describe the error of one that failed.
    """

    outcome: Outcome
    attempt: int = 0
    due_ms: int = 0
    started_ms: int = 0
    ended_ms: int = 0
    worker: str = ""
    type: str = ""
    message: str = ""
    traceback: str = ""
    causes: list[tuple[str, str]] = []


class TimelineEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened to a job, or that is due: `what`, at `at_ms`, a Unix time in ms, 0 if it is not
    known.

    `delayed-until` and `retry-at` are at the time at which the job is or was due, which may be ahead. `note`
    is the error of what failed, how the job ended, or why it is parked. `worker` is empty and `attempt` 0
    where there is none.
    """

    at_ms: int
    what: Happening
    worker: str = ""
    attempt: int = 0
    note: str = ""


def read_attempts(
    fields: Mapping[str, str], failures: Sequence[FailureReport], last: RunTimes
) -> list[AttemptReport]:
    """Return the attempts of a job, oldest first. `failures` are those of its log and its outcome, `last` is
    its last run.
    """
    attempts = [_failed(each) for each in failures]
    outcome = _outcome_of(fields, attempts[-1] if attempts else None, last)
    if outcome is not None:
        attempts.append(
            AttemptReport(
                outcome=outcome,
                attempt=number_in(fields, "attempts") + 1,
                due_ms=last.due_ms if outcome in ("completed", "cancelled", "running") else 0,
                started_ms=last.started_ms,
                ended_ms=last.ended_ms,
                worker=last.worker,
            )
        )
    return attempts


def _failed(failure: FailureReport) -> AttemptReport:
    fields = msgspec.structs.asdict(failure)
    return AttemptReport(outcome=fields.pop("kind"), **fields)


def _outcome_of(fields: Mapping[str, str], newest: AttemptReport | None, last: RunTimes) -> Outcome | None:
    """Return what the last run came to; None if it is among the failures, or if nobody ran the job."""
    state = fields.get("state", "")
    if state == "active":
        return "running"
    if state == "completed":
        return "completed" if last.worker else None
    is_logged = newest is not None and newest.started_ms >= last.started_ms
    if state == "cancelled":
        return "cancelled" if last.worker and not is_logged else None
    # Who was claimed and put aside unread has no first start, and neither have records of older releases.
    if is_logged or "first" not in fields or state not in ("waiting", "delayed", "waiting-children"):
        return None
    if state == "waiting-children" or "listens" in fields or (state == "delayed" and "tree" in fields):
        return "suspended"
    return "put-off" if last.due_ms > last.started_ms else "given-back"


def tell_timeline(fields: Mapping[str, str], attempts: Sequence[AttemptReport]) -> list[TimelineEntry]:
    """Return what happened to a job in order, and behind it what is due. `attempts` are as `read_attempts`
    returns them.
    """
    return list(_tell(fields, attempts))


def _tell(fields: Mapping[str, str], attempts: Sequence[AttemptReport]) -> Iterator[TimelineEntry]:
    state, before = fields.get("state", ""), number_in(fields, "created")
    yield TimelineEntry(at_ms=before, what="emitted")
    is_retry = False
    for each in attempts:
        if each.due_ms > before:
            yield _due(each.due_ms, is_retry=is_retry)
        yield TimelineEntry(at_ms=each.started_ms, what="started", worker=each.worker, attempt=each.attempt)
        if each.outcome not in ("completed", "cancelled", "running"):
            note = f"{each.type}: {each.message}" if each.message else each.type
            yield TimelineEntry(
                at_ms=each.ended_ms, what=each.outcome, worker=each.worker, attempt=each.attempt, note=note
            )
        before, is_retry = each.ended_ms or each.started_ms, each.outcome == "failed"
    ended = number_in(fields, "ended")
    if ended:
        yield TimelineEntry(at_ms=ended, what="ended", worker=fields.get("worker", ""), note=state)
    elif state == "parked":
        yield TimelineEntry(at_ms=number_in(fields, "claimed"), what="parked", note=fields.get("why", ""))
    elif state != "active":
        due = number_in(fields, "due" if state != "waiting-children" else "wakes")
        if due > before:
            yield _due(due, is_retry=is_retry)


def _due(at_ms: int, *, is_retry: bool) -> TimelineEntry:
    return TimelineEntry(at_ms=at_ms, what="retry-at" if is_retry else "delayed-until")
