"""Server functions: loaded when they are unknown, and done without where the server or the rights refuse
them.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator, MutableMapping
from typing import Any

import pytest
from drivers.fakes import CLOSE, OK, FakeServer
from drivers.servers import SCRIPTINGS, Server
from drivers.shards import Shard, row

from eventbus.errors import StoreRefused, StoreUnavailable
from eventbus.store.connection import functions as functions_module
from eventbus.store.connection import retrying as retrying_module
from eventbus.store.connection.channel import Channel
from eventbus.store.connection.connector import Connector
from eventbus.store.connection.functions import Functions, Scripting
from eventbus.store.connection.retrying import RetryingCaller
from eventbus.store.keys import Keys
from eventbus.store.scripting.library import PREFIX, load_library
from eventbus.store.scripting.script_rows import LeaseRow
from eventbus.store.store import Store

_UNKNOWN = b"-ERR Function not found\r\n"
_EXISTS = b"-ERR Library 'x' already exists\r\n"
_NO_COMMAND = b"-ERR unknown command `FCALL`, with args beginning with: `eventbus_x`\r\n"
_FORBIDDEN = b"-NOPERM User u has no permissions to run the 'fcall' command\r\n"
_NO_LOAD = b"-NOPERM User u has no permissions to run the 'function|load' command\r\n"
_FULL = b"-OOM command not allowed when used memory > 'maxmemory'.\r\n"
_READ_ONLY = b"-READONLY You can't write against a read only replica.\r\n"
_IN_FUNCTION = b"-OOM command not allowed when used memory > 'maxmemory'. script: on @user_function:63.\r\n"
_NONE = b"*0\r\n"
_NO_SCRIPT = b"-NOSCRIPT No matching script. Please use EVAL.\r\n"


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    monkeypatch.setattr(retrying_module, "_FIRST_PAUSE", 0.001)


class _Fake:
    """A fake server that has what is said for each kind of command in turn, the last for all that follow."""

    def __init__(self, **answers: list[bytes]) -> None:
        self._answers = {name: iter(given) for name, given in answers.items()}
        self._last = {name: given[-1] for name, given in answers.items()}

    def __call__(self, command: list[str]) -> bytes:
        name = f"{command[0]}_{command[1]}" if command[0] == "FUNCTION" else command[0]
        return next(self._answers.get(name, iter(())), self._last.get(name, _NONE))


def _caller(server: FakeServer, scripting: Scripting = "auto") -> tuple[RetryingCaller, Channel]:
    channel = Channel(Connector(server.url), name="test", answer_timeout=5.0)
    return RetryingCaller(channel, keys=Keys("r", "0"), functions=Functions(channel, scripting)), channel


def _names(server: FakeServer) -> list[str]:
    return [" ".join(each[:2]) if each[0] == "FUNCTION" else each[0] for each in server.received]


async def _sweep(caller: RetryingCaller, times: int = 1) -> None:
    for _ in range(times):
        assert await caller.script("sweep", ["", 10, 0], deadline=time.monotonic() + 5) == []


_LOADING = ["FCALL", "FUNCTION LOAD", "FUNCTION LIST", "FCALL"]


@pytest.mark.parametrize("loaded", [OK, _EXISTS], ids=["loaded", "loaded by another"])
async def test_an_unknown_function_gets_its_library_and_is_called_again(loaded: bytes) -> None:
    async with FakeServer(_Fake(FCALL=[_UNKNOWN, _NONE], FUNCTION_LOAD=[loaded])) as server:
        caller, channel = _caller(server)
        await _sweep(caller, 2)
        assert _names(server) == [*_LOADING, "FCALL"]
        first, load, _, again, _ = server.received
        assert first == again
        assert first[1] == load_library().functions["sweep"]
        assert load[2] == load_library().source
        assert caller.loads == 1
        await channel.aclose()


async def test_a_library_that_was_lost_is_loaded_again_and_one_line_says_so(
    logs: list[MutableMapping[str, Any]],
) -> None:
    async with FakeServer(_Fake(FCALL=[_NONE, _UNKNOWN, _NONE])) as server:
        caller, channel = _caller(server)
        await _sweep(caller, 3)
        assert _names(server) == ["FCALL", *_LOADING, "FCALL"]
        assert [each["event"] for each in logs] == ["the server forgot its scripts, sending them again"]
        await channel.aclose()


async def test_calls_that_miss_the_library_at_once_load_it_once() -> None:
    async with FakeServer(_Fake(FCALL=[*[_UNKNOWN] * 5, _NONE])) as server:
        caller, channel = _caller(server)
        await caller.command("PING")
        far = time.monotonic() + 5
        started = [caller.start("add", ["x"], deadline=far, read=lambda reply: reply) for _ in range(5)]
        assert await asyncio.gather(*started) == [[]] * 5
        assert _names(server).count("FUNCTION LOAD") == 1
        assert _names(server).count("FCALL") == 10
        await channel.aclose()


async def test_a_function_that_stays_unknown_is_sent_as_a_script_once_for_each_call() -> None:
    async with FakeServer(_Fake(FCALL=[_UNKNOWN])) as server:
        caller, channel = _caller(server)
        await _sweep(caller)
        assert _names(server) == [*_LOADING, "EVALSHA"]
        await channel.aclose()


@pytest.mark.parametrize(
    ("answers", "received"),
    [
        ({"FCALL": [_NO_COMMAND]}, ["FCALL", "EVALSHA"]),
        ({"FCALL": [_FORBIDDEN]}, ["FCALL", "EVALSHA"]),
        ({"FCALL": [_UNKNOWN], "FUNCTION_LOAD": [_NO_LOAD]}, ["FCALL", "FUNCTION LOAD", "EVALSHA"]),
        ({"FCALL": [_UNKNOWN], "FUNCTION_LOAD": [_NO_COMMAND]}, ["FCALL", "FUNCTION LOAD", "EVALSHA"]),
        ({"FCALL": [_FORBIDDEN], "EVALSHA": [_NO_SCRIPT, _NONE]}, ["FCALL", "EVALSHA", "EVAL"]),
    ],
    ids=["an old server", "no right to call", "no right to load", "a service without functions", "no script"],
)
async def test_what_refuses_functions_gets_scripts_for_the_life_of_the_connection(
    answers: dict[str, list[bytes]], received: list[str], logs: list[MutableMapping[str, Any]]
) -> None:
    async with FakeServer(_Fake(**answers)) as server:
        caller, channel = _caller(server)
        await _sweep(caller, 3)
        assert _names(server) == [*received, "EVALSHA", "EVALSHA"]
        channel.drop("a new connection may lead to another server")
        await _sweep(caller)
        assert _names(server)[len(received) + 2] == "FCALL"
        assert {each["log_level"] for each in logs} == {"debug"}
        await channel.aclose()


@pytest.mark.parametrize("refusal", [_FULL, _READ_ONLY, b"-MISCONF no disk\r\n", b"-NOREPLICAS too few\r\n"])
async def test_a_function_that_is_refused_before_it_begins_is_sent_as_a_script_this_time(
    refusal: bytes,
) -> None:
    async with FakeServer(_Fake(FCALL=[refusal])) as server:
        caller, channel = _caller(server)
        await _sweep(caller, 2)
        assert _names(server) == ["FCALL", "EVALSHA"] * 2
        assert server.connections == 1
        await channel.aclose()


async def test_what_a_script_is_refused_then_is_refused() -> None:
    async with FakeServer(_Fake(FCALL=[_FULL], EVALSHA=[_FULL])) as server:
        caller, channel = _caller(server)
        with pytest.raises(StoreRefused) as caught:
            await _sweep(caller)
        assert caught.value.code == "OOM"
        await channel.aclose()


async def test_an_error_inside_a_function_is_not_tried_in_another_form() -> None:
    async with FakeServer(_Fake(FCALL=[_IN_FUNCTION])) as server:
        caller, channel = _caller(server)
        with pytest.raises(StoreRefused) as caught:
            await _sweep(caller)
        assert caught.value.code == "OOM"
        assert _names(server) == ["FCALL"]
        await channel.aclose()


async def test_a_library_that_cannot_be_loaded_now_is_tried_again_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with FakeServer(_Fake(FCALL=[_UNKNOWN, _UNKNOWN, _NONE], FUNCTION_LOAD=[_FULL, OK])) as server:
        caller, channel = _caller(server)
        await _sweep(caller, 2)
        assert _names(server) == ["FCALL", "FUNCTION LOAD", "EVALSHA", "EVALSHA"]
        later = functions_module.clock.monotonic() + 60
        monkeypatch.setattr(functions_module.clock, "monotonic", lambda: later)
        assert await caller.script("sweep", [], deadline=later + 5) == []
        assert _names(server)[4:] == _LOADING
        await channel.aclose()


async def test_a_loss_while_the_library_is_loaded_is_a_loss_before_the_call() -> None:
    async with FakeServer(_Fake(FCALL=[_UNKNOWN, _NONE], FUNCTION_LOAD=[CLOSE])) as server:
        caller, channel = _caller(server)
        await _sweep(caller)
        assert _names(server) == ["FCALL", "FUNCTION LOAD", "FCALL"]
        assert caller.repeats == 1
        await channel.aclose()


async def test_loading_ends_at_the_deadline_of_its_call() -> None:
    async with FakeServer(lambda command: _UNKNOWN if command[0] == "FCALL" else None) as server:
        caller, channel = _caller(server)
        with pytest.raises(StoreUnavailable) as caught:
            await caller.script("sweep", [], deadline=time.monotonic() + 1)
        assert not caught.value.sent
        await channel.aclose()


async def test_a_server_that_must_have_functions_is_refused_without() -> None:
    answers = [{"FCALL": [_FORBIDDEN]}, {"FCALL": [_UNKNOWN], "FUNCTION_LOAD": [_NO_LOAD]}]
    for each in answers:
        async with FakeServer(_Fake(**each)) as server:
            caller, channel = _caller(server, "functions")
            for _ in range(2):
                with pytest.raises(StoreRefused) as caught:
                    await _sweep(caller)
                assert caught.value.code == "NOPERM"
            assert "EVALSHA" not in _names(server)
            await channel.aclose()


async def test_a_server_that_must_not_have_functions_is_not_asked_for_them() -> None:
    async with FakeServer(_Fake()) as server:
        caller, channel = _caller(server, "eval")
        await _sweep(caller, 2)
        assert _names(server) == ["EVALSHA"] * 2
        await channel.aclose()


def _libraries(*names: str) -> bytes:
    rows = [b"*2\r\n$12\r\nlibrary_name\r\n$%d\r\n%s\r\n" % (len(name), name.encode()) for name in names]
    return b"*%d\r\n" % len(rows) + b"".join(rows)


@pytest.mark.parametrize(("count", "removed"), [(7, 0), (8, 8), (20, 20)])
async def test_too_many_old_libraries_are_removed_by_who_loads_another_one(count: int, removed: int) -> None:
    own, old = load_library().name, [f"{PREFIX}{n:016x}" for n in range(count)]
    listed = _libraries(own, *old, f"{PREFIX}of_somebody_else")
    async with FakeServer(
        _Fake(FCALL=[_UNKNOWN, _NONE], FUNCTION_LIST=[listed], FUNCTION_DELETE=[OK])
    ) as server:
        caller, channel = _caller(server)
        await _sweep(caller)
        deleted = [each[2] for each in server.received if each[:2] == ["FUNCTION", "DELETE"]]
        assert deleted == old[:removed]
        await channel.aclose()


async def test_who_may_not_remove_old_libraries_keeps_them(logs: list[MutableMapping[str, Any]]) -> None:
    async with FakeServer(_Fake(FCALL=[_UNKNOWN, _NONE], FUNCTION_LIST=[_NO_LOAD])) as server:
        caller, channel = _caller(server)
        await _sweep(caller)
        assert _names(server) == _LOADING
        assert {each["log_level"] for each in logs} == {"debug"}
        await channel.aclose()


# With a real server.


@pytest.fixture(params=[()])
def own(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server with functions, started with the options that the test gives."""
    if "functions" not in SCRIPTINGS:
        pytest.skip("this server has no functions")
    server = Server(*request.param)
    server.start()
    yield server
    server.stop()


