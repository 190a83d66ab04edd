"""The run of a graph with a driver of the test: what starts when, and what ends it."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from eventbus import Retry, Unrecoverable
from workflows import StepContext, Workflow
from workflows.execution.graph_run import GraphRun
from workflows.execution.step_run import StepRun
from workflows.records.records import StepRecord

pytestmark = pytest.mark.virtual


class Driver:
    """Runs the functions of `acts`, and records what it is told to record; each record waits for its gate."""

    def __init__(self) -> None:
        self.acts: Mapping[str, Callable[[], Awaitable[Any]]] = {}
        self.recorded: list[str] = []
        self.gates: dict[str, asyncio.Event] = defaultdict(_opened)
        self.refuses: dict[str, Exception] = {}
        self.began: list[str] = []
        self.longest = 1.0
        self.free = 10

    async def attempt(self, run: StepRun) -> StepRecord:
        self.began.append(run.step.name)
        if (act := self.acts.get(run.step.name)) is not None:
            await act()
        return StepRecord()

    def ask_paused(self, step: Any) -> None:
        """No step is paused."""

    def runs_apart(self, step: Any) -> bool:
        return step.workflow is not None

    async def run_apart(self, run: StepRun) -> None:
        raise AssertionError(run.step.name)

    async def record(self, run: StepRun) -> None:
        name = f"{run.step.name} {run.state}"
        await self.gates[name].wait()
        if name in self.refuses:
            raise self.refuses[name]
        self.recorded.append(name)

    async def sleep(self, delay: float) -> None:
        await asyncio.sleep(delay)

    def holds(self, delay: float) -> bool:
        return delay <= self.longest

    def enter(self, run: Any) -> bool:
        self.free -= self.free > 0
        return self.free >= 0

    async def wait_slot(self, run: Any) -> None:
        raise AssertionError("there are enough")

    def leave(self, run: Any) -> None:
        self.free += 1

    def may_start(self) -> bool:
        return True


def _opened() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


def _workflow(*steps: str, side_by_side: bool = False, retry: Retry | None = None) -> Workflow[Any, Any]:
    workflow = Workflow[Any, Any]("w", retry=retry or Retry(attempts=1))

    async def never(ctx: StepContext[Any]) -> None:
        raise AssertionError

    for name in steps:
        if side_by_side:
            workflow.step(never, name=name, after=None)
        else:
            workflow.step(never, name=name)
    return workflow


async def _fall() -> None:
    raise ValueError("no")


async def _until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(240):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_no_step_begins_before_what_it_needs_is_recorded() -> None:
    driver = Driver()
    driver.gates["first completed"] = asyncio.Event()
    running = asyncio.create_task(GraphRun(_workflow("first", "second"), driver).run())
    await _until(lambda: driver.began)
    for _ in range(20):
        await asyncio.sleep(0)
    assert (driver.began, driver.recorded) == (["first"], [])
    driver.gates["first completed"].set()
    await running
    assert driver.recorded == ["first completed", "second completed"]


async def test_from_a_failure_on_no_attempt_begins_also_while_the_failure_is_recorded() -> None:
    driver, may_fall = Driver(), asyncio.Event()
    graph = GraphRun(_workflow("bad", "slow", side_by_side=True, retry=Retry(attempts=3, delay=0)), driver)
    driver.gates["bad failed"] = asyncio.Event()

    async def slow() -> None:
        await may_fall.wait()
        raise ValueError("late")

    async def bad() -> None:
        raise Unrecoverable("at once")

    driver.acts = {"bad": bad, "slow": slow}
    running = asyncio.create_task(graph.run())
    await _until(lambda: graph.is_halted)
    may_fall.set()
    await _until(lambda: driver.recorded)
    driver.gates["bad failed"].set()
    await running
    assert driver.recorded == ["slow failed", "bad failed"]
    assert driver.began == ["bad", "slow"]
    assert graph.failed is graph.steps["bad"]


async def test_a_record_that_is_refused_ends_the_run_and_cuts_what_runs() -> None:
    driver = Driver()
    driver.refuses["done completed"] = RuntimeError("lost")
    driver.acts = {"long": asyncio.Event().wait}
    with pytest.raises(RuntimeError, match="lost"):
        await GraphRun(_workflow("done", "long", side_by_side=True), driver).run()
    assert driver.recorded == ["long cancelled"]


@pytest.mark.parametrize("names", [("only",), ("one", "two")])
async def test_a_cancel_cuts_all_and_records_what_they_returned_nevertheless(names: tuple[str, ...]) -> None:
    driver = Driver()

    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass

    driver.acts = {names[0]: stubborn} | {name: asyncio.Event().wait for name in names[1:]}
    running = asyncio.create_task(GraphRun(_workflow(*names, side_by_side=True), driver).run())
    await _until(lambda: len(driver.began) == len(names))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert set(driver.recorded) == {f"{names[0]} completed", *(f"{name} cancelled" for name in names[1:])}


async def test_a_function_that_ignores_two_cancels_is_given_up_on_and_recorded_as_unknown() -> None:
    driver, let_go = Driver(), asyncio.Event()

    async def deaf() -> None:
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue

    driver.acts = {"deaf": deaf}
    running = asyncio.create_task(GraphRun(_workflow("deaf"), driver, patience=0.02).run())
    await _until(lambda: driver.began)
    running.cancel()
    await asyncio.sleep(0.03)
    running.cancel()  # the second one changes nothing
    with pytest.raises(asyncio.CancelledError):
        await running
    let_go.set()
    assert driver.recorded == ["deaf unknown"]


async def test_a_long_pause_ends_the_run_when_nothing_else_is_active() -> None:
    driver, may_end = Driver(), asyncio.Event()
    driver.acts = {"late": _fall, "long": may_end.wait}
    retry = Retry(attempts=2, delay=60, jitter=0)
    graph = GraphRun(_workflow("late", "long", side_by_side=True, retry=retry), driver)
    running = asyncio.create_task(graph.run())
    await _until(lambda: driver.recorded)
    assert not running.done()
    may_end.set()
    await running
    assert driver.recorded == ["late delayed", "long completed"]
    assert [(run.step.name, run.delay) for run in graph.delayed] == [("late", 60)]
    assert not graph.is_complete


async def test_a_halt_ends_pauses_and_begins_nothing() -> None:
    driver = Driver()
    driver.longest, driver.acts = 100, {"late": _fall}
    retry = Retry(attempts=2, delay=60, jitter=0)
    graph = GraphRun(_workflow("late", "after", retry=retry), driver)
    running = asyncio.create_task(graph.run())
    await _until(lambda: driver.recorded)
    graph.halt()
    await running
    assert driver.recorded == ["late delayed", "late cancelled"]
    assert graph.steps["after"].state == "waiting"
