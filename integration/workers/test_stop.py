"""Signals: a worker ends in order, or at once; `emit` reports which jobs it leaves behind."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from checks.audit import Audit, reconcile
from harness.backends import Backend
from harness.conditions import until, wait_until
from harness.journal import Journal
from harness.programs import Program

from eventbus import EventProvider

Run = Callable[..., Program]
Gates = Callable[[str], None]

pytestmark = pytest.mark.servers("one")


def runs(journal: Journal) -> int:
    return len(journal.read("began"))


async def test_a_worker_told_to_end_finishes_within_the_grace_and_gives_the_rest_back(
    server: Backend, start_worker: Run, gates: Gates, journal: Journal
) -> None:
    first = start_worker(server, "--grace", "3s")
    async with EventProvider(server.url) as provider:
        quick = provider.emit_many("hold", [{"gate": "quick"}] * 5)
        slow = provider.emit_many("hold", [{"gate": "slow"}] * 3)
        await until("eight run", lambda: runs(journal) == 8, story=first.story)
        first.send(signal.SIGTERM)
        await until("it stops", lambda: first.logged("stopping"), story=first.story)
        after = provider.emit("hold", {"gate": "slow"})
        gates("quick")
        heard = {each.job_id: await each for each in quick}
        assert {result["pid"] for result in heard.values()} == {first.pid}
        await until("it ends", lambda: first.has_ended, story=first.story)
        assert first.wait_ended() == 0
        audit = Audit(server)
        left = [audit.jobs[each.job_id] for each in (*slow, after)]
        assert {(each.state, each.attempts, each.stalls) for each in left} == {("waiting", 0, 0)}
        assert audit.problems == []
        gates("slow")
        second = start_worker(server)
        heard |= {each.job_id: await each for each in (*slow, after)}
        assert heard[after.job_id]["pid"] == second.pid
    reconcile(server, heard, journal=journal)
    assert {entry.attempt for entry in journal.read()} == {1}, "what was given back is no attempt"
    assert runs(journal) == 8 + 4
    assert first.complaints() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_ends_a_worker_at_once(
    number: signal.Signals, server: Backend, start_worker: Run, gates: Gates, journal: Journal
) -> None:
    worker = start_worker(server, "--grace", "1h")
    async with EventProvider(server.url) as provider:
        emission = provider.emit("hold", {"gate": "open"})
        await until("it runs", lambda: runs(journal) == 1, story=worker.story)
        worker.send(number)
        await until("it stops", lambda: worker.logged("stopping"), story=worker.story)
        worker.send(number)
        await until("it ends", lambda: worker.has_ended, story=worker.story)
        assert worker.wait_ended() == 128 + number
        record = Audit(server).jobs[emission.job_id]
        assert (record.state, record.attempts, record.stalls) == ("waiting", 0, 0)
        gates("open")
        start_worker(server)
        heard = {emission.job_id: await emission}
    reconcile(server, heard, journal=journal)


def test_emit_told_to_end_prints_what_it_heard_and_says_what_is_left(
    server: Backend, start_worker: Run, run: Run, tmp_path: Path, gates: Gates, journal: Journal
) -> None:
    worker = start_worker(server)
    lines = [{"gate": "open"}] * 20 + [{"gate": "never"}] * 5
    path = tmp_path / "lines"
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    gates("open")
    emit = run("emit", "hold", "--lines", str(path), "--await", url=server.url)
    wait_until("20 lines are out", lambda: emit.out.count(b"\n") == 20, story=emit.story)
    wait_until("the others run", lambda: runs(journal) == 25, story=worker.story)
    emit.send(signal.SIGINT)
    assert emit.wait_ended() == 128 + signal.SIGINT, emit.story()
    assert [line["gate"] for line in emit.lines()] == ["open"] * 20
    assert "Traceback" not in emit.err
    assert "interrupted after line 25" in emit.err
    assert "5 lines without an answer" in emit.err
    gates("never")
    wait_until("their jobs end without it", lambda: len(journal.read("ended")) == 25, story=worker.story)
    wait_until("all is recorded", lambda: Audit(server).left_open() == {}, story=worker.story)
    assert Audit(server).problems == []


@pytest.mark.parametrize("how", [pytest.param("killed", marks=pytest.mark.long), "paused"])
async def test_a_worker_whose_server_is_gone_ends_all_the_same(
    how: str, make_server: Callable[..., Backend], start_worker: Run, gates: Gates, journal: Journal
) -> None:
    server = make_server("--appendonly", "yes", "--appendfsync", "always")
    worker = start_worker(server, "--grace", "1s")
    async with EventProvider(server.url) as provider:
        emissions = provider.emit_many("hold", [{"gate": "open"}] * 3)
        await until("they run", lambda: runs(journal) == 3, story=worker.story)
        if how == "killed":
            server.kill()
        else:
            server.pause()
        worker.send(signal.SIGTERM)
        await until("it ends", lambda: worker.has_ended, story=worker.story)
        assert worker.wait_ended() == 0
        if how == "killed":
            await asyncio.to_thread(server.start)
        else:
            server.resume()
        gates("open")
        start_worker(server)
        heard = {each.job_id: await each for each in emissions}  # by rescue: their leases have run out
    reconcile(server, heard, journal=journal)


async def test_a_second_signal_ends_a_worker_whose_server_is_gone(
    make_server: Callable[..., Backend], start_worker: Run, journal: Journal
) -> None:
    server = make_server()
    worker = start_worker(server, "--grace", "1h")
    async with EventProvider(server.url) as provider:
        await provider.emit("hold", {"gate": "never"}, reply=False)
        await until("it runs", lambda: runs(journal) == 1, story=worker.story)
        server.pause()
        worker.send(signal.SIGTERM)
        await until("it stops", lambda: worker.logged("stopping"), story=worker.story)
        worker.send(signal.SIGTERM)
        await until("it ends", lambda: worker.has_ended, story=worker.story)
        assert worker.wait_ended() == 128 + signal.SIGTERM
        server.resume()
