"""Records of errors: an exception becomes a record, and a record becomes an exception of this package.

A record holds the type's name, the message, the traceback as text (without the frames of this package, see
`tracebacks`) and the chain of causes. Exceptions themselves are never sent. An error that its event declares
in `errors` comes back as its own class, with its arguments and attributes (`carried`). Log events of a
failure are made from its record, so that the traceback is formatted once, in the process that raised the
error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from eventbus.errors import (
    EmissionExpired,
    HandlerError,
    JobCancelled,
    PayloadError,
    ProcessDied,
    StalledError,
    StoreCorrupt,
    Unrecoverable,
)
from eventbus.model.containment import as_exception, causes_of, contained, members_of, original
from eventbus.model.redaction.hidden_around import hidden_around, note_forms_around
from eventbus.model.redaction.hidden_values import NOTHING_HIDDEN, HiddenTexts
from eventbus.model.redaction.places import find_hidden_in, plain
from eventbus.model.retry import Retry
from eventbus.telemetry.carried import Carried, carry, hide_in_carried, rebuild
from eventbus.telemetry.logging import Logger
from eventbus.telemetry.tracebacks import short_traceback

_OWN = "__eventbus_own__"
_HIDDEN = "__eventbus_hidden__"
_RECORDED = "__eventbus_recorded__"
_AWAITED = "__eventbus_awaited__"

MAX_TEXT = 16 * 1024
"""The most characters of an error text that are kept; longer texts are cut in the middle."""

_MOST_CAUSES = 100
"""So many errors are looked at that an error was raised from."""

_CAUSE = 1000
"""The most characters of a cause that are kept."""

_LOGGED_LINE, _LOGGED_TRACEBACK = 500, 8 * 1024
"""The most characters that are logged. Collectors of container logs cut events of more than 16 KiB."""


class Failure(msgspec.Struct, omit_defaults=True):
    """The record of one error. `attempts` is the number of attempts that ended in an error.

    Its texts have places around what they quote of hidden values (`redaction.places`).
    """

    type: str
    message: str = ""
    attempts: int = 0
    traceback: str = ""
    causes: list[tuple[str, str]] = []
    declared: str = ""
    """The name of the declared class that the error is an instance of; empty if there is none."""
    args: list[Any] | None = None
    stalls: int = 0
    """Above 0 if the job itself stalled too often. 0 if a handler raised that of another job."""
    expired: bool = False
    """Whether the job itself expired. False if its handler raised the EmissionExpired of another job."""
    event: str = ""
    """The event, or the name of another kind of job. Empty in records of older releases, or if unknown."""
    carried: Carried | None = None
    """What makes a declared error again. None in records of older releases, which have arguments alone."""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Failure).decode
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def type_name(kind: type[BaseException]) -> str:
    """Return the name of a class with its module, unless it is built in or an error of this package."""
    if kind.__module__ in ("builtins", "eventbus.errors"):
        return kind.__qualname__
    # A child process calls the main module `__mp_main__`. The parent knows its classes as `__main__`.
    module = "__main__" if kind.__module__ == "__mp_main__" else kind.__module__
    return f"{module}.{kind.__qualname__}"


class Recorded(msgspec.Struct, frozen=True):
    """The record of an error that another process of the worker reported. `is_final` says that no retry can
    help.

    `is_awaited` says that it is that of a job which the code awaited. `kinds` are the names of its class and
    of those that this inherits from.
    """

    text: str
    is_final: bool
    kinds: tuple[str, ...] = ()
    is_awaited: bool = False


def mark_of(error: BaseException, name: str) -> Any:
    """Return what this package has noted at an error; None if nothing, also if its class cannot be asked."""
    try:
        return getattr(error, name, None)
    except BaseException as own:  # noqa: BLE001  (the user's `__getattr__`)
        as_exception(own)
        return None


def with_places_of(text: str, error: BaseException) -> str:
    """Return the record of an error, made anew from what an emitter got, with the places that `error`
    carries.
    """
    return without(text, NOTHING_HIDDEN.with_secret(hidden_of(error)))


def mark_recorded(error: BaseException, record: Recorded) -> None:
    """Keep the record of an error that another process reported; `describe` and `is_final` then use it."""
    object.__setattr__(error, _RECORDED, record)


def recorded(error: BaseException) -> Recorded | None:
    """Return the record of an error that came from another process, or None if it was raised in this one."""
    return mark_of(error, _RECORDED)


def is_final(error: BaseException) -> bool:
    """Return whether an error is the job's own, so that another attempt would end the same way."""
    known = recorded(error)
    if known is not None:
        return known.is_final
    return isinstance(error, (Unrecoverable, PayloadError, StoreCorrupt))


