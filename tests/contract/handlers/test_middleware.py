"""Middleware, which runs around every handler."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from importable import process_handlers
from importable.process_handlers import Crunched, Numbers, crunched

from eventbus import (
    CallNext,
    DefinitionError,
    Event,
    EventContext,
    EventProvider,
    HandlerError,
    JobCancelled,
    PayloadError,
    Retry,
    SyncContext,
)
from eventbus.handlers import consumer

MakeProvider = Callable[..., EventProvider]

_tenant: ContextVar[str] = ContextVar("tenant", default="nobody")

counted = Event("counted", payload=int, result=int)


async def test_the_first_one_used_is_the_outermost(make_provider: MakeProvider) -> None:
    provider = make_provider()
    told: list[str] = []

    @provider.use
    async def outer(payload: Any, ctx: EventContext, call: CallNext) -> Any:
        told.append(f"outer {ctx.event} {ctx.attempt} {payload}")
        result = await call(payload + 1)
        told.append(f"outer got {result}")
        return result + 100

    @provider.use
    async def inner(payload: Any, ctx: EventContext, call: CallNext) -> Any:
        told.append(f"inner {payload}")
        return await call(payload * 10)

    @provider.on(counted)
    async def handler(n: int) -> int:
        told.append(f"handler {n}")
        return n

    async with provider, provider.worker():
        assert await provider.emit(counted, 1) == 120
    assert told == ["outer counted 1 1", "inner 2", "handler 20", "outer got 20"]


async def test_it_stands_around_handlers_in_threads_too_which_see_its_variables(
    make_provider: MakeProvider,
) -> None:
    provider = make_provider()

    @provider.use
    async def tenancy(payload: Any, ctx: EventContext, call: CallNext) -> Any:
        _tenant.set(ctx.meta["tenant"])
        return await call(payload)

    @provider.on("in-thread")
    def in_thread(payload: Any, ctx: SyncContext) -> list[str]:
        return [_tenant.get(), ctx.job_id]

    @provider.on("in-loop")
    async def in_loop(payload: Any) -> str:
        await asyncio.sleep(0)
        return _tenant.get()

    async with provider, provider.worker():
        with provider.context(tenant="acme"):
            emission = provider.emit("in-thread")
            assert await emission == ["acme", emission.job_id]
            assert await provider.emit("in-loop") == "acme"
        with provider.context(tenant="other"):
            assert await provider.emit("in-loop") == "other"
    assert _tenant.get() == "nobody"


async def test_it_may_answer_in_place_of_the_handler_and_call_more_than_once(
    make_provider: MakeProvider,
) -> None:
    provider = make_provider()
    runs: list[int] = []

    @provider.use
    async def again(payload: Any, ctx: EventContext, call: CallNext) -> Any:
        if payload == 0:
            return 0
        try:
            return await call(payload)
        except ConnectionError:
            return await call(payload)

    @provider.on(counted)
    async def handler(n: int) -> int:
        runs.append(n)
        if len(runs) == 1:
            raise ConnectionError
        return n

    async with provider, provider.worker():
        assert await provider.emit(counted, 0) == 0
        assert runs == []
        assert await provider.emit(counted, 5) == 5
    assert runs == [5, 5]


async def test_its_errors_fail_the_attempt_and_its_results_are_checked(make_provider: MakeProvider) -> None:
    provider = make_provider(retry=Retry(attempts=2, delay=0))
    attempts: list[int] = []

    @provider.use
    async def wild(payload: Any, ctx: EventContext, call: CallNext) -> Any:
        attempts.append(ctx.attempt)
        if payload == 1:
            raise PermissionError("not you")
        return "no number"

    @provider.on(counted)
    async def handler(n: int) -> int:
        return n

    async with provider, provider.worker():
        with pytest.raises(HandlerError, match="PermissionError: not you") as caught:
            await provider.emit(counted, 1)
        assert caught.value.attempts == 2
        with pytest.raises(HandlerError, match=r"PayloadError: result of"):
            await provider.emit(counted, 2)
    assert attempts == [1, 2, 1]


class _Order(msgspec.Struct):
    id: int


_ordered = Event("ordered", payload=_Order)


@pytest.mark.parametrize("pool", ["loop", "thread", "process"])
async def test_a_wrong_payload_that_it_passes_on_reaches_no_handler_and_is_not_tried_again(
    make_provider: MakeProvider, pool: str
) -> None:
    provider = make_provider(retry=Retry(attempts=3, delay=0), reply_timeout=120)
    attempts: list[int] = []
    ran: list[Any] = []

    @provider.use
    async def wild(payload: Any, ctx: EventContext, call: CallNext) -> Any:
        attempts.append(ctx.attempt)
        return await call({"values": "none"})

    if pool == "process":
        provider.on(crunched, pool="process")(process_handlers.crunch)
    elif pool == "thread":
        provider.on(crunched)(ran.append)
    else:

        @provider.on(crunched)
        async def in_loop(numbers: Numbers) -> Crunched:
            ran.append(numbers)
            return Crunched(Decimal(0), 0)

    async with provider, provider.worker():
        with pytest.raises(HandlerError) as caught:
            await provider.emit(crunched, Numbers([]))
    assert caught.value.type_name == "PayloadError"
    assert caught.value.remote_message.startswith('payload of "crunched" (Numbers): ')
    assert caught.value.remote_message.endswith("; a middleware passed it on")
    assert (attempts, ran) == ([1], [])


async def test_what_it_passes_on_is_checked_as_where_it_is_emitted(make_provider: MakeProvider) -> None:
    provider = make_provider(retry=1)
    passed_on: list[Any] = [_Order("1"), float("nan"), {1, 2}]  # pyright: ignore[reportArgumentType]
    ran: list[Any] = []

    @provider.use
    async def wild(payload: Any, ctx: EventContext, call: CallNext) -> Any:
        return await call(passed_on[0])

    provider.on(_ordered)(ran.append)
    provider.on("untyped")(ran.append)

    async with provider, provider.worker():
        with pytest.raises(HandlerError, match=r"got `str` at \$\.id; a middleware passed it on"):
            await provider.emit(_ordered, _Order(1))
        for refused in ("expected a finite number", "a value of type set"):
            del passed_on[0]
            with pytest.raises(HandlerError, match=f"PayloadError: .*{refused}.*a middleware passed it on"):
                await provider.emit("untyped", 1)
    assert ran == []


async def test_a_right_payload_that_it_passes_on_arrives_as_the_very_object(
    make_provider: MakeProvider, until: Callable[..., Awaitable[None]]
) -> None:
    provider = make_provider(retry=1)
    passed_on = _Order(7)
    got: list[_Order] = []

    @provider.use
    async def another(payload: Any, ctx: EventContext, call: CallNext) -> Any:
        return await call(passed_on)

    @provider.on(_ordered)
    async def take(order: _Order) -> None:
        got.append(order)

    @provider.on(_ordered, group="threads")
    def take_in_thread(order: _Order) -> None:
        got.append(order)

    async with provider, provider.worker():
        await provider.emit(_ordered, _Order(1))
        await until(lambda: len(got) == 2, "both groups have run")
    assert [order is passed_on for order in got] == [True, True]


async def test_its_error_for_a_wrong_payload_may_be_caught_by_it(make_provider: MakeProvider) -> None:
    provider = make_provider(retry=1)
    caught: list[tuple[str | None, str]] = []

    @provider.use
    async def careful(payload: Any, ctx: EventContext, call: CallNext) -> Any:
        try:
            return await call("seven")
        except PayloadError as error:
            caught.append((error.event, error.role))
            return await call(7)

    provider.on(counted)(lambda n: n + 1)
    async with provider, provider.worker():
        assert await provider.emit(counted, 1) == 8
    assert caught == [("counted", "payload")]


async def test_a_timeout_covers_it_and_a_cancellation_reaches_it(make_provider: MakeProvider) -> None:
    provider = make_provider(retry=1)
    seen: list[str] = []

    @provider.use
    async def watching(payload: Any, ctx: EventContext, call: CallNext) -> Any:
        try:
            return await call(payload)
        except asyncio.CancelledError:
            seen.append(ctx.event)
            raise

    @provider.on("slow", timeout=0.05)
    async def slow(payload: Any) -> None:
        await asyncio.Event().wait()

    async with provider, provider.worker():
        with pytest.raises(HandlerError, match="TimeoutError"):
            await provider.emit("slow")
    assert seen == ["slow"]


async def test_it_may_be_an_object(make_provider: MakeProvider) -> None:
    class Adding:
        async def __call__(self, payload: Any, ctx: EventContext, call: CallNext) -> Any:
            return await call(payload) + 1

    provider = make_provider()
    adding = Adding()
    assert provider.use(adding) is adding
    provider.on(counted)(lambda n: n)
    async with provider, provider.worker():
        assert await provider.emit(counted, 1) == 2


async def test_what_cannot_be_one_is_refused(make_provider: MakeProvider) -> None:
    provider: Any = make_provider()

    async def two(payload: Any, ctx: EventContext) -> None: ...
    async def four(payload: Any, ctx: EventContext, call: CallNext, more: int) -> None: ...
    def plain(payload: Any, ctx: EventContext, call: CallNext) -> None: ...

    for wrong in (two, four, plain, 7, "timing"):
        with pytest.raises(
            DefinitionError, match="expected a middleware to be an async function of a payload"
        ):
            provider.use(wrong)


async def test_a_cancelled_job_needs_nothing_from_it(make_provider: MakeProvider) -> None:
    provider = make_provider(retry=1)
    started = asyncio.Event()

    @provider.use
    async def swallowing(payload: Any, ctx: EventContext, call: CallNext) -> Any:
        try:
            return await call(payload)
        except asyncio.CancelledError:
            return "as if nothing was"

    @provider.on("slow")
    async def slow(payload: Any) -> None:
        started.set()
        await asyncio.Event().wait()

    async with provider, provider.worker():
        emission = provider.emit("slow")
        await started.wait()
        assert await emission.cancel("enough")
        with pytest.raises(JobCancelled, match="enough"):
            await emission


async def test_where_none_is_used_a_job_pays_nothing_for_it(
    make_provider: MakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("made without need")

    for name in ("chain", "partial", "EventContext"):
        monkeypatch.setattr(consumer, name, refuse)
    provider = make_provider()

    @provider.on(counted)
    async def handler(n: int) -> int:
        return n

    async with provider, provider.worker():
        assert await provider.emit(counted, 1) == 1
