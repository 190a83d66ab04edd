"""Attempts end, whatever their function does."""

from __future__ import annotations

import asyncio
import sys
import threading
from contextvars import ContextVar
from typing import Any

import anyio
import pytest

from eventbus.model import clock
from workflows.execution import attempt
from workflows.execution.attempt import AttemptRun, Ended, StillRuns, outlast
from workflows.execution.environment import in_thread

pytestmark = pytest.mark.virtual


class _Function:
    """A function that waits, and ignores its cancellation several times."""

    def __init__(self, ignores: int = 0, *, then: Any = None) -> None:
        self.started = asyncio.Event()
        self.let_go = asyncio.Event()
        self.ended = asyncio.Event()
        self.ignored = 0
        self._ignores = ignores
        self._then = then

    async def __call__(self) -> Any:
        self.started.set()
        try:
            return await self._wait()
        finally:
            self.ended.set()

    async def _wait(self) -> Any:
        while True:
            try:
                return await self.let_go.wait()
            except asyncio.CancelledError:
                if self.ignored == self._ignores:
                    raise
                self.ignored += 1
                if self._then is not None:
                    return self._then


def _attempt(call: Any, *, timeout: float | None = None) -> AttemptRun:
    return AttemptRun(call, what="it", timeout=timeout, patience=0.05)


async def _value() -> int:
    return 5


async def _error() -> None:
    raise KeyError("x")


async def test_a_value_and_an_error_end_it() -> None:
    assert await _attempt(_value, timeout=9).run() == Ended(value=5)
    ended = await _attempt(_error).run()
    assert isinstance(ended.error, KeyError)


@pytest.mark.parametrize("at_once", [True, False])
async def test_it_runs_in_a_task_and_a_context_of_its_own(at_once: bool) -> None:
    own: ContextVar[int] = ContextVar("own", default=0)
    tasks: list[asyncio.Task[Any] | None] = []

    async def work() -> int:
        tasks.append(asyncio.current_task())
        own.set(1)
        async with asyncio.timeout(240):
            await asyncio.sleep(0)
        return own.get()

    assert await _attempt(work).run(at_once=at_once) == Ended(value=1)
    assert own.get() == 0
    assert tasks[0] not in (None, asyncio.current_task())


async def test_one_that_waits_for_nothing_takes_no_round_of_the_loop() -> None:
    rounds: list[int] = []
    asyncio.get_running_loop().call_soon(rounds.append, 1)
    assert await _attempt(_value, timeout=9).run() == Ended(value=5)
    assert rounds == ([] if sys.version_info >= (3, 12) else [1])


