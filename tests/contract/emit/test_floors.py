"""Emitters' floors from outside: what is got goes by retention, and what is awaited stays until it is got."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import pytest

from eventbus import EventProvider, Keep, ResponseTimeout
from eventbus.emit import attendance as attendance_module
from eventbus.emit import stream_keeper
from eventbus.emit.lookup import Lookup
from eventbus.store.reply_stream import ReplyStream
from eventbus.store.scripting.script_rows import SweepQueue

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]
Admin = Callable[..., Any]

_NONE = Keep(count=0)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Emitters call each 20 ms and leave after as long."""
    monkeypatch.setattr(stream_keeper, "_EACH", 0.02)
    monkeypatch.setattr(stream_keeper, "_IDLE", 0.02)
    monkeypatch.setattr(attendance_module, "_QUIET", 0.02)


class Floors:
    """What the server says of emitters and of finished jobs."""

    def __init__(self, admin: Admin, prefix: str) -> None:
        self.root = f"{prefix}:2:{{0}}"
        self._admin = admin

    def names(self) -> list[str]:
        return self._admin("ZRANGE", f"{self.root}:emitters", 0, -1)

    def lowest(self) -> float:
        return float(self._admin("ZRANGE", f"{self.root}:emitters", 0, 0, "WITHSCORES")[1])

    def kept(self, event: str = "ask") -> int:
        listed = self._admin("LLEN", f"{self.root}:completed:event.{event}")
        return listed + self._admin("ZCARD", f"{self.root}:leaving:event.{event}")


@pytest.fixture
def floors(admin: Admin, prefix: str) -> Floors:
    return Floors(admin, prefix)


async def _sweep(provider: EventProvider) -> None:
    """Remove all that may go."""
    kept = SweepQueue("event.ask", 0, 0, 0, 0)
    await provider._life.store.sweep([kept], limit=2000)  # pyright: ignore[reportOptionalMemberAccess]


async def _sweep_on(provider: EventProvider) -> None:
    """Remove all that may go, for fifteen times as long as a floor takes to rise."""
    loop = asyncio.get_running_loop()
    end = loop.time() + 0.3
    while loop.time() < end:
        await _sweep(provider)
        await asyncio.sleep(0.01)


async def test_what_was_got_goes_by_retention_and_an_idle_emitter_holds_nothing_back(
    make_provider: MakeProvider, floors: Floors, until: Until
) -> None:
    provider = make_provider(keep_completed=Keep(count=5), concurrency=20)

    @provider.on("ask")
    async def ask(n: int) -> int:
        await asyncio.sleep(0.005)
        return n

    async with provider.worker():
        most = 0
        for first in range(0, 1000, 20):
            await asyncio.gather(*(provider.emit("ask", n) for n in range(first, first + 20)))
            most = max(most, floors.kept())
        assert most < 500, "they go while it emits"
        await until(lambda: floors.names() == [], "it leaves")
        kept = SweepQueue("event.ask", 5, 10**9, 5, 10**9)
        await provider._life.store.sweep([kept], limit=2000)  # pyright: ignore[reportOptionalMemberAccess]
        assert floors.kept() == 5


async def test_an_emitter_that_awaits_a_long_job_keeps_its_floor_near_the_time(
    make_provider: MakeProvider, floors: Floors, until: Until
) -> None:
    provider, go = make_provider(), asyncio.Event()

    @provider.on("ask")
    async def ask(_: int) -> None:
        await go.wait()

    async with provider.worker():
        emission = provider.emit("ask", 1)
        await until(floors.names, "it attends")
        first = floors.lowest()
        await until(lambda: floors.lowest() > first, "its floor rises")
        go.set()
        await emission
        await until(lambda: floors.names() == [], "it leaves")


async def test_an_emitter_whose_loop_hangs_finds_what_ended_meanwhile(
    make_provider: MakeProvider, floors: Floors, until: Until
) -> None:
    """`emitter-hangs`, for less than two minutes: a large outcome, which no stream carries, stays."""
    worker = make_provider(keep_completed=_NONE)
    worker.on("ask")(lambda n: "x" * 20_000)
    release = asyncio.Event()
    read = ReplyStream.read

    async def hang(self: ReplyStream) -> Any:
        outcomes = await read(self)
        if self is hung:
            await release.wait()
        return outcomes

    slow = make_provider(name="slow")
    async with worker.worker(), slow:
        hung = slow._life.emitter._uplink.reader._stream  # pyright: ignore[reportOptionalMemberAccess]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ReplyStream, "read", hang)
            emission = slow.emit("ask", 1)
            await until(lambda: floors.kept() == 1, "it has ended")
            await _sweep_on(worker)
            assert floors.kept() == 1
            release.set()
            assert len(await asyncio.wait_for(emission, 240)) == 20_000
        await until(lambda: floors.names() == [], "both leave")
        await _sweep(worker)
        assert floors.kept() == 0


