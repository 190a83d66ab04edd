"""`inspector.jobs.find` and lists by time: jobs by idempotency key, by correlation id, and by their end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from eventbus import DefinitionError, EventContext, EventProvider, Retry
from eventbus.admin.jobs.job_cursor import cut_older
from eventbus.store.calls.queries import Cursor, JobRow, RowPage

MakeProvider = Callable[..., EventProvider]


async def test_a_job_is_found_by_its_key_in_each_group(make_provider: MakeProvider) -> None:
    async with make_provider() as provider:
        await provider.add_group("order", "audit")
        emission = provider.emit("order", 1, idempotency_key="o 1", reply=False)
        await emission.enqueued()
        await provider.emit("order", 2, idempotency_key="o 2", reply=False)
        found = await provider.inspector.jobs.find("order", idempotency_key="o 1")
        assert [(each.id, each.queue, each.state) for each in found.jobs] == [
            (emission.job_id, "event.order", "waiting"),
            (f"{emission.job_id}@audit", "event.order@audit", "waiting"),
        ]
        assert found.is_whole
        assert (await provider.inspector.jobs.find("order", idempotency_key="none")).jobs == []
        (only,) = (await provider.inspector.jobs.find("order@audit", idempotency_key="o 2")).jobs
        assert only.queue == "event.order@audit"


async def test_the_job_that_comes_after_that_of_a_key_is_found_too(make_provider: MakeProvider) -> None:
    provider = make_provider()
    began, go_on = asyncio.Event(), asyncio.Event()

    @provider.on("save")
    async def save(_: int) -> None:
        began.set()
        await go_on.wait()

    async with provider, provider.worker():
        first = provider.emit("save", 1, idempotency_key="k", keep_last=True, reply=False)
        await first.enqueued()
        await asyncio.wait_for(began.wait(), 240)
        await provider.emit("save", 2, idempotency_key="k", keep_last=True, reply=False)
        found = await provider.inspector.jobs.find("save", idempotency_key="k")
        assert [each.state for each in found.jobs] == ["active", "delayed"]
        go_on.set()


async def test_all_jobs_of_a_chain_are_found_by_its_correlation_id(make_provider: MakeProvider) -> None:
    provider = make_provider()

    @provider.on("order", retry=Retry(attempts=1))
    async def order(n: int, ctx: EventContext) -> None:
        await ctx.emit("bill", {"c": "other", "n": n}, reply=False)
        raise ValueError("late")

    async with provider, provider.worker():
        first = provider.emit("order", 1)
        own = provider.emit("order", 2, correlation_id="chain 7", reply=False)
        with pytest.raises(Exception, match="late"):
            await first
        await own.enqueued()
        find = provider.inspector.jobs.find
        while len((await find(correlation_id="chain 7")).jobs) < 2:
            pass
        chain = await find(correlation_id=first.job_id)
        assert sorted((each.queue, each.state) for each in chain.jobs) == [
            ("event.bill", "waiting"),
            ("event.order", "failed"),
        ]
        assert [each.error for each in chain.jobs if each.error] == ["ValueError: late"]
        assert chain.is_whole
        assert [each.queue for each in (await find("bill", correlation_id="chain 7")).jobs] == ["event.bill"]
        assert (await find(correlation_id="other")).jobs == [], "that stands in a payload"


async def test_a_search_is_bounded_and_says_so(
    make_provider: MakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eventbus.admin.jobs.lookups.PAGE_JOBS", 3)
    monkeypatch.setattr("eventbus.admin.jobs.lookups._MOST_SEEN", 6)
    async with make_provider() as provider:
        for n in range(10):
            await provider.emit("order", n, correlation_id=f"c{n}", reply=False)
        found = await provider.inspector.jobs.find("order", correlation_id="c1")
        assert (len(found.jobs), found.is_whole) == (1, False)
        monkeypatch.setattr("eventbus.admin.jobs.lookups._MOST_SEEN", 100)
        monkeypatch.setattr("eventbus.admin.jobs.lookups._MOST_FOUND", 2)
        for n in range(3):
            await provider.emit("bill", n, correlation_id="same", reply=False)
        found = await provider.inspector.jobs.find(correlation_id="same")
        assert (len(found.jobs), found.is_whole) == (2, False)


async def test_a_search_for_nothing_or_for_two_things_is_refused(make_provider: MakeProvider) -> None:
    async with make_provider() as provider:
        find = provider.inspector.jobs.find
        for given in ({}, {"idempotency_key": "a", "correlation_id": "b"}):
            with pytest.raises(DefinitionError, match="either idempotency_key or correlation_id"):
                await find("order", **given)
        with pytest.raises(DefinitionError, match="expected the event of the key"):
            await find(idempotency_key="a")


async def test_a_list_by_time_has_what_ended_lately(make_provider: MakeProvider) -> None:
    provider = make_provider()
    provider.on("order")(lambda n: n)
    async with provider, provider.worker():
        for n in range(5):
            await provider.emit("order", n)
        await provider.emit("order", 5, keep_completed="1 hour")
        look = provider.inspector
        assert len((await look.jobs.list("order", state="completed", since="1 hour")).jobs) == 5
        first = await look.jobs.list("order", state="completed", since="1 hour", limit=2)
        rest = await look.jobs.list("order", state="completed", since="1 hour", cursor=first.cursor)
        apart = await look.jobs.list("order", state="completed", since="1 hour", cursor=rest.cursor)
        assert [len(page.jobs) for page in (first, rest, apart)] == [2, 3, 1]
        assert apart.cursor is None
        assert (await look.jobs.list("order", state="completed", since=0)).jobs == []
        with pytest.raises(DefinitionError, match="expected since with state completed, failed or cancelled"):
            await look.jobs.list("order", state=cast("Any", "waiting"), since=5)


def _row(job: str, ended: int) -> JobRow:
    return JobRow(job, 0, 0, 0, 0, 0, ended, "")


@pytest.mark.parametrize(
    ("score", "oldest", "left", "following"),
    [
        ("7", 0, "abc", Cursor("c", "7")),
        ("7", 10, "abc", Cursor("c", "7")),
        ("7", 20, "ab", Cursor("leaving", "l")),  # older ones are not looked at
        ("", 20, "ab", None),
        ("l", 20, "ab", Cursor("c", "l")),
        (
            "l9",
            30,
            "a",
            Cursor("c", "l9"),
        ),  # those that go at a time of their own stand in no order of their ends
    ],
)
def test_a_list_by_time_ends_with_the_first_older_job(
    score: str, oldest: int, left: str, following: Cursor | None
) -> None:
    rows = [_row("a", 30), _row("b", 20), _row("c", 10)]
    kept, cursor = cut_older(RowPage(rows, Cursor("c", score) if score else None), oldest)
    assert ("".join(each.id for each in kept), cursor) == (left, following)
