"""A busy shop, for pictures of the dashboard: orders, payments that fail, flows that are undone, a review
that waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from eventbus import Event, EventProvider, Limit, Retry, Sensitive
from eventbus.dashboard.links import Links
from workflows import (
    END,
    MachineContext,
    StateMachine,
    StepContext,
    Workflow,
    WorkflowProvider,
    step,
    transition,
)

__all__ = ["Order", "Scene", "placed", "play", "set_up"]

_ONCE = Retry(attempts=1)


class Order(msgspec.Struct):
    """What a customer orders."""

    order_id: int
    customer: str
    card: Annotated[str, Sensitive()]
    total: float = 0.0
    express: bool = False
    channel: Literal["web", "shop", "phone"] = "web"
    note: str = ""


class Draft(msgspec.Struct):
    """A text that is reviewed."""

    topic: str


class Verdict(msgspec.Struct):
    """What a reviewer says."""

    ok: bool


class Review(StateMachine[Draft], name="review", start="draft"):
    """Written, and read by a person."""

    @transition("draft", to="waiting")
    async def write(self, ctx: MachineContext[Draft]) -> None:
        """Write it."""

    @transition("waiting", to=END, wait=Verdict, when=lambda _, verdict: verdict.ok)
    async def approve(self, ctx: MachineContext[Draft], verdict: Verdict) -> str:
        """Print it."""
        return "printed"

    @transition("waiting", to="draft", wait=Verdict)
    async def send_back(self, ctx: MachineContext[Draft], verdict: Verdict) -> None:
        """Write it anew."""


placed: Event[Order, str] = Event("order.placed", payload=Order, result=str, limit=Limit(at_once=50))


class Scene(NamedTuple):
    """The paths of the pages that are worth a picture, by their names."""

    paths: dict[str, str]


def _made(name: str, seconds: float = 0.0, *, fails: str = "", undo_fails: str = "") -> Any:
    async def run(ctx: StepContext[Any]) -> str:
        await asyncio.sleep(seconds)
        if fails:
            raise LookupError(fails)
        return f"{name} of {ctx.input}"

    async def undo(ctx: StepContext[Any], result: str) -> None:
        await asyncio.sleep(seconds / 2)
        if undo_fails:
            raise ConnectionError(undo_fails)

    return step(run, name=name, rollback=undo)


def _delivery() -> Workflow[str, Any]:
    packing: Workflow[str, Any] = Workflow("packing", input=str, retry=_ONCE)
    packing.then(_made("pick", 0.05)).then(_made("wrap", 0.05))
    delivery: Workflow[str, Any] = Workflow("delivery", input=str, retry=_ONCE)
    delivery.then(_made("reserve", 0.08))
    delivery.parallel(
        _made("charge", 0.15), _made("invoice", 0.06, undo_fails="the ledger is away"), packing
    ).then(_made("ship", 0.05, fails="no van for order-1042")).then(_made("notify"))
    return delivery


def set_up(provider: EventProvider, flows: WorkflowProvider) -> Workflow[str, Any]:
    """Define the handlers and the flows of the shop; return the workflow that is undone."""

    @provider.on(placed, retry=_ONCE)
    async def place(order: Order) -> str:
        if order.order_id % 4 == 0:
            raise ConnectionError(f"the bank did not answer in 5 s for order {order.order_id}")
        if order.order_id % 9 == 0:
            raise ValueError(f"card {order.card} of order {order.order_id} is refused")
        return f"order {order.order_id} is placed"

    @provider.on("invoice.sent", group="archive")
    async def archive(number: int) -> None: ...

    @provider.on("invoice.sent")
    async def send(number: int) -> None: ...

    @provider.on("stock.counted", retry=_ONCE)
    async def count(shelf: str) -> None:
        raise KeyError(shelf)

    delivery = _delivery()
    flows.register(delivery)
    flows.register(Review)
    return delivery


async def _emit(provider: EventProvider) -> list[str]:
    """Let orders, invoices and counts be done, and refunds and mails wait; return the refunds."""
    orders = [Order(n, f"customer {n}", "4111111111111111", 9.5 * n) for n in range(1, 61)]
    done = provider.emit_many(placed, orders)
    done += provider.emit_many("invoice.sent", range(40), reply=False)
    done += provider.emit_many("stock.counted", [f"shelf {n % 3}" for n in range(9)], reply=False)
    await asyncio.gather(*(each.enqueued() for each in done))
    await asyncio.gather(*done[:60], return_exceptions=True)
    while (await provider.inspector.queues.count("stock.counted", states=["failed"]))["failed"] < 9:
        pass
    await provider.pause("refund.asked", reason="the bank is away until 14:00", by="ann")
    waiting = provider.emit_many("refund.asked", range(7), reply=False)
    later = [provider.emit("mail.sent", {"to": f"customer {n}"}, delay="2h", reply=False) for n in range(35)]
    await asyncio.gather(*(each.enqueued() for each in [*waiting, *later]))
    return [each.job_id for each in waiting]


async def _plan(provider: EventProvider) -> None:
    """Add schedules, one of them paused."""
    for name, event, cron in (
        ("nightly-invoices", "invoice.sent", "0 3 * * *"),
        ("stock-every-hour", "stock.counted", "15 * * * *"),
        ("refunds-on-mondays", "refund.asked", "30 9 * * 1"),
    ):
        await provider.schedules.add(event, id=name, cron=cron, tz="Europe/Berlin", payload=1)
    await provider.schedules.get("refunds-on-mondays").pause("the bank is away until 14:00")


async def _operate(provider: EventProvider) -> str:
    """Do a bulk operation, and stop another one; return the first one."""
    inspector = provider.inspector
    reason = "the customers wait for them"
    begun = await inspector.operations.begin("promote", "mail.sent", by="ann", reason=reason)
    await inspector.operations.run()
    stopped = await inspector.operations.begin("cancel", "mail.sent", "waiting", by="bob")
    await inspector.operations.stop(stopped.id, "ann")
    return begun.id


async def _flow(flows: WorkflowProvider, delivery: Any) -> tuple[str, str, str]:
    """Let two flows be undone, and a machine wait; return the last one, the flow in it, and the machine."""
    undone = [await flows.execute(delivery, f"order-{n}") for n in (1041, 1042)]
    for each in undone:
        while (await flows.status(each.id)).state != "failed":
            pass
    review = await flows.execute(Review, Draft("queues"))
    while not await flows.waits(review.id):
        pass
    packing = (await flows.tree(undone[1].id)).nested["packing"][0].report.flow_id
    return undone[1].id, packing, review.id


@asynccontextmanager
async def play(provider: EventProvider, flows: WorkflowProvider, delivery: Any) -> AsyncGenerator[Scene]:
    """Let it happen, with a worker that goes on until the scene is left."""
    async with provider.worker():
        refunds = await _emit(provider)
        await _plan(provider)
        operation = await _operate(provider)
        undone, packing, review = await _flow(flows, delivery)
        failed = (await provider.inspector.jobs.list(placed, state="failed", limit=1)).jobs[0].id
        yield Scene(
            {
                "queues": "/",
                "queue": "/queues/event.order.placed?state=failed",
                "bulk": "/queues/event.order.placed/bulk?action=retry&state=failed",
                "job": f"/jobs/{failed}",
                "waiting-job": f"/jobs/{refunds[0]}",
                "failures": "/failures",
                "operations": "/operations",
                "operation": f"/operations/{operation}",
                "flows": "/flows",
                "flow": f"/flows/{undone}",
                "nested-flow": Links("")("flows", packing),
                "machine": f"/flows/{review}",
                "schedules": "/schedules",
                "schedule": "/schedules/nightly-invoices",
                "workers": "/workers",
                "audit": "/audit",
                "events": "/events",
                "event": "/events/order.placed",
                "server": "/server",
                "tail": "/tail",
                "find": "/find?q=order_id:7&queue=event.order.placed&state=completed",
            }
        )
