# pyright: strict
"""A program as a user writes it. Type checkers take all of it, strictly, and a test runs it."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from typing import Any, Unpack

import msgspec

from eventbus import (
    CallNext,
    Emission,
    EmitKeywords,
    Event,
    EventContext,
    EventProvider,
    HandlerError,
    JobFacts,
    Retry,
    SyncContext,
    SyncEmission,
)
from workflows import FlowHandle, StepContext, StepError, Workflow, WorkflowProvider


class Order(msgspec.Struct):
    order_id: str
    total: int
    coupon: str | None = None


class Receipt(msgspec.Struct):
    number: str
    gross: int


class OutOfStock(Exception):
    """The answer to an order that cannot be filled."""


class Busy(OutOfStock):
    """The same, but worth another attempt."""


placed = Event(
    "order.placed",
    payload=Order,
    result=Receipt,
    key=lambda order: order.order_id,
    errors=[OutOfStock],
    retry_on=[Busy],
)
priced = Event("order.priced", payload=Order, result=int, retry=Retry(2, delay="10ms"))
sealed = Event("order.sealed", payload=Order, result=str)
noted = Event("order.noted", payload=Order, reply=False)
provider = EventProvider(retry=Retry(attempts=2, delay="10ms"), reply_timeout="60s", concurrency=10)
flows = WorkflowProvider(provider)
checkout = Workflow("checkout", input=Order, output=Receipt, retry=Retry(1), timeout="5m")


def send(order: Order, **options: Unpack[EmitKeywords]) -> Emission[Receipt]:
    """Emit as the rest of this program does; its callers keep the types of all options."""
    options.setdefault("meta", {"by": "shop"})
    return provider.emit(placed, order, **options)


@provider.lifespan
async def tariffs() -> AsyncIterator[dict[str, int]]:
    yield {"percent": 119}


@provider.use
async def count(payload: Any, ctx: EventContext, call: CallNext) -> Any:
    ctx.log.debug("called", group=ctx.group, by=ctx.meta.get("by"))
    return await call(payload)


@provider.on(placed, concurrency=20, retry=None, timeout="30s", pool=None)
async def confirm(order: Order, ctx: EventContext) -> Receipt:
    if order.total > 10_000 or (order.coupon == "busy" and ctx.attempt == 1):
        raise Busy(order.order_id) if order.coupon else OutOfStock(order.order_id)
    await ctx.progress(50)
    gross, _ = await asyncio.gather(ctx.emit(priced, order), ctx.emit(noted, order).enqueued())
    return Receipt(f"r-{order.order_id}", gross)


@provider.on(priced)
def price(order: Order, ctx: SyncContext) -> int:
    seal: SyncEmission[str] = ctx.emit(sealed, order, idempotency_key=None, delay=None, at=None)
    ctx.log.debug("sealed", seal=seal.result(timeout=60), again=ctx.emit_many(sealed, [order])[0].result())
    return order.total * ctx.shared(tariffs)["percent"] // 100


@provider.on(sealed, pool="process")
def seal(order: Order, facts: JobFacts) -> str:
    return hashlib.sha256(f"{facts.event}/{order.order_id}".encode()).hexdigest()


@provider.on(placed, group="mail")
async def mail(order: Order) -> bool:  # what a group returns reaches nobody, so it may be anything
    return bool(order.order_id)


@provider.on(noted)
async def note(order: Order) -> None: ...


@checkout.step(retry=None, timeout=None)
async def reserve(ctx: StepContext[Order]) -> int:
    return await ctx.emit(priced, ctx.input)


@reserve.rollback(retry=Retry(5))
async def release(ctx: StepContext[Order], gross: int) -> None:
    ctx.log.info("released", gross=gross)


@checkout.step(after=reserve, when=lambda ctx: ctx.input.total > 0)
def charge(ctx: StepContext[Order]) -> str:
    if ctx.input.coupon == "stolen":
        raise ValueError(ctx.input.coupon)
    return ctx.emit(sealed, ctx.input).result(timeout=60)


@checkout.completed
async def receipt(ctx: StepContext[Order]) -> Receipt:
    return Receipt(ctx.result(charge, "free"), ctx.result(reserve) + ctx.shared(tariffs)["percent"])


@checkout.failed
async def regret(ctx: StepContext[Order], error: Exception) -> None:
    ctx.log.warning("not checked out", error=str(error))


async def buy(header: str | None) -> None:
    """Emit, with what a request may bring or not."""
    emission = send(Order("o-1", 100), idempotency_key=header, delay=None, at=None, retry=None, priority=-1)
    assert (await emission).gross == 119
    assert (await send(Order("o-2", 100, "busy"), meta=None)).number == "r-o-2"
    found: Receipt = await provider.result(emission.job_id, event=placed)
    assert found == await asyncio.to_thread(provider.sync.result, emission.job_id, event=placed)
    why: BaseException | None = None
    try:
        await send(Order("o-3", 99_999))
    except OutOfStock as error:
        why = error.__cause__
    assert isinstance(why, HandlerError)
    assert (why.attempts, why.event) == (1, "order.placed")
    report = await provider.inspector.jobs.get(emission.job_id)
    assert (report.state, [failure.traceback for failure in report.failures]) == ("completed", [])
    assert (await provider.inspector.queues.count(placed, states=["failed"]))["failed"] == 1


async def check_out(order: Order, key: str | None = None) -> FlowHandle[Receipt]:
    return await flows.execute(checkout, order, idempotency_key=key, timeout=None, delay=None, meta=None)


async def main() -> None:
    flows.register(checkout)
    async with provider, provider.worker(queues=["*"]):
        await buy(None)
        flow = await check_out(Order("o-4", 100))
        assert (await flow.result()).gross == 238
        stolen = await check_out(Order("o-5", 100, "stolen"), "o-5")
        failed: StepError | None = None
        try:
            await stolen.result(timeout="60s")
        except StepError as error:
            failed = error
        assert failed is not None
        assert (failed.step, failed.rollback) == ("charge", "complete")
        status = await flows.handle(stolen.id).status()
        assert (status.state, [undone.step for undone in (await stolen.report()).rollbacks]) == (
            "failed",
            ["reserve"],
        )


if __name__ == "__main__":
    asyncio.run(main())
