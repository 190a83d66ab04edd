"""The failure rules of one subscription: what follows from an error of a job's attempt, and what is logged of
it.

    an error -> retried after a delay | put off, without an attempt | failed

Not here: how an error becomes a record (`telemetry.failure`), and who calls the handler
(`handlers.consumer`).

What must always hold: each error has one decision, which does not raise, whatever the job's message or the
user's own rule holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from eventbus.engine.job import Job, Settle, fail, later, retry
from eventbus.errors import DefinitionError, EmissionExpired, StoreCorrupt
from eventbus.model.durations import LONGEST
from eventbus.model.event import Event
from eventbus.model.later import Later
from eventbus.model.message import HIDDEN_FIELD, EventMessage, decode_message
from eventbus.model.redaction.hidden_values import HiddenTexts, HiddenValues
from eventbus.model.redaction.marks import find_marks
from eventbus.model.redaction.redacting import is_secret_name
from eventbus.model.retry import Retry
from eventbus.telemetry.error_groups import ends_attempts
from eventbus.telemetry.failure import (
    describe,
    describe_expired,
    is_answer,
    log_failure,
    mark_of,
    read_failure,
    recorded,
    without,
)
from eventbus.telemetry.log_context import trace_facts
from eventbus.telemetry.logging import get_logger
from eventbus.telemetry.spans import trace_id_of

BATCH = "__eventbus_batch__"
"""The attribute of an error with the jobs of the call of a batch handler that raised or returned it."""

_log = get_logger("eventbus.handler")


class FailureRules:
    """Decides what follows from the errors of one event's handler, and logs them."""

    def __init__(self, event: Event[Any, Any], group: str, rule: Retry) -> None:
        """`group` is empty for the default group. `rule` holds for jobs whose emission has none."""
        self._event = event
        self._group = group
        self._marks = find_marks(event.payload)
        self._retry = rule

    def decide(self, job: Job, error: BaseException) -> Settle:
        """Retry the job while attempts are left and a retry can help; otherwise fail it. Put it off if it
        asks for that.
        """
        if isinstance(error, Later):
            return later("", max(1, round(error.delay * 1000)))  # a delay marks it as begun, for its ttl
        attempts = job.attempts + 1
        name = self._event.name
        # An EmissionExpired of another job is an error of the handler, which awaited that job.
        if isinstance(error, EmissionExpired) and error.job_id == job.id:
            return fail(describe_expired(error, attempts=job.attempts), counts=False)
        known = recorded(error)
        hidden = self._hidden(job, error)
        text = (
            without(known.text, hidden)
            if known
            else describe(error, attempts=attempts, declared=self._event.errors, event=name, hidden=hidden)
        )
        rule = self._rule_for(job)
        if attempts >= rule.attempts or ends_attempts(error, rule, self._is_answer):
            return fail(text)
        try:
            delay = rule.delay_after(attempts, error)
        except Exception as own:  # noqa: BLE001  (a custom strategy of the user's)
            return fail(describe(own, attempts=attempts, event=name, hidden=hidden))
        return retry(text, min(round(delay * 1000), round(LONGEST * 1000)))

    def hides(self, job: Job) -> bool:
        """Return whether anything in the job's payload may be marked as sensitive."""
        return self._marks is not None or f'"{HIDDEN_FIELD}":' in job.body

    def hidden(self, job: Job) -> HiddenTexts:
        """Return what texts about the job must not quote of its payload."""
        return HiddenValues(job.body, self._event, names=is_secret_name).texts

    def _hidden(self, job: Job, error: BaseException) -> HiddenTexts:
        """Return what an error must not quote of the job's payload, and of those of its batch."""
        others: Sequence[Job] = mark_of(error, BATCH) or ()
        hidden = self.hidden(job)
        return hidden.joined(map(self.hidden, others)) if others else hidden

    def _is_answer(self, error: BaseException) -> bool:
        """Tell whether an error is an answer; a process has said so of its own."""
        return recorded(error) is None and is_answer(error, self._event.errors, self._event.retry_on)

    def facts(self, job: Job) -> Mapping[str, Any]:
        """Return the fields that `ctx.log` adds, but the names of worker and provider."""
        facts: dict[str, Any] = {
            "event_name": self._event.name,
            "job_id": job.id,
            "attempt": job.attempts + 1,
        }
        if self._group:
            facts["group"] = self._group
        try:
            message = read_message(job)
        except StoreCorrupt:
            return facts
        facts["correlation_id"] = message.correlation_id or chain_of(job, self._group)
        return facts | trace_facts(trace_id_of(message.traceparent), job_id=job.id)

    def log(self, job: Job, settle: Settle) -> None:
        """Log a failure: as a warning if the job is retried, otherwise as an error. A declared error is info.

        Only the default group answers the emitter, so a declared error of another group is logged like any
        error.
        """
        if settle.state == "cancelled":
            return  # a user asked for it, and the executor has logged it
        facts = {**self.facts(job), "max_attempts": self._rule_for(job).attempts}
        is_last = settle.state == "failed"
        log_failure(
            _log,
            "job failed" if is_last else "attempt failed, trying again",
            settle.text,
            facts,
            retry_in=None if is_last else settle.delay_ms / 1000,
            is_answer=not self._group and bool(read_failure(settle.text).declared),
        )

    def _rule_for(self, job: Job) -> Retry:
        """Return the retry rule of a job: that of the emission, else of the handler, the event or the
        provider.
        """
        try:
            wire = decode_message(job.body).retry
            return Retry.from_wire(wire) if wire is not None else self._retry
        except (msgspec.MsgspecError, UnicodeError, DefinitionError):
            return self._retry


def read_message(job: Job) -> EventMessage:
    """Return the message of a job. Raises StoreCorrupt if it cannot be read."""
    try:
        return decode_message(job.body)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise StoreCorrupt(f"the message of job {job.id} cannot be read: {error}") from None


def chain_of(job: Job, group: str) -> str:
    """Return the correlation id of a chain that begins with this job: the job's id without its group."""
    return job.id.removesuffix(f"@{group}") if group else job.id
