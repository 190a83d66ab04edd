"""Errors as they travel: from an exception to its record, and from the record to ours.

A record keeps the type's name, the message, the traceback as text and the chain of causes;
exceptions themselves never travel. What an event declares in `errors` comes back as
itself, made from its arguments where they are JSON values.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import Any

import msgspec

from eventbus.errors import (
    EmissionExpired,
    HandlerError,
    JobCancelled,
    PayloadError,
    StalledError,
    StoreCorrupt,
    Unrecoverable,
)

__all__ = ["Failure", "describe", "revive"]

MAX_TEXT = 16 * 1024
"""The longest error text that is kept, characters; longer ones are cut in the middle."""


class Failure(msgspec.Struct, omit_defaults=True):
    """The record of one error. `attempts` counts the attempts that ended in an error."""

    type: str
    message: str = ""
    attempts: int = 0
    traceback: str = ""
    causes: list[tuple[str, str]] = []
    declared: str = ""
    """The declared error class that this one is, if any."""
    args: list[Any] | None = None
    stalls: int = 0
    """Above 0 if the job itself stalled too often; 0 in a handler's own StalledError of another job."""
    expired: bool = False
    """The job itself expired; False in a handler's own EmissionExpired of another one."""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Failure).decode


def type_name(kind: type[BaseException]) -> str:
    """The class with its module, unless it is built in or ours."""
    if kind.__module__ in ("builtins", "eventbus.errors"):
        return kind.__qualname__
    module = "__main__" if kind.__module__ == "__mp_main__" else kind.__module__  # as its own process says
    return f"{module}.{kind.__qualname__}"


def is_final(error: BaseException) -> bool:
    """Whether it is an error of the job, not of the moment: another attempt would end the same."""
    return isinstance(error, (Unrecoverable, PayloadError, StoreCorrupt))


def describe_expired(error: EmissionExpired, *, attempts: int) -> str:
    """Return the record of a job that expired, as JSON text."""
    return _encode(Failure("EmissionExpired", str(error), attempts, expired=True)).decode()


def describe_cancelled(reason: str) -> str:
    """Return the record of a job that is cancelled for `reason`, as JSON text."""
    return _encode(Failure("JobCancelled", _clean(_cut(reason)))).decode()


def describe(error: BaseException, *, attempts: int, declared: Sequence[type[Exception]] = ()) -> str:
    """Return the record of an attempt's `error` as JSON text. Never raises."""
    kind = next((each for each in declared if isinstance(error, each)), None)
    failure = Failure(
        type=type_name(type(error)),
        message=_cut(_message_of(error)),
        attempts=attempts,
        traceback=_cut(_traceback_of(error)),
        causes=_causes_of(error),
        declared=type_name(kind) if kind else "",
        args=_args_of(error) if kind else None,
    )
    try:
        return _encode(failure).decode()
    except UnicodeError:
        failure.message, failure.traceback = _clean(failure.message), _clean(failure.traceback)
        failure.causes = [(name, _clean(text)) for name, text in failure.causes]
        return _encode(failure).decode()


def revive(
    state: str, text: str, *, event: str, job_id: str, declared: Sequence[type[Exception]] = ()
) -> Exception:
    """Return the exception that a recorded failure or cancellation stands for."""
    try:
        failure = _decode(text)
    except (msgspec.MsgspecError, UnicodeError):
        failure = Failure("unknown", f"the recorded error cannot be read: {text[:200]!r}")
    if state == "cancelled":
        return JobCancelled(
            f"job {job_id} was cancelled" + (f": {failure.message}" if failure.message else ""),
            event=event,
            job_id=job_id,
            reason=failure.message,
        )
    if failure.expired:
        return EmissionExpired(failure.message, event=event, job_id=job_id)
    if failure.stalls:
        return StalledError(
            f"job {job_id}: {failure.message}", event=event, job_id=job_id, stalls=failure.stalls
        )
    remote = HandlerError(
        event=event,
        job_id=job_id,
        type_name=failure.type,
        remote_message=failure.message,
        remote_traceback=failure.traceback,
        attempts=failure.attempts,
        causes=tuple(failure.causes),
    )
    if failure.declared:
        return _as_declared(failure, declared, remote) or remote
    return remote


def _as_declared(
    failure: Failure, declared: Sequence[type[Exception]], remote: HandlerError
) -> Exception | None:
    kind = next((each for each in declared if _is_named(each, failure.declared)), None)
    if kind is None:
        return None
    arguments = failure.args if failure.args is not None else [failure.message]
    try:
        error = kind(*arguments)
    except Exception:  # noqa: BLE001  (a constructor of the user's with other parameters)
        error = Exception.__new__(kind, *arguments)
    error.__cause__ = remote
    return error


def _is_named(kind: type[Exception], name: str) -> bool:
    """The same class under its own name, or defined in a program run as `__main__` on one side."""
    if type_name(kind) == name:
        return True
    is_main = name.startswith("__main__.") or kind.__module__ == "__main__"
    return is_main and name.rsplit(".", 1)[-1] == kind.__name__


def _message_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001  (the user's __str__)
        return "<the error has no readable text>"


def _args_of(error: BaseException) -> list[Any] | None:
    """The arguments to make the error from again, if they are JSON values and not too long."""
    try:
        text = _encode(error.args)
    except (TypeError, ValueError, msgspec.MsgspecError, RecursionError):
        return None
    return msgspec.json.decode(text) if len(text) <= MAX_TEXT else None


def _traceback_of(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except Exception:  # noqa: BLE001  (the user's __str__ or __repr__)
        return ""


def _causes_of(error: BaseException) -> list[tuple[str, str]]:
    causes: list[tuple[str, str]] = []
    seen = {id(error)}
    following = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    while following is not None and id(following) not in seen and len(causes) < 10:
        seen.add(id(following))
        causes.append((type_name(type(following)), _message_of(following)[:1000]))
        following = following.__cause__ or (None if following.__suppress_context__ else following.__context__)
    return causes


def _cut(text: str) -> str:
    if len(text) <= MAX_TEXT:
        return text
    half = MAX_TEXT // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"


def _clean(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
