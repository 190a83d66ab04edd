"""Flows of every kind with three bodies, `one`, `two` and `three`, each with a rollback, which call `meet`
at each of their waits.

A body has taken effect with its last line, and writes that down in `effects`; its rollback writes it down in
`undone`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from eventbus import Retry
from workflows import (
    END,
    FlowContext,
    MachineContext,
    Pipeline,
    PipelineContext,
    Settled,
    StateMachine,
    StepContext,
    Workflow,
    durable,
    task,
    transition,
)

__all__ = ["KINDS", "Moment", "child", "effects", "forget", "meet_with", "undone"]

Moment = Callable[[], Awaitable[Any]]

effects: list[str] = []
"""The bodies that have taken effect."""
undone: list[str] = []
"""Those that were undone."""
_met: list[Moment] = []
_ONCE = Retry(attempts=1)


def forget() -> None:
    """Begin anew, for the next flow."""
    effects.clear()
    undone.clear()


def meet_with(moment: Moment) -> None:
    """Call this at each wait of a body or a guard."""
    _met[:] = [moment]


async def _meet() -> None:
    await _met[0]()


async def _work(name: str, *, is_stubborn: bool = False) -> None:
    """Take effect behind two waits; a stubborn body does that although it was cancelled."""
    for _ in range(2):
        try:
            await _meet()
        except asyncio.CancelledError:
            if not is_stubborn:
                raise
    effects.append(name)


async def _guard() -> bool:
    await _meet()
    return True


def make_machine(name: str, *, is_stubborn: bool = False, has_guards: bool = False) -> Any:
    """Return a machine of three moves."""
    move: Any = partial(transition, when=lambda _: _guard()) if has_guards else transition

    class Machine(StateMachine[int], name=name, start="a"):
        @move("a", to="b")
        async def one(self, ctx: MachineContext[int]) -> None:
            await _work("one", is_stubborn=is_stubborn)

        @one.rollback
        async def undo_one(self, ctx: MachineContext[int]) -> None:
            undone.append("one")

        @move("b", to="c")
        async def two(self, ctx: MachineContext[int]) -> None:
            await _work("two", is_stubborn=is_stubborn)

        @two.rollback
        async def undo_two(self, ctx: MachineContext[int]) -> None:
            undone.append("two")

        @move("c", to=END)
        async def three(self, ctx: MachineContext[int]) -> str:
            await _work("three", is_stubborn=is_stubborn)
            return "done"

        @three.rollback
        async def undo_three(self, ctx: MachineContext[int]) -> None:
            undone.append("three")

    return Machine


@durable("cut-child", output=int)
async def child(ctx: FlowContext[int]) -> int:
    """Be a child."""
    return ctx.input


def make_parent() -> Any:
    """Return a machine that has children, whose ends it asks for before it records a move."""

    class Parent(StateMachine[int], name="cut-parent", start="a"):
        @transition("a", to="b")
        async def one(self, ctx: MachineContext[int]) -> None:
            ctx.children(child, [1])
            await _work("one")

        @one.rollback
        async def undo_one(self, ctx: MachineContext[int]) -> None:
            undone.append("one")

        @transition("b", to="c", after="all")
        async def two(self, ctx: MachineContext[int], settled: Settled) -> None:
            ctx.children(child, [2, 3])
            await _work("two", is_stubborn=True)

        @two.rollback
        async def undo_two(self, ctx: MachineContext[int]) -> None:
            undone.append("two")

        @transition("c", to=END, when=lambda ctx: _guard())
        async def three(self, ctx: MachineContext[int]) -> str:
            await _work("three")
            return "done"

        @three.rollback
        async def undo_three(self, ctx: MachineContext[int]) -> None:
            undone.append("three")

    return Parent


def make_function(name: str, *, is_stubborn: bool = False) -> Any:
    """Return a durable function of three steps."""

    @task(retry=_ONCE, name=f"{name}-work")
    async def work(what: str) -> str:
        await _work(what, is_stubborn=is_stubborn)
        return what

    @work.rollback
    async def undo(what: str) -> None:
        undone.append(what)

    @durable(name, output=str)
    async def function(ctx: FlowContext[int]) -> str:
        for each in ("one", "two", "three"):
            await ctx.step(work, each)
        return "done"

    return function


def make_graph(name: str, *, is_stubborn: bool = False, spread: bool = False) -> Any:
    """Return a graph of three steps, each behind the one before."""
    workflow: Workflow[int, Any] = Workflow(name, input=int, output=Any, retry=_ONCE, spread=spread)

    def add(what: str) -> None:
        async def run(ctx: StepContext[int]) -> None:
            await _work(what, is_stubborn=is_stubborn)

        async def undo(ctx: StepContext[int], result: None) -> None:
            undone.append(what)

        workflow.step(run, name=what).rollback(undo)

    for each in ("one", "two", "three"):
        add(each)

    @workflow.completed
    async def completed(ctx: StepContext[int]) -> str:
        return "done"

    return workflow


def make_pipeline(name: str, *, is_stubborn: bool = False) -> Any:
    """Return a pipeline of three steps."""
    pipeline: Pipeline[dict[str, Any], Any] = Pipeline(name, input=dict[str, Any], output=Any, retry=_ONCE)

    def add(what: str) -> None:
        async def run(ctx: PipelineContext[Any]) -> None:
            await _work(what, is_stubborn=is_stubborn)

        async def undo(ctx: PipelineContext[Any]) -> None:
            undone.append(what)

        pipeline.then(run, name=what, rollback=undo)

    for each in ("one", "two", "three"):
        add(each)
    return pipeline.returns()


KINDS: dict[str, Any] = {
    "machine": make_machine("cut-machine"),
    "machine-stubborn": make_machine("cut-stubborn", is_stubborn=True),
    "machine-guards": make_machine("cut-guards", has_guards=True),
    "machine-stubborn-guards": make_machine("cut-both", is_stubborn=True, has_guards=True),
    "machine-children": make_parent(),
    "function": make_function("cut-function"),
    "function-stubborn": make_function("cut-hard-function", is_stubborn=True),
    "graph": make_graph("cut-graph"),
    "graph-stubborn": make_graph("cut-hard-graph", is_stubborn=True),
    "spread": make_graph("cut-spread", spread=True),
    "spread-stubborn": make_graph("cut-hard-spread", is_stubborn=True, spread=True),
    "pipeline": make_pipeline("cut-pipeline"),
    "pipeline-stubborn": make_pipeline("cut-hard-pipeline", is_stubborn=True),
}
"""The workflows, by what their bodies do."""
