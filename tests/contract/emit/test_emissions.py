"""The emission handle: waiting, cancelling the wait, and outcomes that nobody awaits."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

import pytest

from eventbus import EventProvider, HandlerError, ProviderStopped, Retry, UnknownJob, UsageError

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]
Logs = list[MutableMapping[str, Any]]


class Desk:
    """A provider whose handler `ask` waits until the test lets it go on."""

    def __init__(self, provider: EventProvider) -> None:
        self.provider = provider
        self.go = asyncio.Event()
        self.runs = 0

        @provider.on("ask", concurrency=100)
        async def ask(given: Any) -> Any:
            self.runs += 1
            await self.go.wait()
            if given == "fail":
                raise ValueError("told to")
            return given


@pytest.fixture
async def desk(make_provider: MakeProvider) -> AsyncIterator[Desk]:
    desk = Desk(make_provider(retry=Retry(attempts=1)))
    async with desk.provider.worker():
        yield desk
        desk.go.set()


async def test_it_tells_its_state(desk: Desk) -> None:
    emission = desk.provider.emit("ask", 1)
    assert "sending" in repr(emission)
    await emission.enqueued()
    await emission.enqueued()
    assert (emission.done(), emission.cancelled(), emission.event) == (False, False, "ask")
    assert "enqueued" in repr(emission)
    desk.go.set()
    assert await emission == 1
    assert (emission.done(), emission.cancelled()) == (True, False)
    assert "done" in repr(emission)


async def test_any_number_may_wait_and_each_hears_the_outcome(desk: Desk) -> None:
    emission, failing = desk.provider.emit("ask", {"a": 1}), desk.provider.emit("ask", "fail")

    async def wait(which: Any) -> Any:
        return await which

    waits = [asyncio.create_task(wait(emission)) for _ in range(3)]
    others = [asyncio.create_task(wait(failing)) for _ in range(3)]
    await failing.enqueued()
    desk.go.set()
    assert await asyncio.gather(*waits) == [{"a": 1}] * 3
    errors = await asyncio.gather(*others, return_exceptions=True)
    assert [type(each) for each in errors] == [HandlerError] * 3
    assert await emission == {"a": 1}


async def test_cancelling_one_waiter_cancels_nothing_else(desk: Desk) -> None:
    emission = desk.provider.emit("ask", 1)

    async def wait() -> Any:
        return await emission

    first, second = asyncio.create_task(wait()), asyncio.create_task(wait())
    await emission.enqueued()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    desk.go.set()
    assert await second == 1
    assert desk.runs == 1


async def test_wait_for_may_be_tried_again(desk: Desk) -> None:
    emission = desk.provider.emit("ask", 1)
    for _ in range(2):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(emission, 0.01)
    desk.go.set()
    assert await asyncio.wait_for(emission, 240) == 1


async def test_it_works_with_the_functions_of_asyncio(desk: Desk) -> None:
    desk.go.set()
    emissions = desk.provider.emit_many("ask", range(5))
    assert await asyncio.gather(*emissions) == [0, 1, 2, 3, 4]
    assert sorted([await each for each in asyncio.as_completed(emissions)]) == [0, 1, 2, 3, 4]


async def test_a_failure_that_nobody_awaits_is_logged_once_and_is_no_warning(
    desk: Desk, logs: Logs, until: Until
) -> None:
    reported: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    emission = desk.provider.emit("ask", "fail")
    job_id, dropped = emission.job_id, weakref.ref(emission)
    del emission
    desk.go.set()
    unheard = "emission failed and nobody awaited it"

    def has_ended() -> bool:
        return (emission := dropped()) is None or emission.done()

    await until(has_ended, "it ended")
    gc.collect()  # once, and not while it is waited for: with many objects it takes all the time there is
    await until(lambda: any(each["event"] == unheard for each in logs), "it was logged")
    (entry,) = [each for each in logs if each["event"] == unheard]
    assert (entry["job_id"], entry["event_name"]) == (job_id, "ask")
    assert "told to" in entry["error"]
    assert reported == []
    asyncio.get_running_loop().set_exception_handler(None)


async def test_a_failure_that_nobody_awaits_is_logged_by_the_stop_while_a_variable_holds_it(
    make_provider: MakeProvider, logs: Logs
) -> None:
    provider = make_provider(retry=Retry(attempts=1), grace=0)

    @provider.on("ask")
    async def ask(given: Any) -> Any:
        if given == "wait":
            await asyncio.Event().wait()
        raise ValueError(given)

    async with provider, provider.worker():
        held = [provider.emit("ask", given) for given in ("unheard", "heard", "wait", "wait")]
        cancelled = provider.emit("ask", 1, delay=60)
        await cancelled.cancel()
        with pytest.raises(HandlerError):
            await held[1]
        while not (held[0].done() and cancelled.done()):  # noqa: ASYNC110  (nobody may await it)
            await asyncio.sleep(0.002)
    told = [(each["event"], each["job_id"]) for each in logs if "nobody" in each["event"]]
    assert told == [("emission failed and nobody awaited it", held[0].job_id)]
    with pytest.raises(HandlerError):  # it may still be asked for
        await held[0]
    with pytest.raises(ProviderStopped):
        await held[2]
    held.clear()
    del cancelled
    gc.collect()
    assert sum("nobody" in each["event"] for each in logs) == 1


async def test_a_failure_that_was_heard_is_not_logged(desk: Desk, logs: Logs) -> None:
    desk.go.set()
    emission = desk.provider.emit("ask", "fail")
    with pytest.raises(HandlerError):
        await emission
    del emission
    gc.collect()
    assert not [each for each in logs if "nobody" in each["event"]]


async def test_a_result_that_nobody_awaits_is_nothing_to_report(desk: Desk, logs: Logs) -> None:
    desk.go.set()
    emission = desk.provider.emit("ask", 1)
    await asyncio.wait_for(emission, 240)
    other = desk.provider.emit("ask", 2)
    await desk.provider.emit("ask", 3)
    del other, emission
    gc.collect()
    assert not [each for each in logs if each["log_level"] in ("warning", "error")]


async def test_fire_and_forget_waits_for_the_enqueue_alone(desk: Desk, until: Until) -> None:
    emission = desk.provider.emit("ask", "fail", reply=False)
    assert await emission is None
    assert emission.done()
    await until(lambda: desk.runs == 1, "it runs all the same")
    desk.go.set()
    with pytest.raises(HandlerError):
        await desk.provider.result(emission.job_id)


async def test_a_result_is_there_by_its_id_for_other_providers(
    desk: Desk, make_provider: MakeProvider
) -> None:
    async with make_provider() as other:
        emission = desk.provider.emit("ask", {"n": 1})
        await emission.enqueued()
        waits = [asyncio.create_task(other.result(emission.job_id)) for _ in range(2)]
        desk.go.set()
        assert await asyncio.gather(*waits) == [{"n": 1}] * 2
        assert await other.result(emission.job_id) == {"n": 1}
        assert await desk.provider.result(emission.job_id) == {"n": 1}


async def test_a_large_result_is_read_from_its_record(desk: Desk, make_provider: MakeProvider) -> None:
    desk.go.set()
    large = "x" * 300_000
    emissions = desk.provider.emit_many("ask", [large] * 20)
    for each in emissions:
        assert await each == large
    async with make_provider() as other:
        assert await other.result(emissions[0].job_id) == large


async def test_an_unknown_id_is_told_so(desk: Desk) -> None:
    with pytest.raises(UnknownJob, match="no record of job '0-nobody-1'") as caught:
        await desk.provider.result("0-nobody-1")
    assert caught.value.job_id == "0-nobody-1"


@pytest.mark.parametrize("job_id", [None, 5, b"0-a-1"])
async def test_what_is_no_text_is_refused_as_an_id(desk: Desk, job_id: Any) -> None:
    with pytest.raises(UsageError, match="expected a job id"):
        await desk.provider.result(job_id)


@pytest.mark.parametrize("job_id", ["\ud800", ""])
async def test_text_that_can_be_no_id_is_that_of_no_job(desk: Desk, job_id: str) -> None:
    with pytest.raises(UnknownJob, match="is no id of a job; expected a job id"):
        await desk.provider.result(job_id)


async def test_nobody_is_left_in_the_tracker_after_a_cancelled_wait_for_a_result(desk: Desk) -> None:
    emission = desk.provider.emit("ask", 1)
    await emission.enqueued()
    task = asyncio.create_task(desk.provider.result(emission.job_id))
    await desk.provider.emit("ask", 2, reply=False)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert desk.provider._life.emitter is not None  # pyright: ignore[reportPrivateUsage]
    assert desk.provider._life.emitter.tracker.waiting == 1  # pyright: ignore[reportPrivateUsage]


async def test_emit_from_another_thread_is_refused_with_the_way_out(desk: Desk) -> None:
    caught: list[BaseException] = []

    def emit() -> None:
        try:
            desk.provider.emit("ask", 1)
        except UsageError as error:
            caught.append(error)

    thread = threading.Thread(target=emit)
    thread.start()
    await asyncio.to_thread(thread.join)
    assert "use provider.sync" in str(caught[0])


async def test_a_wait_in_another_event_loop_is_refused_at_once(desk: Desk) -> None:
    emission = desk.provider.emit("ask", 1)
    await emission.enqueued()

    async def use() -> None:
        for wait in (emission, emission.cancel()):
            with pytest.raises(UsageError, match=r"another event loop .* provider\.sync\.result"):
                await wait

    await asyncio.to_thread(asyncio.run, use())
    result = asyncio.create_task(asyncio.to_thread(desk.provider.sync.result, emission.job_id))
    desk.go.set()
    assert (await emission, await result) == (1, 1)