async def _open(server: Server, user: str = "", scripting: Scripting = "auto") -> Shard:
    url = server.url.replace("unix://", f"unix://{user}:x@") if user else server.url
    store = Store(Connector(url), prefix="p", name="test", scripting=scripting)
    await store.start(deadline=None)
    return Shard(store)


async def _calls(shard: Shard) -> dict[str, int]:
    stats: str = await shard.command("INFO", "commandstats")
    return {
        name: int(count) for name, count in re.findall(r"cmdstat_(fcall|eval|evalsha):calls=(\d+)", stats)
    }


async def test_a_server_whose_functions_are_flushed_is_given_them_again(own: Server) -> None:
    shard = await _open(own)
    await shard.add(row("a"))
    await shard.command("FUNCTION", "FLUSH")
    answer = await shard.turn()
    await shard.command("FUNCTION", "FLUSH")
    assert await shard.add(row("b")) == []
    assert [claim.id for claim in answer.claims] == ["a"]
    assert "evalsha" not in await _calls(shard)
    await shard.store.aclose()


@pytest.mark.parametrize("lacking", ["-fcall", "-function|load"])
async def test_a_user_without_the_rights_uses_scripts(
    own: Server, lacking: str, logs: list[MutableMapping[str, Any]]
) -> None:
    own.wait(lambda client: client.execute_command("ACL", "SETUSER", "u", "on", ">x", "~*", "+@all", lacking))
    shard = await _open(own, "u")
    await shard.add(row("a"))
    assert len(await shard.run("completed")) == 1
    calls = await _calls(shard)
    assert calls["fcall"] <= 1 < calls["evalsha"]
    assert [each for each in logs if each["log_level"] != "debug"] == []
    with pytest.raises(StoreRefused, match="lacks a right") as caught:
        await _open(own, "u", "functions")
    assert caught.value.code == "NOPERM"
    await shard.store.aclose()


