"""The page of a job, and what it says in words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from eventbus import EventContext, EventProvider, HandlerError, Limit, Retry

Open = Callable[..., Any]


async def test_the_page_has_the_lines_that_the_job_kept_as_texts(
    provider: EventProvider, open_dashboard: Open
) -> None:
    @provider.on("charge", retry=Retry(attempts=1))
    async def charge(card: str, ctx: EventContext) -> None:
        ctx.keep_line("asking <b>bank 7</b>")
        raise ConnectionError("bank 7 is down")

    async with provider.worker():
        job = provider.emit("charge", "4111")
        try:
            await job
        except HandlerError:
            pass
    page = (await open_dashboard(provider).get(f"/jobs/{job.job_id}")).text
    assert "<h2>Log lines</h2>" in page
    assert "asking &lt;b&gt;bank 7&lt;/b&gt;" in page


async def test_a_limit_is_told_as_a_list(provider: EventProvider, open_dashboard: Open) -> None:
    client = open_dashboard(provider)
    for limit, words in (
        (Limit(at_once=2), "2 at once (set here), 0 run"),
        (Limit(at_once=2, rate=["5/1s", "9/1m"]), "2 at once, 5/1s, 9/1m (set here), 0 run"),
        (Limit(rate="5/1s"), "5/1s (set here)"),
    ):
        await provider.set_limit("charge", limit)
        assert words in " ".join((await client.get("/queues/event.charge")).text.split())
