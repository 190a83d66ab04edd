"""An order that waits for a person, for days if need be: no worker is held, and no crash loses it.

Run it, and answer from another terminal:

    python approval.py
    eventbus flows waiting
    eventbus flows signal ID verdict '{"ok": true, "by": "Ada"}'

Nobody answers in time? Then a reminder goes out, and at last the reservation is undone. `--demo` answers by
itself.
"""

import asyncio
import sys
from datetime import timedelta

import msgspec

from eventbus import EventProvider
from workflows import FlowContext, Signal, WorkflowProvider, durable, task


class Order(msgspec.Struct):
    item: str
    price: int
    patience: float  # seconds until the reminder; days in real life


class Verdict(msgspec.Struct):
    ok: bool
    by: str


class Refused(Exception):
    """The person said no, or nothing."""


verdict = Signal("verdict", Verdict)
provider = EventProvider()
flows = WorkflowProvider(provider)


def say(text: str) -> None:
    print(text, flush=True)


@task
async def reserve(item: str) -> str:
    say(f"reserve {item}")
    return f"1 {item}"


@reserve.rollback
async def release(reservation: str) -> None:
    say(f"release {reservation}")


@task
async def remind(item: str) -> None:
    say(f"remind the person of the {item}")


@task
async def ship(reservation: str) -> str:
    say(f"ship {reservation}")
    return f"{reservation}, on its way"


@durable("approval", state=str, errors=[Refused], timeout="30 days")
async def approval(ctx: FlowContext[Order]) -> str:
    reservation = await ctx.step(reserve, ctx.input.item)
    patience = timedelta(seconds=ctx.input.patience)
    ctx.state = "waits for a verdict"
    number, answer = await ctx.race(ctx.wait_for(verdict), ctx.sleep(patience))
    if number == 1:
        await ctx.step(remind, ctx.input.item)
        ctx.state = "waits for a verdict, reminded"
        number, answer = await ctx.race(ctx.wait_for(verdict), ctx.sleep(patience))
    if answer is None or not answer.ok:
        raise Refused("nobody answered" if answer is None else f"{answer.by} said no")
    return await ctx.step(ship, reservation)


flows.register(approval)


async def main() -> None:
    async with provider, provider.worker():
        if "--demo" not in sys.argv and sys.stdin.isatty():
            order = await flows.execute(approval, Order("chair", 99, patience=3600))
            say(f'answer with: eventbus flows signal {order.id} verdict \'{{"ok": true, "by": "Ada"}}\'')
            say(f"-> {await order.result()}")
            return
        chair = await flows.execute(approval, Order("chair", 99, patience=3600))
        while await chair.state() is None:  # noqa: ASYNC110  (the server notifies nobody)
            await asyncio.sleep(0.02)
        say(f"the chair {await chair.state()}")
        await chair.signal(verdict, Verdict(ok=True, by="Ada"))
        say(f"-> {await chair.result()}")
        table = await flows.execute(approval, Order("table", 999, patience=0.2))
        try:
            await table.result()
        except Refused as error:
            say(f"-> refused: {error}")
        say(f"   rolled back: {[entry.step for entry in (await table.report()).rollbacks]}")


if __name__ == "__main__":
    asyncio.run(main())
