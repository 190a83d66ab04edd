"""Pending emissions: what the emitter learns when the server refuses, is away, or its answer is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

import pytest

from eventbus import EmitError, EventProvider, ProviderStopped, StoreRefused, StoreUnavailable
from eventbus.engine.worker import Worker

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]


class Server:
    """A fault point in front of a provider's adds: each word of `script` is what comes next.

    `lost`: done, and the answer is lost; `away`: never arrived; `refused`: refused for good;
    `held`: done, and the answer stays away; any other: as it is.
    """

    def __init__(self, provider: EventProvider) -> None:
        store: Any = provider._life.store  # pyright: ignore[reportPrivateUsage]
        self._add = store.add
        store.add = self.add
        self.script: list[str] = []
        self.sizes: list[int] = []

    async def add(self, emitter: str, queues: Any, rows: Any, **options: Any) -> Any:
        self.sizes.append(len(rows))
        word = self.script.pop(0) if self.script else ""
        if word == "refused":
            raise StoreRefused("maxmemory is reached", code="OOM")
        if word == "away":
            raise StoreUnavailable("no server at nowhere:1", sent=False)
        answer = await self._add(emitter, queues, rows, **options)
        if word == "held":
            await asyncio.Event().wait()
        if word == "lost":
            raise StoreUnavailable("no server at nowhere:1", sent=True)
        return answer


@pytest.fixture
async def provider(make_provider: MakeProvider) -> AsyncIterator[EventProvider]:
    provider = make_provider()
    async with provider:
        yield provider


async def test_what_the_server_refuses_for_good_is_told_at_once(provider: EventProvider) -> None:
    server = Server(provider)
    server.script = ["refused"]
    with pytest.raises(EmitError, match="ask was not enqueued: maxmemory is reached") as caught:
        await provider.emit("ask", 1)
    assert caught.value.enqueued is False
    assert isinstance(caught.value.__cause__, StoreRefused)
    await provider.emit("ask", 2, reply=False)


async def test_one_that_is_given_up_leaves_the_others_of_its_batch_on_their_way(
    provider: EventProvider,
) -> None:
    server = Server(provider)
    server.script = ["away"]
    short = provider.emit("ask", 1, reply_timeout=0.05)
    others = [provider.emit("ask", n, reply=False) for n in range(3)]
    with pytest.raises(EmitError) as caught:
        await short
    assert caught.value.enqueued is False
    for each in others:
        await each
    assert server.sizes == [4, 3]


async def test_after_a_lost_answer_it_is_unknown_and_the_result_tells(
    provider: EventProvider, make_provider: MakeProvider
) -> None:
    server = Server(provider)
    server.script = ["lost"]
    emission = provider.emit("ask", 1, reply_timeout=5)
    with pytest.raises(
        EmitError, match=rf"it is unknown .*; provider.result\('{emission.job_id}'\)"
    ) as caught:
        await emission
    assert (caught.value.enqueued, caught.value.job_id) == (None, emission.job_id)
    worker = make_provider()
    worker.on("ask")(lambda n: n)
    async with worker.worker():
        assert await provider.result(caught.value.job_id) == 1


async def test_a_refusal_after_a_lost_answer_does_not_say_that_it_was_not_enqueued(
    provider: EventProvider,
) -> None:
    server = Server(provider)
    server.script = ["lost", "refused"]
    first, second = provider.emit("ask", 1, reply_timeout=1), provider.emit("ask", 2, reply_timeout=2)
    for each in (first, second):
        with pytest.raises(EmitError) as caught:
            await each
        assert caught.value.enqueued is None


async def test_a_repeat_after_a_lost_answer_changes_nothing(
    provider: EventProvider, admin: Callable[..., Any], prefix: str
) -> None:
    server = Server(provider)
    server.script = ["lost"]
    short = provider.emit("ask", 1, reply_timeout=1)
    other = provider.emit("ask", 2, reply=False, idempotency_key="k")
    await other
    with pytest.raises(EmitError):
        await short
    assert server.sizes == [2, 1]
    assert admin("LLEN", f"{prefix}:2:{{0}}:ready:event.ask") == 2


async def test_a_stop_while_the_answer_is_away_says_that_it_is_unknown(
    make_provider: MakeProvider, monkeypatch: pytest.MonkeyPatch, until: Until
) -> None:
    monkeypatch.setattr("eventbus.emit.emitter._STOP_PATIENCE", 0.05)
    provider = make_provider()
    await provider.start()
    server = Server(provider)
    server.script = ["held"] * 10
    sent = provider.emit("ask", 1)
    await until(lambda: server.sizes, "the add is under way")
    await provider.stop()
    with pytest.raises(
        EmitError, match="it is unknown whether ask was enqueued: the provider stopped"
    ) as caught:
        await sent
    assert caught.value.enqueued is None


async def test_what_a_stop_finds_unsent_is_told_so(
    make_provider: MakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eventbus.emit.emitter._STOP_PATIENCE", 0.05)
    provider = make_provider()
    await provider.start()
    Server(provider).script = ["held"] * 10
    emissions = provider.emit_many("ask", range(2000))
    await provider.stop()
    errors = await asyncio.gather(*emissions, return_exceptions=True)
    assert {type(each) for each in errors[:800]} == {EmitError}
    assert {type(each) for each in errors[800:]} == {ProviderStopped}


async def test_an_emission_that_met_a_closing_provider_is_refused(make_provider: MakeProvider) -> None:
    provider = make_provider()
    await provider.start()
    provider.emit("ask", 1, reply=False)
    stopping = asyncio.create_task(provider.stop())

    async def emit_on() -> None:
        while True:
            provider.emit("ask", 2, reply=False)
            await asyncio.sleep(0)

    with pytest.raises(ProviderStopped, match=r"is stopping"):
        await emit_on()
    await stopping


async def test_a_role_that_fails_unexpectedly_is_started_again(
    make_provider: MakeProvider,
    monkeypatch: pytest.MonkeyPatch,
    logs: list[MutableMapping[str, Any]],
    until: Until,
) -> None:
    from eventbus.store.reply_stream import ReplyStream

    read = ReplyStream.read
    faults = [ValueError("nobody foresaw this")]

    async def faulty(self: ReplyStream) -> Any:
        if faults:
            raise faults.pop()
        return await read(self)

    monkeypatch.setattr(ReplyStream, "read", faulty)
    provider = make_provider()
    provider.on("ask")(lambda n: n)
    async with provider.worker():
        assert await provider.emit("ask", 1, reply_timeout=None) == 1
    assert "a role of the emitter failed, starting it again" in {each["event"] for each in logs}


async def test_a_worker_that_ends_by_an_error_is_no_secret_and_its_handlers_are_cancelled(
    make_provider: MakeProvider,
    monkeypatch: pytest.MonkeyPatch,
    logs: list[MutableMapping[str, Any]],
    until: Until,
) -> None:
    async def fails(self: Worker) -> None:
        await began.wait()
        raise ValueError("nobody foresaw this")

    monkeypatch.setattr(Worker, "_watch_abandoned", fails)
    provider = make_provider()
    began, ended = asyncio.Event(), asyncio.Event()

    @provider.on("ask")
    async def ask(_: Any) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with provider.worker():
        emission = provider.emit("ask", reply=False)
        await emission
        await asyncio.wait_for(ended.wait(), 240)
        await until(lambda: any(each["event"] == "worker ended by an error" for each in logs), "it is logged")
