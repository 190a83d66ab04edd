"""Trees without members, as their callers see them: they go with the emissions of their tick."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from drivers.lowlevel import Mine, Reading

from eventbus import EmitError, EventProvider, ProviderStopped, StoreUnavailable
from eventbus.emit.job_tree import chunks_of
from eventbus.lowlevel import Job, Member, Settle, Tree, complete, fail
from eventbus.store.calls.tree_store import TreeStore
from eventbus.store.scripting.packing import AddRows
from eventbus.store.store import Store

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]


@pytest.fixture
async def mine(make_provider: MakeProvider) -> AsyncIterator[Mine]:
    provider = make_provider()
    mine = Mine(provider)
    async with provider:
        yield mine


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each add had; the call of trees is made for none."""
    sizes: list[int] = []
    add = Store.add

    def note(self: Store, emitter: str, queues: Any, rows: AddRows, **given: Any) -> Any:
        sizes.append(len(rows))
        return add(self, emitter, queues, rows, **given)

    async def refuse(*_given: Any, **_options: Any) -> Any:
        raise AssertionError("it went as a tree")

    monkeypatch.setattr(Store, "add", note)
    monkeypatch.setattr(TreeStore, "add", refuse)
    return sizes


def _store(mine: Mine) -> Store:
    store = mine.jobs._life.store  # pyright: ignore[reportPrivateUsage]
    assert store
    return store


async def test_trees_and_emissions_of_one_tick_are_one_call(
    make_provider: MakeProvider, calls: list[int]
) -> None:
    provider = make_provider()
    mine = Mine(provider)
    async with provider:
        async with provider.worker():
            trees = [mine.jobs.add(Tree(f"t{i}", "mine", str(i)), Reading()) for i in range(5)]
            emitted = provider.emit("other", 1, reply=False)
            keyed = mine.jobs.add(
                Tree("k", "mine", "k", key="k", print="p", timeout=60.0, priority=1), Reading()
            )
            assert await asyncio.gather(*trees, keyed) == [*(f'"{i}"' for i in range(5)), '"k"']
            await emitted.enqueued()
        assert calls == [7]
        assert sorted(mine.ran) == ["k", *(f"t{i}" for i in range(5))]
        assert await mine.jobs.roots("mine", "open") == []
        assert sorted(await mine.jobs.roots("mine", "completed")) == ["k", *(f"t{i}" for i in range(5))]


