"""Descriptions of failed jobs, from their records: what a hook is told of them.

Not here: flows, which the consumers of their package describe (`engine.consumer.TellingConsumer`).

What must always hold: no record raises here, whatever it holds.
"""

from __future__ import annotations

from eventbus.engine.job import Job
from eventbus.errors import StoreCorrupt
from eventbus.handlers.failure_rules import chain_of, read_message
from eventbus.model.message import EventMessage
from eventbus.model.names import DEFAULT_GROUP, EVENT_QUEUES, event_of, split_group
from eventbus.telemetry.failure import read_failure
from eventbus.telemetry.job_failure import JobFailure, outcome_of


def describe_event(job: Job, text: str, *, event: str, group: str) -> JobFailure:
    """Return what is told of a failed job of an event. `group` is empty for the default group; `text` is its
    error.
    """
    message: EventMessage | None
    try:
        message = read_message(job)
    except StoreCorrupt:
        message = None
    chain = message.correlation_id if message is not None else ""
    return _describe(
        job, text, event, group=group or DEFAULT_GROUP, chain=chain or chain_of(job, group), message=message
    )


def describe_job(job: Job, text: str) -> JobFailure:
    """Return what is told of a failed job whose queue this worker does not serve, or whose consumer does not
    say.
    """
    if job.queue.startswith(EVENT_QUEUES):
        base, group = split_group(job.queue)
        return describe_event(job, text, event=event_of(base), group=group)
    return _describe(job, text, job.queue, group=DEFAULT_GROUP, chain=job.id)


def _describe(
    job: Job, text: str, name: str, *, group: str, chain: str, message: EventMessage | None = None
) -> JobFailure:
    failure = read_failure(text)
    return JobFailure(
        name=name,
        group=group,
        job_id=job.id,
        root_id=job.id,
        queue=job.queue,
        correlation_id=chain,
        meta=(message.meta if message is not None else None) or {},
        attempts=max(failure.attempts, job.attempts),
        stalls=max(failure.stalls, job.stalls),
        outcome=outcome_of(failure),
        error_type=failure.type,
        message=failure.message,
        traceback=failure.traceback,
        causes=failure.causes,
        is_declared=bool(failure.declared),
    )
