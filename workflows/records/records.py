"""The records of a flow in the server, as small JSON: its message, its steps' results, its failure.

Not here: writing them (`distributed`, `inline`, `provider`), and the errors themselves (`errors`).

What must always hold: values inside a record are JSON already (`Raw`), encoded once by their own codec. A
record is written with short keys and without absent values, and read with unknown keys ignored, because
releases may differ. The record of a flow's failure can also be read as a plain `Failure`, so that a tool that
knows only jobs can show it. Exceptions are never stored: distributed and inline flows both make the caller's
error from these records, so the errors are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import msgspec

from eventbus import StoreCorrupt
from eventbus.lowlevel import (
    HIDDEN_FIELD,
    Failure,
    blank,
    encode_marks,
    hidden_of,
    hide_in_record,
    read_failure,
    record_places,
    revive,
)
from workflows.errors import (
    ConflictError,
    FlowCancelled,
    FlowError,
    FlowTimeout,
    Rollback,
    RollbackError,
    StepError,
)

Cause: TypeAlias = Literal["failed", "timeout", "cancelled"]
"""The reason why a flow stopped early: a step failed for good, the flow timed out, or it was cancelled."""

_NOTHING = msgspec.Raw(b"null")
_NO_ERROR = msgspec.Raw()
_NO_ITEM = msgspec.Raw()
_NOT_HIDDEN = msgspec.Raw()


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
        "baggage": "g",
        "mode": "l",
        "durable": "f",
        "machine": "q",
        "item": "x",
        "is_short": "h",
        "hidden": HIDDEN_FIELD,
    },
):
    """The body of a flow's root job, and that of a job that runs one of its steps apart.

    `timeout` is the effective timeout of the flow in seconds. `kept` names, for a retry by hand, the steps
    that still count, each with the run that recorded its result; of a step that is kept in part it names the
    items, and their list by `list_name`. A flow is `bare` if its caller added no steps: its root runs them or
    adds them, and `version` may be empty until then. `mode` is `local` or `spread` if an earlier run decided
    that. `baggage` is the text of a W3C header. `durable` tells that the flow is one of a durable function,
    so that its journal says what happened, and `machine` that it is one of a state machine. `item` is the
    item that the job of an each step has. `is_short` tells that the input is left out: the root's message has
    it. `hidden` says where the input, the output and the state of a function are sensitive
    (`hidden_in`).
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

    def run_of(self, name: str) -> int:
        """Return the number of the run whose record of a step, or of an item of one, counts in this run."""
        step = name.partition("[")[0]
        return self.kept.get(name, self.kept.get(step, self.run))

    bare: bool = False
    priority: int = 0
    baggage: str = ""
    mode: str = ""
    durable: bool = False
    machine: bool = False
    item: msgspec.Raw = _NO_ITEM
    is_short: bool = False
    hidden: msgspec.Raw = _NOT_HIDDEN

    @property
    def has_item(self) -> bool:
        """Whether it is that of an item."""
        return bool(bytes(self.item))


class StepRecord(
    msgspec.Struct,
    omit_defaults=True,
    kw_only=True,
    rename={"result": "r", "skipped": "s", "traceparent": "t", "error": "e", "has_undo": "u"},
):
    """The result text of a step's job. A skipped step has no result, nor has one whose failure is ignored:
    `error`. `has_undo` says that a rollback undoes what it did, so that a release without that rollback does
    not take it for a step that needs none.
    """

    result: msgspec.Raw = _NOTHING
    skipped: bool = False
    traceparent: str = ""
    error: msgspec.Raw = _NO_ERROR
    has_undo: bool = False

    @property
    def failure(self) -> str:
        """The record of the failure that is ignored, as JSON text; empty if there is none."""
        return bytes(self.error).decode()

    @property
    def has_result(self) -> bool:
        """Whether the step completed: it was neither skipped nor did it fail."""
        return not self.skipped and not self.failure


class FlowFailure(Failure, omit_defaults=True, kw_only=True):
    """The error text of a flow's root job; `type` is `StepError`, `FlowTimeout` or `FlowCancelled`.

    `error` is the record of the failed step's error, `job` the id of its job. `rollback_errors` are the
    rollbacks that failed for good, in the order in which they ran: path of the step, and record of the error.
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

decode_message: Callable[[bytes | str], FlowMessage] = msgspec.json.Decoder(FlowMessage).decode
"""Read a flow's message. Raises msgspec.DecodeError for other data."""

decode_step: Callable[[bytes | str], StepRecord] = msgspec.json.Decoder(StepRecord).decode
"""Read a step's record. Raises msgspec.DecodeError for other data."""


def hidden_in(given: Any, output: Any, state: Any = None) -> msgspec.Raw:
    """Return the `hidden` of the message of a flow with these types of input, output and `ctx.state`.

    The types of a workflow stay the same, and each of its flows asks; so the last ones are kept.
    """
    types_ = (given, output, state)
    try:
        hash(types_)
    except TypeError:  # metadata of the user's, such as a list
        return _find_hidden(*types_)
    return _find_hidden_once(*types_)


def _find_hidden(given: Any, output: Any, state: Any) -> msgspec.Raw:
    marks = encode_marks(i=given, result=output, state=state)
    return msgspec.Raw(marks) if marks else _NOT_HIDDEN


_find_hidden_once = lru_cache(maxsize=256)(_find_hidden)


