"""The channel: one connection for many callers; each gets one answer, or an error that says what happened."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from drivers.fakes import CLOSE, OK, FakeServer, bulk
from drivers.servers import free_port

from eventbus.errors import StoreError, StoreRefused, StoreUnavailable
from eventbus.store.connection.channel import Channel
from eventbus.store.connection.connector import Connector


def _echo(command: list[str]) -> bytes | None:
    return bulk(command[1])


def _silent(command: list[str]) -> bytes | None:
    return bulk(command[1]) if command[0] == "ECHO" else None


def _channel(url: str, *, answer_timeout: float = 5.0, raw: bool = False) -> Channel:
    return Channel(Connector(url), name="test", answer_timeout=answer_timeout, raw=raw)


@pytest.fixture
async def channel(server_url: str) -> AsyncIterator[Channel]:
    channel = _channel(server_url)
    yield channel
    await channel.aclose()


async def test_concurrent_calls_get_their_own_answers(channel: Channel) -> None:
    said = await asyncio.gather(*(channel.call("ECHO", str(i)) for i in range(500)))
    assert said == [str(i) for i in range(500)]


async def test_a_refused_call_among_others_is_refused_alone(channel: Channel) -> None:
    calls = [channel.call("ECHO", "a"), channel.call("NONSENSE"), channel.call("ECHO", "b")]
    first, refused, last = await asyncio.gather(*calls, return_exceptions=True)
    assert (first, last) == ("a", "b")
    assert isinstance(refused, StoreRefused)
    assert refused.code == "ERR"


async def test_raw_answers_are_bytes(server_url: str) -> None:
    channel = _channel(server_url, raw=True)
    assert await channel.call("ECHO", "ä") == "ä".encode()
    await channel.aclose()


async def test_bytes_that_are_no_text_survive_an_answer(channel: Channel) -> None:
    said = await channel.call("ECHO", b"\xff\x00a")
    assert said.encode("utf-8", "surrogateescape") == b"\xff\x00a"


async def test_callers_that_come_together_share_one_connection() -> None:
    async with FakeServer(_echo) as server:
        channel = _channel(server.url)
        assert not channel.is_connected
        await asyncio.gather(*(channel.call("ECHO", str(i)) for i in range(50)))
        assert channel.is_connected
        assert server.connections == 1
        await channel.aclose()


async def test_without_a_server_a_call_was_certainly_not_sent() -> None:
    port = free_port()
    channel = _channel(f"redis://:secret@127.0.0.1:{port}")
    with pytest.raises(StoreUnavailable, match=rf"127\.0\.0\.1:{port}") as caught:
        await channel.call("PING")
    assert (caught.value.sent, caught.value.address) == (False, f"127.0.0.1:{port}")
    assert "secret" not in str(caught.value)
    await channel.aclose()


async def test_when_the_connection_ends_everybody_hears_that_his_call_may_have_been_carried_out() -> None:
    async with FakeServer(lambda command: CLOSE if command[0] == "PING" else None) as server:
        channel = _channel(server.url)
        calls = [channel.call("GET", "a"), channel.call("GET", "b"), channel.call("PING")]
        errors = await asyncio.gather(*calls, return_exceptions=True)
        assert [isinstance(each, StoreUnavailable) and each.sent for each in errors] == [True] * 3
        assert not channel.is_connected
        await channel.aclose()


async def test_after_a_loss_the_next_call_connects_again() -> None:
    async with FakeServer(_silent) as server:
        channel = _channel(server.url)
        lost = asyncio.ensure_future(channel.call("GET", "a"))
        await channel.call("ECHO", "first")
        server.cut()
        with pytest.raises(StoreUnavailable):
            await lost
        assert await channel.call("ECHO", "second") == "second"
        assert server.connections == 2
        await channel.aclose()


async def test_a_server_that_falls_silent_is_given_up() -> None:
    async with FakeServer(_silent) as server:
        channel = _channel(server.url, answer_timeout=2)
        errors = await asyncio.gather(
            channel.call("GET", "a"), channel.call("GET", "b"), return_exceptions=True
        )
        assert ["no answer for 2 s" in str(each) for each in errors] == [True, True]
        assert [isinstance(each, StoreUnavailable) and each.sent for each in errors] == [True, True]
        assert await channel.call("ECHO", "again") == "again"
        assert server.connections == 2
        await channel.aclose()


async def test_a_silent_connection_that_owes_nothing_is_kept() -> None:
    async with FakeServer(_silent) as server:
        channel = _channel(server.url, answer_timeout=2)
        await channel.call("ECHO", "a")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 3)
        assert channel.is_connected
        await channel.call("ECHO", "b")
        assert server.connections == 1
        await channel.aclose()


async def test_a_deadline_while_connecting_means_not_sent() -> None:
    async with FakeServer(_echo, is_deaf=True) as server:
        channel = _channel(server.url)
        with pytest.raises(StoreUnavailable) as caught:
            await channel.call("PING", deadline=time.monotonic() + 0.05)
        assert not caught.value.sent
        await channel.aclose()


async def test_a_deadline_while_waiting_means_perhaps_sent_and_keeps_the_connection() -> None:
    async with FakeServer(_silent) as server:
        channel = _channel(server.url)
        await channel.call("ECHO", "a")  # it is connected
        with pytest.raises(StoreUnavailable) as caught:
            await channel.call("GET", "a", deadline=time.monotonic() + 0.05)
        assert caught.value.sent
        assert channel.is_connected
        await channel.aclose()


async def test_late_answers_go_to_nobody_and_the_next_ones_to_their_callers(channel: Channel) -> None:
    slow = asyncio.ensure_future(channel.call("BLPOP", "never", 0.05))
    await channel.call("PING", deadline=time.monotonic() + 5)
    assert await slow is None
    cancelled = [asyncio.ensure_future(channel.call("ECHO", f"x{i}")) for i in range(10)]
    await asyncio.sleep(0)  # sent
    for call in cancelled[::2]:
        call.cancel()
    assert await channel.call("ECHO", "mine") == "mine"
    assert [await call for call in cancelled[1::2]] == [f"x{i}" for i in range(1, 10, 2)]


async def test_a_deadline_holds_also_while_the_server_reads_nothing() -> None:
    async with FakeServer(_echo) as server:
        channel = _channel(server.url, answer_timeout=3600.0)
        await channel.call("ECHO", "a")
        for writer in server._writers:  # pyright: ignore[reportPrivateUsage]
            writer.transport.pause_reading()  # type: ignore[attr-defined]
        with pytest.raises(StoreUnavailable) as caught:
            await channel.call("ECHO", "x" * (32 << 20), deadline=time.monotonic() + 0.05)
        assert caught.value.sent
        await channel.aclose()


async def test_an_answer_that_nobody_asked_for_ends_the_connection_and_no_call(
    until: Callable[..., Awaitable[None]],
) -> None:
    async with FakeServer(_echo) as server:
        channel = _channel(server.url)
        await channel.call("ECHO", "a")
        server.push(OK)
        await until(lambda: not channel.is_connected, "the connection is given up")
        assert await channel.call("ECHO", "b") == "b"
        assert server.connections == 2
        await channel.aclose()


async def test_something_that_is_no_redis_server_is_an_error_of_its_own() -> None:
    async with FakeServer(lambda _: b"HTTP/1.1 400 Bad Request\r\n\r\n") as server:
        channel = _channel(server.url)
        with pytest.raises(StoreError, match="answered unexpectedly") as caught:
            await channel.call("PING")
        assert not isinstance(caught.value, StoreUnavailable)
        await channel.aclose()


async def test_a_server_that_loads_its_data_refuses_and_says_so() -> None:
    answer = b"-LOADING Redis is loading the dataset in memory\r\n"
    async with FakeServer(lambda _: answer) as server:
        channel = _channel(server.url)
        with pytest.raises(StoreRefused, match="loading its data") as caught:
            await channel.call("PING")
        assert caught.value.code == "LOADING"
        await channel.aclose()


async def test_closing_answers_every_call_under_way_and_every_later_one() -> None:
    async with FakeServer(_silent) as server:
        channel = _channel(server.url)
        waiting = asyncio.ensure_future(channel.call("GET", "a"))
        await channel.call("ECHO", "there")
        await channel.aclose()
        await channel.aclose()
        with pytest.raises(StoreUnavailable):
            await waiting
        with pytest.raises(StoreUnavailable, match="closed"):
            await channel.call("PING")
        assert server.connections == 1


async def test_closing_while_connecting_leaves_no_task_behind(until: Callable[..., Awaitable[None]]) -> None:
    async with FakeServer(_echo, is_deaf=True) as server:
        channel = _channel(server.url)
        waiting = asyncio.ensure_future(channel.call("PING"))
        await until(lambda: server.connections > 0, "it is connecting")
        before = {task for task in asyncio.all_tasks() if task.get_name().startswith("test-")}
        assert before
        await channel.aclose()
        with pytest.raises(StoreUnavailable, match="closed"):
            await waiting
        assert all(task.done() for task in before)


async def test_dropping_a_connection_makes_the_next_call_open_another() -> None:
    async with FakeServer(_silent) as server:
        channel = _channel(server.url)
        channel.drop("nothing there yet")
        waiting = asyncio.ensure_future(channel.call("GET", "a"))
        await channel.call("ECHO", "a")
        channel.drop("a failover")
        with pytest.raises(StoreUnavailable, match="a failover"):
            await waiting
        await channel.call("ECHO", "b")
        assert server.connections == 2
        await channel.aclose()


@pytest.mark.parametrize("name", ["asyncio", "uvloop"])
def test_an_answer_that_came_while_the_loop_was_blocked_is_read_before_the_connection_is_given_up(
    server_url: str, name: str
) -> None:
    loops: Any = pytest.importorskip(name, reason="an extra")

    async def ask() -> str:
        channel = _channel(server_url, answer_timeout=2)
        try:
            await channel.call("PING")
            answer = asyncio.ensure_future(channel.call("ECHO", "x"))
            await asyncio.sleep(0)
            time.sleep(5)  # noqa: ASYNC251  (the fault itself)
            return await answer
        finally:
            await channel.aclose()

    with asyncio.Runner(loop_factory=loops.new_event_loop) as runner:
        assert runner.run(ask()) == "x"
