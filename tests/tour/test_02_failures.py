"""2. A handler that fails is run again, and the emitter gets the error of the last attempt.

An exception that the event declares in `errors` is an answer: it is not retried, and the emitter catches that
very class. Any other exception is a fault: it is retried, and when no attempt is left the emitter gets a
`HandlerError`.
"""

import pytest

from eventbus import Event, EventContext, EventProvider, HandlerError, Retry


class OutOfStock(Exception): ...


reserve_asked = Event("reserve.asked", payload=str, result=str, errors=[OutOfStock])
provider = EventProvider("memory:")


@provider.on(reserve_asked, retry=Retry(attempts=3, delay="10ms"))
async def reserve(item: str, ctx: EventContext) -> str:
    if item == "tea":
        raise OutOfStock(item)
    if item == "milk" or ctx.attempt < 3:
        raise ConnectionError("the warehouse does not answer")
    return f"reserved by attempt {ctx.attempt}"


async def test_a_fault_is_retried_and_a_declared_error_is_an_answer() -> None:
    async with provider, provider.worker():
        assert await provider.emit(reserve_asked, "coffee") == "reserved by attempt 3"

        with pytest.raises(OutOfStock, match="tea"):
            await provider.emit(reserve_asked, "tea")

        with pytest.raises(HandlerError) as caught:
            await provider.emit(reserve_asked, "milk")
        assert (caught.value.type_name, caught.value.attempts) == ("ConnectionError", 3)
