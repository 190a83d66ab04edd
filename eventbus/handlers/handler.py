"""Handlers: the functions that subscribers register, checked against their events at registration."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from eventbus.errors import DefinitionError
from eventbus.handlers.batch_context import BatchContext, SyncBatchContext
from eventbus.handlers.batch_types import check_batch_types, is_list_of
from eventbus.handlers.context import EventContext, JobFacts, ProcessContext, SyncContext
from eventbus.handlers.pools import PoolSpec, check_pool
from eventbus.model.batch import Batch
from eventbus.model.durations import Duration, seconds
from eventbus.model.event import Event
from eventbus.model.names import DEFAULT_GROUP, check_group, shown
from eventbus.model.retry import Retry, check_answers
from eventbus.model.type_matching import hints_of, is_untyped, types_agree

_EMPTY = inspect.Parameter.empty
_OF_BATCHES = (BatchContext, SyncBatchContext)
_CONTEXTS = ("BatchContext", "EventContext", "JobFacts", "ProcessContext", "SyncBatchContext", "SyncContext")
_KINDS = {
    "BatchContext": "is async and takes batches",
    "EventContext": "is async",
    "ProcessContext": "runs in a process",
    "SyncBatchContext": "is sync and takes batches",
    "SyncContext": "is sync",
}
"""What a handler is that gets a context of this class."""


class Handler(msgspec.Struct, frozen=True):
    """One registered function with its options.

    `context` is the name of the parameter that takes the context, or None. `timeout` is in seconds, None for
    no limit. `pool` is None for an async function, which runs in the event loop. `is_remote` tells whether
    the pool has processes. `batch` is None for a function that takes one payload.
    """

    function: Callable[..., Any]
    group: str
    concurrency: int | None
    retry: Retry | None
    timeout: float | None
    is_async: bool
    context: str | None
    pool: str | None = None
    is_remote: bool = False
    batch: Batch | None = None


def make_handler(
    function: Callable[..., Any],
    event: Event[Any, Any],
    *,
    group: str = DEFAULT_GROUP,
    concurrency: int | None = None,
    retry: Retry | None = None,
    timeout: Duration | None = None,
    pool: str | None = None,
    batch: Batch | None = None,
    pools: Mapping[str, PoolSpec] = MappingProxyType({}),
) -> Handler:
    """Check a function against its event's types and return it as a handler. A `timeout` of 0 means no limit.

    `pools` are those that were declared. Raises DefinitionError, which names the event and the function, if
    they do not agree, or if `retry` contradicts the answers of the event.
    """
    where = f"handler {_name_of(function)} of event {event.name!r}"
    if not callable(function):
        raise DefinitionError(f"expected {where} to be a function, got: {shown(function)}")
    if retry is not None and not isinstance(retry, Retry):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DefinitionError(
            f"expected retry of {where} to be a Retry, such as Retry(attempts=3), got: {shown(retry)}"
        )
    check_group(group)
    if concurrency is not None and (type(concurrency) is not int or concurrency < 1):
        raise DefinitionError(
            f"expected concurrency of {where} to be a positive integer, got: {shown(concurrency)}"
        )
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise DefinitionError(
            f"expected {where} to return its result, but it is a generator: it has a `yield`"
        )
    hints = hints_of(function)
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004  (an object whose call is a coroutine function)
    )
    _check_batch(batch, pool, where)
    is_remote = check_pool(pool, where, is_async=is_async, pools=pools)
    first, context = _parameters_of(function, hints, where)
    returned = (
        hints.get("return", _EMPTY) if group == DEFAULT_GROUP else _EMPTY
    )  # those of others reach nobody
    if batch is None:
        _check_payload(first, event.payload, where)
        _check_type(returned, event.result, f"the return type of {where}", "result")
    else:
        check_batch_types(first, returned, payload=event.payload, result=event.result, where=where)
    wanted = _context_class(is_async=is_async, is_remote=is_remote, is_batch=batch is not None)
    _check_context(context, hints, where, wanted)
    check_retry(retry, event)
    return Handler(
        function=function,
        group=group,
        concurrency=concurrency,
        retry=retry,
        timeout=None if timeout is None else seconds(timeout, setting="timeout") or None,
        is_async=is_async,
        context=context,
        pool=None if is_async else pool or "thread",
        is_remote=is_remote,
        batch=batch,
    )


def check_retry(retry: Retry | None, event: Event[Any, Any]) -> None:
    """Raise DefinitionError if the retry rule of a handler contradicts what its event declares as answers."""
    where = f"the handler of event {event.name!r}"
    check_answers(retry, where, errors=event.errors, retry_on=event.retry_on)


def check_event(given: Any) -> None:
    """Raise DefinitionError unless a handler can be registered for `given`, an Event or the name of one.

    The usual mistake is `@provider.on` without an event, which passes the function itself.
    """
    if isinstance(given, (str, Event)):
        return
    if inspect.isroutine(given):
        raise DefinitionError(
            f"@provider.on stands above {_name_of(given)} without an event; "
            f'write @provider.on("order.placed") or @provider.on(event)'
        )
    raise DefinitionError(f"expected an Event or the name of one, got: {shown(given)}")


def _name_of(function: Any) -> str:
    return getattr(function, "__qualname__", None) or shown(function)


def _parameters_of(function: Any, hints: dict[str, Any], where: str) -> tuple[Any, str | None]:
    """Return the payload's annotation and the name of the context's parameter."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # some built-in functions have no signature
        raise DefinitionError(f"expected {where} to be a function whose parameters can be known") from None
    context = next((param.name for param in parameters if _is_context(hints.get(param.name))), None)
    others = [param for param in parameters if param.name != context]
    needed = [
        param
        for param in others
        if param.default is _EMPTY and param.kind not in (param.VAR_POSITIONAL, param.VAR_KEYWORD)
    ]
    if not others or others[0].kind is inspect.Parameter.KEYWORD_ONLY or len(needed) > 1:
        names = ", ".join(param.name for param in parameters) or "none"
        raise DefinitionError(
            f"expected {where} to take the payload and, if annotated as EventContext, a context; "
            f"its parameters are: {names}"
        )
    if context is not None and parameters[0].name == context:
        raise DefinitionError(f"expected {where} to take the payload first, its context {context!r} after it")
    return hints.get(others[0].name, _EMPTY), context


