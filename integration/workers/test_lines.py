"""The main use: a file of orders goes through `eventbus emit`, `eventbus worker` and a real server."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from checks.audit import Audit
from harness.backends import Backend
from harness.conditions import wait_until
from harness.journal import Journal
from harness.programs import Program

from eventbus.store.connection.connector import Connector
from eventbus.store.scripting.script_rows import SweepQueue
from eventbus.store.store import Store

Run = Callable[..., Program]

COUNT = 100_000
KEPT = 10_000  # completed jobs
KEEP = f"{KEPT},7 days"
QUEUE = "event.price"
HOUR = 3_600_000


@pytest.fixture
def orders(tmp_path: Path) -> Callable[[int], str]:
    """Write a file of orders, one a line."""

    def write(count: int) -> str:
        path = tmp_path / "orders.jsonl"
        lines = (f'{{"order_id":"o-{n}","total":{n % 5000}}}\n' for n in range(count))
        path.write_text("".join(lines))
        return str(path)

    return write


def receipts(count: int) -> bytes:
    """What `emit` prints for the orders: one result for each, in their order."""
    lines = (f'{{"number":"r-o-{n}","gross":{n % 5000 * 119 // 100}}}\n' for n in range(count))
    return "".join(lines).encode()


def wait_out(emit: Program, count: int) -> None:
    """Wait until `emit` has printed this many lines."""
    size = len(receipts(count))
    wait_until(f"{count} lines are out", lambda: emit.out_size >= size, story=emit.story)


def check_answered(emit: Program, count: int) -> None:
    assert emit.wait_ended() == 0, emit.story()
    assert emit.out == receipts(count)
    assert emit.err == ""


def check_ended(backend: Backend, journal: Journal, count: int) -> Audit:
    """Each job was run and has ended, and nothing is left but what retention keeps."""
    audit = Audit(backend)
    assert audit.problems == []
    assert audit.left_open() == {}
    assert audit.members("completed", QUEUE) == set(audit.jobs)
    assert min(count, KEPT) <= len(audit.jobs) <= KEPT + 2000  # the last ones were read after the last turn
    assert {record.state for record in audit.jobs.values()} == {"completed"}
    assert set(audit.jobs) <= set(journal.runs())
    assert len(journal.runs()) == count
    return audit


async def sweep(backend: Backend) -> None:
    """Remove what retention does not keep, at a time when the reply window of all is over."""
    store = Store(Connector(backend.url), prefix="eb", name="sweep")
    await store.start(deadline=time.monotonic() + 10)
    later = round(time.time() * 1000) + 150_000
    while await store.sweep([SweepQueue(QUEUE, KEPT, HOUR, KEPT, HOUR)], limit=1000, now=later):
        pass
    await store.aclose()


@pytest.mark.servers("one")
@pytest.mark.long
async def test_every_one_of_100_000_lines_is_answered_in_order(
    server: Backend, start_worker: Run, run: Run, orders: Callable[[int], str], journal: Journal
) -> None:
    lines = orders(COUNT)
    worker = start_worker(server, keep_completed=KEEP)
    check_answered(run("emit", "price", "--lines", lines, "--await", url=server.url), COUNT)
    worker.send(signal.SIGTERM)
    assert worker.wait_ended() == 0
    assert worker.complaints() == []
    audit = check_ended(server, journal, COUNT)
    assert sum(journal.runs().values()) == COUNT
    # Nothing is left but what retention keeps, and what goes by itself soon (`problems` has the rest).
    assert set(audit.names) <= {
        "job",
        "completed",
        "cuts",
        "idle",
        "queues",
        "clock",
        "order",
        "pools",
        "wake",
        "control",
        "held",
        "worker",
        "served",
        "fleet",
        "history",
        "tally",
        "minutes",
        "hours",
        "groups",  # of the other events that the worker serves
        "grouped",
    }
    await sweep(server)
    kept = Audit(server)
    assert kept.problems == []
    assert (len(kept.jobs), len(kept.members("completed", QUEUE))) == (KEPT, KEPT)


@pytest.mark.servers("one")
@pytest.mark.long
def test_a_worker_killed_in_the_middle_and_started_again_costs_no_line(
    server: Backend, start_worker: Run, run: Run, orders: Callable[[int], str], journal: Journal
) -> None:
    lines = orders(COUNT)
    worker = start_worker(server, lease="2s", keep_completed=KEEP)
    emit = run("emit", "price", "--lines", lines, "--await", url=server.url)
    wait_out(emit, 30_000)
    worker.kill()
    assert not emit.has_ended, "it was killed too late to matter"
    start_worker(server, lease="2s", keep_completed=KEEP)
    check_answered(emit, COUNT)
    check_ended(server, journal, COUNT)
    # Only what the dead worker held ran again.
    assert sum(journal.runs().values()) <= COUNT + 100


@pytest.mark.servers("both")
def test_workers_killed_in_turn_cost_no_line(
    server: Backend, start_worker: Run, run: Run, orders: Callable[[int], str], journal: Journal
) -> None:
    count, deaths = 20_000, 3
    lines = orders(count)
    workers = [start_worker(server, lease="3s", keep_completed=KEEP) for _ in range(2)]
    emit = run("emit", "price", "--lines", lines, "--await", url=server.url)
    for death in range(deaths):
        wait_out(emit, (death + 1) * count // (deaths + 1))
        workers.pop(0).kill()
        workers.append(start_worker(server, lease="3s", keep_completed=KEEP))
    check_answered(emit, count)
    check_ended(server, journal, count)
    assert sum(journal.runs().values()) <= count + 100 * deaths
