"""Calls of functions: nothing of one is left for the next, however it ended; and all that a store calls is
one.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from drivers.servers import SCRIPTINGS, Server
from drivers.shards import QUEUE, Shard, row, settle, turn_queue
from drivers.tree_driver import ROOTS, STEPS, make_tree, pieces_of

from eventbus.errors import StoreRefused
from eventbus.store.connection.connector import Connector
from eventbus.store.store import Store

_FAR = 10.0**12

pytestmark = pytest.mark.skipif("functions" not in SCRIPTINGS, reason="this server has no functions")


@pytest.fixture
def scripting() -> str:
    return "functions"


@pytest.fixture
def server_url() -> Iterator[str]:
    """A server of its own, with a user who may not tell emitters of outcomes."""
    server = Server()
    server.start()
    server.wait(
        lambda client: client.execute_command("ACL", "SETUSER", "mute", "on", ">x", "~*", "+@all", "-xadd")
    )
    yield server.url
    server.stop()


@pytest.fixture
async def mute(server_url: str, shard: Shard) -> AsyncIterator[Shard]:
    """The same shard, as that user calls it: what sends an outcome ends with an error in the middle."""
    prefix = shard.store.keys.root.partition(":")[0]
    store = Store(
        Connector(server_url.replace("unix://", "unix://mute:x@")),
        prefix=prefix,
        name="mute",
        scripting="functions",
    )
    await store.start(deadline=None)
    yield Shard(store)
    await store.aclose()


async def test_a_call_that_ended_with_an_error_leaves_nothing_to_the_next(shard: Shard, mute: Shard) -> None:
    await shard.open_replies()
    await shard.add(row("a"), row("b"))
    answer = await mute.turn(worker="w")
    ends = [settle(each, answer.token, text="from the call that failed") for each in answer.claims]
    with pytest.raises(StoreRefused) as caught:
        await mute.turn(*ends, worker="w")
    assert caught.value.code == "NOPERM"
    assert await shard.state("a") == "completed"  # the error came when it had been written
    await shard.add(row("c"))
    await shard.run("completed", text='"its own"', worker="v")
    told = await shard.replies()
    assert [each for each in told if "from the call" in str(each)] == []
    assert len(told) == 1
    listed = await shard.command("LRANGE", shard.key("completed", QUEUE), 0, -1)
    assert [entry[13:] for entry in listed] == ["a", "b", "c"]


async def test_a_call_of_the_user_who_is_refused_says_so_each_time(shard: Shard, mute: Shard) -> None:
    await shard.open_replies()
    for name in ("a", "b"):
        await shard.add(row(name))
        answer = await mute.turn(worker=name)
        with pytest.raises(StoreRefused):
            await mute.turn(*(settle(each, answer.token) for each in answer.claims), worker=name)
    await shard.add(row("c"))
    await shard.run("completed", worker="v")
    assert len(await shard.replies()) == 1


async def _story(shard: Shard) -> list[Any]:
    """What a story answers that uses trees, keys, delays, failures and cancels; without what names
    the shard.
    """
    queues = [turn_queue(), turn_queue(ROOTS), turn_queue(STEPS)]
    tree = make_tree({"a": "", "b": "a", "c": "b"}, ups={"c": "ignore"})
    said: list[Any] = [
        await shard.add(row("a", key="k"), row("b", key="k"), row("c", delay=5), row("d", priority=2)),
        await shard.add(*(row(f"e{n}") for n in range(5))),
    ]
    said.append(await shard.store.trees.add("em", pieces_of(tree), deadline=_FAR, now=shard.now))
    for _ in range(8):
        answer = await shard.turn(queues=queues)
        said.append([(each.id, each.body, each.attempts, each.stalls) for each in answer.claims])
        said.append(answer.lost)
        states = ["completed", "failed", "delayed", "waiting", "parked"]
        ends = [settle(each, answer.token, states[i % 5], attempts=1) for i, each in enumerate(answer.claims)]
        said.append((await shard.turn(*ends, want=0, queues=queues)).lost)
        shard.now += 1000
    said.append(await shard.store.look("em", ["a", "b", "d", "f"], join=False))
    return said


async def test_the_same_story_is_answered_the_same_again_and_again(server_url: str, shard: Shard) -> None:
    """Whatever one call keeps for the next one would be found by those that follow, in any shard of the
    server.
    """
    first = await _story(shard)
    for scripting in ("functions", "eval", "functions"):
        store = Store(
            Connector(server_url), prefix=f"again-{scripting}", name="test", scripting=_any(scripting)
        )
        await store.start(deadline=None)
        other = Shard(store)
        assert await _story(other) == first
        await other.command("FLUSHALL")
        await store.aclose()


def _any(value: Any) -> Any:
    return value


async def test_all_scripts_run_as_functions(shard: Shard) -> None:
    await shard.command("CONFIG", "RESETSTAT")
    await _story(shard)
    await shard.renew(("a", "w:1"))
    stats: str = await shard.command("INFO", "commandstats")
    assert int(re.findall(r"cmdstat_fcall:calls=(\d+)", stats)[0]) > 15
    assert not re.search(r"cmdstat_eval", stats)
