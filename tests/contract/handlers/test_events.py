"""Handlers get and give typed values, the same in this process and in another."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, TypedDict
from uuid import UUID

import msgspec
import pytest

from eventbus import (
    DefinitionError,
    Event,
    EventContext,
    EventProvider,
    HandlerError,
    PayloadError,
    Retry,
    SyncContext,
)

MakeProvider = Callable[..., EventProvider]


class Order(msgspec.Struct):
    order_id: str
    total: int


class Receipt(msgspec.Struct):
    number: str
    at: datetime


@dataclasses.dataclass
class Parcel:
    weight: Decimal
    label: UUID


class Note(TypedDict):
    text: str


ORDER = Order("o-1", 990)
placed = Event("order.placed", payload=Order, result=Receipt)


async def test_payload_and_result_arrive_with_their_types(make_provider: MakeProvider) -> None:
    provider = make_provider()
    seen: list[Order] = []
    now = datetime.now(UTC)

    @provider.on(placed)
    async def price(order: Order) -> Receipt:
        seen.append(order)
        return Receipt("r-1", now)

    async with provider.worker():
        receipt = await provider.emit(placed, ORDER)
    assert receipt == Receipt("r-1", now)
    assert seen == [ORDER]


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (str, "123"),
        (type(None), None),
        (Any, None),
        (Any, "123"),
        (Any, {"a": [1, 2.5, None, True, "x"]}),
        (Any, 2**53 + 1),
        (dict[str, int], {"a": 1}),
        (datetime, datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)),
        (Decimal, Decimal("1.10")),
        (bytes, b"\x00\xff"),
        (Parcel, Parcel(Decimal("1.5"), UUID(int=7))),
        (Note, {"text": "hi"}),
        (int | str | None, "5"),
        (str, "ünïcode ✓ \x00 \U0001f600"),
    ],
)
async def test_a_value_comes_back_as_it_went(make_provider: MakeProvider, type_: Any, value: Any) -> None:
    provider = make_provider()
    echo = Event("echo", payload=type_, result=type_)
    seen: list[Any] = []

    @provider.on(echo)
    async def answer(given: Any) -> Any:
        seen.append(given)
        return given

    async with provider.worker():
        back = await provider.emit(echo, value)
    assert (back, type(back)) == (value, type(value))
    assert (seen, type(seen[0])) == ([value], type(value))


async def test_values_of_another_process_have_their_types_too(make_provider: MakeProvider) -> None:
    worker, emitter = make_provider(), make_provider()

    @worker.on(placed)
    async def price(order: Order) -> Receipt:
        return Receipt(order.order_id, datetime(2026, 1, 1, tzinfo=UTC))

    async with worker.worker(), emitter:
        assert await emitter.emit(placed, ORDER) == Receipt("o-1", datetime(2026, 1, 1, tzinfo=UTC))


async def test_a_payload_that_does_not_fit_is_refused_where_it_is_emitted(
    make_provider: MakeProvider,
) -> None:
    provider = make_provider()
    wrong: Any = {"order_id": 5}
    async with provider:
        with pytest.raises(PayloadError, match=r"order\.placed") as caught:
            provider.emit(placed, wrong)
    assert (caught.value.event, caught.value.role) == ("order.placed", "payload")


async def test_a_payload_that_does_not_fit_the_consumer_fails_without_another_attempt(
    make_provider: MakeProvider,
) -> None:
    worker, emitter = make_provider(), make_provider()

    @worker.on(placed)
    async def price(order: Order) -> Receipt:
        raise AssertionError("never called")

    async with worker.worker(), emitter:
        with pytest.raises(HandlerError, match=r"order\.placed.*order_id") as caught:
            await emitter.emit("order.placed", {"total": 1})
    assert (caught.value.type_name, caught.value.attempts) == ("PayloadError", 1)


async def test_a_result_that_does_not_fit_fails_without_another_attempt(make_provider: MakeProvider) -> None:
    provider = make_provider()
    calls: list[Order] = []

    @provider.on(placed)
    async def price(order: Order):  # noqa: ANN202  # pyright: ignore[reportUnknownParameterType]
        calls.append(order)
        return {"number": 5}

    async with provider.worker():
        with pytest.raises(HandlerError, match="result of") as caught:
            await provider.emit(placed, ORDER)
    assert (caught.value.type_name, len(calls)) == ("PayloadError", 1)


async def test_a_result_that_the_emitter_does_not_expect_is_an_error_of_the_emission(
    make_provider: MakeProvider,
) -> None:
    worker, emitter = make_provider(), make_provider()

    @worker.on("order.placed")
    async def price(order: Any) -> Any:
        return 5

    async with worker.worker(), emitter:
        emission = emitter.emit(placed, ORDER)
        for _ in range(2):
            with pytest.raises(PayloadError, match=r"result of .*order\.placed"):
                await emission


async def test_handlers_are_found_by_name_without_types(make_provider: MakeProvider) -> None:
    provider = make_provider()

    @provider.on("ping")
    def ping(  # noqa: ANN202  # pyright: ignore[reportUnknownParameterType]
        payload,  # noqa: ANN001  # pyright: ignore[reportUnknownParameterType, reportMissingParameterType]
    ):
        return ["pong", payload]  # pyright: ignore[reportUnknownVariableType]

    async with provider.worker():
        assert await provider.emit("ping", {"n": 1}) == ["pong", {"n": 1}]
        assert await provider.emit("ping") == ["pong", None]


async def test_events_do_not_mix(make_provider: MakeProvider) -> None:
    provider = make_provider()

    @provider.on("a")
    async def a(n: int) -> str:
        return f"a{n}"

    @provider.on("b")
    async def b(n: int) -> str:
        if n % 2:
            raise ValueError(n)
        return f"b{n}"

    async with provider.worker():
        of_a = provider.emit_many("a", range(20))
        of_b = [provider.emit("b", n, retry=Retry(attempts=1)) for n in range(20)]
        assert [await each for each in of_a] == [f"a{n}" for n in range(20)]
        assert [await each for each in of_b[::2]] == [f"b{n}" for n in range(0, 20, 2)]
        for each in of_b[1::2]:
            with pytest.raises(HandlerError, match="ValueError"):
                await each


async def test_jobs_of_one_queue_start_in_the_order_of_their_emission(make_provider: MakeProvider) -> None:
    provider = make_provider()
    seen: list[int] = []

    @provider.on("n", concurrency=1)
    async def note(n: int) -> None:
        seen.append(n)

    async with provider.worker():
        await provider.emit_many("n", range(500))[-1]
    assert seen == list(range(500))


async def test_priority_and_lifo_decide_the_order_of_what_waits(make_provider: MakeProvider) -> None:
    provider = make_provider()
    seen: list[str] = []

    @provider.on("n", concurrency=1)
    async def note(text: str) -> None:
        seen.append(text)

    async with provider:
        emissions = [
            provider.emit("n", "plain"),
            provider.emit("n", "late", priority=4000),
            provider.emit("n", "plain too"),
            provider.emit("n", "head", lifo=True),
            provider.emit("n", "first", priority=-4000),
        ]
        for each in emissions:
            await each.enqueued()
        async with provider.worker():
            for each in emissions:
                await each
    assert seen == ["first", "head", "plain", "plain too", "late"]


async def test_sync_handlers_run_in_threads_with_a_context_of_their_own(make_provider: MakeProvider) -> None:
    provider = make_provider()

    @provider.on("double")
    async def double(n: int) -> int:
        return 2 * n

    @provider.on("outer")
    def outer(n: int, ctx: SyncContext) -> list[Any]:
        ctx.progress({"at": n})
        ctx.log.info("in a thread")
        inner = ctx.emit("double", n)
        return [
            inner.result(240),
            threading.current_thread() is threading.main_thread(),
            ctx.event,
            ctx.attempt,
        ]

    async with provider.worker():
        assert await provider.emit("outer", 4) == [8, False, "outer", 1]


async def test_methods_partials_and_callable_objects_are_handlers(make_provider: MakeProvider) -> None:
    import functools

    class Desk:
        async def on_call(self, n: int, ctx: EventContext) -> str:
            return f"{ctx.event} {n}"

        async def __call__(self, n: int) -> str:
            return f"call {n}"

    async def add(left: int, right: int, ctx: EventContext) -> int:
        return left + right + ctx.attempt

    provider = make_provider()
    provider.on("method")(Desk().on_call)
    provider.on("object")(Desk())
    provider.on("partial")(functools.partial(add, 10))
    async with provider.worker():
        assert await provider.emit("method", 1) == "method 1"
        assert await provider.emit("object", 2) == "call 2"
        assert await provider.emit("partial", 3) == 14


async def test_a_second_handler_for_one_event_and_group_is_refused(make_provider: MakeProvider) -> None:
    provider = make_provider()

    @provider.on(placed)
    async def first(order: Order) -> Receipt: ...

    @provider.on(placed, group="billing")
    async def other(order: Order) -> None: ...

    with pytest.raises(DefinitionError, match=r"'order\.placed' has a handler for group 'default' already"):
        provider.on(placed)(first)
    with pytest.raises(DefinitionError, match="group 'billing'"):
        provider.on("order.placed", group="billing")(other)


async def test_two_definitions_of_one_event_are_refused(make_provider: MakeProvider) -> None:
    provider = make_provider()
    provider.on(placed)(lambda order: None)
    with pytest.raises(DefinitionError, match="defined twice"):
        provider.on(Event("order.placed", payload=int))(lambda order: None)