def encode_message(message: FlowMessage) -> str:
    """Return a flow's message as JSON text."""
    return _encode(message).decode()


def encode_step(record: StepRecord) -> str:
    """Return a step's record as JSON text."""
    return _encode(record).decode()


def cause_of(stop: str) -> Cause:
    """Return the cause that the mark `stop` of a flow's job tells."""
    return "failed" if stop == "failed" else "timeout" if stop == "timeout" else "cancelled"


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
        event=f"workflow {workflow}",
        flow_id=flow_id,
        workflow=workflow,
        step=step,
        error=msgspec.Raw(hide_in_record(error) or "null"),
        job=job,
        timeout=timeout,
        reason=reason,
        rollback=rollback,
        rollback_errors=tuple((path, msgspec.Raw(hide_in_record(text))) for path, text in rollback_errors),
    )
    told = _flow_error(failure, ())
    quoted = [told, *told.rollback_errors]
    failure.message = record_places(str(told), sorted(set[str]().union(*map(hidden_of, quoted))))
    return _encode(failure).decode()


def revive_flow(
    state: str, text: str, workflow: str, flow_id: str, errors: Sequence[type[Exception]] = ()
) -> Exception:
    """Return the exception that a flow's recorded failure or cancellation represents.

    It is a FlowError; but if the step's error is one of the declared `errors`, it is that error itself, with
    the StepError as its cause. A record that the engine wrote, such as that of a root whose workers died too
    often, becomes the job error that it represents; for a cancelled flow it becomes FlowCancelled.
    """
    failure = read_flow_failure(text)
    if failure is not None:
        return _raised(_flow_error(failure, errors), errors)
    error = revive(state, text, event=workflow, job_id=flow_id, declared=errors)
    if state == "cancelled":
        # No saga has recorded its outcome. Only a plain cancel request means that none was necessary.
        rollback: Rollback = "none" if _is_wish(text) else "incomplete"
        reason = getattr(error, "reason", "")
        return FlowCancelled(flow_id=flow_id, workflow=workflow, reason=reason, rollback=rollback)
    return error


def read_message_of(flow_id: str, body: str) -> FlowMessage:
    """Return the message in the body of a flow's root job. Raises StoreCorrupt for other data."""
    try:
        return decode_message(body)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise StoreCorrupt(f"the message of flow {flow_id} cannot be read: {error}") from None


def stalls_in(record: str) -> int:
    """Return how often a job stalled, from its error record, if it failed for that; 0 for other errors."""
    try:
        return _decode_plain(record).stalls
    except (msgspec.MsgspecError, UnicodeError):
        return 0


def read_step(job_id: str, text: str) -> StepRecord:
    """Return the record of a step's job. Raises StoreCorrupt for other data."""
    try:
        return decode_step(text)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise StoreCorrupt(f"the record of step job {job_id} cannot be read: {error}") from None


def error_text(record: str) -> str:
    """Return the text of an error's record for people, without what it hides; empty for an empty record."""
    try:
        failure = _decode_plain(record)
    except (msgspec.MsgspecError, UnicodeError):
        return blank(record[:200].encode(errors="replace").decode())
    return blank(f"{failure.type}: {failure.message}" if failure.message else failure.type)


def read_flow(text: str, errors: Sequence[type[Exception]] = ()) -> FlowError:
    """Return the FlowError that a record of `describe_flow` represents; `failed` hooks get it."""
    return _flow_error(_decode_failure(text), errors)


def revive_error(text: str, *, owner: str, job: str, errors: Sequence[type[Exception]] = ()) -> Exception:
    """Return the exception that the record of a step's error represents; the step may be a sub-workflow.

    `owner` names the workflow and the step in the error.
    """
    failure = read_flow_failure(text)
    if failure is None:
        return revive("failed", text, event=owner, job_id=job, declared=errors)
    return _raised(_flow_error(failure, errors), errors)


_CONFLICT = f"{ConflictError.__module__}.{ConflictError.__qualname__}"


def is_declared(record: str) -> bool:
    """Tell whether the error of a step is one that its workflow declares; also inside sub-workflows.

    The conflict of a pipeline reaches the caller as declared errors do, but is a fault, of which people are
    told.
    """
    failure = read_flow_failure(record)
    while failure is not None:
        record = bytes(failure.error).decode()
        failure = read_flow_failure(record)
    return read_failure(record).declared not in ("", _CONFLICT)


def _is_wish(text: str) -> bool:
    """Tell whether `text` is only the record of a cancel request: nothing kept the flow from being undone."""
    try:
        failure = _decode_plain(text)
    except (msgspec.MsgspecError, UnicodeError):
        return False
    return failure.type == "JobCancelled" and not failure.stalls


def read_flow_failure(text: str) -> FlowFailure | None:
    """Return a flow's failure from its record; None for the record of another error."""
    try:
        failure = _decode_failure(text)
    except (msgspec.MsgspecError, UnicodeError):
        return None
    return failure if failure.type in _KINDS.values() else None


def _raised(error: FlowError, errors: Sequence[type[Exception]]) -> Exception:
    """Return the exception to raise for `error`: itself, or the declared error inside it."""
    if not isinstance(error, StepError) or not isinstance(error.error, tuple(errors)):
        return error
    declared = error.error
    error.__cause__ = declared.__cause__  # the remote traceback; not `declared`, which would close a ring
    object.__setattr__(declared, "__cause__", error)  # a frozen dataclass has a `__setattr__` of its own
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
