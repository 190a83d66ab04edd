"""A share of a channel: calls over the connection that others use too, and an end of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from drivers.fakes import FakeServer, bulk
from drivers.servers import free_port

from eventbus.errors import StoreRefused, StoreUnavailable
from eventbus.store.connection.channel import Channel
from eventbus.store.connection.channel_share import ChannelShare
from eventbus.store.connection.connector import Connector

Until = Callable[..., Awaitable[None]]


def _waits(server: FakeServer) -> int:
    return [command[0] for command in server.received].count("WAIT")


def _slow(command: list[str]) -> bytes | None:
    return bulk(command[1]) if command[0] == "ECHO" else None


def _channel(url: str) -> Channel:
    return Channel(Connector(url), name="test", answer_timeout=5)


@pytest.fixture
async def shares(server_url: str) -> AsyncIterator[tuple[ChannelShare, ChannelShare]]:
    channel = _channel(server_url)
    yield ChannelShare(channel), ChannelShare(channel)
    await channel.aclose()


async def test_calls_of_two_shares_get_their_own_answers(shares: tuple[ChannelShare, ChannelShare]) -> None:
    calls = [shares[n % 2].call("ECHO", str(n)) for n in range(100)]
    assert await asyncio.gather(*calls) == [str(n) for n in range(100)]
    row = await shares[0].call_in_row(("ECHO", "a"), ("NONSENSE",))
    assert row[0] == "a"
    assert isinstance(row[1], StoreRefused)


async def test_shares_have_one_connection_which_outlives_each_of_them() -> None:
    async with FakeServer(_slow) as server:
        channel = _channel(server.url)
        shares = [ChannelShare(channel) for _ in range(10)]
        await asyncio.gather(*(share.call("ECHO", "a") for share in shares))
        assert server.connections == 1
        for share in shares:
            assert share.is_connected
            await share.aclose()
            assert share.is_closed
            assert not share.is_connected
        assert channel.is_connected
        assert await channel.call("ECHO", "b") == "b"
        await channel.aclose()


async def test_the_end_of_a_share_ends_its_calls_and_no_others(until: Until) -> None:
    """Late answers to its calls reach nobody, and the answers behind them reach their calls."""
    async with FakeServer(_slow) as server:
        channel = _channel(server.url)
        ending, staying = ChannelShare(channel), ChannelShare(channel)
        calls = [asyncio.create_task(share.call("WAIT")) for share in (ending, staying, ending)]
        later = asyncio.create_task(staying.call("WAIT"))
        await until(lambda: _waits(server) == 4, "all are sent")
        await ending.aclose()
        for ended in (calls[0], calls[2]):
            with pytest.raises(StoreUnavailable) as caught:
                await ended
            assert caught.value.sent
        assert not calls[1].done()
        server.push(b"".join(bulk(text) for text in "abcd"))
        assert [await calls[1], await later] == ["b", "d"]
        assert not ending._sinks
        assert not staying._sinks
        await channel.aclose()


async def test_a_closed_share_sends_nothing_and_drops_nothing() -> None:
    async with FakeServer(_slow) as server:
        channel = _channel(server.url)
        share, other = ChannelShare(channel), ChannelShare(channel)
        await other.call("ECHO", "a")
        await share.aclose()
        await share.aclose()
        share.drop("it is over")
        assert channel.is_connected
        sent = len(server.received)
        with pytest.raises(StoreUnavailable, match="closed") as caught:
            await share.call("ECHO", "b")
        assert not caught.value.sent
        assert len(server.received) == sent
        await channel.aclose()


async def test_a_share_that_ends_while_it_connects_does_not_end_the_connecting() -> None:
    async with FakeServer(_slow) as server:
        channel = _channel(server.url)
        ending, staying = ChannelShare(channel), ChannelShare(channel)
        calls = [asyncio.create_task(share.call("ECHO", "a")) for share in (ending, staying)]
        await asyncio.sleep(0)
        await ending.aclose()
        with pytest.raises(StoreUnavailable, match="closed"):
            await calls[0]
        assert await calls[1] == "a"
        assert server.connections == 1
        await channel.aclose()


async def test_a_loss_of_the_connection_ends_the_calls_of_all_shares(until: Until) -> None:
    async with FakeServer(_slow) as server:
        channel = _channel(server.url)
        shares = [ChannelShare(channel) for _ in range(3)]
        calls = [asyncio.create_task(share.call("WAIT")) for share in shares]
        await until(lambda: _waits(server) == 3, "all are sent")
        server.cut()
        for call in calls:
            with pytest.raises(StoreUnavailable) as caught:
                await call
            assert caught.value.sent
        assert await asyncio.gather(*(share.call("ECHO", "a") for share in shares)) == ["a"] * 3
        await channel.aclose()


async def test_the_end_of_the_channel_ends_all_shares(shares: tuple[ChannelShare, ChannelShare]) -> None:
    await shares[0].call("ECHO", "a")
    await shares[0]._channel.aclose()
    for share in shares:
        with pytest.raises(StoreUnavailable, match="closed"):
            await share.call("ECHO", "a")


async def test_without_a_server_a_call_of_a_share_was_certainly_not_sent() -> None:
    channel = _channel(f"redis://127.0.0.1:{free_port()}")
    with pytest.raises(StoreUnavailable) as caught:
        await ChannelShare(channel).call("ECHO", "a")
    assert not caught.value.sent
    await channel.aclose()
