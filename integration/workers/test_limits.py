"""A limit over the fleet while its workers are killed: counted in the journal, outside the server."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from checks.audit import Audit
from harness.backends import Backend
from harness.conditions import wait_until
from harness.fleet import Fleet
from harness.journal import Journal

from eventbus import EventProvider

_AT_ONCE = 4
_JOBS = 2000  # more than the test needs
_KILLS = 5


def _count_running(journal: Journal) -> list[int]:
    """Return how many handlers ran at once, after each line; those of a process that was killed run
    no more.
    """
    running: set[tuple[int, str]] = set()
    counts: list[int] = []
    for entry in journal.read():
        if entry.what == "began":
            running.add((entry.pid, entry.job))
        elif entry.what == "ended":
            running.discard((entry.pid, entry.job))
        else:
            running = {each for each in running if each[0] != entry.payload}
        counts.append(len(running))
    return counts


@pytest.mark.servers("each")
def test_a_limit_holds_and_its_slots_come_back_while_workers_are_killed(
    server: Backend, tmp_path: Path, journal: Journal
) -> None:
    fleet = Fleet(server.url, tmp_path, size=3, app="apps.limited_app:provider", lease="2s", max_stalls=20)
    rng = random.Random(7)
    try:
        for worker in fleet.workers[:3]:
            worker.wait_logged("worker ready")
        asyncio.run(_emit(server.url))
        for number in range(_KILLS):
            fleet.workers[-1].wait_logged("worker ready")
            begun = len(journal.read("ended"))
            wait_until(
                f"the limit is full again before kill {number}",
                lambda begun=begun: (
                    _count_running(journal)[-1:] == [_AT_ONCE] and len(journal.read("ended")) > begun
                ),
            )
            before = set(fleet.killed)
            fleet.kill(rng)
            for pid in fleet.killed - before:
                journal.write("killed", "", 0, pid)
        wait_until("the limit is full again", lambda: _count_running(journal)[-1:] == [_AT_ONCE])
        assert set(fleet.end()) == {0}
        assert max(_count_running(journal)) == _AT_ONCE
        audit = Audit(server)
        assert (audit.problems, audit.members("active")) == ([], set())
        assert fleet.kills == _KILLS
    finally:
        fleet.close()


async def _emit(url: str) -> None:
    async with EventProvider(url) as provider:
        for each in provider.emit_many("limited", range(_JOBS), reply=False):
            await each
