"""What happened before: the history of a queue, and the timeline of a job, the check 8 of the dashboard's
acceptance.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from eventbus import EventProvider, Retry
from eventbus.model.histogram import Histogram

Open = Callable[..., Any]


async def test_check_25_a_queue_tells_how_many_jobs_ended_and_draws_them(
    make_provider: Callable[..., EventProvider], open_dashboard: Open
) -> None:
    provider = make_provider()

    @provider.on("a", retry=Retry(attempts=1))
    async def work(n: int) -> None:
        if n < 3:
            raise ValueError(n)

    async with provider:
        async with provider.worker():
            for each in provider.emit_many("a", range(20), reply=False):
                await each.enqueued()
            counts = provider.inspector.queues.count
            while sum((await counts("a", states=("completed", "failed"))).values()) < 20:
                pass
        # A worker that has stopped has told all that it counted.
        client = open_dashboard(provider)
        told = (await client.get("/api/v1/queues/event.a/history")).json()
        page = (await client.get("/queues/event.a")).text
        assert (await client.get("/api/v1/queues/event.a/history?last=never")).status_code == 422
    assert sum(each["completed"] for each in told["periods"]) == 17
    assert sum(each["failed"] for each in told["periods"]) == 3
    assert told["run_p95"] is not None
    assert "17 completed, 3 did not" in page
    assert '<rect class="bar failed"' in page


async def test_check_8_a_job_tells_when_each_attempt_was_and_who_ran_it(
    make_provider: Callable[..., EventProvider], open_dashboard: Open
) -> None:
    provider = make_provider()

    @provider.on("a", retry=Retry(attempts=3, delay=0.01))
    async def work(card: dict[str, str]) -> str:
        if len(tried) < 2:
            tried.append(1)
            raise ValueError(f"no {card['card']}")
        return "done"

    tried = list[int]()
    async with provider, provider.worker() as worker:
        job = provider.emit("a", {"card": "4111111111111111"})
        assert await job == "done"
        client = open_dashboard(provider)
        page = (await client.get(f"/jobs/{job.job_id}")).text
        timeline = page.partition('class="timeline"')[2].partition("</ol>")[0]
        assert timeline.count("attempt 1") >= 1
        assert timeline.count(worker.id) >= 1
        assert timeline.count("no •••") >= 2
        assert "4111111111111111" not in page


async def test_check_25_the_chart_of_six_hundred_jobs_has_all_of_them_and_their_p95(
    make_provider: Callable[..., EventProvider], open_dashboard: Open
) -> None:
    provider = make_provider(concurrency=50)

    @provider.on("a", retry=Retry(attempts=1))
    async def work(n: int) -> None:
        await asyncio.sleep(0.4 if n % 10 == 0 else 0.02)  # each tenth is slow, so it is the p95
        if n % 4 == 0:
            raise ValueError(n)

    async with provider:
        async with provider.worker():
            await asyncio.gather(*provider.emit_many("a", range(600)), return_exceptions=True)
        client = open_dashboard(provider)
        told = (await client.get("/api/v1/queues/event.a/history?last=5 minutes")).json()
        found = await provider.inspector.queues.history("a", last="5 minutes")
        kept = Histogram.total(each.runs for each in found)
    assert sum(each["completed"] for each in told["periods"]) == 450
    assert sum(each["failed"] for each in told["periods"]) == 150
    assert kept.p95 is not None
    assert told["run_p95"] == kept.p95 >= 0.3  # `test_history_recorder.py` compares it with what really was
