"""The job meter: records the metrics of the jobs that one worker runs.

It exists only while the program has an SDK for metrics. So a job of other programs costs one look at an
attribute.

What must always hold: each run counts once in `eventbus.job.attempts`, by what was decided about it, and a
run whose lease was lost counts in none of its outcomes. Whether the server took the decision is known later,
and refusals count as lost leases.
"""

from __future__ import annotations

from typing import Any

import msgspec

from eventbus.engine.job import Job, Settle
from eventbus.model import clock
from eventbus.model.names import DEFAULT_GROUP, EVENT_QUEUES, event_of, split_group
from eventbus.telemetry.metrics import OTHER, Instruments, Tally, few_errors, instruments
from eventbus.telemetry.server_address import server_attributes

_ERRORS = ("failed", "retried")
_OUTCOMES = {
    "completed": "completed",
    "failed": "failed",
    "cancelled": "cancelled",
    "waiting": "given back",
    "parked": "parked",
    "shelved": "shelved",
    "suspended": "suspended",
}
_STALLS = {"rescued": "given back", "failed": "failed", "cancelled": "cancelled"}


class _ErrorType(msgspec.Struct):
    """What a record of an error says of its type."""

    type: str = "_OTHER"


_read_type = msgspec.json.Decoder(_ErrorType).decode


class _Series:
    """The attributes and tallies of one queue's metrics, made once."""

    __slots__ = ("attempts", "consumed", "process", "queue")

    def __init__(self, queue: str, address: str, made: Instruments) -> None:
        base, group = split_group(queue)
        self.queue: dict[str, Any] = {"eventbus.queue": queue}
        self.process: dict[str, Any] = {
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.system": "eventbus",
            "messaging.destination.name": event_of(base),
            **self.queue,
            **server_attributes(address),
        }
        if base.startswith(EVENT_QUEUES):
            self.process["messaging.consumer.group.name"] = group or DEFAULT_GROUP
        self.consumed: Tally = made.tally("messaging.client.consumed.messages", self.process)
        self.attempts: dict[str, Tally] = {}


class JobMeter:
    """Records the runs of one worker's jobs."""

    def __init__(self, made: Instruments, address: str) -> None:
        """`address` is that of the server."""
        self.made = made
        self._address = address
        self._series: dict[str, _Series] = {}

    def started(self, job: Job) -> float:
        """Record that a job was claimed and is started; return the time, for `ended`."""
        series = self._of(job.queue)
        series.consumed.count += 1
        self.made.waits.record(max(0, job.claimed_ms - job.due_ms) / 1000, series.queue)
        return clock.monotonic()

    def ended(self, job: Job, settle: Settle | None, since: float) -> None:
        """Record that a run ended; `settle` is None if it suspended itself or lost its lease, which counts
        elsewhere.
        """
        series = self._of(job.queue)
        outcome = "none" if settle is None else outcome_of(settle)
        attributes = series.process
        if settle is not None and outcome in _ERRORS:
            attributes = {**attributes, "error.type": _type_of(settle.text)}
        if since:  # otherwise no SDK was set when it began
            self.made.process.record(clock.monotonic() - since, attributes)
        if settle is None:
            return
        tally = series.attempts.get(outcome)
        if tally is None:
            attributes = {**series.queue, "eventbus.outcome": outcome}
            tally = series.attempts[outcome] = self.made.tally("eventbus.job.attempts", attributes)
        tally.count += 1

    def _of(self, queue: str) -> _Series:
        series = self._series.get(queue)
        if series is None:
            series = self._series[queue] = _Series(queue, self._address, self.made)
        return series


def outcome_of(settle: Settle) -> str:
    """Return the word for what was decided about a run."""
    if settle.state == "delayed":
        return "retried" if settle.counts else "put off"
    return _OUTCOMES[settle.state]


def _type_of(text: str) -> str:
    try:
        return few_errors(_read_type(text).type)
    except (msgspec.MsgspecError, UnicodeError):
        return OTHER


def note_lost(queue: str) -> None:
    """Count a run whose lease was lost."""
    made = instruments()
    if made is not None:
        made.lost.add(1, {"eventbus.queue": queue})


def note_stall(verdict: str) -> None:
    """Count a lease that ran out; `verdict` is that of the rescue."""
    made = instruments()
    if made is not None:
        made.stalls.add(1, {"eventbus.outcome": _STALLS[verdict]})


def note_lateness(queue: str, late_ms: int) -> None:
    """Record how long after its slot a schedule was fired."""
    made = instruments()
    if made is not None:
        made.lateness.record(max(0, late_ms) / 1000, {"eventbus.queue": queue})
