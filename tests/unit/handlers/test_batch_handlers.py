"""Batch handlers and their events: what annotations decide, and what registration refuses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from eventbus import (
    Batch,
    BatchContext,
    DefinitionError,
    Event,
    EventContext,
    EventProvider,
    Handlers,
    JobFacts,
    SyncBatchContext,
)
from eventbus.handlers.handler import Handler, make_handler
from workflows import Workflow


class Order(msgspec.Struct):
    n: int


def _make(function: Any, payload: Any = Order, result: Any = int, **options: Any) -> Handler:
    options.setdefault("batch", Batch(size=10))
    return make_handler(function, Event("placed", payload=payload, result=result), **options)


async def full(orders: list[Order], ctx: BatchContext) -> list[int | Exception]: ...
async def results(orders: list[Order]) -> list[int]: ...
async def errors(orders: Sequence[Order]) -> Sequence[ValueError | int | KeyError]: ...
async def gathered(orders: list[Order]) -> list[int | BaseException]: ...
async def only_errors(orders: list[Order]) -> list[Exception]: ...
async def tuples(orders: list[Order]) -> tuple[int | Exception, ...]: ...
async def bare(  # pyright: ignore[reportUnknownParameterType]
    orders: list,  # pyright: ignore[reportMissingTypeArgument, reportUnknownParameterType]
) -> list: ...  # pyright: ignore[reportMissingTypeArgument]
async def untyped(  # noqa: ANN201
    orders,  # noqa: ANN001  # pyright: ignore[reportUnknownParameterType, reportMissingParameterType]
): ...
def in_thread(orders: list[Order], ctx: SyncBatchContext) -> list[int]: ...


@pytest.mark.parametrize(
    "function", [full, results, errors, gathered, only_errors, tuples, bare, untyped, in_thread]
)
def test_a_function_of_lists_fits(function: Any) -> None:
    assert _make(function).batch == Batch(size=10)


async def one(order: Order) -> int: ...
async def others(orders: list[str]) -> list[int]: ...
async def texts(orders: list[Order]) -> list[str]: ...
async def one_result(orders: list[Order]) -> int: ...
async def nothing(orders: list[Order]) -> None: ...
async def mapped(orders: list[Order]) -> dict[str, int]: ...
async def of_one_job(orders: list[Order], ctx: EventContext) -> list[int]: ...
async def of_facts(orders: list[Order], ctx: JobFacts) -> list[int]: ...
def of_loop(orders: list[Order], ctx: BatchContext) -> list[int]: ...


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            one,
            r"payload parameter of handler one .* is <class '.*Order'>, .* a list of payloads: list\[Order\]",
        ),
        (others, r"is list\[str\], but with batch it gets a list of payloads: list\[Order\]"),
        (
            texts,
            r"return type of handler texts .* is list\[str\], .*for each payload: list\[int \| Exception\]",
        ),
        (one_result, r"for each payload: list\[int \| Exception\]$"),
        (nothing, r"for each payload: list\[int \| Exception\]$"),
        (mapped, r"for each payload: list\[int \| Exception\]$"),
        (of_one_job, "is async and takes batches: annotate its context as BatchContext, not EventContext"),
        (of_facts, "annotate its context as BatchContext, not JobFacts"),
        (of_loop, "is sync and takes batches: annotate its context as SyncBatchContext, not BatchContext"),
    ],
)
def test_a_function_that_does_not_fit_is_refused(function: Any, message: str) -> None:
    with pytest.raises(DefinitionError, match=message):
        _make(function)


def test_an_event_without_a_result_may_have_a_handler_that_returns_nothing() -> None:
    async def maybe(orders: list[Order]) -> list[Exception | None] | None: ...

    for function in (nothing, maybe):
        _make(function, result=None)
        _make(function, result=Any)
    _make(nothing, group="audit")
    with pytest.raises(DefinitionError, match=r"list\[None \| Exception\], or None"):
        _make(results, result=None)


def test_a_payload_that_is_a_list_itself_needs_a_list_of_lists() -> None:
    async def flat(numbers: list[int]) -> list[int]: ...
    async def nested(numbers: list[list[int]]) -> list[int]: ...

    _make(nested, payload=list[int])
    with pytest.raises(DefinitionError, match=r"list\[list\[int\]\]"):
        _make(flat, payload=list[int])


def test_a_context_of_batches_needs_a_batch() -> None:
    with pytest.raises(DefinitionError, match="annotate its context as EventContext, not BatchContext"):
        _make(full, payload=list[Order], result=Any, batch=None)


@pytest.mark.parametrize("pool", ["process", "render", "small"])
def test_a_pool_is_refused(pool: str) -> None:
    provider = EventProvider("memory:")
    provider.pool("render", processes=2)
    provider.pool("small", threads=2)
    with pytest.raises(DefinitionError, match=f"not in pool='{pool}'; leave out batch or pool"):
        provider.on(Event("placed", payload=Order, result=int), batch=Batch(size=2), pool=pool)(in_thread)
    with pytest.raises(DefinitionError, match="leave out batch or pool"):
        _make(results, pool=pool)  # a plain function would not do, either
    assert _make(in_thread, pool="thread").pool == "thread"


@pytest.mark.parametrize("batch", [100, {"size": 100}, Batch, "100"])
def test_what_is_no_batch_is_refused(batch: Any) -> None:
    for collection in (EventProvider("memory:"), Handlers()):
        with pytest.raises(DefinitionError, match="to be a Batch, such as"):
            collection.on("placed", batch=batch)(full)


def test_a_step_of_a_workflow_takes_no_batches() -> None:
    step: Any = Workflow("flow", input=Order).step
    with pytest.raises(DefinitionError, match="has no option 'batch'"):
        step(batch=Batch(size=2))