async def test_a_task_factory_of_the_program_makes_its_task() -> None:
    loop, made = asyncio.get_running_loop(), list[Any]()

    def factory(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        made.append(work)
        return asyncio.Task(work, loop=loop, **options)

    loop.set_task_factory(factory)
    try:
        assert await _attempt(_value).run() == Ended(value=5)
    finally:
        loop.set_task_factory(None)
    assert len(made) == 1


async def test_the_timeout_counts_from_the_beginning_of_its_function(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, began, ends = asyncio.get_running_loop(), list[float](), list[float]()
    call_at, now = loop.call_at, [loop.time()]

    def note(when: float, *given: Any, **options: Any) -> asyncio.TimerHandle:
        ends.append(when)
        patched.undo()  # so that the time comes
        return call_at(when, *given, **options)

    async def work() -> None:
        began.append(now[0])
        now[0] += 0.01  # what it does before it waits counts, too
        await asyncio.Event().wait()

    with monkeypatch.context() as patched:
        for place, name in ((loop, "time"), (clock, "monotonic")):
            patched.setattr(place, name, lambda: now[0])
        patched.setattr(loop, "call_at", note)
        assert isinstance((await _attempt(work, timeout=0.02).run()).error, TimeoutError)
    assert ends[0] == pytest.approx(began[0] + 0.02, abs=0.001)


async def test_one_that_is_cut_before_it_begins_does_not_begin() -> None:
    function = _Function()
    attempt = _attempt(function)
    attempt.cut()
    assert await attempt.run() == Ended(is_cut=True)
    assert not function.started.is_set()


async def test_one_that_is_cut_by_its_own_function_is_cancelled_at_its_first_wait() -> None:
    async def cuts() -> None:
        attempt.cut()
        await asyncio.sleep(20)

    attempt = _attempt(cuts)
    assert await attempt.run() == Ended(is_cut=True)


async def test_a_function_that_cancels_itself_has_failed() -> None:
    async def quit_() -> None:
        raise asyncio.CancelledError

    ended = await _attempt(quit_).run()
    assert isinstance(ended.error, asyncio.CancelledError)
    assert not ended.is_cut


async def test_a_system_exit_of_a_function_is_its_error() -> None:
    async def leave() -> None:
        raise SystemExit(3)

    assert isinstance((await _attempt(leave).run()).error, SystemExit)


@pytest.mark.parametrize("ignores", [0, 1])
async def test_past_its_time_it_has_failed_even_with_a_value(ignores: int) -> None:
    function = _Function(ignores, then="late")
    ended = await _attempt(function, timeout=0.02).run()
    assert isinstance(ended.error, TimeoutError)
    assert str(ended.error) == "it timed out: it ran longer than its timeout of 0.02 s"
    assert (ended.value, function.ignored) == (None, ignores)


async def test_who_never_listens_is_given_up_on(logs: list[dict[str, Any]]) -> None:
    function = _Function(2)
    ended = await _attempt(function, timeout=0.02).run()
    assert isinstance(ended.error, TimeoutError)
    assert [each["event"] for each in logs] == ["function ignores its cancellation, given up on"]
    assert function.ignored == 2
    assert not function.ended.is_set()
    function.let_go.set()
    await function.ended.wait()


async def _cut(function: _Function) -> Ended:
    attempt = _attempt(function)
    running = asyncio.create_task(attempt.run())
    await function.started.wait()
    attempt.cut()
    return await running


async def test_a_cut_cancels_it_and_a_value_still_counts() -> None:
    assert await _cut(_Function()) == Ended(is_cut=True)
    assert await _cut(_Function(1, then="late")) == Ended(value="late")


async def test_a_cut_that_nobody_hears_leaves_it_unknown() -> None:
    function = _Function(2)
    ended = await _cut(function)
    assert (ended.is_cut, ended.is_lost) == (True, True)
    assert not function.ended.is_set()
    function.let_go.set()
    await function.ended.wait()


async def test_cancelling_the_run_cancels_the_function_and_waits_for_it() -> None:
    function = _Function(1)
    running = asyncio.create_task(_attempt(function, timeout=60).run())
    await function.started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert function.ignored == 1
    assert function.ended.is_set()


async def test_a_thread_that_is_cancelled_is_waited_for_and_what_it_returns_counts() -> None:
    started, go_on = threading.Event(), threading.Event()

    def work() -> str:
        started.set()
        assert go_on.wait(240)
        return "done"

    task = asyncio.create_task(in_thread(work))
    assert await asyncio.to_thread(started.wait, 20)
    task.cancel()
    await asyncio.sleep(0)
    go_on.set()
    assert await task == "done"


async def test_a_thread_that_is_cancelled_twice_is_left_alone() -> None:
    started, go_on = threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        assert go_on.wait(240)
        raise ValueError("nobody hears it")

    task = asyncio.create_task(in_thread(work))
    assert await asyncio.to_thread(started.wait, 20)
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(StillRuns):
        await task
    go_on.set()


@pytest.mark.parametrize("kind", ["once", "twice", "anyio"])
@pytest.mark.parametrize("error", [None, ValueError("lost")], ids=["returns", "raises"])
async def test_what_outlasts_a_cancellation_ends_before_it_is_raised(
    kind: str, error: Exception | None
) -> None:
    begun, go, seen, scope = asyncio.Event(), asyncio.Event(), list[str](), anyio.CancelScope()

    async def work() -> int:
        begun.set()
        await go.wait()
        seen.append("done")
        if error is not None:
            raise error
        return 1

    async def run() -> None:
        with scope:
            try:
                await outlast(work())
            finally:
                seen.append("caller")

    task = asyncio.create_task(run())
    await begun.wait()
    if kind == "anyio":
        scope.cancel()
    else:
        task.cancel()
    for _ in range(3):
        await asyncio.sleep(0)
    if kind == "twice":
        task.cancel()
        await asyncio.sleep(0)
    assert not seen
    go.set()
    await asyncio.wait({task})
    assert seen == ["done", "caller"]
    assert task.cancelled() or (kind == "anyio" and task.exception() is None)


async def test_what_outlasts_a_cancellation_does_not_do_so_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt, "PATIENCE", 0.05)
    task = asyncio.create_task(outlast(asyncio.Event().wait()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task}, timeout=20)
    assert task.cancelled()


async def test_without_a_cancellation_the_outcome_is_that_of_the_work() -> None:
    async def fail() -> None:
        raise ValueError("own")

    assert await outlast(asyncio.sleep(0, 5)) == 5
    with pytest.raises(ValueError, match="own"):
        await outlast(fail())
