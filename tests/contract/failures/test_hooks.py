"""Hooks for failed jobs run beside the jobs: what they raise, how long they take, and which functions they
may be.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from eventbus import DefinitionError, Event, EventContext, EventProvider, HandlerError, JobFailure, Retry
from eventbus.handlers.failures import desk

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]
Logs = list[MutableMapping[str, Any]]
Listen = Callable[[EventProvider], list[JobFailure]]
Working = Callable[[EventProvider], AbstractAsyncContextManager[Callable[[], Awaitable[None]]]]

ONCE = Retry(attempts=1)


def _fail(item: int) -> None:
    raise ValueError(f"no card {item}")


async def test_what_a_hook_raises_is_logged_and_harms_neither_the_job_nor_the_other_hooks(
    make_provider: MakeProvider, logs: Logs, listen: Listen, working: Working
) -> None:
    provider = make_provider(retry=ONCE)

    @provider.on_failure
    async def broken(failure: JobFailure) -> None:
        raise ConnectionError("pager away")

    @provider.on_failure
    def leaves(failure: JobFailure) -> None:
        raise SystemExit(3)

    told = listen(provider)
    provider.on("ask", group="mail")(_fail)
    provider.on("fine")(lambda n: n)
    async with working(provider) as drain:
        emission = provider.emit(Event("ask", default=False), 1, reply=False)
        await drain()
        assert await provider.emit("fine", 2) == 2
    assert [each.group for each in told] == ["mail"]
    raised = [each for each in logs if each["event"] == "failure hook raised"]
    assert sorted((each["hook"].rpartition(".")[2], each["error"]) for each in raised) == [
        ("broken", "ConnectionError: pager away"),
        ("leaves", "SystemExit: 3"),
    ]
    for each in raised:
        assert (each["event_name"], each["group"], each["job_id"]) == (
            "ask",
            "mail",
            f"{emission.job_id}@mail",
        )


async def test_a_hook_that_hangs_is_cancelled_and_said_so(
    make_provider: MakeProvider, logs: Logs, until: Until, monkeypatch: pytest.MonkeyPatch, working: Working
) -> None:
    monkeypatch.setattr(desk, "_HOOK_WITHIN", 0.05)
    provider = make_provider(retry=ONCE)
    provider.on("ask")(_fail)

    @provider.on_failure
    async def hangs(failure: JobFailure) -> None:
        await asyncio.Event().wait()

    async with working(provider):
        provider.emit("ask", 1, reply=False)
        await until(lambda: [each for each in logs if each["event"] == "failure hook raised"], "it is logged")
    (entry,) = [each for each in logs if each["event"] == "failure hook raised"]
    assert entry["error"] == "TimeoutError: it ran longer than 0.05 s, and was cancelled"


async def test_a_stop_waits_for_hooks_within_the_grace(make_provider: MakeProvider, until: Until) -> None:
    provider = make_provider(retry=ONCE, grace=30)
    provider.on("ask")(_fail)
    began, go, ended = asyncio.Event(), asyncio.Event(), list[str]()

    @provider.on_failure
    async def slow(failure: JobFailure) -> None:
        began.set()
        await go.wait()
        ended.append(failure.job_id)

    async with provider, provider.worker() as worker:
        emission = provider.emit("ask", 1, reply=False)
        await began.wait()
        worker.request_stop()
        waiting = asyncio.create_task(worker.wait())
        await until(lambda: worker.health().ended, "the engine has ended, and the hook runs on")
        assert not waiting.done()
        go.set()
        await waiting
    assert ended == [emission.job_id]


async def test_a_stop_gives_hooks_up_after_the_grace_and_says_how_many(
    make_provider: MakeProvider, logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desk, "_LAST", 0.05)
    provider = make_provider(retry=ONCE, grace=0)
    provider.on("ask")(_fail)
    began, cancelled = asyncio.Event(), list[bool]()

    @provider.on_failure
    async def slow(failure: JobFailure) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    async with provider, provider.worker():
        provider.emit("ask", 1, reply=False)
        await began.wait()
    assert cancelled == [True]
    (entry,) = [each for each in logs if each["event"] == "failure hooks did not finish, cancelled"]
    assert entry["count"] == 1


async def test_a_stop_at_once_does_not_wait_for_hooks(make_provider: MakeProvider) -> None:
    provider = make_provider(retry=ONCE, grace=60)
    provider.on("ask")(_fail)
    began = asyncio.Event()

    @provider.on_failure
    async def slow(failure: JobFailure) -> None:
        began.set()
        await asyncio.Event().wait()

    async with provider, provider.worker() as worker:
        provider.emit("ask", 1, reply=False)
        await began.wait()
        worker.request_stop(at_once=True)
        await asyncio.wait_for(worker.wait(), 240)


async def test_at_most_16_hooks_run_at_a_time_and_what_waits_is_bounded(
    make_provider: MakeProvider, logs: Logs, until: Until, monkeypatch: pytest.MonkeyPatch, working: Working
) -> None:
    monkeypatch.setattr(desk, "_MOST", 3)
    monkeypatch.setattr(desk, "_LOOKED_UP", 20)
    provider = make_provider(retry=ONCE)
    provider.on("ask")(_fail)
    go, running, told = asyncio.Event(), list[str](), list[str]()

    @provider.on_failure
    async def slow(failure: JobFailure) -> None:
        running.append(failure.job_id)
        await go.wait()
        told.append(failure.job_id)

    async with working(provider) as drain:
        for n in range(17):  # one after the other: the 17th waits for a place
            provider.emit("ask", n, reply=False)
            await until(lambda n=n: len(running) == min(n + 1, 16), "its hook runs, if one may")
        provider.emit_many("ask", range(10), reply=False)
        await drain()
        assert len(running) == 16
        go.set()
        await until(lambda: "failures not told, their hooks are too slow" in str(logs), "the loss is logged")
    dropped = sum(each.get("count", 0) for each in logs if each["event"].startswith("failures not told"))
    assert len(told) + dropped == 27
    assert len(told) > 16
    assert dropped > 0


async def test_a_hook_that_is_not_async_runs_in_a_thread(
    make_provider: MakeProvider, working: Working
) -> None:
    provider = make_provider(retry=ONCE)
    provider.on("ask")(_fail)
    threads: list[bool] = []

    @provider.on_failure
    def note(failure: JobFailure) -> None:
        threads.append(threading.current_thread() is threading.main_thread())

    async with working(provider) as drain:
        provider.emit("ask", 1, reply=False)
        await drain()
    assert threads == [False]


async def test_what_a_hook_emits_belongs_to_the_chain_of_the_failed_job(
    make_provider: MakeProvider, until: Until, working: Working
) -> None:
    provider = make_provider(retry=ONCE)
    provider.on("ask")(_fail)
    heard: list[tuple[str, str | None, Any]] = []

    @provider.on("alert")
    async def alert(_: str, ctx: EventContext) -> None:
        heard.append((ctx.correlation_id, ctx.causation_id, ctx.meta))

    @provider.on_failure
    async def pass_on(failure: JobFailure) -> None:
        await provider.emit("alert", failure.error)

    async with working(provider) as drain:
        with provider.context(correlation_id="req-1", tenant="a"):
            emission = provider.emit("ask", 1, reply=False)
        await drain()
        await until(lambda: heard, "the hook, which runs beside the jobs, has emitted")
    assert heard == [("req-1", emission.job_id, {"tenant": "a"})]


@pytest.mark.real
async def test_a_worker_on_a_server_for_tests_calls_hooks_as_well(listen: Listen) -> None:
    provider = EventProvider("memory:", retry=ONCE)
    told = listen(provider)
    provider.on("ask")(_fail)
    async with provider.worker():
        with pytest.raises(HandlerError):
            await provider.emit("ask", 1)
    assert [each.error for each in told] == ["ValueError: no card 1"]


def _two(one: JobFailure, other: int) -> None:
    """Take too much."""


def _nothing() -> None:
    """Take nothing."""


def _text(failure: str) -> None:
    """Take something else."""


async def _yields(failure: JobFailure) -> AsyncGenerator[None]:
    yield


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (None, "write @provider.on_failure without parentheses"),
        (5, "which is no function"),
        (_two, "which takes other arguments"),
        (_nothing, "which takes other arguments"),
        (_text, "which takes <class 'str'>"),
        (_yields, "which yields"),
        (ValueError, "which is a class"),
    ],
)
def test_a_function_that_cannot_be_a_hook_is_refused_at_once(given: Any, why: str) -> None:
    with pytest.raises(DefinitionError, match="expected a hook for failed jobs") as refused:
        EventProvider("memory:").on_failure(given)
    assert why in str(refused.value)


def test_a_hook_may_be_any_callable_of_one_argument_and_is_returned() -> None:
    provider = EventProvider("memory:")

    class Pager:
        async def __call__(self, failure: JobFailure) -> None:
            """Page."""

    def note(failure: JobFailure | None = None, *, more: int = 0) -> None:
        """Note."""

    pager = Pager()
    assert provider.on_failure(pager) is pager
    assert provider.on_failure(note) is note
    assert provider.on_failure(print) is print


def test_the_old_name_warns_and_does_the_same() -> None:
    provider, told = EventProvider("memory:"), list[JobFailure]()
    with pytest.warns(DeprecationWarning, match=r"provider\.failed is deprecated: use provider\.on_failure"):
        assert provider.failed(told.append) == told.append
    assert [hook.function for hook in provider._life.failure_hooks] == [told.append]


@pytest.mark.real
async def test_a_plain_hook_begins_at_once_while_others_block_their_threads(
    make_provider: MakeProvider, until: Until
) -> None:
    provider, gate, began = make_provider(), threading.Event(), list[str]()

    @provider.on_failure
    def hold(failure: JobFailure) -> None:
        began.append(failure.job_id)
        gate.wait(240)

    @provider.on("a", retry=Retry(attempts=1))
    async def fail(_: Any) -> None:
        raise ValueError

    async with provider.worker():
        for emission in [provider.emit("a", n, reply=False) for n in range(16)]:
            await emission.enqueued()
        try:
            await until(lambda: len(began) == 16, "all of them have begun")
        finally:
            gate.set()
