"""Events: named message types, defined once with their payload and result, used by emitters and handlers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypedDict, TypeVar, Unpack, cast, overload

from eventbus.errors import DefinitionError
from eventbus.model.durations import Duration, seconds
from eventbus.model.keep import Keep, KeepGiven, check_keep
from eventbus.model.limit import Limit
from eventbus.model.names import check_event_name, shown
from eventbus.model.retry import Retry, check_answers

if TYPE_CHECKING:
    from types import UnionType
    from typing import _SpecialForm  # pyright: ignore[reportPrivateUsage]

P = TypeVar("P")
R = TypeVar("R")
# An overload of __init__ that annotates `self` needs type variables of its own.
PT = TypeVar("PT")
RT = TypeVar("RT")

_Form: TypeAlias = "UnionType | _SpecialForm | None"
"""Types that are not classes, such as `int | None`, as type checkers see them."""


class EventKeywords(TypedDict, Generic[P], total=False):
    """The options of an event whose payload is a `P`; `Event` documents each of them.

    Your own function can pass the options on with their types:
    `def shop_event(name: str, payload: type[P], **options: Unpack[EventKeywords[P]]) -> Event[P, Any]`.
    """

    key: Callable[[P], str] | None
    ttl: Duration | None
    errors: Sequence[type[Exception]]
    retry_on: Sequence[type[Exception]]
    retry: Retry | None
    limit: Limit | None
    require_worker: bool
    keep_completed: KeepGiven | None
    keep_failed: KeepGiven | None
    reply: bool
    default: bool


class Event(Generic[P, R]):
    """One event: its name, the types of its payload and its result, and the defaults of its emissions.

        OrderPlaced = Event("order.placed", payload=Order, result=Receipt, errors=[OutOfStock])

    An event is a value. It is not registered anywhere, and a process that only emits it needs nothing
    else. Its attributes cannot be changed, because providers have already read some of them.
    """

    name: str
    payload: Any
    result: Any
    key: Callable[[Any], str] | None
    ttl: float | None
    errors: tuple[type[Exception], ...]
    retry_on: tuple[type[Exception], ...]
    retry: Retry | None
    limit: Limit | None
    require_worker: bool
    keep_completed: Keep | None
    keep_failed: Keep | None
    reply: bool
    default: bool

    # Mypy infers Event[Any, Any] for an event whose key is a lambda if that lambda could have two types. So
    # all overloads that fit one payload have one type of key, and `_Form` includes no class.
    @overload
    def __init__(
        self: Event[PT, RT],
        name: str,
        *,
        payload: type[PT],
        result: type[RT],
        **options: Unpack[EventKeywords[PT]],
    ) -> None: ...
    @overload
    def __init__(
        self: Event[PT, None],
        name: str,
        *,
        payload: type[PT],
        result: None,
        **options: Unpack[EventKeywords[PT]],
    ) -> None: ...
    @overload
    def __init__(
        self: Event[PT, Any],
        name: str,
        *,
        payload: type[PT],
        result: Any = ...,
        **options: Unpack[EventKeywords[PT]],
    ) -> None: ...
    @overload
    def __init__(
        self: Event[Any, RT],
        name: str,
        *,
        payload: _Form = ...,
        result: type[RT],
        **options: Unpack[EventKeywords[Any]],
    ) -> None: ...
    @overload
    def __init__(
        self: Event[Any, Any],
        name: str,
        *,
        payload: _Form = ...,
        result: Any = ...,
        **options: Unpack[EventKeywords[Any]],
    ) -> None: ...
    @overload
    def __init__(
        self: Event[Any, RT],
        name: str,
        *,
        payload: Any,
        result: type[RT],
        **options: Unpack[EventKeywords[PT]],
    ) -> None: ...
    @overload
    def __init__(
        self: Event[Any, Any],
        name: str,
        *,
        payload: Any,
        result: Any = ...,
        **options: Unpack[EventKeywords[PT]],
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
        retry_on: Sequence[type[Exception]] = (),
        retry: Retry | None = None,
        limit: Limit | None = None,
        require_worker: bool = False,
        keep_completed: KeepGiven | None = None,
        keep_failed: KeepGiven | None = None,
        reply: bool = True,
        default: bool = True,
    ) -> None:
        """Define an event.

        - `name`: 1 to 128 letters, digits, `_`, `.` and `-`, beginning with a letter or digit.
        - `payload`, `result`: types that msgspec converts, or pydantic models. `Any` means untyped JSON,
          `None` means that the value is None.
        - `key(payload)` returns the idempotency key of each emission: text of 1 to 512 characters.
        - `ttl`: an emission that no handler has started within this duration after it became due expires.
        - `errors`: exception classes that are answers. Each fails the job at once, without a further attempt,
          and is raised as itself where the emission is awaited.
        - `retry_on`: the classes among `errors` that are retried by the rule, as undeclared errors are.
        - `retry`: the rule for failed jobs, over that of the provider.
        - `limit`: how many of its jobs may run at once in the whole fleet, and how many may start
          within a time. Workers declare it; those of the newest release win.
        - `require_worker=True` refuses an emission, with NoWorker, while no worker serves the event
          or one of its groups.
        - `keep_completed`, `keep_failed`: how long its finished jobs are kept, over the settings of
          the provider: a Keep, a count or an age. 0 keeps a completed job only until its emitters
          have its outcome.
        - `reply=False` makes emissions fire-and-forget.
        - `default=False` makes no job for the default group, only for the other groups that exist.

        Raises DefinitionError for a value that cannot be used. The types are checked when a provider first
        uses the event.
        """
        check_event_name(name)
        declared = _check_errors(errors, "errors", name)
        vars(self).update(
            name=name,
            payload=payload,
            result=result,
            key=_check_callable(key, name),
            ttl=None if ttl is None else seconds(ttl, setting="ttl"),
            errors=declared,
            retry_on=_check_declared(_check_errors(retry_on, "retry_on", name), declared, name),
            retry=_check_retry(retry, name),
            limit=_check_limit(limit, name),
            require_worker=_check_flag(require_worker, "require_worker", name),
            keep_completed=check_keep("keep_completed", keep_completed, f"event {name!r}"),
            keep_failed=check_keep("keep_failed", keep_failed, f"event {name!r}"),
            reply=reply and default,
            default=default,
        )
        check_answers(self.retry, f"event {name!r}", errors=self.errors, retry_on=self.retry_on)

    def __setattr__(self, attribute: str, value: object) -> None:
        raise AttributeError(
            f"cannot set {attribute} of {self}: an event stays as it was made; make another one"
        )

    def __delattr__(self, attribute: str) -> None:
        raise AttributeError(f"cannot delete {attribute} of {self}: an event stays as it was made")

    def __repr__(self) -> str:
        return f"Event({vars(self).get('name')!r})"


def _check_callable(key: Any, name: str) -> Callable[[Any], str] | None:
    if key is not None and not callable(key):
        raise DefinitionError(
            f"expected key of event {name!r} to be a function of its payload, got: {shown(key)}"
        )
    return cast("Callable[[Any], str] | None", key)


def _check_retry(retry: Any, name: str) -> Retry | None:
    if retry is not None and not isinstance(retry, Retry):
        raise DefinitionError(
            f"expected retry of event {name!r} to be a Retry, such as Retry(attempts=3), got: {shown(retry)}"
        )
    return retry


def _check_limit(limit: Any, name: str) -> Limit | None:
    if limit is not None and not isinstance(limit, Limit):
        raise DefinitionError(
            f"expected limit of event {name!r} to be a Limit, such as Limit(at_once=20), got: {shown(limit)}"
        )
    if limit is not None and (limit.each or limit.each_rate) and limit.by is None:
        raise DefinitionError(
            f"the limit of event {name!r} has {'each' if limit.each else 'each_rate'} and no by: "
            "give it the function that returns the limit key of a payload"
        )
    return limit


def _check_flag(flag: Any, option: str, name: str) -> bool:
    if not isinstance(flag, bool):
        raise DefinitionError(f"expected {option} of event {name!r} to be True or False, got: {shown(flag)}")
    return flag


def _check_errors(errors: Any, option: str, name: str) -> tuple[type[Exception], ...]:
    is_list = isinstance(errors, Iterable) and not isinstance(errors, type)
    given = tuple(cast("Iterable[Any]", errors)) if is_list else ()
    wrong: list[Any] = [
        kind for kind in given if not (isinstance(kind, type) and issubclass(kind, Exception))
    ]
    if wrong or not is_list:
        raise DefinitionError(
            f"expected {option} of event {name!r} to be a list of exception classes, "
            f"got: {shown(wrong[0] if wrong else cast('object', errors))}"
        )
    return given


def _check_declared(
    retry_on: tuple[type[Exception], ...], errors: tuple[type[Exception], ...], name: str
) -> tuple[type[Exception], ...]:
    for kind in retry_on:
        if not issubclass(kind, errors):
            raise DefinitionError(
                f"retry_on of event {name!r} has {kind.__qualname__}, which is not among its errors; "
                "add it there, or leave it out: what is not declared is retried anyway"
            )
    return retry_on
