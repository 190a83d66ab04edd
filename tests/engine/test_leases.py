"""Leases: kept while the process lives, lost and rescued when it does not."""

from __future__ import annotations

import asyncio
import re
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, MutableMapping
from contextlib import contextmanager
from typing import Any

import pytest
from drivers.records import read_record

from eventbus import EventContext, EventProvider, StalledError
from eventbus.engine.lease_keeper import LeaseKeeper
from eventbus.errors import StoreUnavailable

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]
Logs = list[MutableMapping[str, Any]]


@contextmanager
def _in_another_loop(provider: EventProvider, *, after: threading.Event) -> Generator[None]:
    """Run a worker of `provider` in a thread, so that it goes on when this loop is blocked."""
    over = threading.Event()

    async def serve() -> None:
        await asyncio.to_thread(after.wait)
        async with provider.worker():
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        yield
    finally:
        after.set()
        over.set()
        thread.join()


def _keeper(worker: Any) -> LeaseKeeper:
    return worker._worker.leases


@pytest.fixture
async def emitter(make_provider: MakeProvider) -> AsyncIterator[EventProvider]:
    """Emits, and runs nothing."""
    async with make_provider() as emitter:
        yield emitter


@pytest.mark.real
async def test_a_blocked_event_loop_keeps_its_job_and_the_log_shows_what_blocks_it(
    make_provider: MakeProvider, emitter: EventProvider, logs: Logs
) -> None:
    provider, other = make_provider(lease=0.5), make_provider(lease=0.5)
    runs: list[int] = []
    began = threading.Event()

    async def block_the_loop(n: int) -> int:
        runs.append(n)
        began.set()
        time.sleep(1.7)  # noqa: ASYNC251  (what this test is about)
        return n

    provider.on("ask")(block_the_loop)
    other.on("ask")(block_the_loop)
    async with provider.worker():
        with _in_another_loop(other, after=began):
            assert await emitter.emit("ask", 1) == 1
    assert runs == [1]
    (entry,) = [each for each in logs if each["event"].startswith("event loop blocked")]
    assert re.findall(r"line \d+, in (\w+)", entry["stack"]) == ["block_the_loop"]
    assert (entry["event_name"], entry["queue"], entry["attempt"]) == ("ask", "event.ask", 1)
    assert entry["job_id"].startswith("0-")
    assert not [each for each in logs if "stalled" in each["event"]]


@pytest.mark.real
async def test_what_blocks_in_a_task_of_a_handler_is_told_as_its_job(
    make_provider: MakeProvider, emitter: EventProvider, logs: Logs
) -> None:
    provider = make_provider()

    @provider.on("ask")
    async def ask(_: Any) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(block())

    async def block() -> None:
        time.sleep(1.7)  # noqa: ASYNC251  (what this test is about)

    async with provider.worker():
        emission = emitter.emit("ask")
        await emission
    (entry,) = [each for each in logs if each["event"].startswith("event loop blocked")]
    assert re.findall(r"line \d+, in (\w+)", entry["stack"]) == ["block"]
    if sys.version_info >= (3, 12):
        assert (entry["event_name"], entry["job_id"]) == ("ask", emission.job_id)
    else:  # a task does not tell its context there
        assert entry["running"] == [f"event.ask {emission.job_id}"]


@pytest.mark.real
async def test_what_blocks_outside_of_any_job_is_told_with_some_of_those_that_run(
    make_provider: MakeProvider, emitter: EventProvider, logs: Logs
) -> None:
    provider = make_provider()
    began, go = asyncio.Semaphore(0), asyncio.Event()

    @provider.on("ask")
    async def ask(_: Any) -> None:
        began.release()
        await go.wait()

    async with provider.worker():
        emissions = emitter.emit_many("ask", range(7))
        for _ in emissions:
            await began.acquire()
        end = time.monotonic() + 240
        while time.monotonic() < end and not any(
            each["event"].startswith("event loop blocked") for each in logs
        ):
            time.sleep(0.1)  # noqa: ASYNC251  (what this test is about)
        go.set()
        await asyncio.gather(*emissions)
    (entry,) = [each for each in logs if each["event"].startswith("event loop blocked")]
    assert entry["running_count"] == 7
    assert len(entry["running"]) == 5
    assert set(entry["running"]) < {f"event.ask {each.job_id}" for each in emissions}


