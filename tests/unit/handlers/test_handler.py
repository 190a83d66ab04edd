"""Handlers and their events: what annotations decide, and what registration refuses."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Optional

import msgspec
import pytest

import eventbus
from eventbus import DefinitionError, Event, EventContext, JobFacts, Retry, SyncContext
from eventbus.handlers.handler import Handler, make_handler


class Order(msgspec.Struct):
    n: int


def _make(function: Any, payload: Any = Any, result: Any = Any, **options: Any) -> Handler:
    return make_handler(function, Event("placed", payload=payload, result=result), **options)


_NONE: Any = None


async def plain(order: Order) -> int: ...
async def with_context(order: Order, ctx: EventContext) -> int: ...
async def by_keyword(order: Order, *, context: eventbus.EventContext) -> int: ...
async def with_defaults(order: Order, retries: int = 3, ctx: EventContext = _NONE) -> int: ...
def in_thread(order: Order, ctx: SyncContext) -> int: ...
def bare(  # noqa: ANN201
    payload,  # noqa: ANN001  # pyright: ignore[reportUnknownParameterType, reportMissingParameterType]
): ...


@pytest.mark.parametrize(
    ("function", "context", "is_async"),
    [
        (plain, None, True),
        (with_context, "ctx", True),
        (by_keyword, "context", True),
        (with_defaults, "ctx", True),
        (in_thread, "ctx", False),
        (bare, None, False),
        (lambda payload: payload, None, False),
        (functools.partial(with_defaults, retries=5), "ctx", True),
    ],
)
def test_the_context_is_found_by_its_annotation(
    function: Callable[..., Any], context: str | None, is_async: bool
) -> None:
    handler = _make(function, Order, int)
    assert (handler.context, handler.is_async) == (context, is_async)


def test_functions_with_types_local_to_a_function_are_understood_as_far_as_can_be() -> None:
    Context = EventContext  # noqa: N806

    class Local(msgspec.Struct):
        n: int

    async def local(order: Local, ctx: EventContext) -> int: ...
    async def wrong(order: Local, ctx: EventContext) -> str: ...
    async def renamed(
        order: Local,
        c: Context,  # pyright: ignore[reportUnknownParameterType, reportInvalidTypeForm]
    ) -> int: ...

    assert _make(local, Local, int).context == "ctx"
    with pytest.raises(DefinitionError, match="the return type of handler"):
        _make(wrong, Local, int)  # what can be resolved is checked
    with pytest.raises(DefinitionError, match=r"expected handler .*renamed.* its parameters are: order, c"):
        _make(renamed, Local, int)


@pytest.mark.parametrize(
    ("declared", "annotated"),
    [
        (int | None, Optional[int]),  # noqa: UP045
        (list[int], list),
        (dict[str, int], dict[str, Any]),
        (None, type(None)),
        (Any, int),
        (int, Any),
    ],
)
def test_one_type_may_be_written_in_several_ways(declared: Any, annotated: Any) -> None:
    async def handler(payload: Any) -> Any: ...

    handler.__annotations__ = {"payload": annotated, "return": annotated}
    _make(handler, declared, declared)


async def takes_text(order: str) -> int: ...
async def takes_many(orders: list[Order]) -> int: ...
async def returns_text(order: Order) -> str: ...
async def returns_nothing(order: Order) -> None: ...
async def takes_none() -> int: ...
async def takes_two(order: Order, other: int) -> int: ...
async def context_first(ctx: EventContext, order: Order) -> int: ...
async def keyword_only(*, order: Order) -> int: ...
async def of_a_thread(order: Order, ctx: SyncContext) -> int: ...
def of_the_loop(order: Order, ctx: EventContext) -> int: ...
def of_a_process(order: Order, facts: JobFacts) -> int: ...
async def facts_alone(order: Order, facts: JobFacts) -> int: ...


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (takes_text, "the payload parameter of handler takes_text of event 'placed' is <class 'str'>, but"),
        (takes_many, r"'s payload is .*Order'>; for many payloads in one call give batch=Batch\(size=...\)$"),
        (returns_text, "the return type of handler returns_text of event 'placed' is <class 'str'>"),
        (returns_nothing, "the return type"),
        (takes_none, "to take the payload .*; its parameters are: none"),
        (takes_two, "if annotated as EventContext, a context; its parameters are: order, other"),
        (context_first, "to take the payload first, its context 'ctx' after it"),
        (keyword_only, "its parameters are: order"),
        (of_a_thread, "is async: annotate its context as EventContext, not SyncContext"),
        (of_the_loop, "is sync: annotate its context as SyncContext, not EventContext"),
        (5, "to be a function, got: 5"),
        (None, "to be a function"),
    ],
)
def test_a_function_that_does_not_fit_its_event_is_refused(function: Any, message: str) -> None:
    with pytest.raises(DefinitionError, match=message):
        _make(function, Order, int)


def test_another_group_may_return_what_it_likes() -> None:
    assert _make(returns_nothing, Order, int, group="mail").group == "mail"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"concurrency": 0}, "expected concurrency of handler plain .* to be a positive integer, got: 0"),
        ({"concurrency": True}, "expected concurrency"),
        ({"concurrency": 1.5}, "expected concurrency"),
        ({"timeout": -1}, "expected timeout"),
        ({"timeout": "soon"}, "expected timeout"),
        (
            {"retry": 3},
            (
                "expected retry of handler plain of event 'placed' to be a Retry, such as Retry.attempts=3., "
                "got: 3"
            ),
        ),
        ({"group": "a b"}, "expected a group name"),
        (
            {"pool": "fork"},
            'expected pool of handler plain .* to be one of "thread", "process", got: \'fork\'',
        ),
        (
            {"pool": "process"},
            "handler plain .* is async and runs in the event loop; for pool='process' make",
        ),
        ({"pool": "thread"}, "is async and runs in the event loop"),
    ],
)
def test_an_option_that_cannot_be_used_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(DefinitionError, match=message):
        _make(plain, Order, int, **options)


def test_where_a_handler_runs_follows_from_its_kind_and_is_chosen_for_plain_functions() -> None:
    assert _make(plain, Order, int).pool is None
    assert _make(in_thread, Order, int).pool == "thread"
    assert _make(in_thread, Order, int, pool="thread").pool == "thread"
    assert _make(of_a_process, Order, int, pool="process").pool == "process"


def test_the_facts_are_part_of_every_context_and_all_that_a_process_gives() -> None:
    assert _make(of_a_process, Order, int, pool="process").context == "facts"
    assert _make(of_a_process, Order, int).context == "facts"
    assert _make(facts_alone, Order, int).context == "facts"
    assert [name for name in ("emit", "progress", "shared") if hasattr(JobFacts, name)] == []
    for wrong, name in ((in_thread, "SyncContext"), (of_the_loop, "EventContext")):
        with pytest.raises(
            DefinitionError, match=f"runs in a process: annotate its context as ProcessContext, not {name}"
        ):
            _make(wrong, Order, int, pool="process")


def test_options_are_kept_in_their_units() -> None:
    handler = _make(plain, Order, int, timeout="250ms", concurrency=3, retry=Retry(attempts=1))
    assert (handler.timeout, handler.concurrency, handler.retry) == (0.25, 3, Retry(attempts=1))
    assert _make(plain, timeout=0).timeout is None


async def _streams(n: Any) -> AsyncIterator[int]:
    yield n


def _yields(n: Any) -> Iterator[int]:
    yield n


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (_streams, "it is a generator"),
        (_yields, "it is a generator"),
        (type, "whose parameters can be known"),
    ],
)
def test_what_can_be_no_handler_is_refused_with_the_reason(function: Any, said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        make_handler(function, Event("e"))
