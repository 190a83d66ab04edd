"""Flows of every kind that run a state machine between two steps: each part writes what it does into a
journal, and dies on demand.

Run by `eventbus worker apps.handlers.inside_app:provider` in `integration/`. A file `die in <part>` in the
test's folder kills once.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

from apps.step_actions import die_at
from harness.journal import Journal

from eventbus import EventProvider, Retry
from workflows import (
    END,
    FlowContext,
    MachineContext,
    StateMachine,
    StepContext,
    Workflow,
    WorkflowProvider,
    durable,
    task,
    transition,
)

__all__ = ["OUTER", "Approval", "provider", "register"]

provider: EventProvider = EventProvider()
_ONCE = Retry(attempts=1)


@cache
def _journal() -> Journal:
    return Journal(Path(os.environ["EVENTBUS_TEST_FOLDER"]) / "journal")


async def act(name: str) -> None:
    _journal().write("began", "", 1, name)
    die_at(f"in {name}")
    _journal().write("did", "", 1, name)


class Approval(StateMachine[int], name="approval", start="draft"):
    @transition("draft", to="ready")
    async def prepare(self, ctx: MachineContext[int]) -> None:
        await act("prepare")

    @prepare.rollback
    async def unprepare(self, ctx: MachineContext[int]) -> None:
        await act("undo prepare")

    @transition("ready", to=END)
    async def finish(self, ctx: MachineContext[int]) -> int:
        await act("finish")
        return ctx.state + 2

    @finish.rollback
    async def unfinish(self, ctx: MachineContext[int]) -> None:
        await act("undo finish")


def _make_graph(name: str, *, spread: bool) -> Workflow[int, Any]:
    workflow: Workflow[int, Any] = Workflow(name, input=int, output=Any, retry=_ONCE, spread=spread)
    _add(workflow, "open")
    machine = workflow.flow(Approval)
    _add(workflow, "close")

    @workflow.completed
    async def completed(ctx: StepContext[int]) -> Any:
        if ctx.input < 0:
            raise ValueError("it is below 0")
        return ctx.result(machine)

    return workflow


def _add(workflow: Workflow[int, Any], name: str) -> None:
    async def run(ctx: StepContext[int]) -> None:
        await act(name)

    async def undo(ctx: StepContext[int], result: None) -> None:
        await act(f"undo {name}")

    workflow.step(run, name=name).rollback(undo)


@task(retry=_ONCE)
async def open_up() -> None:
    await act("open")


@open_up.rollback
async def undo_open(result: None) -> None:
    await act("undo open")


@task(retry=_ONCE)
async def close_up() -> None:
    await act("close")


@close_up.rollback
async def undo_close(result: None) -> None:
    await act("undo close")


@durable("in-function", output=Any, retry=_ONCE)
async def in_function(ctx: FlowContext[int]) -> Any:
    await ctx.step(open_up)
    found = await ctx.flow(Approval, ctx.input)
    await ctx.step(close_up)
    if ctx.input < 0:
        raise ValueError("it is below 0")
    return found


OUTER: dict[str, Any] = {
    "graph": _make_graph("in-graph", spread=False),
    "spread": _make_graph("in-spread", spread=True),
    "function": in_function,
}
"""The flows by their kinds. An input below 0 makes them fail at their end."""


def register(flows: WorkflowProvider) -> WorkflowProvider:
    """Register all of them."""
    for each in (*OUTER.values(), Approval):
        flows.register(each)
    return flows


register(WorkflowProvider(provider))
