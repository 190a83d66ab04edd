"""The workflows of the benchmarks, with steps that do nothing.

`chain`: so many steps, one after the other. `fan`: one step, so many side by side after it, and
one after these. Each step and the `completed` hook return `n + 1`, as the peer's jobs do.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from eventbus import EventProvider
from workflows import StepContext, Workflow, WorkflowProvider


class Start(msgspec.Struct):
    """The input of a flow, `{"n": n}`; the same for the peer."""

    n: int


BenchFlow = Workflow[Start, int]


async def answer(ctx: StepContext[Start]) -> int:
    """Return `n + 1`."""
    return ctx.input.n + 1


def _named(name: str) -> BenchFlow:
    workflow: BenchFlow = Workflow(name, input=Start, output=int)
    workflow.completed(answer)
    return workflow


def chain(members: int) -> BenchFlow:
    """Return a workflow of so many steps, each after the one before it."""
    workflow = _named(f"chain-{members}")
    for number in range(members):
        workflow.step(answer, name=f"step-{number}")
    return workflow


def fan(members: int) -> BenchFlow:
    """Return a workflow of one step, so many after it, and one after all these."""
    workflow = _named(f"fan-{members}")
    names = [f"side-{number}" for number in range(members)]
    workflow.step(answer, name="first")
    for name in names:
        workflow.step(answer, name=name, after="first")
    workflow.step(answer, name="last", after=names)
    return workflow


_MAKERS: dict[str, Callable[[int], BenchFlow]] = {"chain": chain, "fan": fan}


def serve(provider: EventProvider, shape: str, members: int) -> tuple[WorkflowProvider, BenchFlow]:
    """Register the flow of a shape with a provider that has not started."""
    flows, workflow = WorkflowProvider(provider), _MAKERS[shape](members)
    flows.register(workflow)
    return flows, workflow
