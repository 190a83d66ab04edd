"""The executor alone: whatever a handler does, its job is settled once, or not at all if its lease is
lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from eventbus.engine.consumer import Retention
from eventbus.engine.executor import MAX_ABANDONED, Executor
from eventbus.engine.job import Job, Settle, complete, fail

Until = Callable[..., Awaitable[None]]


class Hand:
    """A consumer that runs one function."""

    queue = base = "q"
    group = ""
    concurrency = 10
    follows = ()
    retention = Retention(1, 1, 1, 1, 1)

    def __init__(
        self, work: Callable[[Job], Awaitable[str]], told: list[tuple[str, str]], timeout: float | None = None
    ) -> None:
        self._work = work
        self._told = told
        self._timeout = timeout

    def settled(self, job_id: str, state: str, text: str) -> None:
        pass

    def surround(self) -> None:
        pass

    def facts(self, job: Job) -> dict[str, Any]:
        return {"kind": "hand"}

    def failed(self, job: Job, settle: Settle) -> None:
        self._told.append((job.id, settle.state))

    def timeout_of(self, job: Job) -> float | None:
        return self._timeout

    async def run(self, job: Job) -> Settle:
        return complete(await self._work(job))

    def decide(self, job: Job, error: BaseException) -> Settle:
        return fail(f"{type(error).__name__}: {error}")


class Table:
    """An executor and what it settled."""

    def __init__(self, *, patience: float = 0.03) -> None:
        self.settled: list[tuple[str, str, str]] = []
        self.told: list[tuple[str, str]] = []
        self.executor = Executor(self._note, patience=patience)

    def _note(self, job: Job, settle: Settle) -> None:
        self.settled.append((job.id, settle.state, settle.text))

    def start(self, work: Callable[[Job], Awaitable[str]], job: str = "j", **options: Any) -> Job:
        stop = options.pop("stop", "")
        started = Job(job, options.pop("token", "w:1"), "q", "{}", 0, 0, 0, 0, 0, stop)
        self.executor.start(started, Hand(work, self.told, **options))
        return started

    async def wait_ended(self) -> None:
        assert await self.executor.wait_ended(5)
        assert self.executor.counts["q"] == 0


async def _returns(_: Job) -> str:
    return "1"


async def _hangs(_: Job) -> str:
    await asyncio.Event().wait()
    return "never"


async def test_a_result_and_an_error_are_one_settle_each() -> None:
    async def raises(_: Job) -> str:
        raise ValueError("no")

    table = Table()
    table.start(_returns, "a")
    table.start(raises, "b")
    await table.wait_ended()
    assert table.settled == [("a", "completed", "1"), ("b", "failed", "ValueError: no")]
    assert table.told == [("b", "failed")]


async def test_a_run_past_its_timeout_is_a_failed_attempt_also_if_it_returns_after_all() -> None:
    async def swallows(_: Job) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
        return "too late"

    async def turns(_: Job) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ValueError("on the way out") from None
        return ""

    table = Table()
    for name, work in (("a", _hangs), ("b", swallows), ("c", turns)):
        table.start(work, name, timeout=0.02)
    await table.wait_ended()
    late = "TimeoutError: the handler timed out: it ran longer than its timeout of 0.02 s"
    assert sorted(table.settled) == [(name, "failed", late) for name in "abc"]
    assert sorted(table.told) == [(name, "failed") for name in "abc"]


async def test_a_run_that_ends_in_time_is_not_bothered_by_its_timeout() -> None:
    table = Table()
    table.start(_returns, timeout=0.01)
    await table.wait_ended()
    passed = asyncio.Event()
    asyncio.get_running_loop().call_later(0.05, passed.set)
    await passed.wait()
    assert table.settled == [("j", "completed", "1")]
    assert table.executor.abandoned == 0


async def test_a_handler_that_ignores_its_cancellation_is_given_up_on_and_never_heard_again(
    logs: list[MutableMapping[str, Any]], until: Until
) -> None:
    end, ended = asyncio.Event(), asyncio.Event()

    async def ignores(_: Job) -> str:
        while not end.is_set():
            try:
                await end.wait()
            except asyncio.CancelledError:
                continue
        ended.set()
        return "too late"

    table = Table()
    table.start(ignores, timeout=0.02)
    await table.wait_ended()
    assert [state for _, state, _ in table.settled] == ["failed"]
    assert table.executor.abandoned == 1
    assert [each["event"] for each in logs] == ["handler ignores its cancellation, given up on"]
    assert {"kind": "hand", "job_id": "j", "queue": "q"}.items() <= logs[0].items()
    end.set()
    await ended.wait()
    await until(lambda: len(asyncio.all_tasks()) <= 2, "its task has ended")
    assert len(table.settled) == 1
    assert table.told == [("j", "failed")]


async def test_too_many_that_are_given_up_on_make_the_executor_unhealthy() -> None:
    table = Table(patience=0.0)
    end = asyncio.Event()

    async def ignores(_: Job) -> str:
        while not end.is_set():
            try:
                await end.wait()
            except asyncio.CancelledError:
                continue
        return ""

    for n in range(MAX_ABANDONED):
        assert not table.executor.unhealthy.is_set()
        table.start(ignores, f"j{n}", timeout=0.001)
        await table.wait_ended()
    assert table.executor.unhealthy.is_set()
    end.set()


async def test_a_lost_lease_cancels_and_settles_nothing() -> None:
    table = Table()
    job = table.start(_hangs)
    await asyncio.sleep(0)
    table.executor.lose([(job.id, "another:token"), ("unknown", "w:1")])
    assert table.executor.running
    table.executor.lose([(job.id, job.token)])
    table.executor.lose([(job.id, job.token)])
    await table.wait_ended()
    assert table.settled == []


async def test_a_job_that_comes_back_to_the_worker_that_lost_it_runs_once() -> None:
    table = Table()
    cancelled = asyncio.Event()

    async def hangs(_: Job) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return ""

    table.start(hangs, token="w:1")
    await asyncio.sleep(0)
    table.start(_returns, token="w:2")
    assert table.executor.counts["q"] == 1
    table.executor.lose([("j", "w:1")])  # the old lease: nothing to the new one
    await table.wait_ended()
    await cancelled.wait()
    assert table.settled == [("j", "completed", "1")]


async def test_a_drain_lets_what_can_end_end_and_gives_the_rest_back() -> None:
    go = asyncio.Event()

    async def ends(_: Job) -> str:
        await go.wait()
        return "in time"

    async def fails_when_told(_: Job) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ValueError("interrupted") from None
        return ""

    async def completes_when_told(_: Job) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
        return "all the same"

    table = Table()
    for work in (ends, _hangs, fails_when_told, completes_when_told):
        table.start(work, work.__name__)
    asyncio.get_running_loop().call_soon(go.set)
    await table.executor.drain(0.05)
    assert sorted(table.settled) == [
        ("_hangs", "waiting", "begun"),
        ("completes_when_told", "completed", "all the same"),
        ("ends", "completed", "in time"),
        ("fails_when_told", "waiting", "begun"),
    ]


async def test_a_drain_of_nothing_ends_at_once() -> None:
    table = Table()
    await table.executor.drain(60)
    table.executor.abort()
    assert table.settled == []


async def test_an_abort_cancels_all_and_settles_nothing() -> None:
    table = Table()
    for n in range(5):
        table.start(_hangs, f"j{n}")
    await asyncio.sleep(0)
    table.executor.abort()
    await table.wait_ended()
    assert table.settled == []


async def test_a_job_cancelled_before_its_first_step_ends_at_once() -> None:
    table = Table(patience=5)
    executor = table.executor
    for job in ("c", "l", "s"):
        table.start(_returns, job)
    executor.cancel([("c", "w:1")])
    executor.lose([("l", "w:1")])
    executor.strike(executor.running["s"], "shutdown")
    await asyncio.wait_for(table.wait_ended(), 240)
    assert [(job, state) for job, state, _ in table.settled] == [("c", "cancelled"), ("s", "waiting")]
    assert executor.abandoned == 0


async def test_a_cancelled_handler_that_is_given_up_on_is_given_back_for_the_server_to_judge() -> None:
    end = asyncio.Event()

    async def ignores(_: Job) -> str:
        while not end.is_set():
            try:
                await end.wait()
            except asyncio.CancelledError:
                continue
        return "too late"

    table = Table()
    table.start(ignores)
    await asyncio.sleep(0)
    table.executor.cancel([("j", "w:1")])
    await table.wait_ended()
    assert [(job, state) for job, state, _ in table.settled] == [("j", "waiting")]
    end.set()


async def test_the_root_of_a_stopped_tree_hears_no_cancellation() -> None:
    table, end = Table(), asyncio.Event()

    async def undoes(_: Job) -> str:
        await end.wait()
        return "undone"

    table.start(undoes, stop="cancelled")
    await asyncio.sleep(0)
    table.executor.cancel([("j", "w:1")])  # meant for the run before this one
    end.set()
    await table.wait_ended()
    assert table.settled == [("j", "completed", "undone")]
