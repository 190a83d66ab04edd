"""5. An emission can be delayed, cancelled, or sent twice without harm.

A delayed job waits in the server, so that it runs even if its emitter has ended. Emissions with the same
idempotency key become one job, so that a repeated request has no second effect.
"""

from datetime import UTC, datetime, timedelta

import pytest

from eventbus import Event, EventContext, EventProvider, JobCancelled

reminder_due = Event("reminder.due", payload=str, result=str)
provider = EventProvider("memory:")


@provider.on(reminder_due)
async def remind(text: str, ctx: EventContext) -> str:
    return f"{text}, by job {ctx.job_id}"


async def test_an_emission_is_delayed_or_deduplicated_or_cancelled() -> None:
    async with provider, provider.worker():
        later = provider.emit(reminder_due, "drink tea", delay="50ms")
        tomorrow = provider.emit(reminder_due, "buy tea", at=datetime.now(UTC) + timedelta(days=1))
        assert await later == f"drink tea, by job {later.job_id}"

        await tomorrow.enqueued()  # its job is in the server now, for everyone to see
        assert (await provider.inspector.jobs.get(tomorrow.job_id)).state == "delayed"
        assert await tomorrow.cancel("we have enough")
        with pytest.raises(JobCancelled, match="we have enough"):
            await tomorrow

        first = provider.emit(reminder_due, "pay", idempotency_key="invoice-7")
        again = provider.emit(reminder_due, "pay", idempotency_key="invoice-7")
        assert await first == await again == f"pay, by job {first.job_id}"  # the handler ran once
