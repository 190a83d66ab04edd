"""The app of limits by key under test: each tenant may have few jobs at once, and so many started in a
second.

A claim is counted when its answer has come, with the time of the server: a handler may start a moment later.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import msgspec
from harness.journal import Journal

from eventbus import Event, EventContext, EventProvider, Limit
from eventbus.store.scripting.packing import TurnRequest
from eventbus.store.scripting.script_rows import TurnAnswer
from eventbus.store.store import Store

EACH, RATE = 5, 100


class Order(msgspec.Struct):
    tenant: str
    n: int


orders = Event(
    "orders",
    payload=Order,
    result=int,
    limit=Limit(by=lambda order: order.tenant, each=EACH, each_rate=f"{RATE}/1s"),
)
provider = EventProvider()


def count_claims(journal: Journal) -> None:
    """Let each turn of this process write what it has claimed."""
    turn = Store.turn

    async def counted(store: Store, request: TurnRequest) -> TurnAnswer:
        answer = await turn(store, request)
        for claim in answer.claims:
            journal.write("claimed", claim.id, answer.now, msgspec.json.decode(claim.body)["p"]["tenant"])
        return answer

    Store.turn = counted  # type: ignore[method-assign]  # pyright: ignore[reportAttributeAccessIssue]


if "EVENTBUS_TEST_FOLDER" in os.environ:
    _journal = Journal(Path(os.environ["EVENTBUS_TEST_FOLDER"]) / "journal")
    count_claims(_journal)


@provider.on(orders, concurrency=60)
async def work(order: Order, ctx: EventContext) -> int:
    """Take a hundredth of a second."""
    await asyncio.sleep(0.01)
    _journal.write("ended", ctx.job_id, ctx.attempt, order.tenant)
    return order.n
