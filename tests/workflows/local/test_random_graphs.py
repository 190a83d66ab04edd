"""The run of a step graph in a place that records slowly: what may start while an end is being recorded."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Coroutine
from typing import Any

import msgspec
import pytest

from eventbus import Retry
from tests.drivers.graphs import GraphPlace
from workflows import StepContext, Workflow
from workflows.execution.graph_run import GraphRun
from workflows.execution.graph_surroundings import StepChild
from workflows.records.entries import Entry
from workflows.records.records import StepRecord, encode_step


class Place(GraphPlace):
    """Makes attempts that take `ticks` of the event loop, fails those of `bad`, and records as slowly as
    `records` says.
    """

    def __init__(
        self,
        steps: dict[str, list[str]],
        *,
        bad: dict[str, int],
        ticks: dict[str, int],
        records: dict[str, int],
        spread: Collection[str] = (),
    ) -> None:
        workflow = Workflow[Any, Any]("w", retry=Retry(attempts=3, delay=0))
        for name, after in steps.items():
            workflow.step(self._act, name=name, after=after, spread=name in spread)
        super().__init__(workflow, begin_child=self._begin_one)
        self.journal.ticks, self.journal.note = records, self._note
        self.began: list[str] = []
        self.failing: str = ""
        self.flaws: list[str] = []
        self._bad = bad
        self._ticks = ticks
        self._needs = steps

    @property
    def ended(self) -> dict[str, str]:
        """The states that are recorded of steps that have ended."""
        told = [name.split(" ") for name in self.journal.recorded]
        ends = {step: state for step, state in told if state in ("completed", "failed", "cancelled")}
        assert len(ends) == sum(state not in ("delayed", "begun") for _, state in told), "none ends twice"
        return ends

    async def _act(self, ctx: StepContext[Any]) -> None:
        self._note_began(ctx.step)
        await _pass(self._ticks.get(ctx.step, 0))
        if ctx.attempt <= self._bad.get(ctx.step, 0):
            raise ConnectionError(ctx.step)

    def _begin_one(self, child: StepChild) -> Coroutine[Any, Any, tuple[str, str]]:
        """Run a child wherever the flow is."""
        self._note_began(child.step.name)
        return self._end_child(child.step.name)

    async def _end_child(self, name: str) -> tuple[str, str]:
        await _pass(self._ticks.get(name, 0))
        if self._bad.get(name, 0) > 2:
            return "failed", '{"type":"ValueError","message":"no"}'
        return "completed", encode_step(StepRecord(result=msgspec.Raw(b"null")))

    def _note_began(self, name: str) -> None:
        self.began.append(name)
        ended = self.ended
        self.flaws += [
            f"{name} began before {need} was recorded"
            for need in self._needs[name]
            if ended.get(need) != "completed"
        ]
        if self.failing:
            self.flaws.append(f"{name} began after {self.failing} had failed")

    def _note(self, entry: Entry) -> None:
        if entry.kind == "failed":
            self.failing = self.failing or entry.place


async def _pass(ticks: int) -> None:
    for _ in range(ticks):
        await asyncio.sleep(0)


async def _run(place: Place) -> GraphRun:
    graph = place.open()
    async with asyncio.timeout(240):
        await graph.run()
    return graph


async def test_nothing_starts_while_the_failure_of_a_step_is_being_recorded() -> None:
    steps: dict[str, list[str]] = {"bad": [], "good": [], "after": ["good"]}
    place = Place(steps, bad={"bad": 9}, ticks={"good": 2500}, records={"bad": 1000})
    graph = await _run(place)
    assert place.flaws == []
    assert place.ended == {"good": "completed", "bad": "failed"}
    assert graph.state.failed is graph.state.steps["bad"]
    assert "after" not in place.began


@pytest.mark.parametrize("seed", range(150))
async def test_random_graphs_keep_their_order_and_end(seed: int) -> None:
    rng = random.Random(seed)
    names = [f"s{n}" for n in range(rng.randint(1, 10))]
    after = {name: rng.sample(names[:n], rng.randint(0, min(n, 3))) for n, name in enumerate(names)}
    bad = {name: rng.choice([1, 2, 9]) for name in names if rng.random() < 0.15}
    place = Place(
        after,
        bad=bad,
        ticks={name: rng.randint(0, 12) for name in names},
        records={name: rng.randint(0, 12) for name in names},
    )
    graph = await _run(place)
    assert place.flaws == []
    ended = {run.step.name: run.state for run in graph.state.ended}
    assert len(ended) == len(graph.state.ended), "none ends twice"
    is_bad = 9 in bad.values() and graph.state.failed is not None
    assert graph.state.is_complete or is_bad
    if graph.state.is_complete:
        assert set(place.ended.values()) == {"completed"}
        assert sorted(set(place.began)) == sorted(names)


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
    place = Place(
        after,
        bad=bad,
        ticks={name: rng.randint(0, 40) for name in names},
        records={name: rng.randint(0, 12) for name in names},
        spread=spread,
    )
    async with asyncio.timeout(240):
        while True:
            graph = place.open()
            await graph.run()
            if graph.state.failed is not None or graph.state.is_complete:
                break
            open_ones = [place.children[child] for child in graph.apart.open]
            assert open_ones, "it waits for nothing"
            await asyncio.wait(open_ones, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.gather(*place.children.values())
    assert place.flaws == []
    assert len(place.children) == sum(name in spread for name in place.began), "each is begun once"
    assert graph.state.is_complete == (graph.state.failed is None)
    if graph.state.is_complete:
        assert set(place.ended.values()) == {"completed"}
        assert sorted(place.ended) == sorted(names)
    else:
        assert graph.state.failed is not None
        assert graph.state.failed.step.name in bad