def _check_batch(batch: Any, pool: str | None, where: str) -> None:
    if batch is None:
        return
    if not isinstance(batch, Batch):
        raise DefinitionError(
            f"expected batch of {where} to be a Batch, such as Batch(size=100), got: {shown(batch)}"
        )
    if pool not in (None, "thread"):
        raise DefinitionError(
            f"{where} takes batches, which run in the event loop or in the worker's own threads, "
            f"not in pool={pool!r}; leave out batch or pool"
        )


def _is_context(hint: Any) -> bool:
    if isinstance(hint, str):  # an annotation that could not be resolved, such as a class inside a function
        return hint.rsplit(".", 1)[-1] in _CONTEXTS
    return isinstance(hint, type) and issubclass(hint, (JobFacts, *_OF_BATCHES))


def _check_payload(first: Any, payload: Any, where: str) -> None:
    is_many = is_list_of(first, payload)
    hint = "; for many payloads in one call give batch=Batch(size=...)" if is_many else ""
    _check_type(first, payload, f"the payload parameter of {where}", "payload", hint=hint)


def _check_type(annotated: Any, declared: Any, what: str, role: str, *, hint: str = "") -> None:
    if isinstance(annotated, str) or is_untyped(annotated):
        return
    if not types_agree(declared, annotated):
        raise DefinitionError(
            f"{what} is {shown(annotated)}, but the event's {role} is {shown(declared)}{hint}"
        )


def _context_class(*, is_async: bool, is_remote: bool, is_batch: bool) -> type[Any]:
    if is_batch:
        return BatchContext if is_async else SyncBatchContext
    if is_async:
        return EventContext
    return ProcessContext if is_remote else SyncContext


def _check_context(context: str | None, hints: dict[str, Any], where: str, wanted: type[Any]) -> None:
    """Raise DefinitionError unless a handler asks for the context class that it gets, or for JobFacts.

    Every context of one job has the facts of JobFacts.
    """
    if context is None:
        return
    hint = hints[context]
    name = hint.rsplit(".", 1)[-1] if isinstance(hint, str) else hint.__name__
    known = (wanted.__name__,) if wanted in _OF_BATCHES else (wanted.__name__, JobFacts.__name__)
    if name in _CONTEXTS and name not in known:
        raise DefinitionError(
            f"{where} {_KINDS[wanted.__name__]}: annotate its context as {wanted.__name__}, not {name}"
        )
