"""6. Handlers emit events too, and everything that one request causes has one correlation id.

`provider.context` sets this id, and facts about the request, such as the tenant. Every emission carries both
to its handler, and the handler's own emissions carry them on, also into other processes. The logs have the id
too.
"""

import msgspec

from eventbus import Event, EventContext, EventProvider


class Tax(msgspec.Struct):
    amount: int
    tenant: str
    request: str
    caused_by: str | None


price_asked = Event("price.asked", payload=int, result=Tax)
tax_asked = Event("tax.asked", payload=int, result=Tax)
provider = EventProvider("memory:")


@provider.on(price_asked)
async def price(net: int, ctx: EventContext) -> Tax:
    ctx.log.info("asking for the tax", net=net)  # the log line has the event, the job and the correlation id
    return await ctx.emit(tax_asked, net)


@provider.on(tax_asked)
async def tax(net: int, ctx: EventContext) -> Tax:
    return Tax(net * 19 // 100, ctx.meta["tenant"], ctx.correlation_id, ctx.causation_id)


async def test_the_context_of_a_request_reaches_the_events_that_its_handler_emits() -> None:
    async with provider, provider.worker():
        with provider.context(tenant="acme", correlation_id="request-7"):
            emission = provider.emit(price_asked, 100)
        # The cause of the second job is the first one, whose handler emitted it.
        assert await emission == Tax(19, "acme", "request-7", caused_by=emission.job_id)