@pytest.mark.real
@pytest.mark.slow
async def test_a_loop_that_hangs_too_long_gives_its_job_up(
    make_provider: MakeProvider, emitter: EventProvider
) -> None:
    provider, other = make_provider(lease=0.5, hang_after=1.5), make_provider(lease=0.5)
    began, taken = threading.Event(), threading.Event()

    @provider.on("ask")
    async def hang(_: Any) -> str:
        began.set()
        taken.wait(240)
        return "hung"

    @other.on("ask")
    async def take(_: Any, ctx: EventContext) -> str:
        taken.set()
        return f"taken at attempt {ctx.attempt}"

    async with provider.worker():
        with _in_another_loop(other, after=began):
            assert await emitter.emit("ask") == "taken at attempt 1"
    assert taken.is_set()


async def test_the_jobs_of_a_worker_that_renews_no_more_are_run_by_another_and_its_outcome_is_refused(
    make_provider: MakeProvider, emitter: EventProvider, until: Until, logs: Logs
) -> None:
    provider, other = make_provider(lease=0.5), make_provider(lease=0.5)
    began, go = asyncio.Event(), asyncio.Event()

    @provider.on("ask")
    async def first(_: Any) -> str:
        began.set()
        await go.wait()
        return "the first"

    @other.on("ask")
    async def second(_: Any, ctx: EventContext) -> list[Any]:
        return ["the second", ctx.attempt]

    async with provider.worker() as worker:
        emission = emitter.emit("ask")
        await began.wait()
        await _keeper(worker).aclose()
        async with other.worker():
            assert await asyncio.wait_for(emission, 240) == ["the second", 1]
        go.set()
        await until(lambda: worker.health().refused == 1, "its outcome was refused and counted")
        assert await emitter.result(emission.job_id) == ["the second", 1]
    assert {each["job_id"] for each in logs if each["event"] == "job stalled, given back"} == {
        emission.job_id
    }


async def test_a_worker_that_is_alone_and_renews_no_more_rescues_all_the_same(
    make_provider: MakeProvider, emitter: EventProvider
) -> None:
    provider = make_provider(lease=1)
    began = asyncio.Event()

    @provider.on("ask")
    async def hang_once(n: int, ctx: EventContext) -> int:
        if not began.is_set():
            began.set()
            await asyncio.Event().wait()
        return n

    async with provider.worker() as worker:
        emission = emitter.emit("ask", 1)
        await began.wait()
        await _keeper(worker).aclose()
        assert await asyncio.wait_for(emission, 240) == 1


async def test_a_stall_is_logged_with_who_held_the_job_and_how_it_was(
    make_provider: MakeProvider, emitter: EventProvider, logs: Logs
) -> None:
    provider, other = make_provider(lease=0.5), make_provider(lease=0.5)
    began = asyncio.Event()

    @provider.on("ask")
    async def hang_once(n: int) -> int:
        if not began.is_set():
            began.set()
            await asyncio.Event().wait()
        return n

    other.on("else")(lambda n: n)
    async with provider.worker() as worker, other.worker():  # the other is heard, and so can rescue
        emission = emitter.emit("ask", 1)
        await began.wait()
        await _keeper(worker).aclose()
        assert await asyncio.wait_for(emission, 240) == 1
    entry = next(each for each in logs if each["event"] == "job stalled, given back")
    assert (entry["job_id"], entry["holder"]) == (emission.job_id, worker.id)
    assert entry["renewed_ago"] >= 0.5
    assert entry["loop_lag"] < 5


@pytest.mark.parametrize("is_known", [True, False])
async def test_a_job_that_stalls_too_often_fails_and_the_log_says_which(
    make_provider: MakeProvider, emitter: EventProvider, logs: Logs, until: Until, is_known: bool
) -> None:
    provider, other = make_provider(lease=0.5, grace=0), make_provider(lease=0.5, max_stalls=0)
    began = asyncio.Event()

    @provider.on("ask")
    async def hang(_: Any) -> None:
        began.set()
        await asyncio.Event().wait()

    other.on("ask" if is_known else "else")(lambda n: n)
    async with provider.worker() as worker:
        emission = emitter.emit("ask", "secret", correlation_id="req-1")
        await began.wait()
        await _keeper(worker).aclose()
        worker._worker._rescuer.run_once = _never  # the other one is to judge
        async with other.worker():
            with pytest.raises(StalledError) as caught:
                await asyncio.wait_for(emission, 240)
            told = "job stalled too often, failed"
            await until(lambda: told in {each["event"] for each in logs}, "it is logged")
        assert (caught.value.stalls, caught.value.job_id) == (1, emission.job_id)
        assert worker.id in str(caught.value)
    (entry,) = [each for each in logs if each["event"] == told]
    assert (entry["job_id"], entry["queue"]) == (emission.job_id, "event.ask")
    if is_known:
        assert (entry["event_name"], entry["attempt"], entry["correlation_id"]) == ("ask", 1, "req-1")
    assert "secret" not in str(entry)


