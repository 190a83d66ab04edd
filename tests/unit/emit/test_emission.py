"""The emission handle alone: it settles once, every waiter gets the outcome, and no wait breaks another."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import MutableMapping
from typing import Any

import pytest

from eventbus import EmitError, Event, HandlerError, JobCancelled, PayloadError, ProviderStopped, UsageError
from eventbus.emit.emission import Emission, PendingEmission
from eventbus.emit.route import Route
from eventbus.model.durations import Duration
from eventbus.settings.settings import Settings
from eventbus.telemetry.failure import describe


class NoOwner:
    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.failed: list[Exception] = []

    def note_failed(self, emission: Emission[Any], error: Exception) -> None:
        self.failed.append(error)

    def count_lost(self, event: str) -> int:
        return 1

    def overdue(self, emission: Emission[Any]) -> None:
        raise AssertionError("no deadline was set")

    async def cancel(
        self, job_id: str, reason: str, *, queue: str = "", call_timeout: Duration | None = None
    ) -> bool:
        raise AssertionError("nobody cancels here")


def _make(*, reply: bool = True, result: Any = Any) -> PendingEmission[Any]:
    route = Route(Event("ask", result=result), Settings())
    return PendingEmission(route, NoOwner(), "0-a-1", "0-a-1", None, reply=reply)


async def test_the_first_settlement_wins() -> None:
    emission = _make()
    emission.settle("completed", "5")
    emission.settle("completed", "6")
    emission.fail(ValueError("late"))
    assert [await emission, await emission] == [5, 5]


async def test_a_result_is_decoded_when_it_is_asked_for_and_a_bad_one_raises_each_time() -> None:
    emission = _make(result=int)
    emission.settle("completed", '"text"')
    for _ in range(2):
        with pytest.raises(PayloadError):
            await emission


async def test_fire_and_forget_is_done_when_it_is_enqueued() -> None:
    emission = _make(reply=False)
    assert not emission.done()
    emission.mark_enqueued()
    assert emission.done()
    assert await emission is None


async def test_a_refusal_reaches_those_who_wait_for_the_enqueue() -> None:
    emission = _make()
    waits = [asyncio.create_task(emission.enqueued()) for _ in range(2)]
    await asyncio.sleep(0)
    emission.fail(EmitError("no room", event="ask", job_id="0-a-1"))
    for each in await asyncio.gather(*waits, return_exceptions=True):
        assert isinstance(each, EmitError)
    with pytest.raises(EmitError):
        await emission


async def test_an_outcome_that_overtakes_the_answer_to_the_add_is_none_of_the_enqueue() -> None:
    emission = _make()
    waiting = asyncio.create_task(emission.enqueued())
    await asyncio.sleep(0)
    emission.settle("failed", describe(ValueError("no"), attempts=1, event="ask"))
    await waiting
    await emission.enqueued()
    assert emission.send_error is None
    with pytest.raises(HandlerError, match="no"):
        await emission


async def test_an_error_after_the_enqueue_is_none_of_the_enqueue() -> None:
    emission = _make()
    emission.mark_enqueued()
    emission.fail(ProviderStopped("stopped"))
    await emission.enqueued()
    with pytest.raises(ProviderStopped):
        await emission


async def test_a_waiter_cancelled_in_the_tick_of_the_outcome_breaks_nothing() -> None:
    emission = _make()

    async def wait() -> Any:
        return await emission

    tasks = [asyncio.create_task(wait()) for _ in range(3)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    emission.settle("completed", "1")
    tasks[1].cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert isinstance(results[1], asyncio.CancelledError)
    assert results[2] == 1


async def test_it_knows_that_its_job_was_cancelled() -> None:
    emission = _make()
    emission.settle("cancelled", '{"type": "JobCancelled", "message": "user left"}')
    assert (emission.done(), emission.cancelled()) == (True, True)
    with pytest.raises(JobCancelled, match="user left") as caught:
        await emission
    assert caught.value.reason == "user left"


@pytest.mark.parametrize("is_heard", [True, False])
async def test_only_a_failure_that_nobody_heard_is_logged(
    is_heard: bool, logs: list[MutableMapping[str, Any]]
) -> None:
    emission = _make()
    emission.settle("failed", describe(ValueError("no"), attempts=1))
    if is_heard:
        await asyncio.gather(emission, return_exceptions=True)
    del emission
    gc.collect()
    assert [each["event"] for each in logs] == ([] if is_heard else ["emission failed and nobody awaited it"])


async def test_an_error_raised_twice_does_not_grow() -> None:
    emission = _make()
    emission.fail(ValueError("no"))
    depths: list[int] = []
    for _ in range(3):
        with pytest.raises(ValueError, match="no") as caught:
            await emission
        depths.append(len(caught.traceback))
    assert len(set(depths)) == 1


async def test_in_another_event_loop_a_wait_says_so_and_what_is_known_is_told() -> None:
    waiting, enqueued, done = _make(), _make(), _make()
    enqueued.mark_enqueued()
    done.settle("completed", "5")

    async def use() -> None:
        for wait in (
            _outcome_of(waiting),
            waiting.enqueued(),
            waiting.cancel(),
            enqueued.cancel(),
            done.cancel(),
        ):
            with pytest.raises(UsageError, match="belongs to another event loop or process; await it where"):
                await wait
        with pytest.raises(UsageError):
            await enqueued
        await enqueued.enqueued()
        assert await done == 5

    await asyncio.to_thread(asyncio.run, use())
    waiting.settle("completed", "6")
    assert await waiting == 6


async def test_a_wait_for_an_event_loop_that_has_ended_says_so() -> None:
    async def emit() -> Emission[Any]:
        return _make()

    emission = await asyncio.to_thread(asyncio.run, emit())
    with pytest.raises(ProviderStopped, match="loop that emitted ask has ended") as caught:
        await emission
    assert caught.value.job_id == emission.job_id


async def _outcome_of(emission: Emission[Any]) -> Any:
    return await emission
