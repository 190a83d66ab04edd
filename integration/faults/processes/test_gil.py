"""Code that holds the GIL also stops the lease thread: its job is rescued, and its outcome is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from checks.audit import reconcile
from harness.backends import Backend
from harness.conditions import until
from harness.journal import Journal
from harness.load import Load
from harness.programs import Program

from eventbus import EventProvider

Run = Callable[..., Program]
Gates = Callable[[str], None]

LEASE = 1.0


@pytest.mark.servers("one")
async def test_code_that_holds_the_gil_loses_its_job_to_another_worker(
    server: Backend, start_worker: Run, gates: Gates, journal: Journal
) -> None:
    holder = start_worker(server, lease=LEASE)
    async with EventProvider(server.url) as provider:
        seized = provider.emit("seize", {"gate": "released"}, reply_timeout=300)
        await until("it runs", lambda: len(journal.read("began")) == 1, story=holder.story)
        other = start_worker(server, lease=LEASE)
        result = await seized
        gates("released")
        await until(
            "the holder learns that it is late",
            lambda: (
                holder.logged("lease lost, handler cancelled")
                or holder.logged("outcome refused: the lease was lost")
            ),
            story=holder.story,
        )
        load = Load(provider, loops=5)  # it goes on as if nothing had been
        await load.wait_answered(100, story=holder.story)
        await load.end()
    assert result["pid"] == other.pid
    audit = reconcile(server, {seized.job_id: result} | load.results(), journal=journal)
    assert (audit.jobs[seized.job_id].stalls, journal.runs()[seized.job_id]) == (1, 2)
    assert holder.complaints() == []