async def test_a_large_outcome_stays_until_it_is_read_from_its_record(
    make_provider: MakeProvider, floors: Floors, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = make_provider(keep_completed=_NONE)
    provider.on("ask")(lambda n: "x" * 20_000)
    release, look_up = asyncio.Event(), Lookup.look_up

    async def held(self: Lookup, ids: list[str], *, deadline: float) -> None:
        await release.wait()
        await look_up(self, ids, deadline=deadline + 10)

    async with provider.worker():
        monkeypatch.setattr(Lookup, "look_up", held)
        emission = provider.emit("ask", 1)
        await until(lambda: floors.kept() == 1, "it has ended")
        await _sweep_on(provider)
        assert floors.kept() == 1
        release.set()
        assert len(await asyncio.wait_for(emission, 240)) == 20_000
        await until(lambda: floors.names() == [], "it leaves")


@pytest.mark.parametrize(
    "is_lost", [False, True], ids=["the stream is read", "the server is lost after the look"]
)
async def test_emitter_hangs_and_hears_from_its_stream_what_no_record_has_any_more(
    make_provider: MakeProvider,
    admin: Admin,
    floors: Floors,
    until: Until,
    monkeypatch: pytest.MonkeyPatch,
    standstill: Callable[[], AbstractContextManager[None]],
    is_lost: bool,
) -> None:
    """If the stream cannot be read, nobody knows: the emission is late, and not of an unknown job."""
    provider, may_read, read = make_provider(keep_completed=_NONE), asyncio.Event(), ReplyStream.read
    read_ahead = ReplyStream.read_ahead
    provider.on("ask")(lambda n: f"{n} \x80 \ud7ff")
    lost = ExitStack()

    async def hang(self: ReplyStream) -> Any:
        await may_read.wait()
        return await read(self)

    async def look_ahead(self: ReplyStream, *, deadline: float) -> Any:
        if is_lost:
            lost.enter_context(standstill())
        return await read_ahead(self, deadline=deadline)

    monkeypatch.setattr(ReplyStream, "read", hang)
    monkeypatch.setattr(ReplyStream, "read_ahead", look_ahead)
    async with provider.worker():
        emission = provider.emit("ask", 2, reply_timeout="1s")
        await until(lambda: floors.kept() > 0, "it has ended")
        admin("DEL", f"{floors.root}:job:{emission.job_id}")  # as retention does after 120 s
        if is_lost:
            with lost, pytest.raises(ResponseTimeout):
                await emission
        else:
            assert await emission == "2 \x80 \ud7ff"
        may_read.set()


async def test_outcomes_of_a_stream_that_was_lost_stay_until_they_are_looked_up(
    make_provider: MakeProvider, admin: Admin, floors: Floors, until: Until
) -> None:
    """`stream-gone`"""
    provider = make_provider(keep_completed=_NONE)
    worker = make_provider(keep_completed=_NONE, name="worker")
    go = asyncio.Event()

    @worker.on("ask")
    async def ask(n: int) -> int:
        await go.wait()
        return n

    async with worker.worker(), provider:
        emissions = [provider.emit("ask", n) for n in range(5)]
        await until(lambda: len(floors.names()) == 1, "one attends")
        for stream in admin("KEYS", f"{floors.root}:replies:*"):
            admin("DEL", stream)
        go.set()
        await until(lambda: floors.kept() == 5 or emissions[0].done(), "they end")
        await _sweep_on(worker)
        assert await asyncio.wait_for(asyncio.gather(*emissions), 240) == list(range(5))
        await until(lambda: floors.names() == [], "it leaves")


async def test_an_emission_that_nobody_holds_or_that_timed_out_holds_nothing_back(
    make_provider: MakeProvider, floors: Floors, until: Until
) -> None:
    provider, go = make_provider(), asyncio.Event()

    @provider.on("ask")
    async def ask(_: int) -> None:
        await go.wait()

    async with provider.worker():
        provider.emit("ask", 1, reply_timeout=0.2)  # dropped at once
        with pytest.raises(ResponseTimeout):
            await provider.emit("ask", 2, reply_timeout=0.1)
        await until(lambda: floors.names() == [], "it leaves, although both jobs run")
        go.set()


async def test_an_emission_without_a_reply_holds_nothing_back_once_its_add_is_answered(
    make_provider: MakeProvider, floors: Floors, until: Until
) -> None:
    provider = make_provider()
    async with provider:
        provider.emit("nobody", 1, reply=False)
        await provider._life.emitter.buffer.flush()  # pyright: ignore[reportOptionalMemberAccess]
        await until(lambda: floors.names() == [], "it leaves, although the job waits")


async def test_an_add_whose_answer_is_lost_does_not_run_twice_however_soon_its_job_may_go(
    make_provider: MakeProvider, floors: Floors
) -> None:
    """Its outcome came, its record may go by retention, and then the same add comes again."""
    provider = make_provider(keep_completed=_NONE)
    runs: list[int] = []
    provider.on("ask")(runs.append)
    other = make_provider(name="other")
    async with provider.worker(), other:
        store: Any = provider._life.store  # pyright: ignore[reportPrivateUsage]
        add, release, is_done = store.add, asyncio.Event(), asyncio.Event()

        async def twice(*arguments: Any, **options: Any) -> Any:
            await add(*arguments, **options)
            is_done.set()
            await release.wait()  # the answer is lost
            return await add(*arguments, **options)

        store.add = twice
        emission = provider.emit("ask", 1)
        await asyncio.wait_for(emission, 240)  # its outcome overtook the answer
        store.add = add
        await is_done.wait()
        await _sweep_on(other)
        assert floors.kept() == 1
        release.set()
        await provider._life.emitter.buffer.flush()  # pyright: ignore[reportOptionalMemberAccess]
        await provider.emit("ask", 2)
        assert runs == [1, 2]


async def test_a_stop_takes_the_emitter_out(make_provider: MakeProvider, floors: Floors) -> None:
    provider = make_provider()
    async with provider:
        provider.emit("nobody", 1)
        await provider._life.emitter.buffer.flush()  # pyright: ignore[reportOptionalMemberAccess]
        assert len(floors.names()) == 1
    assert floors.names() == []


async def test_providers_of_one_uplink_have_one_floor(make_provider: MakeProvider, floors: Floors) -> None:
    first, second = (make_provider(name="up") for _ in range(2))
    async with first, second:
        for provider in (first, second):
            provider.emit("nobody", 1)
            await provider._life.emitter.buffer.flush()  # pyright: ignore[reportOptionalMemberAccess]
        assert len(floors.names()) == 1
