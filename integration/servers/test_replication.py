"""`durability="replicated"` with a replica that follows, lags, is gone, or takes over."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
from checks.audit import Audit
from harness.backends import Backend, free_port
from harness.conditions import last, until, wait_until
from harness.journal import Journal
from harness.load import Load
from harness.programs import Program
from harness.proxy import Proxy
from servers.test_connections import FOUR, named_connections
from structlog.testing import capture_logs

from eventbus import EmitError, EventProvider

Run = Callable[..., Program]
MakeServer = Callable[..., Backend]

LOOPS = 20
LONG_ENOUGH = 0.7
"""Seconds in which an acknowledgement that comes too early would have come."""


class Pair:
    """A primary and a replica that follows it."""

    def __init__(self, make_server: MakeServer) -> None:
        at_once = ("--repl-diskless-sync-delay", "0")
        self.primary = make_server(*at_once, port=free_port())
        self.replica = make_server(
            *at_once, "--replicaof", "127.0.0.1", str(self.primary.port), port=free_port()
        )
        wait_until("the replica follows", lambda: self._state() == "online")

    def copied(self) -> set[str]:
        """The jobs that the replica has."""
        with self.replica.client() as client:
            return {name.rpartition(":")[2] for name in client.scan_iter(match="eb:*:job:*", count=5000)}

    def fail_over(self, proxy: Proxy) -> None:
        """`kill -9` the primary, promote the replica, and lead the clients of the proxy to it."""
        self.primary.kill()
        self.replica.command("REPLICAOF", "NO", "ONE")
        proxy.lead_to(self.replica.socket)

    def _state(self) -> str:
        return self.primary.command("INFO", "replication").get("slave0", {}).get("state", "")


@pytest.fixture
def pair(make_server: MakeServer) -> Pair:
    return Pair(make_server)


@pytest.fixture
def proxy(pair: Pair, tmp_path: Any) -> Iterator[Proxy]:
    proxy = Proxy(tmp_path / "proxy", pair.primary.socket)
    proxy.start()
    yield proxy
    proxy.close()


@contextmanager
def paused(server: Backend) -> Generator[None]:
    server.pause()
    try:
        yield
    finally:
        server.resume()


@pytest.mark.servers("each")
async def test_what_is_acknowledged_is_on_the_replica_when_the_primary_is_killed(pair: Pair) -> None:
    async with EventProvider(pair.primary.url, durability="replicated") as provider:
        for size in (1, 2000):
            emissions = [provider.emit("work", {"n": n}, reply=False) for n in range(size)]
            for each in emissions:
                await each.enqueued()
            assert {each.job_id for each in emissions} <= pair.copied(), "at that moment, not soon after"
        pair.primary.kill()
        assert len(pair.copied()) == 2001


@pytest.mark.servers("each")
async def test_a_replica_that_is_paused_holds_enqueued_up_and_nothing_else(pair: Pair) -> None:
    provider = EventProvider(pair.primary.url, durability="replicated")

    @provider.on("work")
    async def work(n: int) -> int:
        return n + 1

    async with provider, provider.worker(), EventProvider(pair.primary.url) as other:
        assert await provider.emit("work", 1) == 2
        with paused(pair.replica):
            told = asyncio.create_task(provider.emit("nobody").enqueued())
            # The worker shares the connection on which the replica is waited for.
            assert [await each for each in other.emit_many("work", range(50))] == list(range(1, 51))
            assert not told.done()
        await told


async def test_a_repeat_after_a_lost_answer_waits_for_the_replica_too(pair: Pair, proxy: Proxy) -> None:
    """It writes nothing, and a WAIT on a connection without a write answers at once."""
    async with EventProvider(proxy.url, durability="replicated") as provider:
        await provider.emit("work", reply=False).enqueued()
        with paused(pair.replica):
            proxy.cut("add", every=2)  # this one: carried out, and not answered
            emission = provider.emit("work", reply=False)
            await until("the answer was lost", lambda: proxy.cuts["add"] == 1)
            proxy.cut("add", every=10**9)
            await until("it was sent again", lambda: proxy.calls["add"] >= 3)
            await last(LONG_ENOUGH)
            assert not emission.done()
        await emission.enqueued()
        assert emission.job_id in pair.copied()
        assert proxy.calls["add"] >= 3


async def test_without_a_replica_it_is_unknown_whether_an_emission_was_enqueued(
    make_server: MakeServer, start_worker: Run
) -> None:
    server = make_server()
    with capture_logs() as logs:
        async with EventProvider(server.url, durability="replicated") as provider:
            emission = provider.emit("work", {"n": 1}, reply=False, reply_timeout="3s")
            with pytest.raises(EmitError, match=r"no replica of the server at .* acknowledged") as caught:
                await emission.enqueued()
            assert caught.value.enqueued is None
            assert caught.value.job_id in str(caught.value)
            start_worker(server)
            assert (await provider.result(emission.job_id))["n"] == 1, "the primary has it"
    (warning,) = (each for each in logs if "no replica is connected" in each["event"])
    assert "replicaof" in warning["remedy"]


@pytest.mark.servers("one")
async def test_a_replica_that_comes_later_is_enough(make_server: MakeServer) -> None:
    server = make_server("--repl-diskless-sync-delay", "0", port=free_port())
    async with EventProvider(server.url, durability="replicated") as provider:
        told = asyncio.create_task(provider.emit("work").enqueued())
        await asyncio.to_thread(make_server, "--replicaof", "127.0.0.1", str(server.port), port=free_port())
        await told


@pytest.mark.servers("one")
async def test_waiting_for_a_replica_takes_no_further_connection(pair: Pair) -> None:
    provider = EventProvider(pair.primary.url, durability="replicated", name="it", lease=1)

    @provider.on("work")
    async def work(n: int) -> int:
        return n + 1

    with named_connections(pair.primary) as found:
        async with provider, provider.worker():
            assert [await each for each in provider.emit_many("work", range(500))] == list(range(1, 501))
            await until("all four are there", lambda: found() >= FOUR)
            assert set(found()) - set(FOUR) == {""}, "the replica's own, without a name"


async def test_after_a_failover_everything_acknowledged_ends(
    pair: Pair, proxy: Proxy, run: Run, journal: Journal
) -> None:
    workers = [run("worker", "apps.event_app:provider", url=proxy.url, lease="2s") for _ in range(2)]
    for worker in workers:
        await asyncio.to_thread(worker.wait_logged, "worker ready")
    async with EventProvider(proxy.url, durability="replicated") as provider:
        load = Load(provider, loops=LOOPS)
        waiting = provider.emit_many("nobody", range(500), reply=False)
        await load.wait_answered(500, story=workers[0].story)
        for each in waiting:
            await each.enqueued()
        pair.fail_over(proxy)
        waiting.append(provider.emit("nobody", reply=False))
        await last(LONG_ENOUGH)
        assert not waiting[-1].done(), "the new primary has no replica yet"
        await asyncio.to_thread(pair.primary.start)
        pair.primary.command("REPLICAOF", "127.0.0.1", pair.replica.port)
        await load.wait_answered(500, story=workers[0].story)
        await waiting[-1].enqueued()
        await load.end()
    for worker in workers:
        worker.send(signal.SIGTERM)
        assert worker.wait_ended() == 0
        assert worker.complaints() == []
    assert load.errors() == []
    audit = Audit(pair.replica)
    assert audit.problems == []
    assert audit.members("ready", "event.nobody") == {each.job_id for each in waiting}
    assert audit.left_open() == {"ready": 1}
    for job, answer in load.acknowledged().items():
        assert audit.jobs[job].state == "completed"
        assert msgspec.json.decode(audit.jobs[job].text)["n"] == answer.n
    runs = journal.runs()
    assert sum(runs.values()) - len(runs) <= 3 * LOOPS, "what had not reached the replica"


async def test_what_was_told_and_lost_with_the_primary_is_repeated_and_counted(
    pair: Pair, proxy: Proxy, run: Run, journal: Journal, gates: Callable[[str], None]
) -> None:
    worker = run("worker", "apps.event_app:provider", url=proxy.url, lease="2s")
    await asyncio.to_thread(worker.wait_logged, "worker ready")
    async with (
        EventProvider(proxy.url, durability="replicated") as provider,
        EventProvider(proxy.url) as other,
    ):
        emission = provider.emit("hold", {"gate": "open"})
        await until("it runs", lambda: len(journal.read("began")) == 1, story=worker.story)
        await emission.enqueued()
        await provider.emit("nobody", reply=False).enqueued()  # so the claim before it is copied too
        pair.replica.command("REPLICAOF", "NO", "ONE")  # from here on the primary is alone
        gates("open")
        assert (await emission)["pid"] == worker.pid
        # The worker has claimed again, so it got the answer to its settle and will not repeat it.
        assert (await other.emit("work", {"n": 1}))["n"] == 1
        pair.primary.kill()
        proxy.lead_to(pair.replica.socket)
        ended = lambda: [each.job for each in journal.read("ended")].count(emission.job_id)  # noqa: E731
        await until("it ran again", lambda: ended() == 2, story=worker.story)
    worker.send(signal.SIGTERM)
    assert worker.wait_ended() == 0
    record = Audit(pair.replica).jobs[emission.job_id]
    assert (record.state, record.stalls, record.attempts) == ("completed", 1, 0)
    assert journal.runs()[emission.job_id] == 2
