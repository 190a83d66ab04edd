"""The run of a step graph with drivers that record slowly: what may start while an end is being recorded."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection
from typing import Any

import msgspec
import pytest

from eventbus import Retry
from workflows import StepContext, Workflow
from workflows.execution.graph_run import GraphRun
from workflows.execution.step_run import StepRun
from workflows.records.records import StepRecord

_NULL = msgspec.Raw(b"null")


class Driver:
    """Makes attempts that take `ticks` of the event loop, fails those of `bad`, and records as slowly as
    `records` says.
    """

    def __init__(self, *, bad: dict[str, int], ticks: dict[str, int], records: dict[str, int]) -> None:
        self.bad = bad
        self.began: list[str] = []
        self.recorded: dict[str, str] = {}
        self.failing: str = ""
        self.ended: list[StepRun] = []
        self.children: dict[str, asyncio.Future[None]] = {}
        self.graph: GraphRun | None = None
        self.flaws: list[str] = []
        self._ticks = ticks
        self._records = records

    async def attempt(self, run: StepRun) -> StepRecord:
        name = run.step.name
        self._note_began(run)
        await _pass(self._ticks.get(name, 0))
        if run.attempts < self.bad.get(name, 0):
            raise ConnectionError(name)
        return StepRecord(result=_NULL)

    def _note_began(self, run: StepRun) -> None:
        name = run.step.name
        self.began.append(name)
        self.flaws += [
            f"{name} began before {need} was recorded" for need in run.needs if not self._has(need)
        ]
        if self.failing:
            self.flaws.append(f"{name} began after {self.failing} had failed")

    def _has(self, step: str) -> bool:
        return self.recorded.get(step) == "completed"

    async def record(self, run: StepRun) -> None:
        if run.state == "failed":
            self.failing = self.failing or run.step.name
        await _pass(self._records.get(run.step.name, 0))
        if run.step.name in self.recorded:
            self.flaws.append(f"{run.step.name} was recorded twice")
        if run.state != "delayed":
            self.recorded[run.step.name] = run.state
            self.ended.append(run)

    def ask_paused(self, step: Any) -> None:
        """No step is paused."""

    def runs_apart(self, step: Any) -> bool:
        return step.runs_apart

    async def run_apart(self, run: StepRun) -> None:
        """Begin a child once, which ends after its ticks wherever the flow is; take over its end, or leave it
        open.
        """
        name = run.step.name
        run.start()
        run.child = f"child of {name}"
        end = self.children.get(name)
        if end is None:
            self._note_began(run)
            end = self.children[name] = asyncio.ensure_future(_pass(self._ticks.get(name, 0)))
        assert self.graph is not None
        if not end.done():
            arrival = asyncio.get_running_loop().create_future()
            end.add_done_callback(lambda _: arrival.done() or arrival.set_result(True))
            if await self.graph.wait_apart(run, arrival) is None:
                run.state = "waiting"
                return
        if self.bad.get(name, 0) > 2:
            run.fail_with('{"type":"ValueError","message":"no"}')
        else:
            run.complete(StepRecord(result=_NULL))

    async def sleep(self, delay: float) -> None:
        await _pass(3)

    def holds(self, delay: float) -> bool:
        return True

    def enter(self, run: Any) -> bool:
        return True

    async def wait_slot(self, run: Any) -> None:
        raise AssertionError

    def leave(self, run: Any) -> None:
        pass

    def may_start(self) -> bool:
        return True


async def _pass(ticks: int) -> None:
    for _ in range(ticks):
        await asyncio.sleep(0)


async def _act(ctx: StepContext[Any]) -> None:
    pass


def _workflow(steps: dict[str, list[str]], spread: Collection[str] = ()) -> Workflow[Any, Any]:
    made = Workflow[Any, Any]("w", retry=Retry(attempts=3, delay=0))
    for name, after in steps.items():
        made.step(_act, name=name, after=after, spread=name in spread)
    return made


async def _run(workflow: Workflow[Any, Any], driver: Driver) -> GraphRun:
    graph = GraphRun(workflow, driver)
    async with asyncio.timeout(240):
        await graph.run()
    return graph


async def test_nothing_starts_while_the_failure_of_a_step_is_being_recorded() -> None:
    workflow = _workflow({"bad": [], "good": [], "after": ["good"]})
    driver = Driver(bad={"bad": 9}, ticks={"good": 2500}, records={"bad": 1000})
    graph = await _run(workflow, driver)
    assert driver.flaws == []
    assert driver.recorded == {"good": "completed", "bad": "failed"}
    assert graph.failed is graph.steps["bad"]
    assert "after" not in driver.began


@pytest.mark.parametrize("seed", range(150))
async def test_random_graphs_keep_their_order_and_end(seed: int) -> None:
    rng = random.Random(seed)
    names = [f"s{n}" for n in range(rng.randint(1, 10))]
    after = {name: rng.sample(names[:n], rng.randint(0, min(n, 3))) for n, name in enumerate(names)}
    bad = {name: rng.choice([1, 2, 9]) for name in names if rng.random() < 0.15}
    driver = Driver(
        bad=bad,
        ticks={name: rng.randint(0, 12) for name in names},
        records={name: rng.randint(0, 12) for name in names},
    )
    graph = await _run(_workflow(after), driver)
    assert driver.flaws == []
    ended = {run.step.name: run.state for run in graph.ended}
    assert len(ended) == len(graph.ended), "none ends twice"
    is_bad = 9 in bad.values() and graph.failed is not None
    assert graph.is_complete or is_bad
    if graph.is_complete:
        assert set(driver.recorded.values()) == {"completed"}
        assert sorted(set(driver.began)) == sorted(names)


@pytest.mark.parametrize("seed", range(150))
async def test_random_graphs_with_children_go_on_in_further_activations(seed: int) -> None:
    """A run returns while only children are left; another one restores what is recorded, and finds those
    again.
    """
    rng = random.Random(seed)
    names = [f"s{n}" for n in range(rng.randint(2, 10))]
    after = {name: rng.sample(names[:n], rng.randint(0, min(n, 3))) for n, name in enumerate(names)}
    spread = {name for name in names if rng.random() < 0.4}
    bad = {name: 9 for name in names if rng.random() < 0.08}
    driver = Driver(
        bad=bad,
        ticks={name: rng.randint(0, 40) for name in names},
        records={name: rng.randint(0, 12) for name in names},
    )
    workflow = _workflow(after, spread)
    async with asyncio.timeout(240):
        while True:
            graph = driver.graph = GraphRun(workflow, driver)
            for run in driver.ended:
                graph.steps[run.step.name] = run
                graph.restore(run)
            await graph.run()
            if graph.failed is not None or graph.is_complete:
                break
            open_ones = [end for name, end in driver.children.items() if name not in driver.recorded]
            assert open_ones, "it waits for nothing"
            await asyncio.wait(open_ones, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.gather(*driver.children.values())
    assert driver.flaws == []
    assert sorted(set(driver.children)) == sorted(name for name in driver.began if name in spread), (
        "each is begun once"
    )
    assert graph.is_complete == (graph.failed is None)
    if graph.is_complete:
        assert set(driver.recorded.values()) == {"completed"}
        assert sorted(driver.recorded) == sorted(names)
    else:
        assert graph.failed is not None
        assert graph.failed.step.name in bad
