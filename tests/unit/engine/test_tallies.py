"""The tallies of a worker: what counts as an end, what is a time in queue, what a refused settle
takes back.
"""

from __future__ import annotations

import pytest

from eventbus.engine import job as jobs
from eventbus.engine.claiming.settle_queue import SettleQueue
from eventbus.engine.job import Job, Settle
from eventbus.engine.reporting.tallies import Tallies
from eventbus.model import clock
from eventbus.model.histogram import bucket_of
from eventbus.store.calls.history_store import CANCELLED, COMPLETED, EXPIRED, FAILED, RETRIED, RUNS, WAITS


@pytest.fixture(autouse=True)
def _still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "monotonic", lambda: 1000.0)


def _job(*, ran: float = 0.0, waited: int = 0, attempts: int = 0, queue: str = "q") -> Job:
    return Job("a", "w:1", queue, "", attempts, 0, 0, 500, 500 + waited, began=1000.0 - ran)


def _count(*ends: Settle, job: Job | None = None) -> dict[int, int]:
    tallies = Tallies()
    for end in ends:
        tallies.note(job or _job(), end)
    return {code: count for code, count in tallies.take().get("q", {}).items() if code < WAITS}


def test_each_end_counts_under_its_outcome() -> None:
    expired = jobs.fail('{"type":"EmissionExpired","message":"late"}', counts=False)
    assert _count(jobs.complete("1"), jobs.complete("2")) == {COMPLETED: 2}
    assert _count(jobs.fail("{}"), jobs.cancelled(), expired) == {FAILED: 1, CANCELLED: 1, EXPIRED: 1}
    assert _count(jobs.retry("{}", 5), jobs.retry("{}", 0)) == {RETRIED: 2}


@pytest.mark.parametrize(
    "settle",
    [jobs.give_back(), jobs.later("", 5), jobs.park("why"), jobs.shelve("s"), jobs.suspend(delay_ms=5)],
)
def test_what_goes_on_later_has_not_ended(settle: Settle) -> None:
    tallies = Tallies()
    tallies.note(_job(), settle)
    assert tallies.take() == {}


def test_durations_are_counted_in_buckets_of_each_queue() -> None:
    tallies = Tallies()
    for ran, waited in ((0.0104, 3), (0.0109, 70), (2.0, 70)):
        tallies.note(_job(ran=ran, waited=waited), jobs.complete("1"))
    tallies.note(_job(queue="other"), jobs.complete("1"))
    assert tallies.take() == {
        "q": {
            COMPLETED: 3, WAITS + 3: 1, WAITS + bucket_of(70): 2, RUNS + bucket_of(10): 2,
            RUNS + bucket_of(2000): 1,
        },
        "other": {COMPLETED: 1, WAITS: 1, RUNS: 1},
    }  # fmt: skip
    assert tallies.take() == {}


def test_a_job_waits_once_however_often_it_is_tried() -> None:
    tallies = Tallies()
    tallies.note(_job(waited=8), jobs.retry("{}", 5))
    tallies.note(_job(waited=9, attempts=1), jobs.complete("1"))
    again = _job(waited=9)
    again.has_begun = True
    tallies.note(again, jobs.complete("1"))
    assert [code for code in tallies.take()["q"] if WAITS <= code < RUNS] == [WAITS + bucket_of(8)]


def test_of_many_ends_each_eighth_is_timed_and_stands_for_eight_and_all_are_counted() -> None:
    tallies = Tallies()
    for ms in range(10_240):
        settle = jobs.fail("{}") if ms % 5 == 0 else jobs.complete("1")
        tallies.note(_job(ran=ms / 1000, waited=3), settle)
    (tally,) = tallies._tallies.values()  # pyright: ignore[reportPrivateUsage]
    assert len(tally.waits) + len(tally.runs) + len(tally.counts) < 300, "durations lie in buckets"
    taken = tallies.take()["q"]
    assert (taken[COMPLETED], taken[FAILED]) == (8192, 2048)
    assert taken[WAITS + 3] == sum(count for code, count in taken.items() if code >= RUNS) == 10_240
    tallies.note(_job(), jobs.complete("1"))
    assert tallies.take()["q"] == {COMPLETED: 1, WAITS: 1, RUNS: 1}


def test_a_refused_settle_is_taken_back_also_when_its_count_was_sent() -> None:
    tallies = Tallies()
    settles = SettleQueue(lambda _: 1, tallies)
    row = settles.begin(_job(), jobs.complete("1"))
    assert tallies.take()["q"][COMPLETED] == 1
    settles.answered("q", row, is_lost=True)
    assert tallies.take() == {}, "the server has no counts below 0"
    settles.begin(_job(), jobs.complete("1"))
    assert COMPLETED not in tallies.take().get("q", {}), "it makes up for the one too many"
    settles.begin(_job(), jobs.complete("1"))
    assert tallies.take()["q"][COMPLETED] == 1
