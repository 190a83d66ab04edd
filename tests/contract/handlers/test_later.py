"""`raise Later(...)`: a job that is put off by its handler, without an attempt and without an error."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from importable import process_handlers
from structlog.testing import capture_logs

from eventbus import DefinitionError, Event, EventContext, EventProvider, Later, Retry
from eventbus.model import clock

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]


@pytest.mark.parametrize("where", ["async", "thread", pytest.param("process", marks=pytest.mark.real)])
async def test_a_job_that_is_put_off_runs_again_without_an_attempt_or_an_error(
    make_provider: MakeProvider, tmp_path: Any, where: str
) -> None:
    provider = make_provider(retry=Retry(1))

    async def in_loop(folder: str, ctx: EventContext) -> list[int]:
        return process_handlers.wait_twice(folder, ctx)

    handler: Any = {"async": in_loop, "thread": process_handlers.wait_in_thread}.get(
        where, process_handlers.wait_twice
    )
    provider.on("poll", pool="process" if where == "process" else None)(handler)
    with capture_logs() as logs:
        async with provider.worker():
            emission = provider.emit("poll", str(tmp_path))
            assert await emission == [1, 1, 1], "each run is the first attempt"
            report = await provider.inspector.jobs.get(emission.job_id)
    assert (report.attempts, report.stalls, report.failures) == (0, 0, [])
    of_jobs = [each for each in logs if "job_id" in each]
    assert [each["event"] for each in of_jobs if each["log_level"] in ("warning", "error")] == []


async def test_it_is_delayed_meanwhile_and_keeps_its_key_and_priority(
    make_provider: MakeProvider, until: Until
) -> None:
    provider = make_provider()
    runs: list[str] = []

    @provider.on("poll")
    async def poll(payload: str, ctx: EventContext) -> str:
        runs.append(payload)
        if len(runs) == 1:
            raise Later("5 minutes")
        return payload

    async with provider.worker():
        before = clock.now() * 1000
        first = provider.emit("poll", "a", idempotency_key="k", priority=-5)
        await until(lambda: runs == ["a"], "it ran once")

        async def is_delayed() -> bool:
            return (await provider.inspector.jobs.get(first.job_id)).state == "delayed"

        await _wait(is_delayed)
        report = await provider.inspector.jobs.get(first.job_id)
        assert 290_000 < report.due_ms - before < 400_000
        second = provider.emit("poll", "a", idempotency_key="k")
        await second.enqueued()
        assert second.job_id == first.job_id, "the key still stands for this job"
        assert await first.cancel("enough")
        assert runs == ["a"]


async def test_a_ttl_counts_until_the_first_start(make_provider: MakeProvider, until: Until) -> None:
    provider, other = make_provider(), make_provider()
    short = Event("short", payload=int, result=int, ttl="100ms")
    runs: list[int] = []

    async def run(n: int) -> int:
        runs.append(n)
        if len(runs) == 1:
            raise Later("10ms")
        return n

    provider.on(short)(run)
    other.on(short)(run)
    async with other:
        async with provider.worker():
            emission = other.emit(short, 1)
            await until(lambda: runs == [1], "it began within its ttl")
            await provider.unsubscribe(short)

        async def is_over() -> bool:
            report = await other.inspector.jobs.get(emission.job_id)
            return 0 < report.due_ms < clock.now() * 1000 - 300

        await _wait(is_over)
        async with other.worker():
            assert await emission == 1, "it waited longer than its ttl after it was put off"


async def test_a_handler_that_is_put_off_gives_its_slot_free(make_provider: MakeProvider) -> None:
    provider = make_provider()
    seen: list[str] = []

    @provider.on("poll", concurrency=1)
    async def poll(name: str) -> str:
        seen.append(name)
        if name == "late" and seen.count("late") < 2:
            raise Later("50ms")
        return name

    async with provider.worker():
        late, other = provider.emit("poll", "late"), provider.emit("poll", "other")
        assert [await late, await other] == ["late", "other"]
    assert seen == ["late", "other", "late"]


async def test_it_passes_the_middleware_as_an_exception(make_provider: MakeProvider) -> None:
    provider = make_provider()
    passed: list[float] = []

    @provider.use
    async def around(payload: Any, _: EventContext, call: Any) -> Any:
        try:
            return await call(payload)
        except Later as error:
            passed.append(error.delay)
            raise

    @provider.on("poll")
    async def poll(n: int) -> int:
        if not passed:
            raise Later(0)
        return n

    async with provider.worker():
        assert await provider.emit("poll", 1) == 1
    assert passed == [0.0]


@pytest.mark.parametrize("delay", [-1, "soon", None, float("nan")])
def test_a_delay_that_is_no_duration_is_refused(delay: Any) -> None:
    with pytest.raises(DefinitionError, match="expected delay to be"):
        Later(delay)


def test_it_comes_back_from_a_process_pool_of_the_program() -> None:
    later = copy.copy(Later("5 minutes"))  # made anew from its parts, as by pickle
    assert (later.delay, str(later)) == (300.0, "to run again in 300 s")


async def _wait(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(240):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
