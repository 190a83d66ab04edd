"""The run of a graph in a place of the test: what starts when, and what ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from eventbus import Retry, Unrecoverable
from tests.drivers.graphs import GraphPlace
from workflows import StepContext, Workflow

pytestmark = pytest.mark.virtual


class Acts(GraphPlace):
    """Runs the functions of `acts` as steps, which begin one after the other or side by side."""

    def __init__(self, *steps: str, side_by_side: bool = False, retry: Retry | None = None) -> None:
        workflow = Workflow[Any, Any]("w", retry=retry or Retry(attempts=1))
        self.acts: Mapping[str, Callable[[], Awaitable[Any]]] = {}
        self.began: list[str] = []
        for name in steps:
            if side_by_side:
                workflow.step(self._act, name=name, after=None)
            else:
                workflow.step(self._act, name=name)
        super().__init__(workflow)

    @property
    def recorded(self) -> list[str]:
        return self.journal.recorded

    async def _act(self, ctx: StepContext[Any]) -> None:
        self.began.append(ctx.step)
        if (act := self.acts.get(ctx.step)) is not None:
            await act()


async def _fall() -> None:
    raise ValueError("no")


async def _until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(240):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_no_step_begins_before_what_it_needs_is_recorded() -> None:
    place = Acts("first", "second")
    place.journal.gates["first completed"] = asyncio.Event()
    running = asyncio.create_task(place.open().run())
    await _until(lambda: place.began)
    for _ in range(20):
        await asyncio.sleep(0)
    assert (place.began, place.recorded) == (["first"], [])
    place.journal.gates["first completed"].set()
    await running
    assert place.recorded == ["first completed", "second completed"]


async def test_from_a_failure_on_no_attempt_begins_also_while_the_failure_is_recorded() -> None:
    place, may_fall = (
        Acts("bad", "slow", side_by_side=True, retry=Retry(attempts=3, delay=0)),
        asyncio.Event(),
    )
    graph = place.open()
    place.journal.gates["bad failed"] = asyncio.Event()

    async def slow() -> None:
        await may_fall.wait()
        raise ValueError("late")

    async def bad() -> None:
        raise Unrecoverable("at once")

    place.acts = {"bad": bad, "slow": slow}
    running = asyncio.create_task(graph.run())
    await _until(lambda: graph.is_halted)
    may_fall.set()
    await _until(lambda: place.recorded)
    place.journal.gates["bad failed"].set()
    await running
    assert place.recorded == ["slow failed", "bad failed"]
    assert place.began == ["bad", "slow"]
    assert graph.state.failed is graph.state.steps["bad"]


async def test_a_record_that_is_refused_ends_the_run_and_cuts_what_runs() -> None:
    place = Acts("done", "long", side_by_side=True)
    place.journal.refuses["done completed"] = RuntimeError("lost")
    place.acts = {"long": asyncio.Event().wait}
    with pytest.raises(RuntimeError, match="lost"):
        await place.open().run()
    assert place.recorded == ["long cancelled"]


@pytest.mark.parametrize("names", [("only",), ("one", "two")])
async def test_a_cancel_cuts_all_and_records_what_they_returned_nevertheless(names: tuple[str, ...]) -> None:
    place = Acts(*names, side_by_side=True)

    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass

    place.acts = {names[0]: stubborn} | {name: asyncio.Event().wait for name in names[1:]}
    running = asyncio.create_task(place.open().run())
    await _until(lambda: len(place.began) == len(names))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert set(place.recorded) == {f"{names[0]} completed", *(f"{name} cancelled" for name in names[1:])}


async def test_a_function_that_ignores_two_cancels_is_given_up_on_and_recorded_as_unknown() -> None:
    place, let_go = Acts("deaf"), asyncio.Event()

    async def deaf() -> None:
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue

    place.acts = {"deaf": deaf}
    running = asyncio.create_task(place.open(patience=0.02).run())
    await _until(lambda: place.began)
    running.cancel()
    await asyncio.sleep(0.03)
    running.cancel()  # the second one changes nothing
    with pytest.raises(asyncio.CancelledError):
        await running
    let_go.set()
    assert place.recorded == ["deaf unknown"]


async def test_a_long_pause_ends_the_run_when_nothing_else_is_active() -> None:
    place, may_end = (
        Acts("late", "long", side_by_side=True, retry=Retry(attempts=2, delay=60, jitter=0)),
        asyncio.Event(),
    )
    place.acts = {"late": _fall, "long": may_end.wait}
    graph = place.open()
    running = asyncio.create_task(graph.run())
    await _until(lambda: place.recorded)
    assert not running.done()
    may_end.set()
    await running
    assert place.recorded == ["late delayed", "long completed"]
    assert [(run.step.name, run.delay) for run in graph.state.delayed] == [("late", 60)]
    assert not graph.state.is_complete


async def test_a_halt_ends_pauses_and_begins_nothing() -> None:
    place = Acts("late", "after", retry=Retry(attempts=2, delay=60, jitter=0))
    place.longest, place.acts = 100, {"late": _fall}
    graph = place.open()
    running = asyncio.create_task(graph.run())
    await _until(lambda: place.recorded)
    graph.halt()
    await running
    assert place.recorded == ["late delayed", "late cancelled"]
    assert graph.state.steps["after"].state == "waiting"
