"""The keyword options of the provider's calls: as types for type checkers, and as checked values."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal, TypedDict

import msgspec

from eventbus.errors import DefinitionError
from eventbus.model.batch import Batch
from eventbus.model.durations import Duration
from eventbus.model.keep import KeepGiven
from eventbus.model.names import check_correlation_id, shown
from eventbus.model.retry import Retry


class ProviderKeywords(TypedDict, total=False):
    """The keyword settings of `EventProvider`; `Settings` documents each of them."""

    name: str
    prefix: str
    reply_timeout: Duration | None
    retry: Retry | int
    concurrency: int
    max_concurrency: int
    lease: Duration
    grace: Duration
    keep_completed: KeepGiven
    keep_failed: KeepGiven
    key_ttl: Duration
    max_waiting: int | None
    max_payload: int | str
    max_result: int | str
    hang_after: Duration
    max_stalls: int
    durability: Literal["default", "replicated"]
    scripting: Literal["auto", "functions", "eval"]
    history: str | None
    allow_eviction: bool


class EmitKeywords(TypedDict, total=False):
    """The options of one emission; `EventProvider.emit` documents each of them.

    None means the default, except for `reply_timeout`, where it means no limit. Your own function can pass
    the options on with their types: `def send(..., **options: Unpack[EmitKeywords])`.
    """

    reply_timeout: Duration | None
    delay: Duration | None
    at: datetime | None
    priority: int
    idempotency_key: str | None
    correlation_id: str | None
    meta: dict[str, Any] | None
    retry: Retry | None
    lifo: bool
    reply: bool | None
    reuse_failure: bool
    supersede: bool
    throttle: Duration | None
    debounce: Duration | None
    longest: Duration | None
    keep_last: bool
    timeout: Duration | None
    ttl: Duration | None
    require_worker: bool | None
    keep_completed: Duration | None
    keep_failed: Duration | None


class HandlerKeywords(TypedDict, total=False):
    """The options of a handler beside its `group` and `batch`; `EventProvider.on` documents each of them.

    None means the default. Your own decorator can pass the options on with their types:
    `def on(event, **options: Unpack[HandlerKeywords])`.
    """

    concurrency: int | None
    retry: Retry | None
    timeout: Duration | None
    pool: str | None


class RegistrationKeywords(HandlerKeywords, total=False):
    """All options of a handler."""

    group: str
    batch: Batch | None


class EmitOptions(msgspec.Struct, frozen=True):
    """The checked options of one emission. None means the default; UNSET is that of `reply_timeout`."""

    reply_timeout: Duration | msgspec.UnsetType | None = msgspec.UNSET
    delay: Duration | None = None
    at: datetime | None = None
    priority: int = 0
    idempotency_key: str | None = None
    correlation_id: str | None = None
    meta: dict[str, Any] | None = None
    retry: Retry | None = None
    lifo: bool = False
    reply: bool | None = None
    reuse_failure: bool = False
    supersede: bool = False
    throttle: Duration | None = None
    debounce: Duration | None = None
    longest: Duration | None = None
    keep_last: bool = False
    timeout: Duration | None = None
    ttl: Duration | None = None
    require_worker: bool | None = None
    keep_completed: Duration | None = None
    keep_failed: Duration | None = None


_LOWEST_PRIORITY, _HIGHEST_PRIORITY = -4000, 4000

# Made once: these are the options of most emissions, and the emitter recognizes them by identity.
_NO_OPTIONS, _NO_REPLY = EmitOptions(), EmitOptions(reply=False)

#: The options that are checked here. The other options are checked where they are converted.
_OPTION_KINDS: dict[str, tuple[type, ...]] = {
    "keep_last": (bool,),
    "lifo": (bool,),
    "meta": (dict, type(None)),
    "reply": (bool, type(None)),
    "require_worker": (bool, type(None)),
    "retry": (Retry, type(None)),
    "reuse_failure": (bool,),
    "supersede": (bool,),
}


def emit_options(given: Mapping[str, Any]) -> EmitOptions:
    """Return the options of one emission as a value. Raises DefinitionError for an option that is wrong."""
    if not given:
        return _NO_OPTIONS
    if len(given) == 1 and given.get("reply") is False:
        return _NO_REPLY  # always the same object, so that the emitter need not resolve it again
    for name, value in given.items():
        kinds = _OPTION_KINDS.get(name)
        if kinds is not None and not isinstance(value, kinds):
            raise DefinitionError(f"expected {name} to be {_kinds_shown(kinds)}, got: {shown(value)}")
    if given.get("correlation_id") is not None:
        check_correlation_id(given["correlation_id"])
    try:
        return EmitOptions(**given)
    except TypeError:
        known = EmitOptions.__struct_fields__
        wrong = ", ".join(repr(name) for name in given if name not in known)
        raise DefinitionError(f"unknown emit option {wrong}; there are: {', '.join(known)}") from None


def check_options(given: Mapping[str, Any], kind: type, where: str) -> None:
    """Raise DefinitionError, naming `where`, for an option that `kind`, a TypedDict, does not have.

    It lists the options that there are, and says which one is close.
    """
    known: Mapping[str, Any] = kind.__annotations__
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise DefinitionError(
                f"{where} has no option {shown(name)}; its options are: {', '.join(known)}{hint}"
            )


def check_priority(priority: Any) -> int:
    """Return `priority` if it can be one of a job: a whole number from -4000 to 4000. Raises DefinitionError
    otherwise.
    """
    if type(priority) is not int or not _LOWEST_PRIORITY <= priority <= _HIGHEST_PRIORITY:
        raise DefinitionError(
            f"expected priority to be a whole number from {_LOWEST_PRIORITY} to {_HIGHEST_PRIORITY}, "
            f"got: {shown(priority)}"
        )
    return priority


def _kinds_shown(kinds: tuple[type, ...]) -> str:
    return " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
