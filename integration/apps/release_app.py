"""Flows that two releases share: a graph and a durable function, whose steps tell which process ran them.

Run by `eventbus worker apps.release_app:provider` in `integration/`, with either release on the module path;
so it has only what both releases have.
"""

from __future__ import annotations

import os

from eventbus import EventProvider
from workflows import FlowContext, Signal, StepContext, Workflow, WorkflowProvider, durable, task

__all__ = ["flows", "go_on", "graph", "program", "provider"]

provider: EventProvider = EventProvider()
flows: WorkflowProvider = WorkflowProvider(provider)
go_on: Signal[int] = Signal("go-on", int)

graph: Workflow[int, list[int]] = Workflow("graph", input=int, output=list[int])


@graph.step
async def first(ctx: StepContext[int]) -> int:
    return os.getpid()


@graph.step(after=first)
async def second(ctx: StepContext[int]) -> int:
    return os.getpid()


@graph.completed
async def tell(ctx: StepContext[int]) -> list[int]:
    return [ctx.result(first), ctx.result(second)]


@task
async def who(number: int) -> int:
    return os.getpid()


@durable("program")
async def program(ctx: FlowContext[int]) -> list[int]:
    """Run a step, wait for signals, and run a step behind each, until one brings a 0."""
    found = [await ctx.step(who, 0)]
    while number := await ctx.wait_for(go_on):
        found.append(await ctx.step(who, number))
    return found


for each in (graph, program):
    flows.register(each)
