"""How long an emitter waits, and which error it gets then."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from drivers.records import read_record

from eventbus import EventContext, EventProvider, ResponseTimeout, Retry, StoreUnavailable, UnknownJob
from eventbus.emit.emission import PendingEmission
from eventbus.store.store import Store

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]


async def test_without_a_worker_the_timeout_says_waiting_and_the_result_may_come_later(
    make_provider: MakeProvider,
) -> None:
    provider = make_provider()
    provider.on("ask")(lambda n: n)
    async with provider:
        emission = provider.emit("ask", 1, reply_timeout=0.15)
        with pytest.raises(ResponseTimeout, match="no worker took it yet") as caught:
            await emission
        error = caught.value
        assert (error.event, error.job_id, error.timeout, error.state) == (
            "ask",
            emission.job_id,
            0.15,
            "waiting",
        )
        async with provider.worker():
            assert await provider.result(emission.job_id) == 1
        with pytest.raises(ResponseTimeout):  # its outcome for this waiter is final
            await emission


async def test_the_timeouts_of_many_say_which_of_them_run(make_provider: MakeProvider) -> None:
    provider, go = make_provider(), asyncio.Event()

    @provider.on("ask", concurrency=30)
    async def ask(_: int) -> None:
        await go.wait()

    async with provider, provider.worker():
        emissions = provider.emit_many("ask", range(40), reply_timeout=0.5)
        found = await asyncio.gather(*emissions, return_exceptions=True)
        go.set()
    states = Counter(error.state for error in found if isinstance(error, ResponseTimeout))
    assert states == {"active": 30, "waiting": 10}


async def test_while_its_handler_runs_the_timeout_says_active(make_provider: MakeProvider) -> None:
    provider = make_provider(reply_timeout="1s")
    go = asyncio.Event()

    @provider.on("ask")
    async def ask(n: int) -> int:
        await go.wait()
        return n

    async with provider.worker():
        emission = provider.emit("ask", 1)
        with pytest.raises(ResponseTimeout, match="a handler is running it") as caught:
            await emission
        assert caught.value.state == "active"
        go.set()
        assert await provider.result(emission.job_id) == 1


async def test_between_two_attempts_the_timeout_says_delayed(make_provider: MakeProvider) -> None:
    provider = make_provider(retry=Retry(delay="1 minute"))

    @provider.on("ask")
    async def ask(_: Any) -> None:
        raise ValueError

    async with provider.worker():
        with pytest.raises(ResponseTimeout, match="backs off before a retry, or was put off") as caught:
            await provider.emit("ask", reply_timeout=1)  # a busy machine takes a while to fail once
    assert caught.value.state == "delayed"


@pytest.mark.parametrize("none", [0, None])
async def test_zero_and_none_wait_without_limit(make_provider: MakeProvider, none: Any) -> None:
    provider = make_provider(reply_timeout=0.15)
    provider.on("ask")(lambda n: n)
    async with provider:
        patient, other = provider.emit("ask", 1, reply_timeout=none), provider.emit("ask", 2)
        with pytest.raises(ResponseTimeout):
            await other
        assert isinstance(patient, PendingEmission)
        assert (patient.reply_timeout, patient.done()) == (None, False)
        async with provider.worker():
            assert await patient == 1


async def test_a_provider_may_wait_without_limit_by_default(make_provider: MakeProvider) -> None:
    provider = make_provider(reply_timeout=0)
    async with provider:
        emission = provider.emit("ask", reply_timeout=0.15)
        with pytest.raises(ResponseTimeout):
            await emission
        endless = provider.emit("ask")
        assert isinstance(endless, PendingEmission)
        assert endless.reply_timeout is None
        waiting = asyncio.create_task(_outcome(endless))
    assert "ProviderStopped" in await waiting


async def _outcome(emission: Any) -> str:
    try:
        return repr(await emission)
    except Exception as error:  # noqa: BLE001
        return repr(error)


async def test_the_time_starts_when_the_job_is_due(make_provider: MakeProvider) -> None:
    provider = make_provider()
    provider.on("ask")(lambda n: n)
    async with provider.worker():
        assert await provider.emit("ask", 1, delay="1s", reply_timeout=0.9) == 1


async def test_retries_do_not_start_it_again(make_provider: MakeProvider) -> None:
    provider = make_provider(retry=Retry(attempts=1000, delay="160ms", backoff="fixed"))
    attempts: list[int] = []

    @provider.on("ask")
    async def ask(_: Any, ctx: EventContext) -> None:
        attempts.append(ctx.attempt)
        raise ValueError

    async with provider.worker():
        with pytest.raises(ResponseTimeout):
            await provider.emit("ask", reply_timeout=0.8)
    assert 2 <= len(attempts) <= 6


async def test_a_wait_for_a_result_may_have_a_limit(make_provider: MakeProvider) -> None:
    provider = make_provider()
    async with provider:
        emission = provider.emit("ask", reply=False)
        await emission
        with pytest.raises(ResponseTimeout) as caught:
            await provider.result(emission.job_id, reply_timeout="30ms")
    assert caught.value.state == "waiting"


async def test_an_outcome_whose_reply_was_lost_is_found_before_the_timeout_is_told(
    make_provider: MakeProvider, admin: Callable[..., Any], prefix: str
) -> None:
    provider = make_provider()

    @provider.on("ask")
    async def ask(n: int) -> int:
        (stream,) = admin("KEYS", f"{prefix}:*:replies:*")
        admin("DEL", stream)  # workers do not bring it back
        return n

    async with provider.worker():
        assert await provider.emit("ask", 5, reply_timeout=1.5) == 5
    assert admin("KEYS", f"{prefix}:*:replies:*") == []


async def test_a_server_that_cannot_be_asked_is_told_as_unknown(
    make_provider: MakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def look(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable("away")

    provider = make_provider()
    async with provider:
        emission = provider.emit("ask", reply_timeout=0.15)
        await emission.enqueued()
        monkeypatch.setattr(Store, "look", look)
        with pytest.raises(ResponseTimeout) as caught:
            await emission
        monkeypatch.undo()
    assert caught.value.state == "unknown"


async def test_a_job_that_the_server_lost_is_told_as_such(
    make_provider: MakeProvider, admin: Callable[..., Any], prefix: str, until: Until
) -> None:
    provider = make_provider()
    async with provider:
        lost, kept = [provider.emit("ask", reply_timeout=1.5) for _ in range(2)]
        await asyncio.gather(lost.enqueued(), kept.enqueued())
        waiting = asyncio.create_task(provider.result(lost.job_id, reply_timeout=1.5))
        (record,) = admin("KEYS", f"{prefix}:*:job:{lost.job_id}")
        await until(lambda: "joined" in read_record(admin, record), "it has looked, and waits")
        admin("DEL", *admin("KEYS", f"{prefix}:*:{lost.job_id}"))
        for each in (lost, waiting):
            with pytest.raises(UnknownJob, match="the server lost it") as caught:
                await each
            assert caught.value.job_id == lost.job_id
        with pytest.raises(ResponseTimeout) as late:
            await kept
    assert late.value.state == "waiting"
