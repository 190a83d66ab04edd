"""Events: named, typed message types, defined once and used by emitters and handlers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar, cast, overload

from eventbus.durations import Duration, seconds
from eventbus.errors import DefinitionError
from eventbus.names import check_event_name, shown
from eventbus.retry import Retry

__all__ = ["Event"]

P = TypeVar("P")
R = TypeVar("R")
# What an overload of __init__ makes of `self` must be type variables of its own.
PT = TypeVar("PT")
RT = TypeVar("RT")


class Event(Generic[P, R]):
    """One event: its name, its payload's and its result's type, and its defaults.

    An event is a value: it is not registered anywhere, and a process that only emits it
    needs nothing else. Attributes are not to be changed.
    """

    @overload
    def __init__(
        self: Event[PT, RT],
        name: str,
        *,
        payload: type[PT],
        result: type[RT],
        key: Callable[[PT], str] | None = ...,
        ttl: Duration | None = ...,
        errors: Sequence[type[Exception]] = ...,
        retry: Retry | None = ...,
        reply: bool = ...,
        default: bool = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: Event[PT, None],
        name: str,
        *,
        payload: type[PT],
        result: None,
        key: Callable[[PT], str] | None = ...,
        ttl: Duration | None = ...,
        errors: Sequence[type[Exception]] = ...,
        retry: Retry | None = ...,
        reply: bool = ...,
        default: bool = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: Event[PT, Any],
        name: str,
        *,
        payload: type[PT],
        result: Any = ...,
        key: Callable[[PT], str] | None = ...,
        ttl: Duration | None = ...,
        errors: Sequence[type[Exception]] = ...,
        retry: Retry | None = ...,
        reply: bool = ...,
        default: bool = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: Event[Any, RT],
        name: str,
        *,
        payload: Any = ...,
        result: type[RT],
        key: Callable[[Any], str] | None = ...,
        ttl: Duration | None = ...,
        errors: Sequence[type[Exception]] = ...,
        retry: Retry | None = ...,
        reply: bool = ...,
        default: bool = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: Event[Any, Any],
        name: str,
        *,
        payload: Any = ...,
        result: Any = ...,
        key: Callable[[Any], str] | None = ...,
        ttl: Duration | None = ...,
        errors: Sequence[type[Exception]] = ...,
        retry: Retry | None = ...,
        reply: bool = ...,
        default: bool = ...,
    ) -> None: ...

    def __init__(
        self,
        name: str,
        *,
        payload: Any = Any,
        result: Any = Any,
        key: Callable[[Any], str] | None = None,
        ttl: Duration | None = None,
        errors: Sequence[type[Exception]] = (),
        retry: Retry | None = None,
        reply: bool = True,
        default: bool = True,
    ) -> None:
        """Define an event.

        `payload` and `result` are types that msgspec converts, or pydantic models; `Any` is
        untyped JSON, None the value None. `key(payload)` gives each emission its
        idempotency key. An emission not started `ttl` after it became due expires. `errors`
        are raised as themselves in the emitter. `reply=False` makes emissions
        fire-and-forget. `default=False` makes no job for the default group, only for the
        groups that exist.

        Raises DefinitionError for a value that cannot be used; types are checked when the
        event is first used with a provider.
        """
        self.name = check_event_name(name)
        self.payload: Any = payload
        self.result: Any = result
        self.key = _check_callable(key, name)
        self.ttl = None if ttl is None else seconds(ttl, setting="ttl")
        self.errors = _check_errors(errors, name)
        self.retry = _check_retry(retry, name)
        self.reply = reply and default
        self.default = default

    def __repr__(self) -> str:
        return f"Event({self.name!r})"


def _check_callable(key: Any, name: str) -> Callable[[Any], str] | None:
    if key is not None and not callable(key):
        raise DefinitionError(
            f"expected key of event {name!r} to be a function of its payload, got: {shown(key)}"
        )
    return cast("Callable[[Any], str] | None", key)


def _check_retry(retry: Any, name: str) -> Retry | None:
    if retry is not None and not isinstance(retry, Retry):
        raise DefinitionError(f"expected retry of event {name!r} to be a Retry, got: {shown(retry)}")
    return retry


def _check_errors(errors: Sequence[Any], name: str) -> tuple[type[Exception], ...]:
    for each in errors:
        if not (isinstance(each, type) and issubclass(each, Exception)):
            raise DefinitionError(
                f"expected errors of event {name!r} to be exception classes, got: {shown(cast('object', each))}"
            )
    return tuple(errors)
