"""What a flow keeps in the server, as small JSON: its message, its steps' results, its failure.

Not here: who writes them and when (`inline`, `provider`), and the errors themselves (`errors`).

Always holds: values inside are JSON already (`Raw`), coded once by their own codec; a record is
written with short keys, without what is absent, and read with unknown keys ignored, so that
releases can differ. The record of a flow's failure reads as a plain `Failure` too, so that whoever
knows jobs alone can show it. Exceptions never travel: both runs, in this process and distributed,
make the caller's error from these records, and so make equal ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from eventbus import StoreCorrupt
from eventbus.lowlevel import Failure, revive
from workflows.errors import FlowCancelled, FlowError, FlowTimeout, Rollback, RollbackError, StepError

__all__ = [
    "Cause",
    "FlowFailure",
    "FlowMessage",
    "StepRecord",
    "decode_message",
    "decode_step",
    "describe_flow",
    "encode_message",
    "encode_step",
    "error_text",
    "read_flow",
    "read_message_of",
    "revive_error",
    "revive_flow",
]

Cause: TypeAlias = Literal["failed", "timeout", "cancelled"]
"""Why a flow stopped early: a step failed for good, its time was over, or somebody cancelled it."""

_NOTHING = msgspec.Raw(b"null")


class FlowMessage(
    msgspec.Struct,
    omit_defaults=True,
    kw_only=True,
    rename={
        "input": "i",
        "version": "v",
        "meta": "m",
        "correlation_id": "c",
        "causation_id": "a",
        "traceparent": "t",
        "tracestate": "s",
        "key": "k",
        "run": "n",
        "timeout": "o",
        "kept": "e",
        "bare": "b",
        "priority": "p",
    },
):
    """The body of a flow's root job.

    `timeout` is the flow's own in seconds, the effective one. `kept` says for a retry by hand which
    steps still count, each with the run whose record holds its result. `bare`: who started the flow added
    no steps, so its root adds them; the version may be open then.
    """

    input: msgspec.Raw
    version: str = ""
    meta: dict[str, Any] | None = None
    correlation_id: str = ""
    causation_id: str = ""
    traceparent: str = ""
    tracestate: str = ""
    key: str = ""
    run: int = 1
    timeout: float | None = None
    kept: dict[str, int] = {}
    bare: bool = False
    priority: int = 0


class StepRecord(
    msgspec.Struct,
    omit_defaults=True,
    kw_only=True,
    rename={"result": "r", "skipped": "s", "traceparent": "t"},
):
    """The result text of a step's job. A skipped step has no result."""

    result: msgspec.Raw = _NOTHING
    skipped: bool = False
    traceparent: str = ""


class FlowFailure(Failure, omit_defaults=True, kw_only=True):
    """The error text of a flow's root job; `type` is `StepError`, `FlowTimeout` or `FlowCancelled`.

    `error` is the failed step's own record, `job` its job. `rollback_errors` are the rollbacks that
    failed for good, in the order in which they ran: path of the step, and record of the error.
    """

    flow_id: str
    workflow: str
    step: str = ""
    error: msgspec.Raw = _NOTHING
    job: str = ""
    timeout: float = 0.0
    reason: str = ""
    rollback: Rollback = "none"
    rollback_errors: tuple[tuple[str, msgspec.Raw], ...] = ()


_KINDS: dict[Cause, str] = {"failed": "StepError", "timeout": "FlowTimeout", "cancelled": "FlowCancelled"}
_encode = msgspec.json.Encoder().encode
_decode_failure = msgspec.json.Decoder(FlowFailure).decode

_decode_plain = msgspec.json.Decoder(Failure).decode

decode_message = msgspec.json.Decoder(FlowMessage).decode
"""Read a flow's message; raises msgspec.DecodeError for what is none."""

decode_step = msgspec.json.Decoder(StepRecord).decode
"""Read a step's record; raises msgspec.DecodeError for what is none."""


def encode_message(message: FlowMessage) -> str:
    """Return a flow's message as JSON text."""
    return _encode(message).decode()


def encode_step(record: StepRecord) -> str:
    """Return a step's record as JSON text."""
    return _encode(record).decode()


