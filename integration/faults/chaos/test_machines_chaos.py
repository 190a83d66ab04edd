"""State machines that are triggered while their workers are killed: each trigger moves its machine once, and
each move is undone once.

A body may run once more than its move is recorded, and only if a worker was killed meanwhile.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from apps.handlers.account_app import Account, Book
from checks.audit import Audit
from harness.backends import Backend
from harness.conditions import last
from harness.fleet import Fleet
from harness.journal import Entry, Journal
from harness.sites import LEASE

from eventbus import EventProvider
from workflows import FlowCancelled, FlowHandle, WorkflowProvider

pytestmark = pytest.mark.servers("one")


@contextmanager
def workers(server: Backend, folder: Path) -> Generator[Fleet]:
    """Three workers that are started again."""
    app = "apps.handlers.account_app:provider"
    fleet = Fleet(server.url, folder, size=3, app=app, lease=LEASE, grace="1s", max_stalls=50)
    try:
        yield fleet
    finally:
        fleet.close()


async def rest(flow: FlowHandle[Book], moves: int) -> None:
    """Wait until the machine has made so many moves and may be triggered."""
    while True:
        machine = (await flow.report()).machine
        if machine is not None and machine.version == moves and "deposit" in machine.accepts:
            return
        await last(0.02)


async def fill(flow: FlowHandle[Book], deposits: int) -> None:
    for number in range(deposits):
        await rest(flow, 2 * number)
        await flow.trigger(Account.deposit, number)
    await rest(flow, 2 * deposits)


async def kill(fleet: Fleet, is_over: Callable[[], bool]) -> None:
    """Kill one worker after the other until it is over."""
    rng = random.Random(7)
    while not is_over():
        await last(0.4)
        fleet.kill(rng)


def check_runs(entries: Sequence[Entry], expected: list[str], killed: set[int]) -> None:
    """What took effect is what is recorded, in this order; what ran once more ran in a worker that was
    killed.
    """
    effective = {entry.payload: place for place, entry in enumerate(entries)}  # the last run of each
    assert sorted(effective, key=effective.__getitem__) == expected
    assert {entry.pid for place, entry in enumerate(entries) if effective[entry.payload] != place} <= killed


@pytest.mark.parametrize(
    ("count", "deposits", "kills"),
    [
        pytest.param(8, 40, 1, id="640-moves"),
        pytest.param(10, 100, 3, marks=pytest.mark.long, id="2000-moves"),
    ],
)
async def test_each_trigger_moves_its_machine_once_and_each_move_is_undone_once_under_kills(
    count: int, deposits: int, kills: int, server: Backend, journal: Journal, tmp_path: Path
) -> None:
    async with EventProvider(server.url, lease=LEASE) as provider:
        flows = WorkflowProvider(provider)
        flows.register(Account)
        started = [await flows.execute(Account, Book()) for _ in range(count)]
        closed, cancelled = started[::2], started[1::2]
        with workers(server, tmp_path) as fleet:
            for worker in fleet.workers:
                worker.wait_logged("worker ready")

            async def use() -> None:
                await asyncio.gather(*(fill(flow, deposits) for flow in started))
                await asyncio.gather(*(flow.trigger(Account.close) for flow in closed))
                await asyncio.gather(*(flow.cancel("no more") for flow in cancelled))
                await asyncio.gather(*(flow.result(240) for flow in started), return_exceptions=True)

            using = asyncio.create_task(use())
            await kill(fleet, using.done)
            await using
            assert fleet.end() == [0, 0, 0]
            assert fleet.complaints() == []
            assert fleet.kills >= kills
        lines = {flow.id: [each for each in journal.read() if each.job == flow.id] for flow in started}
        for flow in started:
            names = [f"{n}/{'deposit' if n % 2 else 'charge'}" for n in range(1, 2 * deposits + 1)]
            keys = [f"{flow.id}/1/{name}" for name in names]
            did = [each for each in lines[flow.id] if each.what == "did"]
            undid = [each for each in lines[flow.id] if each.what == "undid"]
            if flow in closed:
                assert await flow.result() == Book(list(range(deposits)), deposits)
                check_runs(did, [*keys, f"{flow.id}/1/{2 * deposits + 1}/close"], fleet.killed)
                assert undid == []
            else:
                with pytest.raises(FlowCancelled):
                    await flow.result()
                check_runs(did, keys, fleet.killed)
                check_runs(undid, [f"{key}/undo" for key in reversed(keys[::2])], fleet.killed)
                assert (await flow.report()).rollback == "complete"
    audit = Audit(server)
    assert (audit.problems, audit.left_open()) == ([], {})
