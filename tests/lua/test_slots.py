"""Every key that a script touches is in its shard's slot: shown on a cluster, and by MONITOR."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from drivers.servers import Server, free_port, server_version
from drivers.shards import LEASE, QUEUE, Shard, add_queue, row, settle, turn_queue

from eventbus.errors import StoreRefused
from eventbus.store.connection.connector import Connector
from eventbus.store.scripting.script_rows import FireRow, SweepQueue
from eventbus.store.store import Store

_KEYLESS = {"TIME"}
_ALL_KEYS = {"UNLINK", "RENAME", "EXISTS", "DEL"}


async def _run_through(shard: Shard) -> None:
    """Use every script on every path that names keys."""
    two = [add_queue(), add_queue("event.two", max_waiting=5)]
    await shard.open_replies()
    await shard.announce(group="audit")
    await shard.add(row("a", key="k"), row("b", queue=2, body="x" * 100), row("c", delay=5), queues=two)
    await shard.add(row("d", key="k"), row("e", priority=2))
    queues = [
        turn_queue(keep_completed=0, keep_failed=0),
        turn_queue("event.two", 1),
        turn_queue(f"{QUEUE}@audit"),
    ]
    answer = await shard.turn(queues=queues, want=3)
    first, *rest = answer.claims
    await shard.note(first.id, answer.token, "1")
    await shard.renew((first.id, answer.token))
    states = ["delayed", "waiting", "failed", "parked"]
    ends = [settle(each, answer.token, states[i], "x" * 100, attempts=1) for i, each in enumerate(rest)]
    answer = await shard.turn(settle(first, answer.token), *ends, queues=queues)
    await shard.store.look("em", [first.id, "e", "none"], join=True)
    await shard.change("c", stalls="junk")
    await shard.command("HSET", shard.key("held", "w"), "missing", "whatever")
    shard.now += LEASE
    await shard.rescue()
    shard.now += 200_000
    answer = await shard.turn(queues=queues)
    ends = [settle(each, answer.token) for each in answer.claims]
    await shard.turn(*ends, queues=queues)
    await shard.turn(*ends, queues=queues, call=4)
    await shard.announce(unpark=True)
    shard.now += 200_000
    await shard.sweep(*(SweepQueue(each.queue, 0, 0, 0, 0) for each in queues))
    await shard.store.presence.deregister("w")
    await _fire(shard)


async def _fire(shard: Shard) -> None:
    schedules = shard.store.schedules
    given: Any = {
        "slot": shard.now,
        "due": shard.now,
        "plan": "{}",
        "digest": "1",
        "queue": QUEUE,
        "now": shard.now,
    }
    _, gen = await schedules.change("put", "s", seen="", **given)
    for slot, key in enumerate(("one", "two"), start=shard.now):
        fire = FireRow(
            "s",
            gen,
            str(slot),
            slot,
            slot + 1,
            slot,
            0,
            0,
            QUEUE,
            1,
            f"s~{slot}",
            "{}",
            key,
            "p",
            "cancel",
            0,
            0,
        )
        assert (await schedules.fire([fire], key_ttl_ms=1, now=shard.now)).words == ["fired"]
    assert (await schedules.look("s")).rows[0].fired == "2"
    await shard.turn()
    assert await schedules.change("pause", "s", seen=gen, reason="test", now=shard.now) == ("paused", gen)
    assert await schedules.change("remove", "s", seen=gen, now=shard.now) == ("removed", gen)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Server]:
    """A cluster of one node that serves every slot."""
    if server_version() < (7,):
        pytest.skip("Redis 6 knows no `#!lua`")
    bus = free_port()
    server = Server("--cluster-enabled", "yes", "--cluster-port", str(bus), port=free_port())
    server.start()
    server.wait(lambda client: client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383))
    server.wait(lambda client: "cluster_state:ok" in str(client.execute_command("CLUSTER", "INFO")))
    yield server
    server.stop()


@pytest.fixture
async def clustered(cluster: Server, prefix: str, scripting: Any) -> AsyncIterator[Shard]:
    """A script needs `#!lua` for that; a function is always kept from keys of other slots."""
    store = Store(Connector(cluster.url), prefix=prefix, name="test", prelude="#!lua\n", scripting=scripting)
    await store.start(deadline=None)
    yield Shard(store)
    await store.aclose()


@pytest.mark.slow
async def test_a_cluster_that_refuses_foreign_slots_runs_every_script(clustered: Shard) -> None:
    await _run_through(clustered)
    await clustered.turn(call=9)


async def test_that_cluster_does_refuse_a_key_of_another_slot(clustered: Shard) -> None:
    source = "#!lua\nreturn redis.call('GET', KEYS[1] .. '}{x')"
    with pytest.raises(StoreRefused, match=r"undeclared|slot|non local"):
        await clustered.command("EVAL", source, 1, "foreign{a")
    source = "#!lua\nreturn redis.call('GET', 'a') or redis.call('GET', 'b')"
    with pytest.raises(StoreRefused, match=r"undeclared|slot|non local"):
        await clustered.command("EVAL", source, 0)


def _keys_of(line: str) -> list[str]:
    """The keys of one command as MONITOR shows it."""
    words = re.findall(r'"((?:[^"\\]|\\.)*)"', line)
    command = words[0].upper()
    if command in _KEYLESS:
        return []
    return words[1:] if command in _ALL_KEYS else words[1:2]


async def test_every_key_that_a_script_touches_carries_prefix_and_tag(shard: Shard) -> None:
    monitor: Any = await shard.store.connector.open(name="monitor")
    await monitor.send_command("MONITOR")
    await monitor.read_response()
    await _run_through(shard)
    await shard.command("ECHO", "that is all")
    lines: list[str] = []
    while not lines or "that is all" not in lines[-1]:
        lines.append(await monitor.read_response())
    await monitor.disconnect()
    touched = {key for line in lines if " lua] " in line for key in _keys_of(line)}
    root = shard.store.keys.root
    assert "{0}" in root
    assert {key for key in touched if not key.startswith(f"{root}:")} == set()
    kinds = {key.removeprefix(f"{root}:").split(":")[0] for key in touched}
    assert kinds >= {"job", "ready", "held", "workers", "delayed", "key", "waiters", "raw", "wake", "parked"}


@pytest.mark.parametrize("shown", ["a:b", "{other}", "a}b{c", "x y", "ключ", "*", "a\nb", "%7B"])
def test_no_prefix_can_break_out_of_its_tag_or_meet_another(shown: str) -> None:
    from eventbus.store.keys import Keys

    root = Keys(shown, "0").root
    assert root.count("{") == root.count("}") == 1
    assert root.endswith(":2:{0}")
    assert re.fullmatch(r"[A-Za-z0-9._~@%-]+:2:\{0\}", root)
    others = {Keys(each, "0").root for each in ("a", "b", "a_b", "other", "x+y", "{", "%257B")}
    assert root not in others


def test_long_and_odd_keys_have_short_names_that_differ() -> None:
    from eventbus.store.keys import key_digest

    keys = [
        "a",
        "a" * 48,
        "a" * 49,
        "a" * 5000,
        "#" + "0" * 40,
        "ключ",
        "a:b",
        "a%3Ab",
        "",
        "\U0001f600" * 40,
    ]
    digests = [key_digest(each) for each in keys]
    assert len(set(digests)) == len(keys)
    assert all(len(each) <= 64 and ":" not in each and "{" not in each for each in digests)
