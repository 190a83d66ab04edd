"""Journals, sleep and signals of the low-level API: a job that goes on where it was, and waits without a worker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from drivers.lowlevel import Mine, Reading

from eventbus import EventProvider, SignalRefused, StoreCorrupt, UnknownJob, UsageError
from eventbus.lowlevel import Job, Member, Settle, Tree, complete, fail, give_back, suspend
from eventbus.store.keys import Keys

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]


@pytest.fixture
def provider(make_provider: MakeProvider) -> EventProvider:
    return make_provider()


async def test_a_job_goes_on_behind_what_it_has_recorded(provider: EventProvider) -> None:
    mine = Mine(provider, attempts=20)
    began: list[str] = []

    async def stages(job: Job) -> Settle:
        for stage in ("fetch", "parse", "join", "render", "send")[len(job.journal) :]:
            began.append(stage)
            if began.count(stage) == 1:
                raise ConnectionError("once")
            assert await mine.jobs.append(job, [stage]) == "ok"
        assert job.attempts == 0, "who gets on has no attempts behind it"
        return complete(f'"{" ".join(job.journal)}"')

    mine.answers["t"] = stages
    async with provider, provider.worker():
        assert await mine.jobs.add(Tree("t", "mine", "x"), Reading()) == '"fetch parse join render send"'
    assert began == [
        each for stage in ("fetch", "parse", "join", "render", "send") for each in (stage, stage)
    ]


async def test_appends_are_recorded_in_the_order_of_the_calls(provider: EventProvider) -> None:
    mine = Mine(provider)

    async def writes(job: Job) -> Settle:
        words = await asyncio.gather(*(mine.jobs.append(job, [f"a{n}", f"b{n}"]) for n in range(500)))
        assert set(words) == {"ok"}
        return complete(str(len(job.journal)))

    mine.answers["t"] = mine.answers["u"] = writes
    async with provider, provider.worker():
        trees = [Tree("t", "mine", "x"), Tree("u", "mine", "x")]
        assert await asyncio.gather(*(mine.jobs.add(tree, Reading()) for tree in trees)) == ["1000", "1000"]
        expected = [f"{part}{n}" for n in range(500) for part in "ab"]
        for job in "tu":
            pages = [await mine.jobs.journal(job, first=first) for first in range(0, 1200, 200)]
            assert [entry for page in pages for entry in page] == expected


async def test_a_job_sleeps_until_a_signal_that_its_entry_takes(provider: EventProvider) -> None:
    mine = Mine(provider)

    async def waits(job: Job) -> Settle:
        for each in job.signals:
            await mine.jobs.append(job, [f"{each.name}: {each.payload}"], taken=[each.id])
        return suspend(heard=job.heard) if len(job.journal) < 2 else complete(f'"{job.journal}"')

    mine.answers["t"] = waits
    async with provider, provider.worker():
        emission = mine.jobs.add(Tree("t", "mine", "x"), Reading())
        await emission.enqueued()
        await mine.jobs.signal("t", "verdict", "yes", signal="s1")
        await mine.jobs.signal("t", "verdict", "no", signal="s2")
        assert await emission == "\"['verdict: yes', 'verdict: no']\""
        with pytest.raises(
            SignalRefused, match="signal verdict was not sent to job t: the job has ended"
        ) as told:
            await mine.jobs.signal("t", "verdict")
        assert (told.value.job_id, told.value.reason) == ("t", "ended")
        with pytest.raises(UnknownJob):
            await mine.jobs.signal("never", "verdict")
        for name in ("", "two words", "tab\t"):
            with pytest.raises(UsageError, match="no name of a signal"):
                await mine.jobs.signal("t", name)


async def test_a_job_sleeps_for_a_time_and_no_worker_waits_for_it(
    provider: EventProvider, until: Until
) -> None:
    mine = Mine(provider)

    async def naps(job: Job) -> Settle:
        if not job.journal:
            await mine.jobs.append(job, ["asleep"])
            return suspend(delay_ms=300)
        return complete(str(job.claimed_ms - job.due_ms))

    mine.answers["t"] = naps
    async with provider, provider.worker() as worker:
        emission = mine.jobs.add(Tree("t", "mine", "x"), Reading())
        await until(lambda: mine.ran == ["t"] and worker.is_idle, "the job sleeps")
        assert 0 <= int(await emission) < 2000
    assert mine.ran == ["t", "t"]
    with pytest.raises(ValueError, match="nothing would wake the job"):
        suspend()


async def test_no_signal_at_the_instant_of_the_sleep_is_missed(provider: EventProvider) -> None:
    """1,000 signals to 20 jobs, each sent without regard to whether the job runs, sleeps or is just falling asleep."""
    mine = Mine(provider)
    jobs, each_gets = [f"t{n}" for n in range(20)], 50

    async def counts(job: Job) -> Settle:
        if job.signals:
            entries = [signal.payload for signal in job.signals]
            await mine.jobs.append(job, entries, taken=[signal.id for signal in job.signals])
        return (
            suspend(heard=job.heard) if len(job.journal) < each_gets else complete(str(len(set(job.journal))))
        )

    mine.answers |= dict.fromkeys(jobs, counts)
    async with provider, provider.worker():
        emissions = [mine.jobs.add(Tree(job, "mine", "x"), Reading()) for job in jobs]
        await asyncio.gather(*(emission.enqueued() for emission in emissions))

        async def send(job: str) -> None:
            for n in range(each_gets):
                await mine.jobs.signal(job, "n", str(n))

        await asyncio.gather(*(send(job) for job in jobs))
        assert await asyncio.gather(*emissions) == [str(each_gets)] * len(jobs)


async def test_what_a_job_says_of_itself_is_seen_from_elsewhere(
    provider: EventProvider, make_provider: MakeProvider
) -> None:
    mine, other = Mine(provider), make_provider()

    async def works(job: Job) -> Settle:
        await mine.jobs.append(job, ["half"], live={"state": "half", "place": "x"})
        await mine.jobs.append(job, [], live={"state": "whole"})
        return complete("1")

    mine.answers["t"] = works
    async with provider, provider.worker(), other:
        await mine.jobs.add(Tree("t", "mine", "x"), Reading())
        assert await other.jobs.live("t", "state") == "whole"
        assert await other.jobs.live("t", "place") == "x"
        assert await other.jobs.live("t", "none") is None
        assert await other.jobs.journal("t") == ["half"]
        with pytest.raises(UsageError, match="does not run here"):
            await other.jobs.append(_job("t"), ["x"])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"entries": "text"}, "put the one text into a list"),
        ({"entries": [1]}, "this is int"),
        ({"entries": ["\ud800"]}, "UTF-8"),
        ({"entries": ["x" * 1001]}, "1001 bytes"),
        ({"entries": ["x"] * 2001}, "2001 entries"),
        ({"entries": [], "live": {"a": None}}, "this is NoneType"),
        ({"entries": [], "live": {f"n{n}": "" for n in range(101)}}, "101 live texts"),
        ({"entries": [], "taken": [f"n{n}" for n in range(1001)]}, "1001 signals"),
        ({"entries": [], "taken": ["\ud800"]}, "UTF-8"),
    ],
)
async def test_what_cannot_be_recorded_is_refused_at_once(
    make_provider: MakeProvider, given: dict[str, Any], message: str
) -> None:
    provider = make_provider(max_result=1000)
    mine = Mine(provider)
    async with provider, provider.worker():
        with pytest.raises(UsageError, match=message):
            await mine.jobs.append(_job("t"), **given)
        assert await mine.jobs.add(Tree("u", "mine", "x"), Reading()) == '"x"', "the worker goes on"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"signal": "#"}, "no id of a signal"),
        ({"payload": "\ud800"}, "UTF-8"),
        ({"payload": "x" * 1001}, "1001"),
    ],
)
async def test_a_signal_that_cannot_be_kept_is_refused_at_once(
    make_provider: MakeProvider, given: dict[str, Any], message: str
) -> None:
    provider = make_provider(max_payload=1000)
    async with provider:
        with pytest.raises(UsageError, match=message):
            await provider.jobs.signal("t", "name", **given)


async def test_thousands_of_appends_at_a_time_are_bounded_rows(provider: EventProvider) -> None:
    mine = Mine(provider)

    async def writes(job: Job) -> Settle:
        words = await asyncio.gather(
            *(mine.jobs.append(job, [str(n)], live={f"name {n}": str(n)}) for n in range(5000))
        )
        assert set(words) == {"ok"}
        return complete(str(len(job.journal)))

    mine.answers["t"] = writes
    async with provider, provider.worker():
        assert await mine.jobs.add(Tree("t", "mine", "x"), Reading()) == "5000"
        assert await mine.jobs.live("t", "name 4999") == "4999"


async def test_a_member_that_falls_asleep_while_its_tree_stops_ends(provider: EventProvider) -> None:
    mine = Mine(provider)
    has_begun = asyncio.Event()

    async def fails(job: Job) -> Settle:
        await has_begun.wait()
        return fail('{"type":"Oops","message":"no luck"}')

    async def sleeps(job: Job) -> Settle:
        has_begun.set()
        while True:
            if (await mine.jobs.look("t")).root.get("stop"):
                break
            await asyncio.sleep(0.01)
        return suspend(heard=job.heard)

    async def undoes(job: Job) -> Settle:
        assert job.stop == "failed"
        await mine.jobs.checkpoint(job, acknowledges=True)
        return fail('"undone"')

    mine.answers |= {"a": fails, "b": sleeps, "t": undoes}
    async with provider, provider.worker():
        members = [Member("t/a", "mine"), Member("t/b", "mine")]
        with pytest.raises(RuntimeError, match="undone"):
            await mine.jobs.add(Tree("t", "mine", "x", members, needs=["t/a", "t/b"]), Reading())
        states = [(each.state, each.text) for each in (await mine.jobs.outcomes(["t/b"]))]
        assert states == [("cancelled", '{"type":"JobCancelled","message":"its tree stopped"}')]


@pytest.mark.parametrize("acknowledges", [True, False])
@pytest.mark.parametrize("cause", ["cancelled", "failed"])
async def test_a_root_that_undoes_may_sleep_until_a_signal(
    provider: EventProvider, until: Until, cause: str, acknowledges: bool
) -> None:
    mine = Mine(provider)
    is_undoing = asyncio.Event()

    async def root(job: Job) -> Settle:
        if not job.stop:
            return fail('"first"') if cause == "failed" else suspend(delay_ms=60_000)
        if acknowledges:
            await mine.jobs.checkpoint(job, acknowledges=True)
        if not job.signals:
            is_undoing.set()
            return suspend(heard=job.heard)
        await mine.jobs.checkpoint(job, acknowledges=True)
        return fail('"undone"')

    mine.answers["t"] = root
    async with provider, provider.worker():
        emission = mine.jobs.add(Tree("t", "mine", "x"), Reading())
        await emission.enqueued()
        if cause == "cancelled":
            await until(lambda: mine.ran == ["t"], "the job sleeps")
            assert await mine.jobs.cancel("t", "enough")
        await is_undoing.wait()
        await mine.jobs.signal("t", "approved")
        with pytest.raises(RuntimeError, match="undone"):
            await emission


def _job(job_id: str) -> Job:
    return Job(job_id, "nobody:1", "mine", "", 0, 0, 0, 0, 0)


async def test_who_has_lost_the_lease_records_nothing(provider: EventProvider) -> None:
    mine = Mine(provider)
    async with provider, provider.worker():
        assert await mine.jobs.append(_job("t"), ["x"], live={"state": "x"}) == "lost"
        assert await mine.jobs.journal("t") == []


async def test_a_long_journal_is_read_in_pages(provider: EventProvider) -> None:
    mine = Mine(provider)
    expected = [f"entry {n}" for n in range(1300)]

    async def writes(job: Job) -> Settle:
        if not job.journal:
            await mine.jobs.append(job, expected)
            return give_back()
        assert job.unread > 0
        first, second = await asyncio.gather(mine.jobs.read_journal(job), mine.jobs.append(job, ["last"]))
        assert (first, second) == ([*expected, "last"], "ok")
        return complete("1")

    mine.answers["t"] = writes
    async with provider, provider.worker():
        assert await mine.jobs.add(Tree("t", "mine", "x"), Reading()) == "1"
        assert (await mine.jobs.journal("t", first=1299, limit=5)) == ["entry 1299", "last"]


async def test_entries_that_a_failover_lost_are_recorded_again(
    provider: EventProvider, admin: Callable[..., Any], prefix: str
) -> None:
    mine = Mine(provider)

    async def writes(job: Job) -> Settle:
        await mine.jobs.append(job, ["one", "two"])
        admin("LTRIM", Keys(prefix, "0").of("journal", "t"), 0, 0)
        assert await mine.jobs.append(job, ["three"], live={"state": "x"}) == "ok"
        return complete(f'"{job.journal}"')

    mine.answers["t"] = writes
    async with provider, provider.worker():
        assert await mine.jobs.add(Tree("t", "mine", "x"), Reading()) == "\"['one', 'two', 'three']\""
        assert await mine.jobs.journal("t") == ["one", "two", "three"]


async def test_a_journal_that_somebody_else_changed_is_told(
    provider: EventProvider, admin: Callable[..., Any], prefix: str
) -> None:
    mine = Mine(provider)

    async def writes(job: Job) -> Settle:
        await mine.jobs.append(job, ["one"])
        admin("RPUSH", Keys(prefix, "0").of("journal", "t"), "foreign")
        with pytest.raises(StoreCorrupt, match="other entries"):
            await mine.jobs.append(job, ["two"])
        return fail('"told"')

    mine.answers["t"] = writes
    async with provider, provider.worker():
        with pytest.raises(RuntimeError, match="told"):
            await mine.jobs.add(Tree("t", "mine", "x", on="fail"), Reading())


async def test_the_end_of_a_tree_is_told_by_the_next_append(provider: EventProvider) -> None:
    mine = Mine(provider)
    is_running = asyncio.Event()

    async def works(job: Job) -> Settle:
        if job.stop:
            assert job.journal == ["before", "after"]
            await mine.jobs.checkpoint(job, acknowledges=True)
            return fail('"undone"')
        await mine.jobs.append(job, ["before"])
        try:
            is_running.set()
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            assert await mine.jobs.append(job, ["after"]) == "stopping"
            raise
        return complete("1")

    mine.answers["t"] = works
    async with provider, provider.worker():
        emission = mine.jobs.add(Tree("t", "mine", "x"), Reading())
        await is_running.wait()
        assert await mine.jobs.cancel("t", "enough")
        with pytest.raises(RuntimeError, match="undone"):
            await emission