async def _never(**_: Any) -> float:
    return 60.0


async def test_a_lease_that_somebody_else_holds_cancels_the_handler_and_nothing_is_recorded(
    make_provider: MakeProvider, emitter: EventProvider, admin: Callable[..., Any], prefix: str, logs: Logs
) -> None:
    provider = make_provider(lease=0.5)
    began: asyncio.Queue[str] = asyncio.Queue()
    ended = asyncio.Event()

    @provider.on("ask")
    async def ask(_: Any, ctx: EventContext) -> None:
        began.put_nowait(ctx.job_id)
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with provider.worker() as worker:
        emission = emitter.emit("ask", reply_timeout=None)
        job, (held,) = await began.get(), admin("KEYS", f"{prefix}:2:{{0}}:held:*")
        admin("HSET", held, job, "0" * 15 + "another:999")  # a call whose answer is on its way
        await asyncio.wait_for(ended.wait(), 240)
        record = read_record(admin, f"{prefix}:2:{{0}}:job:{job}")
        assert (record["state"], emission.done()) == ("waiting", False)
        assert worker.health().refused == 0
    assert "lease lost, handler cancelled" in {each["event"] for each in logs}


async def test_a_renewal_that_overtakes_an_attempt_does_not_hit_the_next_one(
    make_provider: MakeProvider, emitter: EventProvider
) -> None:
    from eventbus import Retry

    provider = make_provider(retry=Retry(attempts=2, delay=0))
    tokens: list[tuple[str, str]] = []

    @provider.on("ask")
    async def ask(_: Any, ctx: EventContext) -> int:
        tokens.append((ctx.job_id, ctx._own.job.token))  # pyright: ignore[reportPrivateUsage]
        if ctx.attempt == 1:
            raise ValueError
        worker._worker.claimer.executor.lose(tokens[:1])  # what the thread found lost then
        await asyncio.sleep(0)
        return ctx.attempt

    async with provider.worker() as worker:
        assert await emitter.emit("ask") == 2
    assert tokens[0] != tokens[1]


@pytest.mark.real
async def test_a_renewal_that_gets_no_answer_is_tried_again(
    make_provider: MakeProvider, emitter: EventProvider, logs: Logs, until: Until, admin: Callable[..., Any]
) -> None:
    provider = make_provider(lease=0.5, name="cut")
    go = asyncio.Event()

    @provider.on("ask")
    async def ask(n: int) -> int:
        await go.wait()
        return n

    async with provider.worker() as worker:
        emission = emitter.emit("ask", 1)
        await until(lambda: worker.claimed, "the job runs")

        def is_cut_and_noticed() -> bool:  # the first renewal may have been before the job, or not yet
            for line in admin("CLIENT", "LIST").splitlines():
                if " name=cut-lease " in line:
                    admin("CLIENT", "KILL", "ID", line.split("id=", 1)[1].split(" ", 1)[0])
            return any("leases not renewed" in each["event"] for each in logs)

        await until(is_cut_and_noticed, "it was noticed")
        renewed = time.monotonic() + 0.7
        await until(lambda: time.monotonic() > renewed, "more than a lease has passed")
        go.set()
        assert await emission == 1
    assert not [each for each in logs if "stalled" in each["event"] or "lost" in each["event"]]


class _Unheard:
    """A lease connection that gets no answer."""

    def __init__(self) -> None:
        self.tries = 0

    def renew(self, *_rows: Any, **_facts: Any) -> Any:
        self.tries += 1
        raise StoreUnavailable("nobody answers", address="nowhere")


async def test_renewals_that_fail_are_logged_once_and_only_while_jobs_are_held(
    make_provider: MakeProvider,
    emitter: EventProvider,
    logs: Logs,
    until: Until,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    provider = make_provider(lease=2)
    go = asyncio.Event()

    @provider.on("ask")
    async def ask(n: int) -> int:
        await go.wait()
        return n

    def logged(event: str) -> int:
        return sum(each["event"] == event for each in logs)

    async with provider.worker() as worker:
        unheard = _Unheard()
        with monkeypatch.context() as patch:
            patch.setattr(_keeper(worker), "_leases", unheard)
            await until(lambda: unheard.tries >= 2, "renewals failed without a job")
            assert not logged("leases not renewed, trying again")
            emission = emitter.emit("ask", 1)
            await until(lambda: worker.claimed, "the job runs")
            tries = unheard.tries
            await until(lambda: unheard.tries >= tries + 4, "renewals failed with a job")
            assert logged("leases not renewed, trying again") == 1
        await until(lambda: logged("leases renewed again"), "a renewal succeeded")
        go.set()
        assert await emission == 1
    assert logged("leases not renewed, trying again") == 1
