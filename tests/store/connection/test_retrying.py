"""The caller repeats the calls that may be repeated, until an answer comes or the deadline passes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from typing import Any

import pytest
from drivers.fakes import CLOSE, OK, FakeServer
from drivers.servers import free_port

from eventbus.errors import StoreRefused, StoreUnavailable
from eventbus.store.connection import repeat_policy
from eventbus.store.connection import retrying as caller_module
from eventbus.store.connection.channel import Channel
from eventbus.store.connection.connector import Connector
from eventbus.store.connection.retrying import RetryingCaller
from eventbus.store.connection.translation import TRANSIENT
from eventbus.store.keys import Keys

_REFUSALS = {
    "LOADING": "LOADING Redis is loading the dataset in memory",
    "READONLY": "READONLY You can't write against a read only replica.",
    "MASTERDOWN": "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
    "TRYAGAIN": "TRYAGAIN Multiple keys request during rehashing of slot",
    "ASK": "ASK 3999 127.0.0.1:6381",
    "BUSY": "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
    "CLUSTERDOWN": "CLUSTERDOWN Hash slot not served",
    "NOREPLICAS": "NOREPLICAS Not enough good replicas to write.",
    "UNBLOCKED": (
        "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)"
    ),
}
_FINAL = {
    "OOM": "OOM command not allowed when used memory > 'maxmemory'.",
    "NOPERM": "NOPERM User alice has no permissions to run the 'set' command",
    "NOAUTH": "NOAUTH Authentication required.",
    "WRONGPASS": "WRONGPASS invalid username-password pair or user is disabled.",
    "MISCONF": "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist",
    "WRONGTYPE": "WRONGTYPE Operation against a key holding the wrong kind of value",
    "MOVED": "MOVED 3999 127.0.0.1:6381",
    "CROSSSLOT": "CROSSSLOT Keys in request don't hash to the same slot",
    "STALE": "STALE an older call of worker w",
    "ERR": "ERR unknown command 'X'",
}


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    monkeypatch.setattr(caller_module, "_FIRST_PAUSE", 0.001)
    monkeypatch.setattr(caller_module, "_LAST_PAUSE", 0.002)


def _error(text: str) -> bytes:
    return f"-{text}\r\n".encode()


def _in_turn(*answers: bytes | None) -> Callable[[list[str]], bytes | None]:
    """Answer the first call with the first, and so on; the last for all that follow."""
    left: Iterator[bytes | None] = iter(answers)
    last = answers[-1]
    return lambda _: next(left, last)


def _caller(url: str, *, answer_timeout: float = 5.0) -> tuple[RetryingCaller, Channel]:
    channel = Channel(Connector(url), name="test", answer_timeout=answer_timeout)
    return RetryingCaller(channel, keys=Keys("r", "0")), channel


def _soon(seconds: float = 5.0) -> float:
    return time.monotonic() + seconds


def test_every_transient_refusal_is_tried_below() -> None:
    assert set(_REFUSALS) == TRANSIENT


@pytest.mark.parametrize("code", sorted(_REFUSALS))
async def test_a_passing_refusal_is_repeated_until_it_passed(code: str) -> None:
    answers = [_error(_REFUSALS[code])] * 3
    async with FakeServer(_in_turn(*answers, OK)) as server:
        caller, channel = _caller(server.url)
        assert await caller.command("SET", "a", "1", deadline=_soon()) == "OK"
        assert server.received == [["SET", "a", "1"]] * 4
        assert caller.repeats == 3
        await channel.aclose()


@pytest.mark.parametrize("code", sorted(_FINAL))
async def test_a_lasting_refusal_is_raised_at_once(code: str) -> None:
    async with FakeServer(_in_turn(_error(_FINAL[code]))) as server:
        caller, channel = _caller(server.url)
        with pytest.raises(StoreRefused) as caught:
            await caller.command("SET", "a", "1")
        assert caught.value.code == code
        assert len(server.received) == 1
        await channel.aclose()


@pytest.mark.parametrize("code", sorted(_REFUSALS))
async def test_a_passing_refusal_before_the_deadline_is_unavailable_and_not_sent(
    code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeat_policy, "TOO_LATE", 240.0)  # so that a busy machine answers before it
    async with FakeServer(_in_turn(_error(_REFUSALS[code]))) as server:
        caller, channel = _caller(server.url)
        with pytest.raises(StoreUnavailable) as caught:
            await caller.command("SET", "a", "1", deadline=_soon(240.0))  # no time for another try
        assert not caught.value.sent
        assert len(server.received) == 1
        await channel.aclose()


async def test_a_server_that_became_read_only_is_looked_for_anew() -> None:
    # The name of a primary leads elsewhere after a failover, the old connection does not.
    async with FakeServer(_in_turn(_error(_REFUSALS["READONLY"]), OK)) as server:
        caller, channel = _caller(server.url)
        await caller.command("SET", "a", "1")
        assert server.connections == 2
        await channel.aclose()


async def test_a_lost_connection_is_opened_again_and_the_call_repeated() -> None:
    async with FakeServer(_in_turn(CLOSE, CLOSE, OK)) as server:
        caller, channel = _caller(server.url)
        assert await caller.command("SET", "a", "1") == "OK"
        assert (server.connections, caller.repeats) == (3, 2)
        await channel.aclose()


async def test_a_silent_server_is_given_up_and_the_call_repeated() -> None:
    async with FakeServer(_in_turn(None, OK)) as server:
        caller, channel = _caller(server.url, answer_timeout=2)
        assert await caller.command("SET", "a", "1") == "OK"
        assert server.connections == 2
        await channel.aclose()


async def test_without_a_server_a_call_ends_at_its_deadline_as_not_sent() -> None:
    caller, channel = _caller(f"redis://127.0.0.1:{free_port()}")
    with pytest.raises(StoreUnavailable) as caught:
        await caller.command("SET", "a", "1", deadline=_soon(1.0))
    assert not caught.value.sent
    assert caller.repeats > 1
    await channel.aclose()


async def test_a_call_that_was_sent_once_may_have_been_carried_out_whatever_came_after() -> None:
    async with FakeServer(_in_turn(CLOSE, _error(_REFUSALS["LOADING"]))) as server:
        caller, channel = _caller(server.url)
        with pytest.raises(StoreUnavailable) as caught:
            await caller.command("SET", "a", "1", deadline=_soon(1.0))
        assert caught.value.sent
        await channel.aclose()


async def test_a_lasting_refusal_of_a_repeat_says_nothing_about_the_first_try() -> None:
    async with FakeServer(_in_turn(CLOSE, _error(_FINAL["NOPERM"]))) as server:
        caller, channel = _caller(server.url)
        with pytest.raises(StoreUnavailable, match="permissions") as caught:
            await caller.command("SET", "a", "1", deadline=_soon())
        assert caught.value.sent
        await channel.aclose()


async def test_a_closed_channel_ends_the_repeating(until: Callable[..., Awaitable[None]]) -> None:
    caller, channel = _caller(f"redis://127.0.0.1:{free_port()}")
    calling = asyncio.ensure_future(caller.command("SET", "a", "1"))
    await until(lambda: caller.repeats > 0, "the first try failed")
    await channel.aclose()
    with pytest.raises(StoreUnavailable):
        await calling


async def test_an_unknown_script_is_sent_whole_once_and_counted() -> None:
    async with FakeServer(
        _in_turn(_error("NOSCRIPT No matching script. Please use EVAL."), b"*0\r\n")
    ) as server:
        caller, channel = _caller(server.url)
        assert await caller.script("sweep", ["", 10, 0]) == []
        assert [each[0] for each in server.received] == ["EVALSHA", "EVAL"]
        assert [each[2:5] for each in server.received] == [["2", "r:2:{0}:queues", "r:2:{0}:none"]] * 2
        assert caller.loads == 1
        await channel.aclose()


async def test_a_lost_answer_to_a_whole_script_is_repeated_too() -> None:
    missing = _error("NOSCRIPT No matching script. Please use EVAL.")
    async with FakeServer(_in_turn(missing, CLOSE, b"*0\r\n")) as server:
        caller, channel = _caller(server.url)
        await caller.script("sweep", ["", 10, 0])
        assert [each[0] for each in server.received] == ["EVALSHA", "EVAL", "EVAL"]
        await channel.aclose()


async def test_a_server_that_forgot_its_scripts_leaves_one_line_in_the_log(
    logs: list[MutableMapping[str, Any]],
) -> None:
    missing = _error("NOSCRIPT No matching script. Please use EVAL.")
    answers = [missing, OK, OK, missing, OK, OK, missing, OK]
    async with FakeServer(_in_turn(*answers)) as server:
        caller, channel = _caller(server.url)
        for _ in range(2):
            await caller.script("sweep", [])
        assert logs == []
        for _ in range(3):
            await caller.script("sweep", [])
        assert [each["event"] for each in logs] == ["the server forgot its scripts, sending them again"] * 2
        assert caller.loads == 3
        await channel.aclose()


async def test_an_answer_that_is_read_after_the_loss_was_found_says_nothing_of_what_the_server_knows(
    logs: list[MutableMapping[str, Any]],
) -> None:
    missing = _error("NOSCRIPT No matching script. Please use EVAL.")
    async with FakeServer(_in_turn(OK, missing, OK, missing, OK)) as server:
        caller, channel = _caller(server.url)
        before = caller.invoke("sweep", [])
        for _ in range(2):
            await caller.script("sweep", [])
        caller.note_answer(before)
        await caller.script("sweep", [])
        assert [each["event"] for each in logs] == ["the server forgot its scripts, sending them again"]
        assert caller.loads == 2
        await channel.aclose()


async def test_trouble_is_logged_once_and_so_is_its_end(logs: list[MutableMapping[str, Any]]) -> None:
    async with FakeServer(_in_turn(CLOSE, CLOSE, _error(_REFUSALS["LOADING"]), OK)) as server:
        caller, channel = _caller(server.url)
        await caller.command("SET", "a", "1")
        await caller.command("SET", "a", "2")
        assert [each["log_level"] for each in logs] == ["warning", "info"]
        await channel.aclose()


# Calls without a task.


def _start(caller: RetryingCaller, *, deadline: float | None = None) -> asyncio.Future[Any]:
    return caller.start("add", ["x"], deadline=deadline or _soon(), read=lambda reply: ("read", reply))


def _tasks(name: str) -> list[asyncio.Task[Any]]:
    return [task for task in asyncio.all_tasks() if task.get_name() == name]


async def test_a_started_call_is_written_at_once_and_without_a_task() -> None:
    async with FakeServer(_in_turn(OK, b"+first\r\n", b"+second\r\n")) as server:
        caller, channel = _caller(server.url)
        await caller.command("PING")
        first, second = _start(caller), _start(caller)
        assert not _tasks("eventbus-repeat")
        assert [await second, await first] == [("read", "second"), ("read", "first")]
        assert [each[0] for each in server.received] == ["PING", "EVALSHA", "EVALSHA"]
        await channel.aclose()


async def test_a_started_call_waits_for_its_connection() -> None:
    async with FakeServer(_in_turn(OK)) as server:
        caller, channel = _caller(server.url)
        assert await _start(caller) == ("read", "OK")
        assert server.connections == 1
        await channel.aclose()


@pytest.mark.parametrize(
    ("fault", "received", "connections"),
    [
        (_error("NOSCRIPT No matching script. Please use EVAL."), ["EVALSHA", "EVAL"], 1),
        (_error(_REFUSALS["LOADING"]), ["EVALSHA", "EVALSHA"], 1),
        (_error(_REFUSALS["READONLY"]), ["EVALSHA", "EVALSHA"], 2),
        (CLOSE, ["EVALSHA", "EVALSHA"], 2),
        (None, ["EVALSHA", "EVALSHA"], 2),
    ],
    ids=["forgotten", "loading", "read-only", "lost", "mute"],
)
async def test_a_started_call_that_meets_trouble_is_repeated_as_any_other(
    fault: bytes | None, received: list[str], connections: int
) -> None:
    async with FakeServer(_in_turn(OK, fault, OK)) as server:
        caller, channel = _caller(server.url, answer_timeout=2)
        await caller.command("PING")
        assert await _start(caller) == ("read", "OK")
        assert [each[0] for each in server.received[1:]] == received
        assert len({each[-1] for each in server.received[1:]}) == 1  # the same rows
        assert server.connections == connections
        await channel.aclose()


async def test_a_started_call_hears_a_lasting_refusal() -> None:
    async with FakeServer(_in_turn(OK, _error(_FINAL["OOM"]))) as server:
        caller, channel = _caller(server.url)
        await caller.command("PING")
        with pytest.raises(StoreRefused) as caught:
            await _start(caller)
        assert caught.value.code == "OOM"
        await channel.aclose()


async def test_a_started_call_ends_at_its_deadline_as_perhaps_sent_and_its_late_answer_is_nobodys() -> None:
    async with FakeServer(_in_turn(OK, None, OK)) as server:
        caller, channel = _caller(server.url)
        await caller.command("PING")
        with pytest.raises(StoreUnavailable, match="no answer in time") as caught:
            await _start(caller, deadline=_soon(0.2))
        assert caught.value.sent
        assert channel.is_connected
        server.push(b"+late\r\n")
        assert await caller.command("PING") == "OK"
        await channel.aclose()


@pytest.mark.parametrize(
    "fault", [None, CLOSE, _error(_REFUSALS["LOADING"])], ids=["mute", "lost", "loading"]
)
async def test_a_started_call_that_nobody_waits_for_any_more_leaves_nothing(
    fault: bytes | None, until: Callable[..., Awaitable[None]]
) -> None:
    async with FakeServer(_in_turn(OK, fault)) as server:
        caller, channel = _caller(server.url)
        await caller.command("PING")
        call = _start(caller)
        await until(lambda: len(server.received) >= 2, "it is under way")
        call.cancel()
        await until(lambda: not _tasks("eventbus-repeat"), "nobody repeats it")
        assert call.cancelled()
        await channel.aclose()


async def test_an_answer_that_cannot_be_read_is_told_to_who_asked() -> None:
    async with FakeServer(_in_turn(OK)) as server:
        caller, channel = _caller(server.url)
        await caller.command("PING")
        with pytest.raises(ZeroDivisionError):
            await caller.start("add", ["x"], deadline=_soon(), read=lambda _: 1 // 0)
        assert channel.is_connected
        await channel.aclose()
