"""The sync side: threads of a started provider, and scripts without an event loop."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from eventbus import (
    Event,
    EventProvider,
    HandlerError,
    PayloadError,
    ProviderStopped,
    Retry,
    StoreRefused,
    StoreUnavailable,
    UnknownJob,
    UsageError,
)
from eventbus.runtime import blocking_call
from eventbus.store.store import Store

MakeProvider = Callable[..., EventProvider]


def _serving(make_provider: MakeProvider, **settings: Any) -> EventProvider:
    provider = make_provider(retry=Retry(attempts=1), **settings)

    @provider.on("half", concurrency=50)
    async def half(n: int) -> int:
        if n % 2:
            raise ValueError(n)
        return n // 2

    return provider


async def test_threads_emit_and_wait(make_provider: MakeProvider) -> None:
    provider = _serving(make_provider)

    def work(n: int) -> int:
        emission = provider.sync.emit("half", 2 * n)
        emission.enqueued()
        assert emission.correlation_id == emission.job_id
        result = emission.result(240)
        assert emission.done()
        assert provider.sync.result(emission.job_id) == result
        return result

    async with provider.worker():
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(8) as threads:
            calls = [loop.run_in_executor(threads, work, n) for n in range(40)]
            assert await asyncio.gather(*calls) == list(range(40))


async def test_errors_reach_the_thread(make_provider: MakeProvider) -> None:
    provider = _serving(make_provider)
    typed = Event("typed", payload=int)

    def work() -> None:
        with pytest.raises(HandlerError, match="ValueError: 3"):
            provider.sync.emit("half", 3).result(240)
        wrong: Any = "x"
        with pytest.raises(PayloadError):
            provider.sync.emit(typed, wrong)
        with pytest.raises(UnknownJob):
            provider.sync.result("0-no-1")

    async with provider.worker():
        await asyncio.to_thread(work)


async def test_a_wait_that_was_too_short_may_be_tried_again_and_leaves_nothing(
    make_provider: MakeProvider,
) -> None:
    provider = make_provider()
    go = asyncio.Event()

    @provider.on("ask")
    async def ask(n: int) -> int:
        await go.wait()
        return n

    def work(loop: asyncio.AbstractEventLoop) -> int:
        emission = provider.sync.emit("ask", 1)
        with pytest.raises(TimeoutError):
            emission.result(0.02)
        loop.call_soon_threadsafe(go.set)
        return emission.result(240)

    async with provider.worker():
        assert await asyncio.to_thread(work, asyncio.get_running_loop()) == 1


async def test_a_wait_ends_in_time_while_something_blocks_the_event_loop(make_provider: MakeProvider) -> None:
    provider = make_provider()
    waits, ended = threading.Event(), threading.Event()

    def work() -> None:
        emission = provider.sync.emit("unhandled", 1)
        emission.enqueued()
        waits.set()
        with pytest.raises(TimeoutError):
            emission.result(0.1)
        ended.set()

    async with provider:
        working = asyncio.create_task(asyncio.to_thread(work))
        assert await asyncio.to_thread(waits.wait, 60)
        assert ended.wait(240)  # blocks the event loop
        await working


async def test_meta_of_the_thread_travels(make_provider: MakeProvider) -> None:
    from eventbus import EventContext

    provider = make_provider()

    @provider.on("ask")
    async def ask(_: Any, ctx: EventContext) -> Any:
        return dict(ctx.meta)

    def work() -> Any:
        with provider.context(tenant="a"):
            return provider.sync.emit("ask").result(240)

    async with provider.worker():
        assert await asyncio.to_thread(work) == {"tenant": "a"}


async def test_inside_the_event_loop_it_is_refused(make_provider: MakeProvider) -> None:
    provider = _serving(make_provider)
    with pytest.raises(ProviderStopped, match="use `async with provider:`"):
        provider.sync.emit("half", 2)
    async with provider:
        with pytest.raises(UsageError, match=r"would block the event loop it needs; await provider\.emit"):
            provider.sync.emit("half", 2)
        with pytest.raises(UsageError):
            provider.sync.result("0-a-1")


async def test_without_an_event_loop_the_first_call_starts_one_in_a_thread(
    make_provider: MakeProvider,
) -> None:
    server, provider = _serving(make_provider), make_provider()

    def work() -> int:
        try:
            results = [provider.sync.emit("half", n).result(240) for n in (4, 6)]
            assert "eventbus-sync" in {each.name for each in threading.enumerate()}
        finally:
            provider.sync.close()
            provider.sync.close()
        # It may be used again.
        results.append(provider.sync.emit("half", 8).result(240))
        provider.sync.close()
        return sum(results)

    async with server.worker():
        assert await asyncio.to_thread(work) == 9


async def test_a_start_that_is_refused_in_its_thread_may_be_tried_again(
    make_provider: MakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: Any, **__: Any) -> None:
        raise StoreRefused("not today")

    server, provider = _serving(make_provider), make_provider()

    def work() -> int:
        with monkeypatch.context() as patch:
            patch.setattr(Store, "start", refuse)
            with pytest.raises(StoreRefused, match="not today"):
                provider.sync.emit("half", 2)
        result = provider.sync.emit("half", 4).result(240)
        provider.sync.close()
        return result

    async with server.worker():
        assert await asyncio.to_thread(work) == 2


async def test_a_close_does_not_wait_for_the_address_of_a_server(
    prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    find, found = socket.getaddrinfo, threading.Event()
    answers: list[str] = []

    def find_slowly(host: Any, *arguments: Any, **options: Any) -> Any:
        found.wait(240)
        answers.append(host)
        return find("127.0.0.1", *arguments, **options)

    provider = EventProvider("redis://events.example:1", prefix=prefix)

    def work() -> None:
        with pytest.raises(StoreUnavailable):
            provider.sync.cancel("0-a-1", call_timeout=0.1)
        provider.sync.close()

    monkeypatch.setattr(socket, "getaddrinfo", find_slowly)
    try:
        await asyncio.to_thread(work)
        assert answers == [], "it was closed first"
    finally:
        found.set()


async def test_a_loop_that_ended_without_a_stop_is_told(make_provider: MakeProvider) -> None:
    provider = make_provider()

    async def leave_open() -> None:
        await provider.start()
        await provider.emit("half", 2, reply=False)

    def work() -> None:
        asyncio.run(leave_open())
        with pytest.raises(ProviderStopped, match="event loop has ended"):
            provider.sync.emit("half", 2)

    await asyncio.to_thread(work)


async def test_after_the_stop_threads_hear_so_and_start_nothing(make_provider: MakeProvider) -> None:
    provider = _serving(make_provider)
    started = threading.Barrier(9, timeout=240)

    def wait_stopped() -> None:
        while provider._life.loop is not None:
            time.sleep(0.001)

    def work() -> list[str]:
        heard: list[str] = []
        emission = provider.sync.emit("unhandled", 2, reply_timeout=0)
        emission.enqueued()
        started.wait()
        calls: list[Callable[[], Any]] = [
            emission.result,
            lambda: provider.sync.emit("half", 2),
            lambda: provider.sync.result(emission.job_id),
            wait_stopped,
            lambda: provider.sync.emit("half", 2),
            lambda: provider.sync.cancel(emission.job_id),
            emission.cancel,
        ]
        for call in calls:
            try:
                call()
            except ProviderStopped as error:
                heard.append(type(error).__name__)
        return heard

    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(8) as threads:
        async with provider.worker():
            works = [loop.run_in_executor(threads, work) for _ in range(8)]
            await asyncio.to_thread(started.wait)
        heard = await asyncio.wait_for(asyncio.gather(*works), 240)
    assert heard == [["ProviderStopped"] * 6] * 8
    assert "eventbus-sync" not in {each.name for each in threading.enumerate()}
    assert provider._life.loop is None
    async with provider.worker():  # and where it was is free again
        assert await asyncio.to_thread(lambda: provider.sync.emit("half", 4).result(240)) == 2


async def test_a_thread_that_comes_before_the_start_has_ended_starts_nothing(
    make_provider: MakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = make_provider()
    start, begun, go = Store.start, asyncio.Event(), asyncio.Event()

    async def slow(self: Store, **given: Any) -> None:
        begun.set()
        await go.wait()
        await start(self, **given)

    def work() -> None:
        with pytest.raises(ProviderStopped, match="has stopped it, or has not started it yet"):
            provider.sync.emit("half", 2)

    monkeypatch.setattr(Store, "start", slow)
    starting = asyncio.create_task(provider.start())
    await begun.wait()
    await asyncio.to_thread(work)
    go.set()
    await starting
    await provider.stop()


async def test_an_event_loop_is_told_that_the_sync_side_has_the_provider(make_provider: MakeProvider) -> None:
    server, provider = _serving(make_provider), make_provider()

    async def use() -> None:
        for call in (provider.start, provider.stop):
            with pytest.raises(UsageError, match=r"in a thread of its own; call provider\.sync\.close\(\)"):
                await call()
        with pytest.raises(UsageError, match="runs in another event loop; use it where it was started"):
            provider.emit("half", 2)

    def work() -> None:
        assert provider.sync.emit("half", 4).result(240) == 2
        asyncio.run(use())
        provider.sync.close()
        asyncio.run(_emit_once(provider))
        with pytest.raises(ProviderStopped):  # from then on it is the event loop's
            provider.sync.emit("half", 4)

    async with server.worker():
        await asyncio.to_thread(work)


async def _emit_once(provider: EventProvider) -> None:
    async with provider:
        assert await provider.emit("half", 4) == 2


async def test_the_sync_side_and_an_event_loop_that_start_at_once_do_not_both_succeed(
    make_provider: MakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = make_provider()
    start, begun, go = Store.start, threading.Event(), threading.Event()

    async def slow(self: Store, **given: Any) -> None:
        begun.set()
        await asyncio.to_thread(go.wait)
        await start(self, **given)

    monkeypatch.setattr(Store, "start", slow)
    emitting = asyncio.create_task(asyncio.to_thread(provider.sync.emit, "half", 4, reply=False))
    await asyncio.to_thread(begun.wait)
    with pytest.raises(UsageError, match="in a thread of its own"):
        await provider.start()
    go.set()
    (await emitting).enqueued()
    await asyncio.to_thread(provider.sync.close)


async def test_a_call_that_a_closed_loop_never_heard_ends() -> None:
    loop = asyncio.new_event_loop()

    async def work() -> None: ...

    call: Any = blocking_call._Call(loop, work())
    loop.call_soon_threadsafe(call.start)
    waiting = asyncio.create_task(asyncio.to_thread(call.wait))
    await asyncio.sleep(0)
    loop.close()  # a call that it has not run by then never runs
    with pytest.raises(ProviderStopped, match="event loop has ended"):
        await asyncio.wait_for(waiting, 240)


SCRIPT = """
import sys
from eventbus import EventProvider

provider = EventProvider(sys.argv[1], prefix=sys.argv[2])
emission = provider.sync.emit("half", 8)
emission.enqueued()
print(emission.result(240) if sys.argv[3] == "wait" else "sent")
"""


@pytest.mark.slow
@pytest.mark.parametrize("url", ["server", "memory:"])
async def test_a_plain_script_needs_no_event_loop_and_ends_cleanly(
    make_provider: MakeProvider, server_url: str, prefix: str, url: str
) -> None:
    async with _serving(make_provider).worker():
        arguments = [server_url, prefix, "wait"] if url == "server" else [url, prefix, "send"]
        ran = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-W", "error", "-c", SCRIPT, *arguments],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    # On a busy machine the server may be called away until it answers.
    said = [line for line in ran.stderr.splitlines() if "started without a server" not in line]
    said = [line for line in said if "server available again" not in line]
    assert (ran.returncode, said) == (0, [])
    assert ran.stdout.splitlines()[-1] in ("4", "sent")