def describe_flow(
    cause: Cause,
    *,
    flow_id: str,
    workflow: str,
    step: str = "",
    error: str = "",
    job: str = "",
    timeout: float = 0.0,
    reason: str = "",
    rollback: Rollback = "none",
    rollback_errors: Iterable[tuple[str, str]] = (),
) -> str:
    """Return the record of a flow that stopped for `cause`, as JSON text.

    `error` is the record (JSON text) of the step's error, and `rollback_errors` are pairs of a path and
    the record of an error.
    """
    failure = FlowFailure(
        type=_KINDS[cause],
        flow_id=flow_id,
        workflow=workflow,
        step=step,
        error=msgspec.Raw(error or "null"),
        job=job,
        timeout=timeout,
        reason=reason,
        rollback=rollback,
        rollback_errors=tuple((path, msgspec.Raw(text)) for path, text in rollback_errors),
    )
    failure.message = str(_flow_error(failure, ()))
    return _encode(failure).decode()


def revive_flow(
    state: str, text: str, workflow: str, flow_id: str, errors: Sequence[type[Exception]] = ()
) -> Exception:
    """Return the exception that a flow's recorded failure or cancellation stands for.

    A FlowError; but if the step's error is one of the declared `errors`, that error itself, with the
    StepError as its cause. A record of the engine's own, such as that of a root whose workers died too
    often, comes back as the job error it is.
    """
    failure = _read(text)
    if failure is not None:
        return _raised(_flow_error(failure, errors), errors)
    error = revive(state, text, event=workflow, job_id=flow_id, declared=errors)
    if state == "cancelled":
        return FlowCancelled(flow_id=flow_id, workflow=workflow, reason=getattr(error, "reason", ""))
    return error


def read_message_of(flow_id: str, body: str) -> FlowMessage:
    """Return the message in the body of a flow's root job. Raises StoreCorrupt for what is none."""
    try:
        return decode_message(body)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise StoreCorrupt(f"the message of flow {flow_id} cannot be read: {error}") from None


def error_text(record: str) -> str:
    """Return what the record of an error says, as people read it; empty for none."""
    try:
        failure = _decode_plain(record)
    except (msgspec.MsgspecError, UnicodeError):
        return record[:200].encode(errors="replace").decode()
    return f"{failure.type}: {failure.message}" if failure.message else failure.type


def read_flow(text: str, errors: Sequence[type[Exception]] = ()) -> FlowError:
    """Return the FlowError that a record of `describe_flow` stands for, as `failed` hooks get it."""
    return _flow_error(_decode_failure(text), errors)


def revive_error(text: str, *, owner: str, job: str, errors: Sequence[type[Exception]] = ()) -> Exception:
    """Return the exception that the record of a step's error stands for, also that of a sub-workflow.

    `owner` is the workflow and the step as errors name them.
    """
    failure = _read(text)
    if failure is None:
        return revive("failed", text, event=owner, job_id=job, declared=errors)
    return _raised(_flow_error(failure, errors), errors)


def _read(text: str) -> FlowFailure | None:
    """Read a flow's failure; None for the record of another error."""
    try:
        failure = _decode_failure(text)
    except (msgspec.MsgspecError, UnicodeError):
        return None
    return failure if failure.type in _KINDS.values() else None


def _raised(error: FlowError, errors: Sequence[type[Exception]]) -> Exception:
    """Return what is raised for `error`: itself, or the declared error inside it."""
    if not isinstance(error, StepError) or not isinstance(error.error, tuple(errors)):
        return error
    declared = error.error
    error.__cause__ = declared.__cause__  # the remote traceback; not `declared`, which would close a ring
    declared.__cause__ = error
    return declared


def _flow_error(failure: FlowFailure, errors: Sequence[type[Exception]]) -> FlowError:
    facts: dict[str, Any] = {
        "flow_id": failure.flow_id,
        "workflow": failure.workflow,
        "rollback": failure.rollback,
        "rollback_errors": tuple(
            _rollback_error(failure, path, bytes(record).decode(), errors)
            for path, record in failure.rollback_errors
        ),
    }
    if failure.type == "FlowTimeout":
        return FlowTimeout(timeout=failure.timeout, **facts)
    if failure.type == "FlowCancelled":
        return FlowCancelled(reason=failure.reason, **facts)
    owner = f"{failure.workflow}.{failure.step}"
    inner = revive_error(bytes(failure.error).decode(), owner=owner, job=failure.job, errors=errors)
    return StepError(step=failure.step, error=inner, **facts)


def _rollback_error(
    failure: FlowFailure, path: str, record: str, errors: Sequence[type[Exception]]
) -> RollbackError:
    owner = f"{failure.workflow}.{path}"
    return RollbackError(
        step=path, error=revive_error(record, owner=owner, job=failure.flow_id, errors=errors)
    )
