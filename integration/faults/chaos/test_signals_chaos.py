"""Signals that are sent while their flows suspend and their workers are killed: each one is taken once, and
in order.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from apps.signal_app import Note, listen
from checks.audit import Audit
from harness.backends import Backend
from harness.conditions import last, until
from harness.fleet import Fleet
from harness.programs import Program
from harness.sites import LEASE

from eventbus import EventProvider
from workflows import FlowHandle, WorkflowProvider
from workflows.records.entries import read_entries

Run = Callable[..., Program]

pytestmark = pytest.mark.servers("one")


@contextmanager
def workers(server: Backend, folder: Path) -> Generator[Fleet]:
    """Two workers that are started again."""
    fleet = Fleet(server.url, folder, size=2, app="apps.signal_app:provider", lease=LEASE, grace="1s")
    try:
        yield fleet
    finally:
        fleet.close()


async def taken(provider: EventProvider, flow_id: str) -> list[Note]:
    """Return the signals that the journal of a flow says it took."""
    journal: list[str] = []
    while page := await provider.jobs.journal(flow_id, first=len(journal), limit=500):
        journal += page
    entries = read_entries(flow_id, journal)
    return [msgspec.json.decode(entry.result, type=Note) for entry in entries if entry.kind == "signal"]


def check(notes: list[Note], count: int) -> None:
    """Each signal was taken once, and those of a sender in the order in which it sent them."""
    assert Counter((note.sender, note.number) for note in notes).most_common(1)[0][1] == 1
    assert len(notes) == count
    for sender in {note.sender for note in notes}:
        numbers = [note.number for note in notes if note.sender == sender]
        assert numbers == list(range(len(numbers)))


async def run_flows(flows: list[FlowHandle[list[Note]]], sender: Program, fleet: Fleet) -> None:
    """Kill a worker again and again until the flows have all their signals and have ended."""
    rng = random.Random(7)
    waiting = set(flows)
    while waiting:
        await last(0.1)
        fleet.kill(rng)
        assert not sender.has_ended or sender.process.returncode == 0, sender.story()
        waiting = {flow for flow in waiting if (await flow.status()).state != "completed"}


@pytest.mark.parametrize(
    ("count", "each", "kills"),
    [pytest.param(10, 50, 1, id="500"), pytest.param(20, 175, 5, marks=pytest.mark.long, id="3500")],
)
async def test_each_signal_is_taken_once_and_in_order_under_kills(
    count: int, each: int, kills: int, server: Backend, run: Run, tmp_path: Path
) -> None:
    async with EventProvider(server.url, lease=LEASE) as provider:
        sending = WorkflowProvider(provider)
        sending.register(listen)
        flows = [await sending.execute(listen, each) for _ in range(count)]
        with workers(server, tmp_path) as fleet:
            for worker in fleet.workers:
                worker.wait_logged("worker ready")
            sender = run(str(each), *(flow.id for flow in flows), module="apps.signal_app", url=server.url)
            await run_flows(flows, sender, fleet)
            await until("it has sent all", lambda: sender.has_ended, story=sender.story)
            assert sender.wait_ended() == 0, sender.story()
            for flow in flows:
                notes = await flow.result(240)
                check(notes, each)
                assert await taken(provider, flow.id) == notes
            assert fleet.end() == [0, 0]
            assert fleet.complaints() == []
            assert fleet.kills >= kills
    audit = Audit(server)
    assert (audit.problems, audit.left_open()) == ([], {})
