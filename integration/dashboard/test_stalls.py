"""The check 8 of the dashboard's acceptance: a job whose worker is killed, on its page."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable

import httpx2
import pytest
from harness.backends import Backend
from harness.conditions import until
from harness.journal import Journal
from harness.programs import Program

from eventbus import EventProvider
from eventbus.dashboard import Dashboard


@pytest.mark.servers("valkey")
async def test_check_8_a_job_that_failed_twice_stalled_and_completed_tells_all_of_it(
    server: Backend, journal: Journal, gates: Callable[[str], None], start_worker: Callable[..., Program]
) -> None:
    worker = start_worker(server, lease="2s")
    async with EventProvider(server.url) as provider:
        job = provider.emit("worn", {"gate": "open"})
        await until("the third attempt runs", lambda: journal.runs()[job.job_id] == 3)
        (killed,) = await provider.inspector.workers.list()
        worker.send(signal.SIGKILL)
        gates("open")
        start_worker(server, lease="2s")
        assert await job == "done"
        (other,) = [each for each in await provider.inspector.workers.list() if each.id != killed.id]
        report = await provider.inspector.jobs.get(job.job_id)
        told = [(entry.what, entry.attempt, entry.worker) for entry in report.timeline if entry.worker]
        expected = [(what, n, killed.id) for n in (1, 2) for what in ("started", "failed")]
        expected += [("started", 3, killed.id), ("stalled", 3, killed.id), ("started", 3, other.id)]
        assert told == [*expected, ("ended", 0, other.id)]
        transport = httpx2.ASGITransport(app=Dashboard(provider, insecure_allow_anyone=True))
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
            page = (await client.get(f"/jobs/{job.job_id}")).text
    timeline = page.partition('class="timeline"')[2].partition("</ol>")[0]
    told = re.sub(r"<[^>]+>", "", timeline)
    assert re.search(
        rf"stalled, attempt 3, worker {killed.id}: .*which renewed it \d+ ms before, "
        r"its event loop \d+ ms behind",
        told,
    ), "lease age and loop lag"
    assert len(re.findall(r"\d+ m?s later", told)) >= 8, "how long it waited, ran and waited between attempts"
    assert page.count("ConnectionError: attempt") >= 4, "in the timeline, and with their stacks"
