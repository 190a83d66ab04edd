"""Who ended a job tells it: whatever is lost, cancelled or dies in between, no failure is told twice or by
another worker.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from drivers.records import change_record

from eventbus import (
    Event,
    EventProvider,
    HandlerError,
    JobCancelled,
    JobFailure,
    Retry,
    StoreRefused,
    StoreUnavailable,
)
from eventbus.store.scripting.packing import TurnRequest
from eventbus.store.store import Store

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]
Logs = list[MutableMapping[str, Any]]
Listen = Callable[[EventProvider], list[JobFailure]]
Working = Callable[[EventProvider], AbstractAsyncContextManager[Callable[[], Awaitable[None]]]]

ONCE = Retry(attempts=1)


def _fail(item: int) -> None:
    raise ValueError(f"no card {item}")


async def test_a_cancelled_job_is_not_told_though_its_handler_raised_at_the_end(
    make_provider: MakeProvider, until: Until, listen: Listen, working: Working
) -> None:
    provider = make_provider(retry=ONCE)
    told = listen(provider)
    began = asyncio.Event()

    @provider.on("ask")
    async def ask(n: int) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("while it was cancelled")

    async with working(provider):
        running = provider.emit("ask", 1)
        await began.wait()
        assert await running.cancel()
        with pytest.raises(JobCancelled):
            await running
    assert told == []


async def test_a_job_that_was_cancelled_before_its_failure_was_recorded_is_not_told(
    make_provider: MakeProvider, monkeypatch: pytest.MonkeyPatch, listen: Listen, working: Working
) -> None:
    """The worker says `failed`, and the server, which knows of the cancel, records that instead."""
    provider, other = make_provider(retry=ONCE), make_provider()
    told = listen(provider)
    turn = Store.turn

    async def cancel_first(self: Store, request: TurnRequest) -> Any:
        for settle in request.settles:
            if settle.state == "failed":
                await other.cancel(settle.id)
        return await turn(self, request)

    provider.on("ask")(_fail)
    async with other:
        with monkeypatch.context() as patch:
            patch.setattr(Store, "turn", cancel_first)
            async with working(provider):
                with pytest.raises(JobCancelled):
                    await provider.emit("ask", 1)
    assert told == []


async def test_a_worker_that_lost_the_lease_does_not_tell_and_the_one_that_ran_it_again_does(
    make_provider: MakeProvider, monkeypatch: pytest.MonkeyPatch, logs: Logs, until: Until, listen: Listen
) -> None:
    loser, winner = make_provider(retry=ONCE, lease=0.5, grace=0), make_provider(retry=ONCE, lease=0.5)
    lost, won = listen(loser), listen(winner)
    go, turn, refused = asyncio.Event(), Store.turn, "outcome refused: the lease was lost"

    async def hold_back(self: Store, request: TurnRequest) -> Any:
        if self is loser._life.store and request.settles:  # pyright: ignore[reportPrivateUsage]
            await go.wait()
        return await turn(self, request)

    for each in (loser, winner):
        each.on("ask")(_fail)
    monkeypatch.setattr(Store, "turn", hold_back)
    async with loser, loser.worker() as worker:
        emission = loser.emit("ask", 1)
        await until(lambda: [each for each in logs if each["event"] == "job failed"], "it failed there")
        await worker._worker.leases.aclose()  # pyright: ignore[reportPrivateUsage]
        worker._worker._rescuer.run_once = _never  # pyright: ignore[reportPrivateUsage]
        async with winner, winner.worker():
            with pytest.raises(HandlerError):
                await asyncio.wait_for(emission, 240)
        go.set()
        await until(lambda: refused in {each["event"] for each in logs}, "its settle was refused")
    assert lost == []
    assert [each.job_id for each in won] == [emission.job_id]


async def _never(*, now_ms: int | None = None) -> float:
    return 60.0


@pytest.mark.parametrize("reached", [True, False])
async def test_a_settle_that_was_sent_twice_is_told_once_if_the_first_one_was_recorded(
    make_provider: MakeProvider,
    monkeypatch: pytest.MonkeyPatch,
    reached: bool,
    listen: Listen,
    working: Working,
) -> None:
    """The answer of its turn never came, and the turn was given up; the second one is refused."""
    provider = make_provider(retry=ONCE)
    told = listen(provider)
    turn, calls = Store.turn, list[str]()

    async def give_up(self: Store, request: TurnRequest) -> Any:
        if any(each.state == "failed" for each in request.settles) and not calls:
            calls.append("given up")
            if reached:
                await turn(self, request)
            raise StoreUnavailable("no answer")
        return await turn(self, request)

    monkeypatch.setattr(Store, "turn", give_up)
    provider.on("ask")(_fail)
    async with working(provider) as drain:
        emission = provider.emit("ask", 1, reply=False)
        await drain()
    assert calls
    assert [each.job_id for each in told] == [emission.job_id]


@pytest.mark.parametrize("is_served", [True, False])
async def test_what_stalled_too_often_is_told_by_the_worker_that_ended_it(
    make_provider: MakeProvider, until: Until, is_served: bool, listen: Listen
) -> None:
    provider, other = make_provider(lease=0.5, grace=0), make_provider(lease=0.5, max_stalls=0)
    dead, told = listen(provider), listen(other)
    began = asyncio.Event()

    @provider.on("ask", group="mail")
    async def hang(_: Any) -> None:
        began.set()
        await asyncio.Event().wait()

    event = Event("ask", default=False)
    other.on("ask" if is_served else "else", group="mail")(lambda n: n)
    async with provider, provider.worker() as worker:
        with provider.context(correlation_id="req-1", tenant="a"):
            emission = provider.emit(event, 1, reply=False)
        await began.wait()
        await worker._worker.leases.aclose()  # pyright: ignore[reportPrivateUsage]
        worker._worker._rescuer.run_once = _never  # pyright: ignore[reportPrivateUsage]
        async with other.worker() as rescuer:
            await until(lambda: told, "the rescuer's hook is called")
    (failure,) = told
    assert (failure.name, failure.group, failure.job_id) == ("ask", "mail", f"{emission.job_id}@mail")
    assert (failure.outcome, failure.stalls, failure.error_type) == ("stalled", 1, "StalledError")
    assert (failure.correlation_id, failure.meta, failure.worker) == ("req-1", {"tenant": "a"}, rescuer.id)
    assert dead == []


async def test_a_rescue_whose_answer_was_lost_is_not_told_and_the_record_says_it(
    make_provider: MakeProvider, monkeypatch: pytest.MonkeyPatch, until: Until, listen: Listen
) -> None:
    """The crash window `rescue-not-answered`."""
    provider, other = make_provider(lease=0.5, grace=0), make_provider(lease=0.5, max_stalls=0)
    told, rescue, lost = listen(other), Store.rescue, list[Any]()
    began = asyncio.Event()

    async def lose(self: Store, **call: Any) -> Any:
        answer = await rescue(self, **call)
        if answer[1] and not lost:
            lost.append(answer[1])
            raise StoreUnavailable("no answer")
        return answer

    @provider.on("ask")
    async def hang(_: Any) -> None:
        began.set()
        await asyncio.Event().wait()

    other.on("ask")(lambda n: n)
    monkeypatch.setattr(Store, "rescue", lose)
    async with provider, provider.worker() as worker:
        emission = provider.emit("ask", 1, reply=False)
        await began.wait()
        await worker._worker.leases.aclose()  # pyright: ignore[reportPrivateUsage]
        worker._worker._rescuer.run_once = _never  # pyright: ignore[reportPrivateUsage]
        async with other.worker():
            await until(lambda: lost, "it was rescued, and the answer was lost")
        assert (await provider.inspector.jobs.get(emission.job_id)).state == "failed"
    assert told == []


async def test_a_job_whose_record_cannot_be_read_is_told_and_logged_by_the_worker_that_meets_it(
    make_provider: MakeProvider,
    admin: Callable[..., Any],
    prefix: str,
    listen: Listen,
    until: Until,
    logs: Logs,
) -> None:
    provider = make_provider()
    told = listen(provider)
    provider.on("ask")(lambda n: n)
    async with provider:
        emission = provider.emit("ask", 1, reply=False)
        await emission.enqueued()
        admin(*change_record(f"{prefix}:2:{{0}}:job:{emission.job_id}", stalls="x"))
        async with provider.worker():
            await until(lambda: told, "the hook is called")
    (failure,) = told
    assert (failure.name, failure.job_id, failure.error_type) == ("ask", emission.job_id, "StoreCorrupt")
    (entry,) = [each for each in logs if each["event"] == "job failed, its record cannot be read"]
    assert entry["job_id"] == emission.job_id


_DIES = """
import asyncio, os, sys
from eventbus import EventProvider, JobFailure, Retry

