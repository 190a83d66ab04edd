"""4. Several parts of a program handle the same event, each as a group.

Every group gets every emission once, as a job with its own retries. The emitter gets the result of the group
`default`, which is that of a handler without a `group`. A failure in another group does not reach the
emitter.
"""

import asyncio

import pytest

from eventbus import Event, EventProvider, HandlerError, Unrecoverable

order_placed = Event("order.placed", payload=int, result=str)
provider = EventProvider("memory:")
billed: asyncio.Queue[int] = asyncio.Queue()


@provider.on(order_placed)
async def confirm(total: int) -> str:
    return "confirmed"


@provider.on(order_placed, group="billing")
async def bill(total: int) -> None:
    await billed.put(total)


@provider.on(order_placed, group="mail")
async def mail(total: int) -> None:
    raise Unrecoverable("no such address")  # a failure that is not retried


async def test_each_group_handles_the_event_and_one_of_them_answers() -> None:
    async with provider, provider.worker():
        emission = provider.emit(order_placed, 990)
        assert await emission == "confirmed"
        assert await billed.get() == 990

        # The job of another group has the same id with the name of the group.
        with pytest.raises(HandlerError, match="no such address"):
            await provider.result(f"{emission.job_id}@mail")
