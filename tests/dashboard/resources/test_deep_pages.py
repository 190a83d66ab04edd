"""The ten thousandth page of a list, while jobs come and go: the check 6 of the dashboard's acceptance."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from eventbus import EventProvider

_PAGES = 10_000


@pytest.mark.once
@pytest.mark.slow
async def test_check_6_ten_thousand_pages_have_each_job_once_and_lead_on_over_http(
    provider: EventProvider, open_dashboard: Callable[..., Any]
) -> None:
    # Many of them are due at the same millisecond, so that their ids decide.
    emissions = provider.emit_many("a", range(_PAGES + 20), delay="1 hour", reply=False)
    await asyncio.gather(*(each.enqueued() for each in emissions))
    known = [each.job_id for each in emissions]
    seen: list[str] = []
    cursor: str | None = None
    for number in range(_PAGES):
        page = await provider.inspector.jobs.list("a", state="delayed", limit=1, cursor=cursor)
        seen += [job.id for job in page.jobs]
        cursor = page.cursor
        if number % 1000 == 999:  # one that was seen goes, and another one comes
            assert await provider.cancel(seen[-500])
            await provider.emit("a", number, delay="2 hours", reply=False).enqueued()
    client = open_dashboard(provider)
    url: str | None = f"/api/v1/queues/event.a/jobs?state=delayed&limit=7&cursor={cursor}"
    while url:
        answer = await client.get(url)
        seen += [job["id"] for job in answer.json()["jobs"]]
        link = re.findall(r"<(.*)>; rel=\"next\"", answer.headers.get("link", ""))
        url = link[0] if link else None
    assert [job for job, count in Counter(seen).items() if count > 1] == []
    assert set(known) <= set(seen)
    assert len(seen) == len(known) + 10