provider = EventProvider(retry=Retry(attempts=1))

@provider.on("ask")
def ask(n: int) -> None:
    raise ValueError(n)

@provider.on_failure
async def dies(failure: JobFailure) -> None:
    os._exit(7)

async def main() -> None:
    async with provider.worker() as worker:
        await worker.wait()

asyncio.run(main())
"""


@pytest.mark.real
@pytest.mark.slow
async def test_a_worker_that_dies_before_its_hook_has_run_calls_it_never_and_the_record_says_it(
    make_provider: MakeProvider, server_url: str, prefix: str, listen: Listen
) -> None:
    """The crash window `dies-before-failure-hook`."""
    provider = make_provider(retry=ONCE)
    told = listen(provider)
    provider.on("ask")(_fail)
    async with provider:
        emission = provider.emit("ask", 1, reply=False)
        await emission.enqueued()
        environment = {**os.environ, "EVENTBUS_URL": server_url, "EVENTBUS_PREFIX": prefix}
        died = await asyncio.create_subprocess_exec(sys.executable, "-c", _DIES, env=environment)
        assert await asyncio.wait_for(died.wait(), 240) == 7
        async with provider.worker() as worker:
            await worker.wait_drained(provider.flush)
        assert (await provider.inspector.jobs.get(emission.job_id)).state == "failed"
    assert told == []


async def test_if_the_server_does_not_say_what_it_recorded_the_hook_is_called_with_what_is_known(
    make_provider: MakeProvider, monkeypatch: pytest.MonkeyPatch, listen: Listen
) -> None:
    provider = make_provider(retry=ONCE)
    told = listen(provider)

    async def refuse(*_: Any, **__: Any) -> Any:
        raise StoreRefused("no")

    provider.on("ask")(_fail)
    async with provider, provider.worker() as worker:
        store: Any = worker._failures._store  # pyright: ignore[reportPrivateUsage]
        monkeypatch.setattr(store, "look", refuse)
        emission = provider.emit("ask", 1, reply=False)
        await worker.wait_drained(provider.flush)
    assert [each.job_id for each in told] == [emission.job_id]
