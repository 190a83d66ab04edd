import asyncio

import msgspec

from eventbus import EventProvider, Retry, Unrecoverable
from workflows import StepContext, StepError, Workflow, WorkflowProvider


class Purchase(msgspec.Struct):
    order_id: str
    total: int
    country: str


provider = EventProvider()
flows = WorkflowProvider(provider)
checkout = Workflow("checkout", input=Purchase, output=str)


@checkout.step(retry=Retry(attempts=5), timeout="30s")
async def charge(ctx: StepContext[Purchase]) -> int:
    print("charged for", ctx.input.order_id)
    return ctx.input.total


@charge.rollback  # runs if the flow fails, times out or is cancelled after `charge`
async def refund(ctx: StepContext[Purchase], paid: int) -> None:
    print("refunded", paid, "for", ctx.input.order_id)


@checkout.step()  # after the step before it
async def ship(ctx: StepContext[Purchase]) -> str:
    if ctx.input.country == "Atlantis":
        raise Unrecoverable("no delivery to Atlantis")
    return f"parcel to {ctx.input.country}"


@checkout.completed  # after the last step
async def receipt(ctx: StepContext[Purchase]) -> str:
    return f"{ctx.result(ship)}, paid {ctx.result(charge)}"


flows.register(checkout)


async def main() -> None:
    async with provider, provider.worker():
        flow = await flows.execute(checkout, Purchase("o-1", 990, "Portugal"))
        print(await flow.result())  # -> parcel to Portugal, paid 990
        flow = await flows.execute(checkout, Purchase("o-2", 450, "Atlantis"))
        try:
            await flow.result()  # -> refunded 450 for o-2
        except StepError as error:
            print(error.step, "failed, rollback", error.rollback)  # -> ship failed, rollback complete


if __name__ == "__main__":
    asyncio.run(main())
