"""Rescue waits after a gap in which no worker reached the server, and that wait prevents false stalls."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from checks.audit import reconcile
from harness.backends import Backend
from harness.conditions import last, until
from harness.journal import Journal
from harness.programs import Program
from harness.releases import changed_release

from eventbus import EventProvider

Run = Callable[..., Program]
Gates = Callable[[str], None]

LEASE = 2.0
JOBS = 10


def grace_ends(server: Backend) -> int:
    """Until when nothing is rescued, in ms of the server's clock."""
    return int(server.command("HGET", "eb:2:{0}:clock", "grace") or 0)


def server_now(server: Backend) -> int:
    seconds, micros = server.command("TIME")
    return int(seconds) * 1000 + int(micros) // 1000


@pytest.mark.servers("one")
@pytest.mark.parametrize("has_grace", [True, False], ids=["as it is", "without the grace"])
async def test_a_worker_that_wakes_after_its_server_keeps_its_leases_by_the_grace_alone(
    *, has_grace: bool, server: Backend, start_worker: Run, gates: Gates, journal: Journal, tmp_path: Path
) -> None:
    """The server and the holder stand still for 3 leases; the server wakes first, and another worker
    looks.
    """
    release = None
    if not has_grace:
        file = "store/lua/lib/heard.lua"
        release = changed_release(tmp_path / "changed", file, "now - last > lease / 2", "false")
    holder = start_worker(server, lease=LEASE, release=release)
    async with EventProvider(server.url) as provider:
        emissions = provider.emit_many("hold", [{"gate": "open"}] * JOBS)
        await until("all run", lambda: len(journal.read("began")) == JOBS, story=holder.story)
        other = start_worker(server, lease=LEASE, release=release)
        holder.send(signal.SIGSTOP)
        server.pause()
        await last(3 * LEASE)
        server.resume()
        if has_grace:
            await until(
                "the gap is noted", lambda: grace_ends(server) > server_now(server), story=other.story
            )
        else:
            await until("all run again", lambda: len(journal.read("began")) == 2 * JOBS, story=other.story)
        holder.send(signal.SIGCONT)
        ends = grace_ends(server)
        await until("rescue looks again", lambda: server_now(server) > ends + LEASE * 1000, story=other.story)
        gates("open")
        heard = {each.job_id: await each for each in emissions}
    audit = reconcile(server, heard, journal=journal)
    stalls = {record.stalls for record in audit.jobs.values()}
    by = {result["pid"] for result in heard.values()}
    runs = set(journal.runs().values())
    assert (stalls, by, runs) == (({0}, {holder.pid}, {1}) if has_grace else ({1}, {other.pid}, {2}))