def kinds_of(error: BaseException) -> list[str]:
    """Return the names of an error's class and of those that this inherits from, for a process that lacks the
    class.
    """
    return [type_name(kind) for kind in type(error).__mro__ if issubclass(kind, Exception)]


def is_excluded(error: BaseException, rule: Retry) -> bool:
    """Return whether a rule does not try again after an error of this kind, also if another process reported
    it.
    """
    if not (rule.only or rule.never):
        return False
    return _is_one_of(error, rule.never) or bool(rule.only and not _is_one_of(error, rule.only))


def _is_one_of(error: BaseException, kinds: tuple[type[Exception], ...]) -> bool:
    known = recorded(error)
    if known is None:
        return isinstance(error, kinds)
    return any(type_name(kind) in known.kinds for kind in kinds)


def mark_awaited(error: BaseException) -> None:
    """Mark `error` as the final failure of a job whose outcome somebody awaits."""
    object.__setattr__(error, _AWAITED, True)


def is_awaited(error: BaseException) -> bool:
    """Return whether this very error is the final failure of a job that the code awaited."""
    known = recorded(error)
    return bool(mark_of(error, _AWAITED)) if known is None else known.is_awaited


def is_settled_below(error: BaseException, rule: Retry) -> bool:
    """Return whether an error is the final failure of an awaited job, whose own rule has tried the rest.

    Another attempt above would multiply the attempts below. A rule that names its kind in `only` wants them.
    """
    return is_awaited(error) and not (rule.only and _is_one_of(error, rule.only))


def mark_own(error: BaseException) -> None:
    """Mark `error` as made by the engine: no handler raised it, so it is not an answer."""
    object.__setattr__(error, _OWN, True)


def is_answer(
    error: BaseException, declared: Sequence[type[Exception]], retry_on: Sequence[type[Exception]]
) -> bool:
    """Return whether an error is a declared answer, which another attempt would only repeat.

    Errors in `retry_on` are not, nor are errors that happened to the handler: its timeout, the death of its
    process.
    """
    return (
        isinstance(error, tuple(declared))
        and not isinstance(error, (ProcessDied, *retry_on))
        and not mark_of(error, _OWN)
    )


def describe_expired(error: EmissionExpired, *, attempts: int) -> str:
    """Return the record of a job that expired, as JSON text."""
    return _encode(Failure("EmissionExpired", str(error), attempts, expired=True, event=error.event)).decode()


def describe_odd(error: BaseException, odd: BaseException, *, attempts: int) -> str:
    """Return the record of an error that cannot be asked: whoever tried got `odd`. Runs no code of its
    class.
    """
    message = f"the error cannot be asked: {type(odd).__qualname__} was raised in a look at it"
    return _encode(Failure(type_name(type(error)), message, attempts)).decode()


def describe_cancelled(reason: str) -> str:
    """Return the record of a job that was cancelled for `reason`, as JSON text."""
    return _encode(Failure("JobCancelled", _clean(_cut(reason)))).decode()


def describe(
    error: BaseException,
    *,
    attempts: int,
    declared: Sequence[type[Exception]] = (),
    event: str = "",
    hidden: HiddenTexts = NOTHING_HIDDEN,
) -> str:
    """Return the record of an attempt's `error` as JSON text. `event` is the event's name. Never raises.

    `hidden` is what its texts must not quote; by default that of the job that runs around the caller. To it
    comes what is hidden in the errors of other jobs that this one was raised from. The arguments of a
    declared error stay; an attribute that holds a sensitive value is left out. The record of an error that
    another process reported is the one that was made there.
    """
    error = original(error)
    hidden = (hidden or hidden_around()).with_secret(hidden_of(error))
    known = recorded(error)
    if known is not None:
        return without(known.text, hidden)
    kind = _nearest(error, declared)
    failure = Failure(
        type=type_name(type(error)),
        message=_told(message_of(error), hidden),
        attempts=attempts,
        traceback=_told(short_traceback(error), hidden),
        causes=_causes_of(error, hidden),
        declared=type_name(kind) if kind else "",
        args=_args_of(error) if kind else None,
        event=event,
        carried=carry(error, kind, hidden) if kind else None,
    )
    try:
        return _encode(failure).decode()
    except UnicodeError:  # lone surrogates, such as those in file names that are not UTF-8
        failure.message, failure.traceback = _clean(failure.message), _clean(failure.traceback)
        failure.causes = [(name, _clean(text)) for name, text in failure.causes]
        return _encode(failure).decode()


