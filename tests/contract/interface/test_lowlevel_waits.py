"""Waits of the low-level API with real workers: children, the first of them, a time and a signal,
together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from drivers.lowlevel import Mine, Reading

from eventbus import EventProvider, UsageError
from eventbus.lowlevel import Job, Member, Settle, Tree, complete, fail, retry

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]
_LONG = 600_000


@pytest.fixture
def provider(make_provider: MakeProvider) -> EventProvider:
    return make_provider()


def _members(count: int) -> list[Member]:
    return [Member(f"t/{n}", "mine", up="ignore") for n in range(count)]


async def _states(mine: Mine, members: list[Member]) -> str:
    return " ".join(each.state for each in await mine.jobs.outcomes([each.id for each in members]))


async def test_a_job_runs_on_while_its_children_run_and_then_waits_for_them(provider: EventProvider) -> None:
    mine, members = Mine(provider), _members(3)
    has_begun, may_end = asyncio.Event(), asyncio.Event()

    async def parent(job: Job) -> Settle | None:
        if not job.journal:
            assert await mine.jobs.spawn(job, members, tree="t", waits=False) == "added"
            await has_begun.wait()
            await mine.jobs.append(job, ["own step"])
            may_end.set()
        ids = [each.id for each in members]
        if len(job.journal) == 1:
            await mine.jobs.append(job, ["waits"])
            assert await mine.jobs.spawn(job, [], tree="t", awaited=ids, saved={"at": "wait"}) == "waiting"
            return None
        assert (await mine.jobs.look("t")).saved == {"at": "wait"}
        return complete(await _states(mine, members))

    async def child(job: Job) -> Settle:
        has_begun.set()
        await may_end.wait()
        return fail('{"type":"Oops","message":"no"}') if job.id == "t/1" else complete("1")

    mine.answers |= {"t": parent} | dict.fromkeys("012", child)
    async with provider, provider.worker():
        assert await mine.jobs.add(Tree("t", "mine", "x"), Reading()) == "completed failed completed"
    assert mine.ran.count("t") == 2


async def test_the_first_child_ends_the_wait_and_the_next_wait_is_for_the_others(
    provider: EventProvider,
) -> None:
    mine, members = Mine(provider), _members(3)
    gates = {each.id: asyncio.Event() for each in members}

    async def parent(job: Job) -> Settle | None:
        ended = [each.id for each in members if each.id in job.journal]
        if job.journal:
            found = await mine.jobs.outcomes([each.id for each in members])
            new = [each.job for each in found if each.state == "completed" and each.job not in ended]
            await mine.jobs.append(job, new)
        else:
            await mine.jobs.append(job, ["begins"])
        open_ones = [each.id for each in members if each.id not in job.journal]
        if not open_ones:
            return complete(" ".join(job.journal))
        gates[open_ones[-1]].set()
        word = await mine.jobs.spawn(
            job, members if len(job.journal) == 1 else [], tree="t", awaited=open_ones, first=True
        )
        assert word == "waiting"
        return None

    async def child(job: Job) -> Settle:
        await gates[job.id].wait()
        return complete("1")

    mine.answers |= {"t": parent} | dict.fromkeys("012", child)
    async with provider, provider.worker():
        assert await mine.jobs.add(Tree("t", "mine", "x"), Reading()) == "begins t/2 t/1 t/0"
    assert mine.ran.count("t") == 4


@pytest.mark.parametrize("way", ["time", "signal", "child"])
async def test_a_wait_ends_with_whatever_comes_first(provider: EventProvider, until: Until, way: str) -> None:
    mine, members = Mine(provider), _members(1)
    may_end = asyncio.Event()

    async def parent(job: Job) -> Settle | None:
        if not job.journal:
            await mine.jobs.append(job, ["waits"])
            delay = 200 if way == "time" else _LONG
            word = await mine.jobs.spawn(
                job, members, tree="t", awaited=["t/0"], delay_ms=delay, heard=job.heard
            )
            assert word == "waiting"
            return None
        assert [each.name for each in job.signals] == (["go"] if way == "signal" else [])
        return complete(await _states(mine, members))

    async def child(job: Job) -> Settle:
        await may_end.wait()
        return complete("1")

    mine.answers |= {"t": parent, "0": child}
    async with provider, provider.worker():
        emission = mine.jobs.add(Tree("t", "mine", "x"), Reading())
        await until(lambda: mine.ran == ["t", "t/0"], "the child runs")
        if way == "signal":
            await mine.jobs.signal("t", "go")
        elif way == "child":
            may_end.set()
        assert await emission == ("completed" if way == "child" else "active")
        may_end.set()
    assert mine.ran == ["t", "t/0", "t"]


async def test_signals_times_and_children_meet_and_none_is_missed(provider: EventProvider) -> None:
    """20 jobs count 15 signals and 15 children each, which come at any time; each wait ends, and each run is
    a new one.
    """
    mine = Mine(provider)
    jobs, gets = [f"r{n}" for n in range(20)], 15

    async def counts(job: Job) -> Settle | None:
        if job.signals:
            await mine.jobs.append(job, ["s"] * len(job.signals), taken=[each.id for each in job.signals])
        ids = [f"{job.id}/c{n}" for n in range(gets)]
        found = await mine.jobs.outcomes(ids)
        open_ones = [each.job for each in found if each.state not in ("completed", "failed")]
        if len(job.journal) == gets and not open_ones:
            return complete(str(len(job.journal)))
        members = [Member(each, "mine", up="ignore") for each in ids] if found[0].state == "unknown" else []
        awaited = open_ones if len(job.journal) == gets else open_ones[:3]
        word = await mine.jobs.spawn(
            job, members, tree=job.id, awaited=awaited, first=True, heard=job.heard, delay_ms=20_000
        )
        assert word == "waiting"
        return None

    async def child(job: Job) -> Settle:
        return (
            fail('"no"')
            if job.id.endswith("3")
            else retry('"later"', 5)
            if not job.attempts
            else complete("1")
        )

    mine.answers |= dict.fromkeys(jobs, counts) | dict.fromkeys([f"c{n}" for n in range(gets)], child)
    async with provider, provider.worker():
        emissions = [mine.jobs.add(Tree(job, "mine", "x"), Reading()) for job in jobs]
        await asyncio.gather(*(emission.enqueued() for emission in emissions))

        async def send(job: str) -> None:
            for _ in range(gets):
                await mine.jobs.signal(job, "n")

        await asyncio.gather(*(send(job) for job in jobs))
        assert await asyncio.gather(*emissions) == [str(gets)] * len(jobs)


async def test_a_wait_for_many_children(provider: EventProvider) -> None:
    mine, members = Mine(provider), _members(250)

    async def parent(job: Job) -> Settle | None:
        if not job.journal:
            await mine.jobs.append(job, ["waits"])
            ids = [each.id for each in members]
            assert await mine.jobs.spawn(job, members, tree="t", awaited=ids, delay_ms=_LONG) == "waiting"
            return None
        return complete(str((await _states(mine, members)).count("completed")))

    mine.answers["t"] = parent
    async with provider, provider.worker():
        assert await mine.jobs.add(Tree("t", "mine", "x"), Reading()) == "250"


@pytest.mark.parametrize("stop", ["cancel", "timeout"])
async def test_a_root_that_waits_is_stopped_and_undoes(
    provider: EventProvider, until: Until, stop: str
) -> None:
    mine, members = Mine(provider), _members(2)

    async def root(job: Job) -> Settle | None:
        if job.stop:
            await mine.jobs.checkpoint(job, acknowledges=True)
            return fail(f'"undone {job.stop}"')
        ids = [each.id for each in members]
        await mine.jobs.spawn(
            job, members, tree="t", awaited=ids, delay_ms=_LONG, heard=job.heard, first=True
        )
        return None

    async def child(job: Job) -> Settle:
        await asyncio.sleep(30)
        return complete("1")

    mine.answers |= {"t": root, "0": child, "1": child}
    async with provider, provider.worker():
        tree = Tree("t", "mine", "x", timeout=0.3 if stop == "timeout" else 0)
        emission = mine.jobs.add(tree, Reading())
        await until(lambda: len(mine.ran) == 3, "the children run")
        if stop == "cancel":
            assert await mine.jobs.cancel("t", "enough")
        with pytest.raises(RuntimeError, match=f"undone {'cancelled' if stop == 'cancel' else stop}"):
            await emission


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"waits": False, "awaited": ["t/0"]}, "waits for nothing"),
        ({"waits": False, "delay_ms": 5}, "waits for nothing"),
        ({"awaited": ["t"]}, "its own end"),
    ],
)
async def test_a_wait_that_cannot_be_is_refused(
    provider: EventProvider, given: dict[str, Any], message: str
) -> None:
    mine = Mine(provider)

    async def parent(job: Job) -> Settle:
        with pytest.raises(UsageError, match=message):
            await mine.jobs.spawn(job, [], tree="t", **given)
        return complete("1")

    mine.answers["t"] = parent
    async with provider, provider.worker():
        assert await mine.jobs.add(Tree("t", "mine", "x"), Reading()) == "1"
