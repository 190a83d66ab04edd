"""A pipeline that copies the orders of a shop: it is cut off in the middle of a step, and goes on there.

The first run fails while it stores the orders. The retry by hand keeps what the steps before have given, and
stores the orders that are missing.
"""

import asyncio

import msgspec

from eventbus import EventProvider, Retry
from workflows import Pipeline, PipelineContext, StepError, WorkflowProvider

provider = EventProvider(name="shop")
flows = WorkflowProvider(provider)


class Shop(msgspec.Struct):
    shop: str


class Orders(msgspec.Struct):
    orders: list[str]


class Stored(msgspec.Struct):
    stored: int


class Mails(msgspec.Struct):
    mails: int


class Summary(msgspec.Struct):
    shop: str
    stored: int
    mails: int = 0


class Cursor(msgspec.Struct):
    index: int = 0


async def fetch(given: Shop) -> Orders:
    print(f"fetch the orders of {given.shop}")
    return Orders([f"o-{number}" for number in range(1, 5)])


async def store(given: Orders, ctx: PipelineContext[Cursor]) -> Stored:
    for order in given.orders[ctx.progress.index :]:
        if order == "o-3" and ctx.run == 1:
            raise ConnectionError("the database is away")
        print(f"store {order}")
        ctx.progress.index += 1
        await ctx.save()
    return Stored(ctx.progress.index)


def mail(given: Orders) -> Mails:  # a plain function runs in a thread
    return Mails(len(given.orders))


async def audit(given: Stored) -> None:
    print(f"{given.stored} orders are stored")


sync = (
    Pipeline("sync", input=Shop, output=Summary, progress=Cursor, retry=Retry(attempts=1))
    .then(fetch)
    .then(store)
    .parallel(mail, audit)
    .returns()  # the merged result, as a Summary
)
flows.register(sync)


async def main() -> None:
    async with provider, provider.worker():
        handle = await flows.execute(sync, Shop("acme"))
        try:
            await handle.result()
        except StepError as error:
            print(f"failed in {error.step}")
        handle = await flows.retry(handle.id)
        print(await handle.result())


if __name__ == "__main__":
    asyncio.run(main())
