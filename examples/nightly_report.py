"""A schedule that starts a durable function each night, and reports of past nights.

The program declares the schedule. Its worker keeps it in the server, and starts the flow of each night from
now on. Here the reports of three nights that nobody made are made now; in one of them the clock was changed.
"""

import asyncio
from datetime import datetime
from zoneinfo import ZoneInfo

import msgspec

from eventbus import EventProvider
from workflows import FlowContext, WorkflowProvider, durable, task

BERLIN = ZoneInfo("Europe/Berlin")
provider = EventProvider(name="reports")
flows = WorkflowProvider(provider)


class Report(msgspec.Struct):
    customer: str


@task
async def count_orders(customer: str, night: str) -> int:
    return len(customer) * int(night[-2:])  # stands for a query


@task
async def send(text: str) -> None:
    print(text)


@durable("report.nightly", timeout="2 hours")
async def nightly(ctx: FlowContext[Report]) -> int:
    slot = datetime.fromtimestamp((ctx.meta or {})["slot"] / 1000, BERLIN)
    orders = await ctx.step(count_orders, ctx.input.customer, f"{slot:%Y-%m-%d}")
    await ctx.step(send, f"{slot:%a %Y-%m-%d %H:%M %z}  {ctx.input.customer}: {orders} orders")
    return orders


flows.register(nightly)
flows.schedules.cron(
    "30 2 * * *", nightly, id="nightly", tz="Europe/Berlin", input=Report("acme"), overlap="queue"
)


async def main() -> None:
    async with provider, provider.worker():
        schedule = provider.schedules.get("nightly")
        nights = [
            datetime(2026, 3, day, tzinfo=BERLIN) for day in (28, 31)
        ]  # the clock skips 02:30 on the 29th
        for flow_id in await schedule.backfill(*nights):
            await flows.handle(flow_id, nightly).result()
        again = await schedule.backfill(*nights)  # meets what is there
        print(f"{len(again)} nights, {len(await flows.flows('report.nightly'))} flows")


if __name__ == "__main__":
    asyncio.run(main())
