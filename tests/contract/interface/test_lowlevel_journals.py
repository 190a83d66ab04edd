"""Journals of the low-level API: a job that goes on where it was, and what it says of itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from drivers.lowlevel import Mine, Reading

from eventbus import EventProvider, ProviderStopped, StoreCorrupt, UsageError
from eventbus.lowlevel import Job, Settle, Tree, complete, fail, give_back
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
        ({"entries": ["x" * 17_385]}, "17385 bytes"),
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
    provider = make_provider(max_result=1000, max_payload=1000)
    mine = Mine(provider)
    async with provider, provider.worker():
        with pytest.raises(UsageError, match=message):
            await mine.jobs.append(_job("t"), **given)
        assert await mine.jobs.add(Tree("u", "mine", "x"), Reading()) == '"x"', "the worker goes on"


async def test_one_append_has_so_many_bytes_at_most(provider: EventProvider) -> None:
    mine = Mine(provider)
    async with provider, provider.worker():
        with pytest.raises(UsageError, match="17000000 bytes in one append; at most 16777216"):
            await mine.jobs.append(_job("t"), ["x" * 1_000_000] * 17)
        assert await mine.jobs.append(_job("t"), ["x" * 1_000_000] * 16) == "lost"


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


async def test_appends_keep_their_order_while_a_long_journal_is_read(provider: EventProvider) -> None:
    mine = Mine(provider)

    async def writes(job: Job) -> Settle:
        if not job.journal:
            await mine.jobs.append(job, ["x"] * 2000)
            return give_back()

        async def late(n: int) -> None:
            for _ in range(n % 7):
                await asyncio.sleep(0)
            calls.append(str(n))
            await mine.jobs.append(job, [str(n)])

        calls: list[str] = []
        await asyncio.gather(*(late(n) for n in range(300)))
        assert job.journal[2000:] == calls
        return complete("1")

    jobs = [f"t{n}" for n in range(10)]
    mine.answers |= dict.fromkeys(jobs, writes)
    async with provider, provider.worker():
        await asyncio.gather(*(mine.jobs.add(Tree(job, "mine", "x", on="fail"), Reading()) for job in jobs))


async def test_live_texts_alone_do_not_reset_attempts(provider: EventProvider) -> None:
    mine = Mine(provider, attempts=3)

    async def fails(job: Job) -> Settle:
        await mine.jobs.append(job, [], live={"state": "begun"})
        raise ConnectionError("always")

    mine.answers["t"] = fails
    async with provider, provider.worker():
        with pytest.raises(RuntimeError, match="always"):
            await mine.jobs.add(Tree("t", "mine", "x", on="fail"), Reading())
    assert mine.ran == ["t"] * 3


async def test_who_appends_from_elsewhere_hears_of_the_end_of_the_worker(provider: EventProvider) -> None:
    mine = Mine(provider)
    appended: list[asyncio.Task[str]] = []

    async def works(job: Job) -> Settle:
        async def on() -> str:
            while True:
                await mine.jobs.append(job, ["x"])

        appended.append(asyncio.create_task(on()))
        return complete("1")

    mine.answers["t"] = works
    async with provider:
        async with provider.worker():
            await mine.jobs.add(Tree("t", "mine", "x"), Reading())
        with pytest.raises((ProviderStopped, UsageError)):
            await asyncio.wait_for(appended[0], 240)
        assert await mine.jobs.journal("t", limit=0) == []


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