async def test_one_that_comes_alone_is_handed_to_an_idle_worker(
    make_provider: MakeProvider, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    settled: list[str] = []
    settle_one = Store.settle_one

    def note(self: Store, *, job: str, **given: Any) -> Any:
        settled.append(job)
        return settle_one(self, job=job, **given)

    monkeypatch.setattr(Store, "settle_one", note)
    provider = make_provider()
    mine = Mine(provider)
    async with provider, provider.worker():
        for number in range(20):
            await mine.jobs.add(Tree(f"t{number}", "mine", "x", timeout=60.0), Reading())
        await until(lambda: settled, "a tree that was handed over")
    assert set(settled) <= set(mine.ran)


async def test_a_tree_that_fails_is_woken_to_undo(make_provider: MakeProvider, calls: list[int]) -> None:
    provider = make_provider()
    mine = Mine(provider)

    async def work(job: Job) -> Settle:
        if job.stop:
            assert await mine.jobs.checkpoint(job, acknowledges=True)
            return fail('{"message":"undone"}')
        return fail('{"message":"no"}')

    mine.answers["t"] = work
    async with provider, provider.worker():
        with pytest.raises(RuntimeError, match="undone"):
            await mine.jobs.add(Tree("t", "mine", "x"), Reading())
    assert (mine.ran, calls) == (["t", "t"], [1])


async def test_its_timeout_stops_it(make_provider: MakeProvider, calls: list[int]) -> None:
    provider = make_provider()
    mine = Mine(provider)

    async def work(job: Job) -> Settle:
        if not job.stop:
            await asyncio.Event().wait()
        await mine.jobs.checkpoint(job, acknowledges=True)
        return fail(f'"{job.stop}"')

    mine.answers["t"] = work
    async with provider, provider.worker():
        with pytest.raises(RuntimeError, match="timeout"):
            await mine.jobs.add(Tree("t", "mine", "x", timeout=0.3), Reading())
    assert calls == [1]


async def test_one_that_adds_members_runs_as_a_tree(make_provider: MakeProvider, calls: list[int]) -> None:
    provider = make_provider()
    mine = Mine(provider)

    async def work(job: Job) -> Settle | None:
        if (await mine.jobs.look(job.id)).total:
            return complete('"whole"')
        await mine.jobs.spawn(job, [Member("t/a", "mine")], tree="t", awaited=["t/a"])
        return None

    mine.answers["t"] = work
    async with provider, provider.worker():
        assert await mine.jobs.add(Tree("t", "mine", "x"), Reading()) == '"whole"'
    assert mine.ran == ["t", "t/a", "t"]
    assert calls == [1]


async def test_a_key_joins_and_another_payload_joins_too(mine: Mine, calls: list[int]) -> None:
    first = mine.jobs.add(Tree("t", "mine", "x", key="k", print="p"), Reading())
    others = [mine.jobs.add(Tree(f"u{i}", "mine", "x", key="k", print=f"p{i}"), Reading()) for i in range(3)]
    await asyncio.gather(*[each.enqueued() for each in (first, *others)])
    assert {each.job_id for each in others} == {"t"}
    assert calls == [4]
    assert await mine.jobs.cancel("t", "no longer")
    assert await mine.jobs.roots("mine", "open") == ["t"]


async def test_one_whose_key_stands_for_a_tree_that_is_not_whole_waits_until_it_is(mine: Mine) -> None:
    members = [Member(f"whole/{i}", "mine") for i in range(150)]
    first, *others = chunks_of(Tree("whole", "mine", "x", members, key="k", print="p"), reply=False)
    soon: dict[str, Any] = {"deadline": asyncio.get_running_loop().time() + 10}
    await _store(mine).trees.add("em", [first], **soon)
    lone = mine.jobs.add(Tree("lone", "mine", "x", key="k", print="p"), Reading())
    waits = asyncio.ensure_future(lone.enqueued())
    await asyncio.sleep(0.3)
    assert not waits.done()
    for chunk in others:
        await _store(mine).trees.add("em", [chunk], **soon)
    await waits
    assert lone.job_id == "whole"


async def test_one_whose_key_stands_for_a_tree_whose_adder_died_takes_the_key(mine: Mine) -> None:
    members = [Member(f"whole/{i}", "mine") for i in range(150)]
    first, *_ = chunks_of(Tree("whole", "mine", "x", members, key="k", print="p"), reply=False)
    await _store(mine).trees.add("em", [first], deadline=asyncio.get_running_loop().time() + 10)
    lone = mine.jobs.add(Tree("lone", "mine", "x", key="k", print="p"), Reading())
    await lone.enqueued()
    assert lone.job_id == "lone"
    assert await mine.jobs.roots("mine", "open") == ["lone"]


async def test_one_whose_answer_was_lost_names_its_id(mine: Mine, monkeypatch: pytest.MonkeyPatch) -> None:
    async def lose(*_given: Any, **_options: Any) -> Any:
        raise StoreUnavailable("no answer in time", address="here", sent=True)

    monkeypatch.setattr(Store, "add", lose)
    with pytest.raises(EmitError, match=r"unknown whether mine was enqueued: .*; its id 't' tells") as caught:
        await mine.jobs.add(Tree("t", "mine", "x"), Reading())
    assert caught.value.enqueued is None


async def test_one_whose_queue_is_another_programs_fails(mine: Mine) -> None:
    store = _store(mine)
    await store._caller.command("SET", store.keys.of("ready", "mine"), "x")
    with pytest.raises(EmitError, match="another program's value stands in the key") as caught:
        await mine.jobs.add(Tree("t", "mine", "x"), Reading())
    assert caught.value.enqueued is False


async def test_one_that_was_not_sent_before_the_stop_says_so(make_provider: MakeProvider) -> None:
    provider = make_provider()
    mine = Mine(provider)
    async with provider:
        emission = mine.jobs.add(Tree("t", "mine", "x"), Reading())
    with pytest.raises(ProviderStopped):
        await emission
    with pytest.raises(ProviderStopped):
        mine.jobs.add(Tree("u", "mine", "x"), Reading())
