"""Jobs that a worker is handed: they start without a claim, end without a turn, and are let go where they are
not its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import pytest

from eventbus import EventProvider, JobCancelled, Retry, StoreUnavailable
from eventbus.engine.presence import pool_of
from eventbus.model.message import encode_bare
from eventbus.store.connection.wake_reader import WakeReader
from eventbus.store.scripting.packing import TurnRequest

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]
Logs = list[MutableMapping[str, Any]]


class Bus:
    """A provider with one worker, whose turns are counted."""

    def __init__(self, provider: EventProvider, admin: Callable[..., Any], prefix: str) -> None:
        self.provider = provider
        self.store: Any = provider._life.store  # pyright: ignore[reportPrivateUsage]
        self.turns: list[TurnRequest] = []
        self.settled: list[str] = []
        self._command = admin
        self._prefix = prefix
        self._turn, self._settle_one = self.store.turn, self.store.settle_one
        self.store.turn, self.store.settle_one = self._count_turn, self._count_settle

    async def _count_turn(self, request: TurnRequest) -> Any:
        self.turns.append(request)
        return await self._turn(request)

    def _count_settle(self, **call: Any) -> Any:
        self.settled.append(call["job"])
        return self._settle_one(**call)

    def command(self, *command: Any) -> Any:
        return self._command(*command)

    def key(self, kind: str, name: str) -> str:
        return self.store.keys.of(kind, name)

    def idle(self, worker: Any) -> list[str]:
        """The workers of the pool of `worker` that the server counts as idle."""
        pool = pool_of(worker._worker.claimer._consumers)
        return self.command("ZRANGE", self.key("idle", pool), 0, -1)


async def _is_idle(bus: Bus, worker: Any, until: Until) -> None:
    await until(lambda: bus.idle(worker) == [worker.id], "the worker is idle")


def _has(logs: Logs, words: str) -> bool:
    return any(words in each["event"] for each in logs)


@pytest.fixture
def make_bus(make_provider: MakeProvider, admin: Callable[..., Any], prefix: str) -> Callable[..., Bus]:
    return lambda provider: Bus(provider, admin, prefix)


async def test_lone_requests_take_no_turn(
    make_provider: MakeProvider, make_bus: Callable[..., Bus], until: Until
) -> None:
    provider = make_provider()

    @provider.on("double")
    async def double(n: int) -> int:
        return 2 * n

    async with provider:
        bus = make_bus(provider)
        async with provider.worker() as worker:
            for n in range(20):
                await _is_idle(bus, worker, until)
                before = len(bus.turns)
                emission = provider.emit("double", n)
                assert await emission == 2 * n
                await until(lambda job=emission.job_id: job in bus.settled, "the short call")
                assert len(bus.turns) == before
            assert worker.health().refused == 0
        assert len(bus.settled) == 20


async def test_what_does_not_simply_complete_goes_through_a_turn(
    make_provider: MakeProvider, make_bus: Callable[..., Bus], until: Until
) -> None:
    provider = make_provider()
    runs: list[int] = []

    @provider.on("fail", retry=Retry(attempts=2, delay=0))
    async def fail(n: int) -> int:
        runs.append(n)
        if len(runs) == 1:
            raise ValueError("not yet")
        return n

    async with provider:
        bus = make_bus(provider)
        async with provider.worker() as worker:
            await _is_idle(bus, worker, until)
            assert await provider.emit("fail", 7) == 7
            assert (runs, bus.settled) == ([7, 7], [])


async def test_a_short_call_that_fails_is_left_to_a_turn(
    make_provider: MakeProvider, make_bus: Callable[..., Bus], until: Until
) -> None:
    provider = make_provider()

    @provider.on("double")
    async def double(n: int) -> int:
        return 2 * n

    async with provider:
        bus = make_bus(provider)

        def lose(**call: Any) -> Any:
            bus.settled.append(call["job"])
            answer = asyncio.get_running_loop().create_future()
            answer.set_exception(StoreUnavailable("no answer in time"))
            return answer

        bus.store.settle_one = lose
        async with provider.worker() as worker:
            await _is_idle(bus, worker, until)
            emission = provider.emit("double", 4)
            assert await emission == 8
            assert bus.settled == [emission.job_id]
            assert worker.health().refused == 0


async def test_a_job_that_is_cancelled_while_it_runs_ends_cancelled(
    make_provider: MakeProvider, make_bus: Callable[..., Bus], until: Until
) -> None:
    provider = make_provider()
    began = asyncio.Event()

    @provider.on("wait")
    async def wait(n: int) -> None:
        began.set()
        await asyncio.Event().wait()

    async with provider:
        bus = make_bus(provider)
        async with provider.worker() as worker:
            await _is_idle(bus, worker, until)
            emission = provider.emit("wait", 4)
            await began.wait()
            assert await emission.cancel("no longer")
            with pytest.raises(JobCancelled):
                await emission


async def test_a_worker_without_a_free_slot_gives_the_job_back(
    make_provider: MakeProvider, make_bus: Callable[..., Bus], until: Until
) -> None:
    provider, other = make_provider(max_concurrency=1), make_provider(max_concurrency=1)
    gate = asyncio.Event()
    ran: list[str] = []

    def serve(each: EventProvider, name: str) -> None:
        @each.on("work")
        async def work(n: int) -> str:
            ran.append(name)
            await gate.wait()
            return name

    serve(provider, "first")
    serve(other, "second")
    async with provider, other:
        bus = make_bus(provider)
        async with provider.worker() as worker:
            await _is_idle(bus, worker, until)
            first = provider.emit("work", 1)
            await until(lambda: ran == ["first"], "it runs")
            # As a turn that claimed meanwhile would leave it: idle for the server, though it has no slot.
            pool = pool_of(worker._worker.claimer._consumers)  # pyright: ignore[reportPrivateUsage]
            bus.command("ZADD", bus.key("idle", pool), 10**15, worker.id)
            second = provider.emit("work", 2)
            await until(lambda: bus.idle(worker) == [], "it was handed over")
            async with other.worker():
                await until(lambda: ran == ["first", "second"], "the other worker runs it")
                gate.set()
                assert (await first, await second) == ("first", "second")


async def test_a_job_that_was_given_back_before_it_was_read_is_let_go(
    make_provider: MakeProvider, make_bus: Callable[..., Bus], until: Until, logs: Logs
) -> None:
    provider = make_provider()
    began: list[int] = []

    @provider.on("wait")
    async def wait(n: int) -> None:
        began.append(n)
        await asyncio.Event().wait()

    async with provider:
        bus = make_bus(provider)
        async with provider.worker() as worker:
            await _is_idle(bus, worker, until)
            control, now = bus.key("control", worker.id), int(bus.command("TIME")[0]) * 1000
            bus.command("ZADD", control, 1, f"job:0-late-1\nevent.wait\n{now + 900}\n" + encode_bare(b"1"))
            await until(lambda: _has(logs, "lease lost"), "its handler was cancelled")
            bus.command("ZADD", control, 1, f"job:0-late-2\nevent.wait\n{now - 2000}\n" + encode_bare(b"1"))
            bus.command("ZADD", control, 1, "job:no job at all")
            await until(lambda: _has(logs, "brings no job"), "the other message is told")
            assert bus.settled == []
            assert len(began) <= 1  # what is late waits for the server's word, and never begins
            assert worker.health().running == 0


async def test_a_stop_that_confirms_a_job_before_its_worker_does_leaves_it_to_the_worker(
    make_provider: MakeProvider, make_bus: Callable[..., Bus], until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker's own confirmation is the second one, and finds nothing to confirm."""
    provider, other = make_provider(), make_provider()
    go, ran = asyncio.Event(), list[int]()

    @provider.on("double")
    async def double(n: int) -> int:
        ran.append(n)
        await go.wait()
        return 2 * n

    async with provider, other:
        bus = make_bus(provider)
        confirm, answers = WakeReader.confirm, list[bool]()

        def confirm_second(self: WakeReader, worker: str, job: str, on_answer: Any, **options: Any) -> None:
            def note(is_ours: bool) -> None:
                answers.append(is_ours)
                on_answer(is_ours)

            assert bus.command("ZREM", bus.store.keys.shard_key("due"), f"hand:{worker}/{job}") == 1
            confirm(self, worker, job, note, **options)

        monkeypatch.setattr(WakeReader, "confirm", confirm_second)
        async with provider.worker() as worker:
            await _is_idle(bus, worker, until)
            emission = other.emit("double", 4)
            await until(lambda: len(answers) == 1, "it has confirmed")
            assert answers == [True]
            go.set()
            assert await asyncio.wait_for(emission, 240) == 8
    assert ran == [4]


async def test_a_stop_gives_back_what_the_worker_has_not_read(
    make_provider: MakeProvider, make_bus: Callable[..., Bus], until: Until
) -> None:
    provider, other = make_provider(), make_provider()
    for each in (provider, other):

        @each.on("double")
        async def double(n: int) -> int:
            return 2 * n

    async with provider, other:
        bus = make_bus(provider)
        async with provider.worker() as worker:
            await _is_idle(bus, worker, until)
            listener: Any = worker._worker._wake_listener  # pyright: ignore[reportPrivateUsage]
            listener._hear = lambda *_message: None  # it reads, and does not act on it
            emission = other.emit("double", 4)
            await until(lambda: bus.command("HLEN", bus.key("held", worker.id)) >= 2, "it was handed over")
        async with other.worker():
            assert await emission == 8
