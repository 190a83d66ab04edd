"""The recorder of a worker: what it sends, when it sends it again, and what it looks at."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
from drivers.shards import QUEUE, Shard, row

from eventbus import EventProvider
from eventbus.engine import job as jobs
from eventbus.engine.job import Job
from eventbus.engine.reporting.history_recorder import HistoryRecorder
from eventbus.engine.reporting.tallies import Tallies
from eventbus.errors import StoreRefused, StoreUnavailable
from eventbus.model import clock
from eventbus.model.histogram import Histogram
from eventbus.model.windows import Windows
from eventbus.store.calls.history_store import COMPLETED, OLDEST, WAITING
from eventbus.store.store import Store

pytestmark = pytest.mark.anyio

MakeProvider = Callable[..., EventProvider]


@pytest.fixture
def tallies() -> Tallies:
    return Tallies()


@pytest.fixture
def recorder(store: Store, tallies: Tallies) -> HistoryRecorder:
    consumers: Any = {QUEUE: None, "event.idle": None}
    return HistoryRecorder(store, tallies, consumers, worker="w", windows=Windows())


def _complete(tallies: Tallies, count: int, *, ran: float = 0.0, queue: str = QUEUE) -> None:
    for _ in range(count):
        tallies.note(
            Job("a", "w:1", queue, "", 0, 0, 0, 0, 0, began=clock.monotonic() - ran), jobs.complete("1")
        )


async def _sum(store: Store, code: int, queue: str = QUEUE) -> int:
    _, cells = await store.history.look(queue, "hours", 2)
    return sum(cell.get(code, 0) for cell in cells.values())


async def test_a_call_whose_answer_is_lost_is_made_again_and_counts_once(
    store: Store, tallies: Tallies, recorder: HistoryRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`tally-not-answered`"""
    await recorder.run_once()
    send, lost = store.history.tally, [True, True]

    async def lose(*given: Any, **options: Any) -> str:
        word = await send(*given, **options)
        if lost:
            lost.pop()
            raise StoreUnavailable("no answer", sent=True)
        return word

    monkeypatch.setattr(store.history, "tally", lose)
    _complete(tallies, 3)
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await recorder.run_once()
        _complete(tallies, 4)
        assert await _sum(store, COMPLETED) == 3
    await recorder.run_once()
    assert await _sum(store, COMPLETED) == 11


async def test_what_a_full_server_refuses_is_sent_later(
    store: Store, tallies: Tallies, recorder: HistoryRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: Any, **__: Any) -> str:
        raise StoreRefused("OOM command not allowed", code="OOM")

    _complete(tallies, 2)
    with monkeypatch.context() as patch:
        patch.setattr(store.history, "tally", refuse)
        with pytest.raises(StoreRefused):
            await recorder.run_once()
    await recorder.run_once()
    assert await _sum(store, COMPLETED) == 2


async def test_a_stop_does_not_wait_long_for_charts(
    store: Store, tallies: Tallies, recorder: HistoryRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`tallies-lost`"""

    async def hang(*_: Any, **__: Any) -> str:
        return await asyncio.get_running_loop().create_future()

    _complete(tallies, 2)
    monkeypatch.setattr(store.history, "tally", hang)
    await recorder.finish()
    monkeypatch.undo()
    assert await _sum(store, COMPLETED) == 0


async def test_many_queues_take_several_calls_each_with_a_number_of_its_own(
    store: Store, tallies: Tallies, recorder: HistoryRecorder
) -> None:
    names = [f"event.q{number}" for number in range(120)]
    for name in names:
        _complete(tallies, 1, queue=name)
    await recorder.run_once()
    assert [await _sum(store, COMPLETED, name) for name in names] == [1] * 120


async def test_a_look_tells_how_many_wait_and_how_old_the_oldest_is_and_nothing_of_an_idle_queue(
    store: Store, recorder: HistoryRecorder
) -> None:
    shard = Shard(store)
    await shard.add(row("a"), row("b"))
    shard.now += 7000
    await recorder.run_once(looks=True, now_ms=shard.now)
    await recorder.run_once(looks=True, now_ms=shard.now)
    _, cells = await store.history.look(QUEUE, "minutes", 1, now=shard.now)
    assert list(cells.values()) == [{WAITING: 2, OLDEST: 7000}]
    assert await shard.command("KEYS", shard.key("*", "event.idle:*")) == []


async def test_an_idle_worker_says_once_that_a_history_is_kept_and_then_nothing(
    store: Store, recorder: HistoryRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    await recorder.run_once(looks=True)
    root, shard = store.keys.root, Shard(store)
    names = await shard.command("KEYS", root.replace("{", "[{]").replace("}", "[}]") + ":*")
    assert sorted(name[len(root) + 1 :] for name in names) == ["history", "queues", "tally:w"]
    assert await shard.command("GET", shard.shard_key("history")) == "172800000 7776000000"
    monkeypatch.setattr(store.history, "tally", None)
    await recorder.run_once(looks=True)


async def test_the_p95_of_600_known_jobs_is_within_a_quarter_and_their_number_exact(
    store: Store,
    tallies: Tallies,
    recorder: HistoryRecorder,
    make_provider: MakeProvider,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    still = clock.monotonic()
    monkeypatch.setattr(clock, "monotonic", lambda: still)
    durations = sorted(random.Random(5).choices(range(2, 5000), k=600))
    for ms in durations:
        _complete(tallies, 1, ran=(ms + 0.5) / 1000)
    monkeypatch.undo()
    await recorder.run_once()
    async with make_provider() as provider:
        for step in ("1m", "1h"):
            found = await provider.inspector.queues.history(QUEUE, step=step, last="2 hours")
            runs = Histogram.total(each.runs for each in found)
            assert sum(each.completed for each in found) == runs.count == 600
            p95, true = runs.p95, durations[569] / 1000
            assert p95 is not None
            assert abs(p95 - true) <= 0.25 * true