@pytest.mark.parametrize(
    "own", [("--rename-command", name, "") for name in ("FUNCTION", "FCALL")], indirect=True
)
async def test_a_server_without_the_command_uses_scripts(own: Server) -> None:
    shard = await _open(own)
    await shard.add(row("a"))
    assert len(await shard.run("completed")) == 1
    assert (await _calls(shard))["evalsha"] > 1
    await shard.store.aclose()


async def test_two_releases_have_libraries_side_by_side(own: Server) -> None:
    other = load_library().source.replace(load_library().name, f"{PREFIX}0123456789abcdef")
    own.wait(lambda client: client.execute_command("FUNCTION", "LOAD", other))
    shard = await _open(own)
    listed = await shard.command("FUNCTION", "LIST")
    assert {each[1] for each in listed} == {load_library().name, f"{PREFIX}0123456789abcdef"}
    await shard.store.aclose()


async def test_the_lease_thread_goes_on_without_functions_until_it_connects_again(own: Server) -> None:
    shard = await _open(own)
    leases = shard.store.open_leases(timeout=5)

    def renew() -> None:
        answer = leases.renew([LeaseRow("none", "w:1")], worker="w", calls=(0, 0), lease_ms=1000, lag_ms=0)
        assert answer == (["none"], [], [])

    renew()
    assert "eval" not in await _calls(shard)
    await shard.command("FUNCTION", "FLUSH")
    renew()
    renew()
    assert (await _calls(shard))["evalsha"] == 2
    leases.close()
    await shard.add(row("a"))  # loads the library
    renew()
    assert (await _calls(shard))["evalsha"] == 2
    leases.close()
    await shard.store.aclose()