def without(text: str, hidden: HiddenTexts) -> str:
    """Return the record of an error with this hidden in its texts, and in those of the records that it holds.

    The arguments of a declared error stay, and so does what only other kinds of records have.
    """
    if not hidden:
        return text
    try:
        return _hide_in(_decode_fields(text), hidden)
    except (msgspec.MsgspecError, UnicodeError):
        return _encode(_each_text(_read(text), hidden.recorded)).decode()


def hide_in_record(text: str) -> str:
    """Return the record of another job's error with that hidden which the job around the caller hides."""
    return without(text, hidden_around()) if text else text


def _hide_in(fields: dict[str, msgspec.Raw], hidden: HiddenTexts) -> str:
    changed: dict[str, Any] = {}
    for name, raw in fields.items():
        if name in ("message", "traceback"):
            changed[name] = hidden.recorded(msgspec.json.decode(raw, type=str))
        elif name == "causes":
            causes = msgspec.json.decode(raw, type=list[tuple[str, str]])
            changed[name] = [(kind, hidden.recorded(cause)) for kind, cause in causes]
        elif name == "carried" and bytes(raw) != b"null":
            changed[name] = hide_in_carried(msgspec.json.decode(raw, type=Carried), hidden)
        elif name == "error" and bytes(raw)[:1] == b"{":
            changed[name] = msgspec.Raw(without(bytes(raw).decode(), hidden).encode())
        elif name == "rollback_errors":
            pairs = msgspec.json.decode(raw, type=list[tuple[str, msgspec.Raw]])
            changed[name] = [
                (path, msgspec.Raw(without(bytes(record).decode(), hidden).encode()))
                for path, record in pairs
            ]
    return _encode(fields | changed).decode()


def read_failure(text: str) -> Failure:
    """Return the failure in a record, with its whole texts. If it cannot be read, the failure says so. Never
    raises.
    """
    return _each_text(_read(text), plain)


def hidden_of(error: BaseException) -> set[str]:
    """Return what the records of other jobs hide in the errors that this one was raised from."""
    found: set[str] = set()
    seen: set[int] = set()
    ahead: list[BaseException | None] = [error]
    while ahead and len(seen) < _MOST_CAUSES:
        raised = ahead.pop()
        if raised is None or id(raised) in seen:
            continue
        seen.add(id(raised))
        found.update(mark_of(raised, _HIDDEN) or ())
        ahead += (*causes_of(raised), *members_of(raised))
    return found


def carry_hidden(error: BaseException, hidden: set[str]) -> None:
    """Let an error say what the record that it was made from hides, so that a record of it does so, too."""
    if hidden:
        with suppress(AttributeError, TypeError):  # a class of the user's that takes no attributes
            setattr(error, _HIDDEN, frozenset(hidden))


def _read(text: str) -> Failure:
    try:
        return _decode(text)
    except (msgspec.MsgspecError, UnicodeError):
        return Failure("unknown", f"the recorded error cannot be read: {text[:200]!r}")


def _each_text(failure: Failure, change: Callable[[str], str]) -> Failure:
    failure.message = change(failure.message)
    failure.traceback = change(failure.traceback)
    failure.causes = [(kind, change(cause)) for kind, cause in failure.causes]
    return failure


def _hidden_in(failure: Failure) -> set[str]:
    texts = [failure.message, failure.traceback, *(cause for _, cause in failure.causes)]
    return set[str]().union(*map(find_hidden_in, texts))


def log_failure(
    log: Logger,
    event: str,
    record: str,
    facts: Mapping[str, Any],
    *,
    retry_in: float | None = None,
    is_answer: bool = False,
) -> None:
    """Log one failure from its record: as an error, or as a warning if it is retried in `retry_in` seconds.

    A declared answer (`is_answer`) is logged as information, on one line without a traceback, because the
    emitter gets it.
    """
    failure = read_failure(record)
    fields = {**facts, "error": error_line(failure.type, failure.message)}
    if retry_in is not None:
        fields["retry_in"] = retry_in
    if is_answer:
        log.info(event, **fields)
        return
    if failure.traceback:
        fields["exception"] = _cut(failure.traceback.rstrip(), _LOGGED_TRACEBACK)
    (log.error if retry_in is None else log.warning)(event, **fields)


