"""A server at its maxmemory: emits and trees are refused and write nothing; running jobs and trees
still end.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest
from drivers.servers import Server
from drivers.shards import LEASE, QUEUE, START, Shard, row, settle
from drivers.tree_driver import STEPS, TreeDriver, make_tree, pieces_of

from eventbus.emit.job_tree import Member
from eventbus.errors import StoreRefused
from eventbus.store.reply_stream import ReplyStream
from eventbus.store.scripting.script_rows import SaveRow


@pytest.fixture
def server_url() -> Iterator[str]:
    server = Server("--maxmemory-policy", "noeviction")
    server.start()
    yield server.url
    server.stop()


async def _fill(shard: Shard) -> None:
    await shard.command("CONFIG", "SET", "maxmemory", "1")


async def _names(shard: Shard) -> list[str]:
    return sorted(await shard.command("KEYS", "*"))


async def test_an_emit_is_refused_and_writes_nothing(shard: Shard) -> None:
    await shard.add(row("a"))
    await _fill(shard)
    before = await _names(shard)
    rows = [row("b", body="x" * 500, key="k"), row("c", delay=5), row("d", priority=3)]
    for each in (rows, rows[1:2], [row("e", delay=5, key="k")]):
        with pytest.raises(StoreRefused, match="maxmemory") as caught:
            await shard.add(*each)
        assert caught.value.code == "OOM"
    assert await _names(shard) == before
    assert await shard.members("ready") == ["a"]


async def test_an_emit_that_only_joins_is_refused_too(shard: Shard) -> None:
    await shard.add(row("a", key="k"))
    await _fill(shard)
    with pytest.raises(StoreRefused) as caught:
        await shard.add(row("b", key="k"))
    assert caught.value.code == "OOM"
    assert "joined" not in await shard.record("a")


async def test_a_repeat_of_what_was_added_before_is_answered(shard: Shard) -> None:
    await shard.add(row("a"))
    await _fill(shard)
    assert await shard.add(row("a")) == []


@pytest.mark.parametrize("state", ["completed", "failed", "delayed", "waiting", "parked"])
async def test_running_jobs_are_settled_and_waiting_ones_claimed(shard: Shard, state: str) -> None:
    await shard.open_replies()
    await shard.add(row("a", key="k"), row("b"))
    answer = await shard.turn(want=1)
    await _fill(shard)
    end = settle(answer.claims[0], answer.token, state, "x" * 100, attempts=1, delay=0)
    answer = await shard.turn(end)
    again = {"delayed": ["b", "a"], "waiting": ["a", "b"]}
    assert [each.id for each in answer.claims] == again.get(state, ["b"])
    assert answer.lost == []
    assert await shard.state("a") == ("active" if state in again else state)
    assert len(await shard.replies()) == (state in ("completed", "failed"))


async def test_due_jobs_are_promoted(shard: Shard) -> None:
    await shard.add(row("a", delay=10))
    await _fill(shard)
    shard.now += 10
    await shard.turn(want=0)
    assert await shard.members("ready") == ["a"]


async def test_leases_are_renewed_and_stalled_jobs_rescued(shard: Shard) -> None:
    await shard.add(row("a"), row("b"))
    answer = await shard.turn()
    await shard.rescue()
    await _fill(shard)
    shard.now += 1000
    assert await shard.renew(("a", answer.token)) == []
    assert await shard.lease_end() == START + 1000 + LEASE
    shard.now += LEASE - 1000
    assert await shard.rescue(is_heard=False) == (LEASE, [], [])  # the gap gives a lease of grace
    last = (0, [""], [""])
    for _ in range(4):
        shard.now += LEASE // 4
        last = await shard.rescue(is_heard=False)
    assert last == (-1, ["a", "b"], [])
    assert await shard.members("ready") == ["a", "b"]


async def test_outcomes_are_still_looked_up_and_joined(shard: Shard) -> None:
    await shard.add(row("a"))
    await _fill(shard)
    await shard.store.look("asker", ["a"], join=True)
    assert (await shard.record("a"))["joined"] == "1"


async def test_an_emitter_opens_its_stream_reads_and_stops(shard: Shard) -> None:
    await shard.add(row("a"))
    await _fill(shard)
    stream = ReplyStream(shard.store, "em")
    await stream.attend()
    assert 590_000 < await shard.ttl("replies", "em") <= 600_000
    await shard.run("completed")
    assert [each.job for each in await stream.read()] == ["a"]
    await stream.attend()
    await stream.nudge(deadline=time.monotonic() + 5)
    assert await stream.read() == []
    await stream.trim()
    await stream.aclose(delete=True)
    assert await shard.command("EXISTS", shard.key("replies", "em")) == 0


async def test_wakes_are_handed_over_and_workers_are_told(shard: Shard) -> None:
    await _fill(shard)
    await shard.store.rearm("pool", ["event.a"])
    await shard.store.poke("w", "stop")
    assert await shard.members("wake", "pool") == ["event.a"]
    assert await shard.members("control", "w") == ["stop"]


async def test_progress_is_recorded(shard: Shard) -> None:
    await shard.add(row("a"))
    answer = await shard.turn()
    await _fill(shard)
    assert await shard.note("a", answer.token, "40") == []
    assert await shard.command("GET", shard.key("progress", "a")) == "40"


async def test_a_group_of_a_worker_exists_and_one_that_somebody_asks_for_is_refused(shard: Shard) -> None:
    await _fill(shard)
    await shard.announce(group="audit")
    assert await shard.command("SMEMBERS", shard.key("groups", QUEUE)) == ["audit"]
    with pytest.raises(StoreRefused, match="maxmemory"):
        await shard.store.groups.add(QUEUE, "billing")


def test_every_script_says_what_a_full_server_makes_of_it() -> None:
    """What adds work is refused; all that a worker needs to start, to run and to stop is not."""
    words = {"allows": "a full server allows", "refuses": "a full server refuses", "looks": "Writes nothing"}
    said: dict[str, set[str]] = {word: set() for word in words}
    for path in Path(str(files("eventbus.store"))).joinpath("lua").glob("*.lua"):
        header = " ".join(re.findall(r"^-- ?(.*)", path.read_text().partition("--include")[0], re.MULTILINE))
        (word,) = [word for word, phrase in words.items() if phrase in header]
        said[word].add(path.stem)
    assert said["refuses"] == {
        *("add", "edit", "fire", "graph", "group", "restart", "retry", "schedule", "signal", "tally")
    }
    assert said["looks"] == {
        *("active", "ended", "history", "job", "limits", "list"),
        *("roots", "schedules", "survey", "tree", "workers"),
    }


async def test_a_queue_is_paused_and_resumed(shard: Shard) -> None:
    await shard.add(row("a"))
    await _fill(shard)
    await shard.store.controls.pause(QUEUE, by="ann", reason="full", now=shard.now)
    assert (await shard.turn()).claims == []
    await shard.store.controls.resume(QUEUE, now=shard.now)
    assert [each.id for each in (await shard.turn()).claims] == ["a"]


async def test_workers_announce_themselves_and_sweep(shard: Shard) -> None:
    await shard.add(row("a"))
    await _fill(shard)
    assert await shard.announce() == 0
    assert await shard.members("pools") == ["pool"]
    assert await shard.sweep() == 0
    assert await shard.announce("more", former="pool") == 0
    assert await shard.members("pools") == ["more"]
    assert await shard.leave("more") == 0
    assert await shard.members("pools") == []


# trees


@pytest.mark.parametrize("size", [1, 2, 100])
async def test_a_tree_is_refused_whole_piece_by_piece(shard: Shard, size: int) -> None:
    driver = TreeDriver(shard, repeats=False)
    *first, last = pieces_of(make_tree({"a": "", "b": "a"}, key="k", print="p"), size)
    for chunk in first:
        await driver.send(chunk)
    await _fill(shard)
    before = await _names(shard)
    with pytest.raises(StoreRefused, match="maxmemory"):
        await driver.send(last)
    assert await _names(shard) == before
    assert await driver.claim() == []
    await shard.command("CONFIG", "SET", "maxmemory", "0")
    await driver.send(last)
    assert await driver.run_all() == ["f/a", "f/b", "f"]


async def test_who_joins_a_tree_is_refused_too(shard: Shard) -> None:
    driver = TreeDriver(shard, repeats=False)
    await driver.add(make_tree({"a": ""}, key="k", print="p"))
    await _fill(shard)
    with pytest.raises(StoreRefused, match="maxmemory"):
        await driver.add(make_tree({"a": ""}, root="g", key="k", print="p"))


async def test_a_tree_goes_on_to_its_end(shard: Shard) -> None:
    driver = TreeDriver(shard, repeats=True)
    await shard.open_replies()
    await driver.add(make_tree({"a": "", "b": "a", "c": "a", "d": "b c"}), reply=True)
    await _fill(shard)
    assert await driver.claim() == ["f/a"]
    assert await driver.checkpoint("f/a", saves=[SaveRow("x", "y" * 500)]) == "ok"
    assert await driver.spawn("f/a", Member("f/k", STEPS)) == "waiting"
    assert await driver.run_all() == ["f/k", "f/a", "f/b", "f/c", "f/d", "f"]
    assert len(await shard.replies()) == 1


@pytest.mark.parametrize("cause", ["failed", "cancelled", "timeout"])
async def test_a_tree_that_stops_is_undone(shard: Shard, cause: str) -> None:
    driver = TreeDriver(shard, repeats=True)
    await driver.add(make_tree({"a": "", "b": "", "c": "a b"}, timeout=5.0))
    await driver.claim()
    await _fill(shard)
    await driver.end("completed", "f/b", text='"' + "x" * 500 + '"')
    if cause == "failed":
        await driver.end("failed", "f/a", text='"' + "x" * 500 + '"')
    elif cause == "cancelled":
        assert await driver.cancel() == "asked"
    else:
        shard.now += 5000
        await driver.turn(want=0)
    if cause != "failed":
        await driver.end("cancelled", "f/a", text="{}")
    await driver.undo(cause=cause)
    assert await driver.done() == ["b"]


async def test_the_next_run_of_a_tree_is_refused_and_changes_nothing(shard: Shard) -> None:
    driver = TreeDriver(shard, repeats=False)
    await driver.add(make_tree({"a": ""}))
    await driver.run_all()
    before, names = await shard.record("f"), await _names(shard)
    await _fill(shard)
    with pytest.raises(StoreRefused) as caught:
        await shard.store.trees.restart("f", call="c", run=1, body="x" * 500, now=shard.now)
    assert caught.value.code == "OOM"
    assert (await shard.record("f"), await _names(shard)) == (before, names)