@pytest.mark.parametrize("scripting", ["functions", "eval"])
async def test_a_server_that_became_a_replica_answers_what_writes_nothing(
    own: Server, scripting: Scripting
) -> None:
    shard = await _open(own, scripting=scripting)
    await shard.add(row("a"))
    await shard.command("REPLICAOF", "127.0.0.1", "1")
    deadline = time.monotonic() + 5
    assert (await shard.store.inspection.job("a", deadline=deadline)).fields["state"] == "waiting"
    assert (await shard.store.look("em", ["a"], join=False, deadline=deadline))[0].state == "waiting"
    with pytest.raises(StoreUnavailable):
        await shard.store.look("em", ["a"], join=True, deadline=time.monotonic() + 0.1)
    await shard.command("REPLICAOF", "NO", "ONE")
    await shard.store.aclose()


async def test_a_server_that_is_full_and_has_no_library_runs_scripts(own: Server) -> None:
    shard = await _open(own)
    await shard.add(row("a"), row("b"))
    await shard.command("CONFIG", "SET", "maxmemory", "1")
    await shard.command("FUNCTION", "FLUSH")
    assert len(await shard.run("completed")) == 2
    with pytest.raises(StoreRefused) as caught:
        await shard.add(row("c"))
    assert caught.value.code == "OOM"
    await shard.store.aclose()
