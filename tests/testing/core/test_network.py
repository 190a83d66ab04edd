"""The virtual network: the order of answers, blocked reads, lost connections, and what the server reads as
time.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

import eventbus
from eventbus.errors import StoreError, StoreRefused, StoreUnavailable
from eventbus.store.connection.channel import Channel
from eventbus.testing.network import Network, VirtualConnector
from eventbus.testing.nodes import Node
from eventbus.testing.server import TestServer
from eventbus.testing.virtual_time import VirtualTime

START = 1_893_456_000

Open = Callable[..., Channel]


@pytest.fixture
async def time() -> AsyncIterator[VirtualTime]:
    time = VirtualTime(start=START, leaps=False)  # the end of a blocked read is upkeep
    time.install()
    try:
        yield time
    finally:
        time.remove()


@pytest.fixture
def network(time: VirtualTime) -> Network:
    server = TestServer.get()
    server.clean()
    return Network(time, server)


@pytest.fixture
async def channel_to(network: Network) -> AsyncIterator[Open]:
    """Make channels of the network."""
    made: list[Channel] = []

    def make(*, raw: bool = False) -> Channel:
        made.append(Channel(VirtualConnector("virtual://t", network), name="t", answer_timeout=10, raw=raw))
        return made[-1]

    yield make
    for each in made:
        await each.aclose()


async def test_answers_come_in_the_order_of_the_commands_also_of_two_kinds_of_connections(
    channel_to: Open,
) -> None:
    async def ask(channel: Channel, text: str) -> None:
        answer = await channel.call("ECHO", text)
        told.append(answer if isinstance(answer, str) else answer.decode())

    told: list[str] = []
    channels = [channel_to(), channel_to(raw=True), channel_to()]
    for each in channels:
        await each.call("PING")
    texts = [
        (channel, f"{name}{number:03}")
        for number in range(200)
        for name, channel in zip("abc", channels, strict=True)
    ]
    await asyncio.gather(*(ask(*each) for each in texts))
    for name in "abc":
        assert [each for each in told if each[0] == name] == [f"{name}{number:03}" for number in range(200)]


async def test_an_answer_takes_no_time(channel_to: Open, time: VirtualTime) -> None:
    channel = channel_to()
    for number in range(100):
        assert await channel.call("INCR", "n") == number + 1
    assert time.now == time.began


async def test_a_refusal_is_raised(channel_to: Open) -> None:
    channel = channel_to()
    await channel.call("SET", "text", "a")
    with pytest.raises(StoreRefused, match="not an integer"):
        await channel.call("INCR", "text")
    assert await channel.call("GET", "text") == "a"


async def test_a_blocked_read_waits_for_what_another_connection_brings(
    channel_to: Open, time: VirtualTime
) -> None:
    reader, writer = channel_to(), channel_to()
    read = asyncio.create_task(reader.call("BZPOPMIN", "first", "second", 4))
    await asyncio.sleep(3)
    assert not read.done()
    await writer.call("ZADD", "second", 5, "job")
    assert await read == ["second", "job", "5"]
    assert (round(time.now - time.began), await writer.call("EXISTS", "second")) == (3, 0)


async def test_a_blocked_read_is_woken_by_what_a_script_wrote(channel_to: Open) -> None:
    reader, writer = channel_to(), channel_to()
    read = asyncio.create_task(reader.call("BZPOPMIN", "wake", 4))
    await asyncio.sleep(1)
    await writer.call("EVAL", "return redis.call('ZADD', KEYS[1], 1, 'queue')", 1, "wake")
    assert await read == ["wake", "queue", "1"]


async def test_a_blocked_read_ends_when_its_time_is_over(channel_to: Open, time: VirtualTime) -> None:
    reader = channel_to()
    assert await reader.call("BZPOPMIN", "key", 4) is None
    assert round(time.now - time.began) == 4
    stream = "XREAD", "COUNT", 5, "BLOCK", 2000, "STREAMS", "key", "0"
    assert await reader.call(*stream) is None
    assert round(time.now - time.began) == 6


async def test_a_stream_wakes_its_reader(channel_to: Open) -> None:
    reader, writer = channel_to(raw=True), channel_to()
    read = asyncio.create_task(reader.call("XREAD", "COUNT", 5, "BLOCK", 4000, "STREAMS", "key", "0"))
    await asyncio.sleep(1)
    await writer.call("XADD", "key", "5-1", "a", "b")
    assert await read == [[b"key", [[b"5-1", [b"a", b"b"]]]]]


async def test_who_began_to_wait_first_gets_the_first(channel_to: Open) -> None:
    readers, writer = [channel_to() for _ in range(3)], channel_to()
    reads: list[asyncio.Task[Any]] = []
    for reader in readers:
        reads.append(asyncio.create_task(reader.call("BZPOPMIN", "key", 100)))
        await asyncio.sleep(1)
    await writer.call("ZADD", "key", 1, "a", 2, "b")
    await asyncio.sleep(1)
    assert [read.done() and read.result()[1] for read in reads] == ["a", "b", False]
    await writer.call("ZADD", "key", 3, "c")
    assert (await reads[2])[1] == "c"


async def test_commands_behind_a_blocked_read_wait_for_it(channel_to: Open, time: VirtualTime) -> None:
    reader, other = channel_to(), channel_to()
    read = asyncio.create_task(reader.call("BZPOPMIN", "key", 4))
    behind = [asyncio.create_task(reader.call("RPUSH", "list", n)) for n in range(3)]
    await asyncio.sleep(1)
    assert await other.call("EXISTS", "list") == 0
    assert (await read, await asyncio.gather(*behind)) == (None, [1, 2, 3])
    assert await other.call("LRANGE", "list", 0, -1) == ["0", "1", "2"]
    assert round(time.now - time.began) == 4


async def test_what_was_sent_and_did_not_run_never_runs_after_a_loss(
    channel_to: Open, network: Network
) -> None:
    channel, other = channel_to(), channel_to()
    await channel.call("PING")
    calls = [asyncio.create_task(channel.call("RPUSH", "list", n)) for n in range(3)]
    network.lose_connections()  # before the loop has run any of the calls
    await asyncio.sleep(0)
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(each) for each in answers} <= {StoreUnavailable, int}
    kept = await other.call("LRANGE", "list", 0, -1)
    assert len(kept) == len([each for each in answers if isinstance(each, int)])


async def test_a_loss_ends_a_blocked_read_which_takes_nothing_any_more(
    channel_to: Open, network: Network
) -> None:
    reader, other = channel_to(), channel_to()
    read = asyncio.create_task(reader.call("BZPOPMIN", "key", 100))
    behind = asyncio.create_task(reader.call("RPUSH", "list", 1))
    await asyncio.sleep(1)
    network.lose_connections()
    for each in (read, behind):
        with pytest.raises(StoreUnavailable) as caught:
            await each
        assert caught.value.sent
    await other.call("ZADD", "key", 1, "job")
    await asyncio.sleep(200)
    assert await other.call("ZRANGE", "key", 0, -1) == ["job"]
    assert await other.call("EXISTS", "list") == 0
    assert await reader.call("PING") == "PONG"  # on a new connection
    assert reader.connections == 2


async def test_nobody_reaches_a_server_that_is_away(channel_to: Open, network: Network) -> None:
    channel = channel_to()
    await channel.call("PING")
    network.is_away = True
    network.lose_connections()
    await asyncio.sleep(1)
    with pytest.raises(StoreUnavailable) as caught:
        await channel.call("PING")
    assert not caught.value.sent
    network.is_away = False
    assert await channel.call("PING") == "PONG"


async def test_the_connections_of_a_killed_node_take_nothing_more(
    channel_to: Open, network: Network, time: VirtualTime
) -> None:
    async def read() -> None:
        told.append(await channel_to().call("BZPOPMIN", "key", 100))

    told: list[Any] = []
    node = Node(time, "victim")
    task = asyncio.get_running_loop().create_task(read(), context=node.context.copy())
    await asyncio.sleep(1)
    assert len(network.wires) == 1
    node.kill()
    other = channel_to()
    await other.call("ZADD", "key", 1, "job")
    assert await other.call("ZRANGE", "key", 0, -1) == ["job"]
    await asyncio.sleep(200)
    assert (told, task.done(), len(network.wires)) == ([], False, 1)


async def test_a_paused_node_hears_its_answers_after_its_resume(channel_to: Open, time: VirtualTime) -> None:
    async def count() -> None:
        channel = channel_to()
        while True:
            told.append(await channel.call("INCR", "n"))
            await asyncio.sleep(1)

    told: list[int] = []
    node = Node(time, "sleeper")
    task = asyncio.get_running_loop().create_task(count(), context=node.context.copy())
    await asyncio.sleep(2.5)
    node.pause()
    await asyncio.sleep(10)
    assert told == [1, 2, 3]
    node.resume()
    await asyncio.sleep(2.5)
    assert told == [1, 2, 3, 4, 5, 6]
    task.cancel()


# What the server reads as time. Each statement as a plain command, where we send it so, and in a script.

_FORMS = ["plain", "script"]


async def _send(channel: Channel, form: str, *command: Any) -> Any:
    if form == "plain":
        return await channel.call(*command)
    return await channel.call("EVAL", "return redis.call(unpack(ARGV))", 0, *command)


@pytest.mark.parametrize("form", _FORMS)
@pytest.mark.parametrize(
    "command",
    [
        ("SET", "key", "a", "PX", 60_000),
        ("SET", "key", "a", "NX", "EX", 60),
        ("PEXPIRE", "key", 60_000),
        ("EXPIRE", "key", 60),
    ],
)
async def test_a_key_expires_at_its_millisecond(
    channel_to: Open, form: str, command: tuple[Any, ...]
) -> None:
    channel = channel_to()
    if command[0] != "SET":
        await channel.call("SET", "key", "a")
    assert await _send(channel, form, *command) in (1, "OK")
    await asyncio.sleep(59.9985)
    assert await channel.call("EXISTS", "key") == 1
    await asyncio.sleep(0.002)
    assert await channel.call("EXISTS", "key") == 0


@pytest.mark.parametrize("form", _FORMS)
@pytest.mark.parametrize("command", [("SET", "key", "b"), ("PERSIST", "key"), ("PEXPIRE", "key", 100_000)])
async def test_an_expiry_is_taken_back_or_moved_by_the_servers_own_rules(
    channel_to: Open, form: str, command: tuple[Any, ...]
) -> None:
    channel = channel_to()
    await channel.call("SET", "key", "a", "PX", 60_000)
    await asyncio.sleep(30)
    await _send(channel, form, *command)
    await asyncio.sleep(60)
    assert await channel.call("EXISTS", "key") == 1
    await asyncio.sleep(41)
    assert await channel.call("EXISTS", "key") == (0 if command[0] == "PEXPIRE" else 1)


@pytest.mark.parametrize("form", _FORMS)
async def test_how_long_a_key_has_is_told_in_the_virtual_time(channel_to: Open, form: str) -> None:
    channel = channel_to()
    for key in ("short", "kept"):
        await channel.call("SET", key, "a")
    await channel.call("PEXPIRE", "short", 60_000)
    await asyncio.sleep(20)
    assert await _send(channel, form, "PTTL", "short") == 40_000
    assert await _send(channel, form, "TTL", "short") == 40
    assert [await _send(channel, form, "PTTL", key) for key in ("kept", "none")] == [-1, -2]


async def test_an_expiry_goes_along_with_a_renamed_key(channel_to: Open) -> None:
    channel = channel_to()
    await channel.call("SET", "key", "a", "PX", 60_000)
    await _send(channel, "script", "RENAME", "key", "other")
    await asyncio.sleep(59)
    assert await channel.call("EXISTS", "other") == 1
    await asyncio.sleep(2)
    assert await channel.call("EXISTS", "other") == 0


@pytest.mark.parametrize("form", _FORMS)
async def test_an_expiry_in_the_past_removes_the_key(channel_to: Open, form: str) -> None:
    channel = channel_to()
    await channel.call("SET", "key", "a")
    assert await _send(channel, form, "PEXPIRE", "key", 0) == 1
    assert await channel.call("EXISTS", "key") == 0
    assert await _send(channel, form, "PEXPIRE", "key", 5) == 0


@pytest.mark.parametrize("form", _FORMS)
async def test_the_server_has_the_virtual_time(channel_to: Open, form: str, time: VirtualTime) -> None:
    channel = channel_to()
    await asyncio.sleep(90.25)
    assert await _send(channel, form, "TIME") == [str(START + 90), "250000"]
    time.skew = 5.0
    assert await _send(channel, form, "TIME") == [str(START + 95), "250000"]


async def test_ids_of_a_stream_are_of_the_virtual_time_and_never_go_back(
    channel_to: Open, time: VirtualTime
) -> None:
    channel = channel_to()
    ids: list[str] = []
    for skew in (0.0, 0.0, 100.0, 50.0, 100.0, 0.0):
        time.skew = skew
        ids.append(await _send(channel, "script", "XADD", "key", "MAXLEN", "~", 100, "*", "a", "b"))
        await asyncio.sleep(1)
    ms = [int(each.partition("-")[0]) - START * 1000 for each in ids]
    assert ms == [0, 1000, 102_000, 102_000, 104_000, 104_000]
    assert ids[3].endswith("-1")


async def test_an_error_inside_a_script_is_raised_or_caught_there_as_ever(channel_to: Open) -> None:
    channel = channel_to()
    await channel.call("RPUSH", "list", "a")
    with pytest.raises(StoreRefused, match="WRONGTYPE"):
        await channel.call("EVAL", "return redis.call('XADD', KEYS[1], '*', 'a', 'b')", 1, "list")
    caught = "local answer = redis.pcall(ARGV[1], KEYS[1], unpack(ARGV, 2)) return answer.err"
    for command in (("XADD", "*", "a", "b"), ("INCR",)):
        assert "WRONGTYPE" in await channel.call("EVAL", caught, 1, "list", *command)


_OF_TIME = {
    "TIME", "EXPIRE", "PEXPIRE", "EXPIREAT", "PEXPIREAT", "TTL", "PTTL", "EXPIRETIME", "PEXPIRETIME", "SETEX",
    "PSETEX", "GETEX", "RESTORE", "HEXPIRE", "HPEXPIRE", "HEXPIREAT", "HPEXPIREAT", "HTTL", "HPTTL", "HSETEX",
    "HGETEX", "OBJECT", "XPENDING", "XCLAIM", "XAUTOCLAIM", "XREADGROUP", "BLPOP", "BRPOP", "BLMOVE",
    "BLMPOP", "BZPOPMAX", "BZMPOP", "BRPOPLPUSH", "LASTSAVE",
}  # fmt: skip
"""Commands whose answer or effect depends on the time."""

_CALL = re.compile(r"""(?:p?call|try|command|look)\(\s*['"]([A-Z]+)['"]|\(\s*"([A-Z]{3,})",""")


def test_each_command_that_reads_the_time_is_one_that_the_kit_gives_the_virtual_time() -> None:
    """The scripts and the packages use no other."""
    root = Path(eventbus.__file__).parent
    kit = root / "testing"
    found: dict[str, set[str]] = {".lua": set(), ".py": set()}
    for kind, path in itertools.product(found, root.parent.glob("*/**/*.*")):
        if (
            path.suffix == kind
            and kit not in path.parents
            and path.parts[len(root.parent.parts)] in ("eventbus", "workflows")
        ):
            found[kind] |= {a or b for a, b in _CALL.findall(path.read_text())}
    assert {"PEXPIRE", "SET", "XADD", "TIME"} <= found[".lua"]
    assert found[".lua"] & _OF_TIME <= {"TIME", "EXPIRE", "PEXPIRE"}
    assert found[".py"] & _OF_TIME <= {"TIME", "EXPIRE", "PEXPIRE"}


@pytest.mark.parametrize("script", ["return redis.call('TIME')[1]", b"return redis.call('TIME')[1]"])
async def test_a_script_may_come_as_text_or_as_bytes(network: Network, script: str | bytes) -> None:
    connection = VirtualConnector("virtual://t", network).open_blocking(name="t", timeout=1)
    connection.send_command("EVAL", script, 0)
    assert connection.read_response() == str(START)


async def test_an_error_of_the_store_is_the_one_of_production(channel_to: Open, network: Network) -> None:
    channel = channel_to()
    await channel.call("PING")
    network.is_away = True
    network.lose_connections()
    await asyncio.sleep(1)
    with pytest.raises(StoreError, match="no server at"):
        await channel.call("PING")
