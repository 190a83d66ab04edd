"""What several stores of one connection add in one tick is one call, and each hears only of its own rows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
from drivers.fakes import FakeServer

from eventbus.errors import StoreUnavailable
from eventbus.model import clock
from eventbus.store.calls.queries import Cursor
from eventbus.store.connection.connector import Connector
from eventbus.store.scripting.packing import AddRows
from eventbus.store.scripting.script_rows import AddAnswer, AddQueue, AddRow, TimeoutRow
from eventbus.store.store import Store

Admin = Callable[..., Any]
Until = Callable[..., Awaitable[None]]


@pytest.fixture
async def shares(store: Store) -> AsyncIterator[list[Store]]:
    """Stores over one connection, which is open."""
    shares = [store.share() for _ in range(5)]
    await shares[0].add("em", [AddQueue("warm", 1, "")], AddRows([_row("warm-up")]), deadline=_soon())
    yield shares
    for share in shares:
        await share.aclose()


def _soon(seconds: float = 10) -> float:
    return clock.monotonic() + seconds


def _row(job: str, queue: int = 1, *, key: str = "", body: str = "{}") -> AddRow:
    return AddRow(job, queue, body, key, "p" if key else "", "", "", 0, 0, 1, 0)


def _add(store: Store, queues: list[AddQueue], rows: list[AddRow], **options: Any) -> Awaitable[AddAnswer]:
    return store.add("em", queues, AddRows(rows), deadline=options.pop("deadline", _soon()), **options)


def _calls(admin: Admin) -> int:
    """How many calls of scripts the server has had."""
    stats = {
        line.partition(":")[0]: line.partition("calls=")[2].partition(",")[0]
        for line in admin("INFO", "commandstats").splitlines()
    }
    return sum(int(stats.get(f"cmdstat_{each}", 0)) for each in ("fcall", "evalsha", "eval"))


async def test_adds_of_one_tick_are_one_call_and_the_queues_keep_their_rows(
    shares: list[Store], store: Store, admin: Admin
) -> None:
    before = _calls(admin)
    # Each names its queues in another order, so that no place in the call is that in the part.
    names = ["a", "b", "c", "d", "e"]
    asked: list[Awaitable[AddAnswer]] = []
    for at, share in enumerate(shares):
        queues = [AddQueue(name, 1, "") for name in names[at:] + names[:at]]
        rows = [_row(f"{queues[place].queue}-{at}", place + 1) for place in range(5)]
        asked.append(_add(share, queues, rows))
    answers = await asyncio.gather(*asked)
    assert answers == [AddAnswer([1] * 5, [])] * 5
    assert _calls(admin) == before + 1
    for name in names:
        page = await store.inspection.jobs(name, "waiting", cursor=Cursor(), limit=10, deadline=_soon())
        assert sorted(job.id for job in page.jobs) == [f"{name}-{at}" for at in range(5)]


async def test_each_store_hears_the_verdicts_of_its_own_rows(shares: list[Store]) -> None:
    first, second, third, *_ = shares
    full = AddQueue("full", 1, 1)
    asked = [
        _add(first, [AddQueue("q", 1, "")], [_row("1a", key="k"), _row("1b", key="l")]),
        _add(second, [full, AddQueue("q", 1, "")], [_row("2a"), _row("2b"), _row("2c", 2, key="k")]),
        _add(third, [AddQueue("q", 1, ""), full], [_row("3a", key="l"), _row("3b", 2), _row("3c", key="m")]),
    ]
    one, two, three = await asyncio.gather(*asked)
    assert one.verdicts == []
    assert [(each.place, each.word, each.job) for each in two.verdicts] == [
        (1, "full", "2b"),
        (2, "joined", "1a"),
    ]
    assert [(each.place, each.word, each.job) for each in three.verdicts] == [
        (0, "joined", "1b"),
        (1, "full", "3b"),
    ]


async def test_roots_keep_their_timeouts_and_emissions_of_the_same_queue_are_none(
    shares: list[Store], store: Store, admin: Admin
) -> None:
    before = _calls(admin)
    asked: list[Awaitable[AddAnswer]] = []
    for at, share in enumerate(shares):
        rows = AddRows([_row(f"{at}-plain", 1 + at % 2)])
        rows.put_root(_row(f"{at}-root", 2 - at % 2), 1000 * (at + 1) if at % 2 else "")
        queues = [AddQueue("q", 1, ""), AddQueue("q", 1, "", 1)]
        asked.append(share.add("em", queues if at % 2 == 0 else queues[::-1], rows, deadline=_soon()))
    assert await asyncio.gather(*asked) == [AddAnswer([1, 1], [])] * 5
    assert _calls(admin) == before + 1
    assert await store.trees.roots("q", "open", first=0, limit=10) == [f"{at}-root" for at in (4, 3, 2, 1, 0)]
    due = admin("ZRANGE", store.keys.shard_key("due"), 0, -1)
    assert due == ["timeout:1-root", "timeout:3-root"]


def test_rows_that_are_picked_keep_their_timeouts() -> None:
    rows = AddRows()
    for number in range(5):
        rows.put_root(_row(str(number)), number if number % 2 else "")
    picked = rows.pick([1, 2, 3])
    assert (picked.bodies(), picked.timeouts) == (["{}"] * 3, [TimeoutRow(0, 1), TimeoutRow(2, 3)])


async def test_a_queue_with_two_limits_is_judged_by_that_of_the_store(shares: list[Store]) -> None:
    asked = [
        _add(share, [AddQueue("q", 1, limit)], [_row(f"{at}-{n}") for n in range(2)])
        for at, (share, limit) in enumerate(zip(shares, (3, 100, 3, "", 3), strict=True))
    ]
    refused = [[each.word for each in answer.verdicts] for answer in await asyncio.gather(*asked)]
    assert refused == [[], [], ["full", "full"], [], ["full", "full"]]


async def test_rows_of_both_kinds_are_two_calls_and_those_of_a_store_keep_their_order(
    shares: list[Store], store: Store, admin: Admin
) -> None:
    before = _calls(admin)
    queue = [AddQueue("q", 1, "")]
    asked = [
        _add(share, queue, [_row(f"{at}-{n}", key="" if at % 2 else f"{at}-{n}")])
        for n in range(2)
        for at, share in enumerate(shares)
    ]
    await asyncio.gather(*asked)
    assert _calls(admin) == before + 2
    # Now each store has rows of one kind and then of the other.
    before = _calls(admin)
    asked = [
        _add(share, [AddQueue("o", 1, "")], [_row(f"o{at}-{n}", key=f"o{at}-{n}" if (at + n) % 2 else "")])
        for n in range(4)
        for at, share in enumerate(shares)
    ]
    await asyncio.gather(*asked)
    page = await store.inspection.jobs("o", "waiting", cursor=Cursor(), limit=50, deadline=_soon())
    ids = [job.id for job in page.jobs]
    assert len(ids) == 20
    for at in range(5):
        assert [each for each in ids if each.startswith(f"o{at}")] == [f"o{at}-{n}" for n in range(4)]


async def test_a_call_keeps_its_bounds(shares: list[Store], admin: Admin) -> None:
    before = _calls(admin)
    queue = [AddQueue("q", 1, "")]
    await asyncio.gather(*(_add(each, queue, [_row(f"{id(each)}{n}") for n in range(90)]) for each in shares))
    assert _calls(admin) == before + 3  # 90 + 90, 90 + 90, 90
    before = _calls(admin)
    await asyncio.gather(*(_add(each, queue, [_row(f"{id(each)}", body="x" * 400_000)]) for each in shares))
    assert _calls(admin) == before + 3


async def test_while_four_calls_are_under_way_the_next_one_fills(
    shares: list[Store], admin: Admin, standstill: Callable[[], AbstractContextManager[None]]
) -> None:
    before = _calls(admin)
    asked: list[asyncio.Future[AddAnswer]] = []
    with standstill():
        for n in range(40):
            share = shares[n % 5]
            asked.append(asyncio.ensure_future(_add(share, [AddQueue("q", 1, "")], [_row(f"{n}")])))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
    await asyncio.gather(*asked)
    assert _calls(admin) == before + 5


async def test_a_row_that_cannot_be_packed_fails_alone(shares: list[Store]) -> None:
    queue = [AddQueue("q", 1, "")]
    asked = [
        _add(each, queue, [_row(f"{at}", body="\ud800" if at == 2 else "{}")])
        for at, each in enumerate(shares)
    ]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert isinstance(answers[2], UnicodeEncodeError)
    del answers[2]
    assert answers == [AddAnswer([1], [])] * 4


async def test_what_is_given_up_before_its_call_is_not_sent(shares: list[Store], store: Store) -> None:
    queue = [AddQueue("q", 1, "")]
    kept = asyncio.ensure_future(_add(shares[0], queue, [_row("kept")]))
    given_up = asyncio.ensure_future(_add(shares[1], queue, [_row("given-up")]))
    closed = asyncio.ensure_future(_add(shares[2], queue, [_row("closed")]))
    given_up.cancel()
    await shares[2].aclose()
    await kept
    with pytest.raises(StoreUnavailable):
        await closed
    found = await store.look("em", ["kept", "given-up", "closed"], join=False, deadline=_soon())
    assert [each.state for each in found] == ["waiting", "unknown", "unknown"]


async def test_a_single_store_does_not_wait_for_others(store: Store) -> None:
    share = store.share()
    await share.add("em", [AddQueue("q", 1, "")], AddRows([_row("a")]), deadline=_soon())
    asked, wire = _add(share, [AddQueue("q", 1, "")], [_row("b")]), store._channel._wire
    assert wire is not None
    assert wire.owed  # it was sent at once
    await asked
    await share.aclose()


async def test_a_part_that_waits_ends_at_its_own_deadline_and_is_never_sent(until: Until) -> None:
    """Four calls are under way on a connection whose server answers nothing."""
    async with FakeServer(lambda _: None) as server:
        store = Store(Connector(server.url), prefix="p", name="n")
        shares = [store.share() for _ in range(6)]
        opening: Any = store._channel
        await opening.begin_opening()
        asked: list[asyncio.Future[Any]] = []
        for at, share in enumerate(shares[:4]):
            call = share.add("em", [AddQueue("q", 1, "")], AddRows([_row(f"sent-{at}")]), deadline=_soon(3))
            asked.append(asyncio.ensure_future(call))
            await until(lambda at=at: len(_adds(server)) == at + 1, "it is sent")
        waits = [
            asyncio.ensure_future(
                share.add(
                    "em", [AddQueue("q", 1, "")], AddRows([_row(f"waits-{share.name}")]), deadline=_soon(0.1)
                )
            )
            for share in shares[4:]
        ]
        for late in waits:
            with pytest.raises(StoreUnavailable) as caught:
                await late
            assert not caught.value.sent
        for call in asked:
            with pytest.raises(StoreUnavailable) as caught:
                await call
            assert caught.value.sent
        server.cut()
        await until(lambda: not store.is_connected, "it is over")
        assert not [each for each in _adds(server) if "waits-" in each]
        for share in shares:
            await share.aclose()
        await store.aclose()


def _adds(server: FakeServer) -> list[str]:
    return [" ".join(map(str, command)) for command in server.received if command[0] in ("FCALL", "EVALSHA")]
