"""An order in steps: stock, payment, parcel and mail. If one fails for good, the completed ones are undone.

python checkout.py                     one process, two orders
eventbus worker checkout:provider      in as many processes as you like
python checkout_killed.py              three of them, one killed during the payment
"""

import asyncio

import msgspec

from eventbus import EventProvider, Retry, Unrecoverable
from workflows import FlowError, StepContext, StepError, Workflow, WorkflowProvider


class Order(msgspec.Struct):
    order_id: str
    total: int
    country: str
    email: str = ""


class Payment(msgspec.Struct):
    number: str
    paid: int


class Receipt(msgspec.Struct):
    order_id: str
    payment: str
    parcel: str


provider = EventProvider()
flows = WorkflowProvider(provider)
checkout = Workflow("checkout", input=Order, output=Receipt, timeout="5 minutes")


def say(text: str) -> None:
    print(text, flush=True)


@checkout.step()
async def reserve(ctx: StepContext[Order]) -> int:
    say(f"{ctx.input.order_id}: reserved")
    return 1


@reserve.rollback
async def release(ctx: StepContext[Order], pieces: int) -> None:
    say(f"{ctx.input.order_id}: released {pieces} piece")


@checkout.step(retry=Retry(attempts=5, delay="200ms", max_delay="30s"), timeout="30s")
async def charge(ctx: StepContext[Order]) -> Payment:
    order = ctx.input
    say(f"{order.order_id}: charging {order.total}")
    # A step whose process dies runs again.
    # So the bank gets a key: the job's id, which is the same in each attempt.
    await asyncio.sleep(0.5)  # pay(order.total, key=ctx.job_id)
    say(f"{order.order_id}: charged")
    return Payment(f"p-{order.order_id}", order.total)


@charge.rollback(retry=Retry(attempts=10, max_delay="5 minutes"))
async def refund(ctx: StepContext[Order], payment: Payment) -> None:
    say(f"{ctx.input.order_id}: refunded {payment.paid}")


@checkout.step(after=charge)
async def ship(ctx: StepContext[Order]) -> str:
    if ctx.input.country == "Atlantis":
        raise Unrecoverable("no delivery to Atlantis")  # any other error has 3 attempts
    say(f"{ctx.input.order_id}: parcel sent")
    return f"parcel-{ctx.result(charge).number}"


@checkout.step(after=charge, when=lambda ctx: ctx.input.email != "")  # in parallel with `ship`
def mail(ctx: StepContext[Order]) -> None:  # a plain function runs in a thread
    say(f"{ctx.input.order_id}: mail to {ctx.input.email}")


@checkout.completed  # after the last step
async def receipt(ctx: StepContext[Order]) -> Receipt:
    return Receipt(ctx.input.order_id, ctx.result(charge).number, ctx.result(ship))


@checkout.failed  # once, after the rollbacks
async def tell(ctx: StepContext[Order], error: FlowError) -> None:
    say(f"{ctx.input.order_id}: not done, rollback {error.rollback}")


flows.register(checkout)


async def buy(order: Order) -> None:
    flow = await flows.execute(checkout, order)
    try:
        say(f"-> {await flow.result()}")
    except StepError as error:
        say(f"-> {error.step}: {error.error}; rollback {error.rollback}")


async def main() -> None:
    async with provider, provider.worker():
        await buy(Order("o-1", 990, "Portugal", "ada@example.org"))
        await buy(Order("o-2", 450, "Atlantis"))


if __name__ == "__main__":
    asyncio.run(main())
