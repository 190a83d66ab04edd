"""The queue of appends of a worker: order, repeats, and what those who wait are told."""

from __future__ import annotations

import asyncio

import pytest

from eventbus.engine.claiming.append_queue import AppendQueue
from eventbus.engine.job import Job
from eventbus.errors import ProviderStopped
from eventbus.store.scripting.script_rows import AppendRefusal

pytestmark = pytest.mark.anyio


def _job(job_id: str = "a", token: str = "w:1") -> Job:
    return Job(job_id, token, "q", "", 2, 1, 0, 0, 0)


def _put(queue: AppendQueue, job: Job, *entries: str, taken: tuple[str, ...] = ()) -> asyncio.Future[str]:
    return queue.put(job, entries, live={"state": entries[-1]} if entries else {}, taken=taken)


async def test_what_is_put_before_a_turn_goes_with_one_row_a_job() -> None:
    queue, first, second = AppendQueue(), _job("a"), _job("b")
    waiters = [_put(queue, first, "1", "2"), _put(queue, second, "x"), _put(queue, first, "3", taken=("s",))]
    assert len(queue) == 2
    rows = queue.take()
    assert [(row.id, row.place, row.entries, row.live, row.taken) for row in rows] == [
        ("a", 0, ["1", "2", "3"], {"state": "3"}, ["s"]),
        ("b", 0, ["x"], {"state": "x"}, []),
    ]
    assert len(queue) == 0
    queue.answered(rows, [AppendRefusal(2, "lost", 0)])
    assert [each.result() for each in waiters] == ["ok", "lost", "ok"]
    assert (first.journal, second.journal) == (["1", "2", "3"], [])
    assert (first.attempts, first.stalls) == (0, 0)
    assert (second.attempts, second.stalls) == (2, 1)


async def test_a_job_has_one_row_under_way_and_the_next_one_begins_behind_it() -> None:
    queue, job = AppendQueue(), _job()
    first = _put(queue, job, "1")
    rows = queue.take()
    second = _put(queue, job, "2")
    assert queue.take() == [], "the other lane must not overtake"
    queue.answered(rows, [])
    assert first.done()
    assert not second.done()
    (row,) = queue.take()
    assert (row.place, row.entries) == (1, ["2"])
    queue.answered([row], [AppendRefusal(1, "stopping", 2)])
    assert (second.result(), job.journal) == ("stopping", ["1", "2"])


async def test_a_row_whose_call_failed_is_sent_again_as_it_was() -> None:
    queue, job, other = AppendQueue(), _job(), _job("b")
    _put(queue, job, "1")
    _put(queue, other, "x")
    rows = queue.take()
    later = _put(queue, job, "2")
    queue.put_back(rows)
    assert queue.take() == rows, "the server may have recorded it, and knows it by its place and its entries"
    queue.answered(rows, [])
    (row,) = queue.take()
    assert (row.place, row.entries) == (1, ["2"])
    queue.answered([row], [])
    assert later.result() == "ok"


async def test_entries_that_the_server_lost_go_with_the_row_once_more() -> None:
    queue, job = AppendQueue(), _job()
    job.journal = ["1", "2", "3"]
    waiter = _put(queue, job, "4")
    rows = queue.take()
    further = _put(queue, job, "5")
    queue.answered(rows, [AppendRefusal(1, "behind", 1)])
    assert not waiter.done()
    (row,) = queue.take()
    assert (row.place, row.entries) == (1, ["2", "3", "4"])
    queue.answered([row], [AppendRefusal(1, "behind", 0)])
    (row,) = queue.take()
    assert (row.place, row.entries) == (0, ["1", "2", "3", "4"])
    queue.answered([row], [])
    assert waiter.result() == "ok"
    (row,) = queue.take()
    assert (row.place, row.entries) == (4, ["5"])
    queue.answered([row], [AppendRefusal(1, "torn", 9)])
    assert (further.result(), job.journal) == ("torn", ["1", "2", "3", "4"])


async def test_a_job_that_is_claimed_anew_has_a_series_of_its_own() -> None:
    queue, before, after = AppendQueue(), _job(token="w:1"), _job(token="w:2")
    _put(queue, before, "1")
    _put(queue, after, "2")
    rows = queue.take()
    assert [(row.token, row.place) for row in rows] == [("w:1", 0), ("w:2", 0)]
    queue.answered(rows, [AppendRefusal(1, "lost", 0)])
    assert (before.journal, after.journal) == ([], ["2"])


async def test_nobody_waits_any_more_and_the_row_is_sent_all_the_same() -> None:
    queue, job = AppendQueue(), _job()
    _put(queue, job, "1").cancel()
    rows = queue.take()
    queue.answered(rows, [])
    assert job.journal == ["1"]
    assert vars(queue)["_series"] == {}, "nothing stays of a job whose appends are answered"


async def test_who_waits_or_comes_later_hears_that_the_worker_has_ended() -> None:
    queue, job = AppendQueue(), _job()
    sent = _put(queue, job, "1")
    rows = queue.take()
    later = _put(queue, job, "2")
    queue.put_back(rows)
    queue.close()
    for waiter in (sent, later):
        with pytest.raises(ProviderStopped, match="the worker ended"):
            await waiter
    with pytest.raises(ProviderStopped, match="the worker ended"):
        _put(queue, job, "3")


async def test_a_call_has_so_many_rows_and_bytes_at_most() -> None:
    queue = AppendQueue()
    for n in range(450):
        _put(queue, _job(f"j{n}"), "x")
    assert [len(queue.take()) for _ in range(4)] == [200, 200, 50, 0]
    for n in range(4):
        _put(queue, _job(f"k{n}"), "." * 400_000)
    assert [len(queue.take()) for _ in range(3)] == [2, 2, 0]
