# pyright: reportUnnecessaryTypeIgnoreComment=true
"""The public types, as a type checker sees them; nothing here is run.

A line that stops being an error is found too: pyright and mypy report an `ignore` that they do not need.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeVar, Unpack, assert_type

import msgspec

from eventbus import (
    CallNext,
    Emission,
    EmitKeywords,
    Event,
    EventContext,
    EventKeywords,
    EventProvider,
    HandlerKeywords,
    Handlers,
    JobFacts,
    JobFailure,
    Keep,
    Later,
    ProcessContext,
    Retry,
    SyncContext,
    SyncEmission,
)


class Order(msgspec.Struct):
    order_id: str


class Receipt(msgspec.Struct):
    number: int


placed = Event("order.placed", payload=Order, result=Receipt, key=lambda order: order.order_id)
noted = Event("noted", payload=Order, result=None)
counted = Event("counted", result=int)
loose = Event("loose", payload=Order)
bare = Event("bare")

assert_type(placed, Event[Order, Receipt])
assert_type(noted, Event[Order, None])
assert_type(counted, Event[Any, int])
assert_type(loose, Event[Order, Any])
assert_type(bare, Event[Any, Any])
assert_type(
    Event("a", payload=int | str, result=Receipt, key=lambda either: either.whatever), Event[Any, Receipt]
)
assert_type(Event("a", payload=list[Order], key=lambda orders: orders[0].order_id), Event[list[Order], Any])
assert_type(Event("a", key=lambda anything: anything["id"]), Event[Any, Any])

Event(
    "keyed",
    payload=Order,
    result=None,
    key=lambda order: (
        (
            order  # pyright: ignore[reportUnknownLambdaType, reportUnknownMemberType]
        ).nothing  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    ),
)
Event("ttl", ttl=timedelta(days=1), errors=[ValueError], retry=Retry(attempts=2), reply=False)
Event("ttl", payload=Order, tll="1 day")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]

P = TypeVar("P")
F = TypeVar("F", bound=Callable[..., Any])


def shop_event(name: str, payload: type[P], **options: Unpack[EventKeywords[P]]) -> Event[P, Any]:
    return Event(f"shop.{name}", payload=payload, **options)


assert_type(shop_event("packed", Order, key=lambda order: order.order_id, ttl="1 day"), Event[Order, Any])
shop_event("packed", Order, tll="1 day")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]

provider = EventProvider(
    "memory:",
    name="a",
    concurrency=5,
    lease="10s",
    retry=3,
    keep_completed=(100, "1 hour"),
    keep_failed=Keep(age=timedelta(days=1)),
    max_payload="2 MiB",
)
EventProvider(concurency=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
EventProvider(durability="some")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def emitting() -> None:
    emission = provider.emit(placed, Order("1"), delay="2s", priority=-1, meta={"a": 1}, at=datetime.now(UTC))
    assert_type(emission, Emission[Receipt])
    assert_type(await emission, Receipt)
    assert_type(await emission.enqueued(), None)
    assert_type((emission.job_id, emission.correlation_id, emission.done()), tuple[str, str, bool])
    assert_type(await provider.emit(noted, Order("1")), None)
    assert_type(await provider.emit(counted, {"any": "thing"}), int)
    assert_type(provider.emit("by.name", 5), Emission[Any])
    assert_type(provider.emit("by.name"), Emission[Any])
    assert_type(provider.emit_many(placed, [Order("1")]), list[Emission[Receipt]])
    assert_type(provider.emit_many("by.name", [1, "2"]), list[Emission[Any]])
    assert_type(await provider.result("id", event=placed), Receipt)
    assert_type(await provider.result("id"), Any)
    provider.emit(  # type: ignore[misc]
        placed,
        "text",  # pyright: ignore[reportCallIssue, reportArgumentType]
    )
    provider.emit(placed)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    provider.emit(  # type: ignore[call-overload]
        placed,
        Order("1"),
        prio=1,  # pyright: ignore[reportCallIssue]
    )
    provider.emit(  # type: ignore[call-overload]
        placed,
        Order("1"),
        lifo="yes",  # pyright: ignore[reportCallIssue, reportArgumentType]
    )


async def emitting_with_what_may_be_missing() -> None:
    emission = provider.emit(
        placed, Order("1"), delay=None, at=None, idempotency_key=None, meta=None, retry=None, reply=None
    )
    assert_type(emission, Emission[Receipt])
    assert_type(wrapped(Order("1"), idempotency_key=None, reply_timeout=None), Emission[Receipt])
    wrapped(Order("1"), key="x")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    provider.emit(  # type: ignore[call-overload]
        placed,
        Order("1"),
        priority=None,  # pyright: ignore[reportCallIssue, reportArgumentType]
    )


def wrapped(order: Order, **options: Unpack[EmitKeywords]) -> Emission[Receipt]:
    return provider.emit(placed, order, **options)


def emitting_from_a_thread() -> None:
    emission = provider.sync.emit(placed, Order("1"))
    assert_type(emission, SyncEmission[Receipt])
    assert_type(emission.result(5), Receipt)
    assert_type(provider.sync.result("id", event=placed), Receipt)
    assert_type(provider.sync.result("id"), Any)
    assert_type(provider.sync.emit_many(placed, [Order("1")]), list[SyncEmission[Receipt]])
    provider.sync.emit(  # type: ignore[misc]
        placed,
        5,  # pyright: ignore[reportCallIssue, reportArgumentType]
    )


@provider.on(placed, concurrency=20, retry=Retry(attempts=5), timeout="10s")
async def price(order: Order, ctx: EventContext) -> Receipt:
    assert_type(await ctx.emit(counted, 1), int)
    assert_type(ctx.emit("by.name"), Emission[Any])
    assert_type(ctx.emit_many(counted, [1, 2], delay=None), list[Emission[int]])
    ctx.emit(placed, 5)  # type: ignore[misc]  # pyright: ignore[reportCallIssue, reportArgumentType]
    ctx.emit(placed, order, prio=5)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    await ctx.progress(50)
    ctx.log.info("priced", order=order.order_id)
    assert_type((ctx.event, ctx.attempt, ctx.causation_id), tuple[str, int, str | None])
    return Receipt(1)


@provider.on("ping")
def ping(payload: Any, ctx: SyncContext) -> str:
    ctx.progress({"at": 1})
    assert_type(ctx.emit("by.name"), SyncEmission[Any])
    assert_type(ctx.emit(placed, Order("1"), delay=None).result(), Receipt)
    assert_type(ctx.emit_many(counted, [1, 2]), list[SyncEmission[int]])
    ctx.emit(placed, 5)  # type: ignore[misc]  # pyright: ignore[reportCallIssue, reportArgumentType]
    return "pong"


# A handler stays the function that it was.
async def using_handlers(ctx: EventContext, sync: SyncContext) -> None:
    assert_type(await price(Order("1"), ctx), Receipt)
    assert_type(await price(order=Order("1"), ctx=ctx), Receipt)
    assert_type(ping(1, sync), str)


async def consuming() -> None:
    async with provider as started:
        assert_type(started, EventProvider)
    async with provider.worker(queues=["order.*"]) as worker:
        assert_type(worker.queues, list[str])
    with provider.context(tenant="a"):
        await provider.subscribe(placed, price, group="billing")
        await provider.subscribe(placed, price, concurrency=None, retry=None, timeout=None, pool=None)
    await provider.add_group(placed, "mail")
    provider.include(collected)
    provider.include(provider)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await provider.unsubscribe(placed, group="billing")


collected = Handlers()


@collected.on(placed, group="audit", retry=Retry(2))
async def audit(order: Order, ctx: EventContext) -> Receipt:
    return await price(order, ctx)


def slowly(event: Event[Any, Any], **options: Unpack[HandlerKeywords]) -> Callable[[F], F]:
    options.setdefault("timeout", "5m")
    return collected.on(event, group="slow", **options)


@slowly(placed, concurrency=1)
async def archive(order: Order) -> str:
    return order.order_id


slowly(placed, tiemout=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
for registry in (provider, collected):
    registry.on(placed, tiemout=1)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    registry.on(placed, retry=3)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]


async def using_collected(ctx: EventContext) -> None:
    assert_type(await archive(Order("1")), str)
    assert_type(await audit(Order("1"), ctx), Receipt)


@provider.lifespan
async def pool() -> AsyncIterator[list[int]]:
    yield [1]


@provider.lifespan
@asynccontextmanager
async def named(given: EventProvider) -> AsyncGenerator[str]:
    yield given.settings.name


async def yields_nothing() -> int:
    return 1


provider.lifespan(yields_nothing)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]


@provider.use
async def timing(payload: Any, ctx: EventContext, call: CallNext) -> Any:
    return await call(payload)


@provider.on_failure
async def alert(failure: JobFailure) -> None:
    assert_type(failure.error, str)


@provider.on_failure
def note(failure: JobFailure) -> None: ...


async def takes_too_much(failure: JobFailure, more: int) -> None: ...


provider.on_failure(takes_too_much)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]


@provider.use  # type: ignore[type-var]  # pyright: ignore[reportArgumentType, reportUntypedFunctionDecorator]
async def misses_the_call(payload: Any, ctx: EventContext) -> Any: ...


@provider.on(noted, group="sharing")
async def sharing(order: Order, ctx: EventContext) -> None:
    assert_type(ctx.shared(pool), list[int])
    assert_type(ctx.shared(named), str)


@provider.on(noted, group="threads")
def sharing_in_a_thread(order: Order, ctx: SyncContext) -> None:
    assert_type(ctx.shared(pool), list[int])


@provider.on(counted, group="with progress", pool="process")
def count_on(payload: Any, ctx: ProcessContext) -> int:
    ctx.progress({"done": 1})
    (
        ctx  # pyright: ignore[reportUnknownMemberType]
    ).emit(counted, 1)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    return ctx.attempt


@provider.on(counted, pool="process")
def count(payload: Any, facts: JobFacts) -> int:
    (
        facts  # pyright: ignore[reportUnknownMemberType]
    ).progress(1)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    return facts.attempt


provider.pool("render", processes=4)
provider.pool("wait", threads=2)
assert_type(provider.pools, list[str])
provider.on(counted, group="render", pool="render")(count)
provider.on(counted, pool=4)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
provider.pool("render", processes="4")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
provider.pool("render", 4)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


@provider.on("saves")
async def saves(_: Any, ctx: EventContext) -> None:
    assert_type(await ctx.saved(int), int | None)
    assert_type(await ctx.saved(int, default=0), int)
    assert_type(await ctx.saved(Order, default=None), Order | None)
    await ctx.save(Order("1"))
    assert_type(ctx.stopping, Literal["stop", "cancel", "timeout", "lease lost"] | None)
    raise Later("5 minutes")


@provider.on("saves.in.threads")
def saves_in_threads(_: Any, ctx: SyncContext) -> None:
    assert_type(ctx.saved(int, default=0), int)
    ctx.save([1])
    Later(object())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Retry(3, only=(OSError,), never=(FileNotFoundError,))
    Retry(3, only=(1,))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
