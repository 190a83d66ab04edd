"""3. There are two timeouts: how long an attempt may run, and how long the emitter waits.

After its `timeout` a handler is cancelled, and its attempt has failed. After its `reply_timeout` an emitter
stops waiting, but the job goes on: any process can ask for the result later, by the id of the job.
"""

import asyncio

import pytest

from eventbus import Event, EventProvider, HandlerError, ResponseTimeout

number_doubled = Event("number.doubled", payload=int, result=int)
provider = EventProvider("memory:", retry=1)  # one attempt: the first failure is the outcome


@provider.on(number_doubled, timeout="100ms")
async def double(number: int) -> int:
    if number < 0:
        await asyncio.sleep(3600)  # hangs
    return 2 * number


async def test_an_emitter_stops_waiting_and_a_handler_that_hangs_is_cancelled() -> None:
    async with provider:  # connected, but no worker runs yet
        with pytest.raises(ResponseTimeout) as late:
            await provider.emit(number_doubled, 21, reply_timeout="1s")
        assert late.value.state == "waiting"

        async with provider.worker():
            assert await provider.result(late.value.job_id, event=number_doubled) == 42

            with pytest.raises(HandlerError) as hung:
                await provider.emit(number_doubled, -1)
            assert hung.value.type_name == "TimeoutError"
