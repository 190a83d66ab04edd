"""The wire: bytes become answers inside the read callback, and errors there harm no other call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import pytest
from drivers.fakes import CLOSE, OK, FakeServer, bulk

from eventbus.errors import StoreError, StoreRefused, StoreUnavailable
from eventbus.store.connection.channel import Channel
from eventbus.store.connection.connector import Connector

Until = Callable[..., Awaitable[None]]


class Recorder:
    """Notes each answer, and calls `then` with it at once."""

    def __init__(self, heard: list[Any], then: Callable[[Any], object] = lambda _: None) -> None:
        self._heard = heard
        self._then = then
        self._is_done = False

    def done(self) -> bool:
        return self._is_done

    def set_result(self, result: Any, /) -> None:
        self._hear(result)

    def set_exception(self, exception: StoreError, /) -> None:
        self._hear(exception)

    def _hear(self, said: Any) -> None:
        assert not self._is_done, "told twice"
        self._is_done = True
        self._heard.append(said)
        self._then(said)


def _channel(url: str) -> Channel:
    return Channel(Connector(url), name="test", answer_timeout=5.0)


def _in_one_packet(count: int) -> Callable[[list[str]], bytes | None]:
    """Answer PING at once, and `count` other commands together, when the last of them came."""
    kept: list[bytes] = []

    def answer(command: list[str]) -> bytes | None:
        if command[0] == "PING":
            return OK
        kept.append(bulk(command[1]))
        return b"".join(kept) if len(kept) == count else None

    return answer


@pytest.mark.parametrize("name", ["asyncio", "uvloop"])
@pytest.mark.parametrize("size", [0, 10, 5_000_000])
def test_an_answer_is_whole_whatever_its_packets(server_url: str, name: str, size: int) -> None:
    loops: Any = pytest.importorskip(name, reason="an extra")

    async def ask() -> list[str]:
        channel = _channel(server_url)
        try:
            return await asyncio.gather(*(channel.call("ECHO", str(n) * size) for n in range(3)))
        finally:
            await channel.aclose()

    with asyncio.Runner(loop_factory=loops.new_event_loop) as runner:
        assert runner.run(ask()) == ["0" * size, "1" * size, "2" * size]


async def test_who_hears_an_answer_may_send_right_there(server_url: str, until: Until) -> None:
    channel = _channel(server_url)
    await channel.call("PING")
    heard: list[Any] = []

    def send_next(said: str) -> None:
        if len(heard) < 50:
            assert channel.send(("ECHO", f"{said}+"), Recorder(heard, send_next))

    channel.send(("ECHO", ""), Recorder(heard, send_next))
    await until(lambda: len(heard) == 50, "each answer sent the next command")
    assert heard == ["+" * n for n in range(50)]
    await channel.aclose()


async def test_who_raises_where_he_hears_harms_nobody_else(logs: list[MutableMapping[str, Any]]) -> None:
    async with FakeServer(_in_one_packet(2)) as server:
        channel = _channel(server.url)
        await channel.call("PING")
        heard: list[Any] = []
        channel.send(("ECHO", "a"), Recorder(heard, [].index))
        assert await channel.call("ECHO", "b") == "b"
        assert heard == ["a"]
        assert [each["event"] for each in logs] == ["an answer of the server was not taken"]
        assert channel.is_connected
        await channel.aclose()


async def test_who_drops_the_connection_where_he_hears_ends_the_calls_behind_his() -> None:
    async with FakeServer(_in_one_packet(3)) as server:
        channel = _channel(server.url)
        await channel.call("PING")
        heard: list[Any] = []
        channel.send(("ECHO", "a"), Recorder(heard))
        channel.send(("ECHO", "b"), Recorder(heard, lambda _: channel.drop("a failover")))
        with pytest.raises(StoreUnavailable, match="a failover") as caught:
            await channel.call("ECHO", "c")
        assert caught.value.sent  # its answer was in the packet, and belongs to no call now
        assert heard == ["a", "b"]
        await channel.aclose()


async def test_a_refusal_and_a_loss_reach_who_hears_as_our_errors(until: Until) -> None:
    answers = {"A": OK, "B": b"-WRONGTYPE not that\r\n", "C": CLOSE}
    async with FakeServer(lambda command: answers[command[0]]) as server:
        channel = _channel(server.url)
        assert await channel.call("A") == "OK"
        heard: list[Any] = []
        for name in "BC":
            channel.send((name,), Recorder(heard))
        await until(lambda: len(heard) == 2, "both were told")
        assert [type(each) for each in heard] == [StoreRefused, StoreUnavailable]
        assert (heard[0].code, heard[1].sent) == ("WRONGTYPE", True)
        assert channel.send(("A",), Recorder(heard)) is False
        await channel.aclose()


class Meddled(Connector):
    """A fault point between the handshake and the wire."""

    def __init__(self, url: str, meddle: Callable[[Any], Awaitable[None]]) -> None:
        super().__init__(url)
        self._meddle = meddle

    async def open(self, *, name: str) -> Any:
        connection = await super().open(name=name)
        await self._meddle(connection._reader)
        return connection


@pytest.mark.parametrize("fault", ["bytes", "end"])
async def test_what_came_between_handshake_and_wire_is_nobodys_answer(until: Until, fault: str) -> None:
    faults = [fault]

    async def meddle(reader: Any) -> None:
        if not faults:
            return
        if faults.pop() == "bytes":
            server.push(bulk("not yours"))
            await until(lambda: reader._buffer, "the bytes are here")
        else:
            server.cut()
            await until(reader.at_eof, "the end is here")

    async with FakeServer(lambda command: bulk(command[1])) as server:
        channel = Channel(Meddled(server.url, meddle), name="test", answer_timeout=5.0)
        with pytest.raises(StoreError):
            await channel.call("ECHO", "a")
        assert await channel.call("ECHO", "b") == "b"
        assert server.connections == 2
        await channel.aclose()


async def test_bytes_that_are_no_answers_end_the_connection_and_every_call() -> None:
    async with FakeServer(lambda command: b"!" if command[0] == "LAST" else None) as server:
        channel = _channel(server.url)
        calls = [channel.call("GET", "a"), channel.call("LAST")]
        errors = await asyncio.gather(*calls, return_exceptions=True)
        assert [isinstance(each, StoreError) and "answered unexpectedly" in str(each) for each in errors] == [
            True
        ] * 2
        assert not channel.is_connected
        await channel.aclose()


async def test_closing_from_where_an_answer_is_heard_is_a_close(until: Until, server_url: str) -> None:
    channel = _channel(server_url)
    await channel.call("PING")
    closings: list[asyncio.Task[None]] = []
    heard: list[Any] = []
    channel.send(("PING",), Recorder(heard, lambda _: closings.append(asyncio.create_task(channel.aclose()))))
    await until(lambda: closings, "it was heard")
    await closings[0]
    assert channel.is_closed
    assert not channel.is_connected
