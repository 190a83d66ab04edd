"""Flows of every kind that run the same state machine between two steps of their own: `open`, the machine,
`close`.

Their steps and the moves of the machine have rollbacks, which write down that they ran. `broken` names what
fails.
"""

from __future__ import annotations

from typing import Any

from drivers.machines.acting import act

from eventbus import Retry
from workflows import (
    END,
    FlowContext,
    MachineContext,
    StateMachine,
    StepContext,
    Workflow,
    durable,
    task,
    transition,
)

__all__ = ["KINDS", "ORDER", "Approval", "make_outer"]

KINDS = ("graph", "spread", "function")
"""The kinds of flows that run a machine as a part, and undo it with their own steps."""

ORDER = ["undo close", "undo finish", "undo prepare", "undo open"]
"""The order in which all of them is undone."""

_ONCE = Retry(attempts=1)


class Approval(StateMachine[int], name="approval", start="draft"):
    """Prepares, waits for a number, and ends with the sum."""

    @transition("draft", to="waiting")
    async def prepare(self, ctx: MachineContext[int]) -> None:
        act("prepare")

    @prepare.rollback
    async def undo_prepare(self, ctx: MachineContext[int]) -> None:
        act("undo prepare")

    @transition("waiting", to=END, wait=int)
    async def finish(self, ctx: MachineContext[int], more: int) -> int:
        act("finish")
        return ctx.state + more

    @finish.rollback
    async def undo_finish(self, ctx: MachineContext[int]) -> None:
        act("undo finish")


def make_outer(kind: str, **options: Any) -> Any:
    """Return a workflow of a kind. Its input is the first state of the machine; its output, what the machine
    came to.
    """
    if kind == "function":
        return _make_function(**options)
    workflow: Workflow[int, Any] = Workflow(
        "outer", input=int, output=Any, retry=_ONCE, spread=kind == "spread", **options
    )
    _add(workflow, "open")
    machine = workflow.flow(Approval)
    _add(workflow, "close")

    @workflow.completed
    async def completed(ctx: StepContext[int]) -> Any:
        act("completed")
        return ctx.result(machine)

    return workflow


def _add(workflow: Workflow[int, Any], name: str) -> None:
    async def run(ctx: StepContext[int]) -> None:
        act(name)

    async def undo(ctx: StepContext[int], result: None) -> None:
        act(f"undo {name}")

    workflow.step(run, name=name).rollback(undo)


@task(retry=_ONCE)
async def open_up() -> None:
    act("open")


@open_up.rollback
async def _undo_open(result: None) -> None:
    act("undo open")


@task(retry=_ONCE)
async def close_up() -> None:
    act("close")


@close_up.rollback
async def _undo_close(result: None) -> None:
    act("undo close")


def _make_function(**options: Any) -> Any:
    @durable("outer", output=Any, retry=_ONCE, **options)
    async def outer(ctx: FlowContext[int]) -> Any:
        await ctx.step(open_up)
        found = await ctx.flow(Approval, ctx.input)
        await ctx.step(close_up)
        act("completed")
        return found

    return outer
