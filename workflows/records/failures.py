"""What hooks are told of a flow that failed, from its record and its message.

Not here: when they are called, which the workers of the event provider do.

What must always hold: no record raises here, whatever it holds.
"""

from __future__ import annotations

import msgspec

from eventbus import JobFailure
from eventbus.lowlevel import Failure, FailureOutcome, Job, outcome_of, read_failure
from workflows.records.records import FlowFailure, decode_message, error_text, read_flow_failure


def describe_failed_flow(workflow: str, job: Job, text: str) -> JobFailure | None:
    """Return what is told of a flow whose root job failed with the error `text`; None if its rollbacks are
    still to come.

    The root of a flow says twice that it failed: first the server stops its tree, and claims it again to undo
    what was done. Only the second time is the end, and `job.stop` is set then.
    """
    if not job.stop:
        return None
    flow = read_flow_failure(text)
    error = read_failure(text) if flow is None else _error_of(flow)
    meta, chain = _message_of(job)
    return JobFailure(
        name=workflow,
        step="" if flow is None else flow.step,
        job_id=job.id,
        flow_id=job.id,
        root_id=job.id.partition("/")[0],
        queue=job.queue,
        correlation_id=chain or job.id,
        meta=meta,
        attempts=error.attempts,
        stalls=error.stalls,
        outcome=_outcome_of(flow, error),
        error_type=error.type,
        message=error.message,
        traceback=error.traceback,
        causes=error.causes,
        is_declared=bool(error.declared),
        rollback="incomplete" if flow is None else flow.rollback,
        rollback_errors=[]
        if flow is None
        else [(path, error_text(bytes(record).decode())) for path, record in flow.rollback_errors],
    )


def _error_of(flow: FlowFailure) -> Failure:
    """Return the error that stopped a flow: that of its step, or of the step of a sub-workflow; else its
    timeout.
    """
    inner: FlowFailure | None = flow
    record = ""
    while inner is not None and inner.step:
        record = bytes(inner.error).decode()
        inner = read_flow_failure(record)
    return read_failure(record) if inner is None else Failure(inner.type, inner.message)


def _outcome_of(flow: FlowFailure | None, error: Failure) -> FailureOutcome:
    return "timeout" if flow is not None and flow.type == "FlowTimeout" else outcome_of(error)


def _message_of(job: Job) -> tuple[dict[str, object], str]:
    """Return the meta and the correlation id of a flow, empty if its message cannot be read."""
    try:
        message = decode_message(job.body)
    except (msgspec.MsgspecError, UnicodeError):
        return {}, ""
    return dict(message.meta or {}), message.correlation_id


def reason_in(text: str) -> str:
    """Return the reason in the record of a cancellation; empty if there is none."""
    try:
        return msgspec.json.decode(text, type=Failure).message
    except (msgspec.MsgspecError, UnicodeError):
        return ""
