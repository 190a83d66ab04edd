"""Starting a store: which servers and users are refused, and why, on separate servers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from drivers.fakes import OK, FakeServer, bulk
from drivers.servers import Server, free_port
from drivers.shards import row

from eventbus.errors import StoreRefused, StoreUnavailable
from eventbus.store.connection.connector import Connector
from eventbus.store.scripting.packing import AddRows
from eventbus.store.scripting.script_rows import AddQueue, LeaseRow
from eventbus.store.store import Store

_SECRET = "s3cr3t-pa55"


@pytest.fixture(scope="module")
def guarded() -> Iterator[Server]:
    """A server that asks for a password, and whose users differ in their rights."""
    server = Server("--requirepass", _SECRET, port=free_port())
    server.start(is_open=False)
    server.wait(_set_users)
    yield server
    server.stop()


def _set_users(client: Any) -> bool:
    url = f"redis://:{_SECRET}@127.0.0.1:{client.connection_pool.connection_kwargs['port']}"
    with redis.Redis.from_url(url) as admin:
        admin.execute_command(
            "ACL", "SETUSER", "reader", "on", f">{_SECRET}", "~*", "+@all", "-@write", "-@scripting"
        )
        admin.execute_command("ACL", "SETUSER", "elsewhere", "on", f">{_SECRET}", "~other:*", "+@all")
        admin.execute_command("ACL", "SETUSER", "blind", "on", f">{_SECRET}", "~*", "+@all", "-info")
    return True


async def _start(url: str, *, allow_eviction: bool = False) -> Store:
    store = Store(Connector(url), prefix="p", name="test")
    try:
        await store.start(deadline=1e12, allow_eviction=allow_eviction)
    except BaseException:
        await store.aclose()
        raise
    return store


async def _refused(url: str) -> StoreRefused:
    with pytest.raises(StoreRefused) as caught:
        await _start(url)
    assert _SECRET not in f"{caught.value!r} {caught.value.__cause__!r}"
    return caught.value


async def test_a_missing_password_is_refused_at_once(guarded: Server) -> None:
    error = await _refused(guarded.url)
    assert error.code == "NOAUTH"
    assert guarded.place in str(error)


@pytest.mark.parametrize("login", [f":{_SECRET}x", f"alice:{_SECRET}", f"reader:{_SECRET}x"])
async def test_a_wrong_password_or_user_is_refused_at_once(guarded: Server, login: str) -> None:
    error = await _refused(f"redis://{login}@{guarded.place}")
    assert error.code == "WRONGPASS"


async def test_the_right_password_is_taken(guarded: Server) -> None:
    store = await _start(f"redis://:{_SECRET}@{guarded.place}")
    await store.aclose()


@pytest.mark.parametrize("user", ["reader", "elsewhere"])
async def test_a_user_without_the_rights_is_told_which(guarded: Server, user: str) -> None:
    error = await _refused(f"redis://{user}:{_SECRET}@{guarded.place}")
    assert error.code == "NOPERM"
    assert re.search(f"{user}|evalsha|key", str(error))
    assert "lacks a right" in str(error)


async def test_a_user_who_may_not_ask_for_facts_is_refused_at_the_start(guarded: Server) -> None:
    assert (await _refused(f"redis://blind:{_SECRET}@{guarded.place}")).code == "NOPERM"


async def test_the_lease_threads_connection_is_refused_in_the_same_words(guarded: Server) -> None:
    leases = Store(Connector(guarded.url), prefix="p", name="test").open_leases(timeout=5)
    with pytest.raises(StoreRefused) as caught:
        leases.renew([], worker="w", calls=(0, 0), lease_ms=1000, lag_ms=0)
    assert caught.value.code == "NOAUTH"
    leases.close()


async def test_a_replica_is_refused_and_its_primary_named() -> None:
    server = Server("--replicaof", "127.0.0.1", "1")
    server.start()
    try:
        error = await _refused(server.url)
        assert error.code == "READONLY"
        assert "127.0.0.1:1" in str(error)
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("version", "is_refused"), [("5.0.14", True), ("6.0.20", True), ("6.2.0", False), ("10.1.0", False)]
)
async def test_a_server_older_than_6_2_is_refused(version: str, *, is_refused: bool) -> None:
    def answer(command: list[str]) -> bytes:
        return bulk(f"# Server\r\nredis_version:{version}\r\nrole:master\r\n") if command[0] == "INFO" else OK

    async with FakeServer(answer) as server:
        if is_refused:
            error = await _refused(server.url)
            assert error.code == "VERSION"
            assert f"Redis {version}; 6.2 or newer" in str(error)
        else:
            await (await _start(server.url)).aclose()


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl", "allkeys-random"])
async def test_a_server_that_may_evict_keys_is_refused_unless_allowed(policy: str) -> None:
    server = Server("--maxmemory-policy", policy, "--maxmemory", "100mb")
    server.start()
    try:
        error = await _refused(server.url)
        assert error.code == "EVICTION"
        assert policy in str(error)
        await (await _start(server.url, allow_eviction=True)).aclose()
    finally:
        server.stop()


async def test_a_server_that_is_not_there_is_unavailable_at_the_deadline() -> None:
    store = Store(Connector(f"redis://127.0.0.1:{free_port()}"), prefix="p", name="test")
    with pytest.raises(StoreUnavailable, match="no server at 127"):
        await store.start(deadline=0.0)
    await store.aclose()


async def test_a_store_survives_the_restart_of_its_server() -> None:
    server = Server(port=free_port())
    server.start()
    store = await _start(server.url)
    queues = [AddQueue("event.q", 1, "")]
    leases = store.open_leases(timeout=5)
    assert leases.renew([LeaseRow("a", "t")], worker="w", calls=(0, 0), lease_ms=1000, lag_ms=0) == (
        ["a"],
        [],
        [],
    )
    try:
        await store.add("em", queues, AddRows([row("a")]), deadline=1e12)
        process = server._process  # pyright: ignore[reportPrivateUsage]
        assert process is not None
        process.kill()
        process.wait()
        server.start()
        await store.add("em", queues, AddRows([row("b")]), deadline=1e12)
        assert [each.state for each in await store.look("em", ["a", "b"], join=False)] == [
            "unknown",
            "waiting",
        ]
        with pytest.raises(StoreUnavailable):
            leases.renew([LeaseRow("a", "t")], worker="w", calls=(0, 0), lease_ms=1000, lag_ms=0)
        assert leases.renew([LeaseRow("a", "t")], worker="w", calls=(0, 0), lease_ms=1000, lag_ms=0) == (
            ["a"],
            [],
            [],
        )
    finally:
        leases.close()
        await store.aclose()
        server.stop()