def error_line(kind: str, message: str) -> str:
    """Return an error as one line for a log, cut to 500 characters."""
    text = " ".join(message[: 2 * _LOGGED_LINE].split())
    line = f"{kind}: {text}" if text else kind
    return line if len(line) <= _LOGGED_LINE else f"{line[: _LOGGED_LINE - 3]}..."


def revive(
    state: str, text: str, *, event: str, job_id: str, declared: Sequence[type[Exception]] = ()
) -> Exception:
    """Return the exception for the record of a failed or cancelled job.

    `event` is the name that the caller knows. A name in the record goes before it.
    """
    failure = _read(text)
    hidden = _hidden_in(failure)
    note_forms_around(hidden)  # an error may also be read as a value
    _each_text(failure, plain)
    event = failure.event or event
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
    carry_hidden(remote, hidden)  # a declared error has it as its cause
    if failure.declared:
        return _as_declared(failure, declared, remote) or remote
    return remote


def _as_declared(
    failure: Failure, declared: Sequence[type[Exception]], remote: HandlerError
) -> Exception | None:
    names = {type_name(candidate): candidate for candidate in reversed(declared)}
    alike = (candidate for candidate in declared if _is_named(candidate, failure.declared))
    kind = names.get(failure.declared) or next(alike, None)
    if kind is None:
        return None
    arguments = failure.args if failure.args is not None else [failure.message]
    carried = failure.carried
    error = _construct(kind, arguments) if carried is None else rebuild(kind, carried, arguments)
    if error is not None:
        object.__setattr__(error, "__cause__", remote)  # a frozen dataclass refuses other ways
    return error


def _nearest(error: BaseException, declared: Sequence[type[Exception]]) -> type[Exception] | None:
    """Return the declared class that is nearest to an error's own, in whatever order they are declared."""
    fitting = [kind for kind in declared if isinstance(error, kind)]
    bases = type(error).__mro__
    # A class that is no base of it, because it says itself what its instances are, comes last.
    return min(fitting, key=lambda kind: bases.index(kind) if kind in bases else len(bases), default=None)


def _construct(kind: type[Exception], arguments: Sequence[Any]) -> Exception | None:
    """Return a declared error from the record of an older release, which does not know its attributes."""
    try:
        return contained(kind, *arguments)
    except Exception:  # noqa: BLE001  (a constructor of the user's with other parameters)
        return rebuild(kind, Carried(), arguments)


def _is_named(kind: type[Exception], name: str) -> bool:
    """Return whether `name` is that of `kind`, also if one side ran its module as `__main__`."""
    if type_name(kind) == name:
        return True
    is_main = name.startswith("__main__.") or kind.__module__ == "__main__"
    return is_main and name.rsplit(".", 1)[-1] == kind.__name__


def message_of(error: BaseException) -> str:
    """Return the text of an error; never raises."""
    try:
        return contained(str, error)
    except Exception:  # noqa: BLE001  (the user's __str__)
        return "<the error has no readable text>"


def _args_of(error: BaseException) -> list[Any] | None:
    """Return the arguments for making the error again, or None if they are not JSON values or too long."""
    try:
        text = _encode(error.args)
    except (TypeError, ValueError, msgspec.MsgspecError, RecursionError):
        return None
    return msgspec.json.decode(text) if len(text) <= MAX_TEXT else None


def _causes_of(error: BaseException, hidden: HiddenTexts) -> list[tuple[str, str]]:
    causes: list[tuple[str, str]] = []
    seen = {id(error)}
    following = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    while following is not None and id(following) not in seen and len(causes) < 10:
        seen.add(id(following))
        causes.append((type_name(type(following)), _told(message_of(following), hidden, _CAUSE)))
        following = following.__cause__ or (None if following.__suppress_context__ else following.__context__)
    return causes


def _told(text: str, hidden: HiddenTexts, most: int = MAX_TEXT) -> str:
    """Return a text as it is recorded: cut first, so that the search is bounded, which finds parts of values
    at the cut, too.
    """
    return hidden.recorded(_cut(plain(text), most))


def _cut(text: str, most: int = MAX_TEXT) -> str:
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"


def _clean(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
