"""The workflows of the benchmarks, with steps that do nothing.

`chain`: so many steps, one after the other. `fan`: one step, so many side by side after it, and one after
these. With `-spread` each step is a job; with `-apart` the steps side by side are, and a worker goes through
the graph. `program`: a durable function of so many steps, one after the other. `pipeline`: the same as a
pipeline. `machine`: a state machine that makes so many moves. Each step and the `completed` hook return
`n + 1`, as the peer's jobs do; the steps of a pipeline return it in an object.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from eventbus import EventProvider
from workflows import (
    END,
    Durable,
    FlowContext,
    MachineContext,
    Pipeline,
    Signal,
    StateMachine,
    StepContext,
    Workflow,
    WorkflowProvider,
    durable,
    task,
    transition,
)


class Start(msgspec.Struct):
    """The input of a flow, `{"n": n}`; the same for the peer."""

    n: int


class Found(msgspec.Struct):
    """What a step of a pipeline returns: `n + 1`."""

    found: int


BenchGraph = Workflow[Start, int]
BenchFlow = Workflow[Start, int] | Durable[Start, int] | type[StateMachine[Start]]


async def answer(ctx: StepContext[Start]) -> int:
    """Return `n + 1`."""
    return ctx.input.n + 1


def _named(name: str, *, spread: bool) -> BenchGraph:
    workflow: BenchGraph = Workflow(name, input=Start, output=int, spread=spread)
    workflow.completed(answer)
    return workflow


def chain(members: int, *, spread: bool = False) -> BenchGraph:
    """Return a workflow of so many steps, each after the one before it."""
    workflow = _named(f"chain-{members}", spread=spread)
    for number in range(members):
        workflow.step(answer, name=f"step-{number}")
    return workflow


def fan(members: int, *, spread: bool = False, apart: bool = False) -> BenchGraph:
    """Return a workflow of one step, so many after it, each a job if `apart`, and one after all these."""
    workflow = _named(f"fan-{members}", spread=spread)
    names = [f"side-{number}" for number in range(members)]
    workflow.step(answer, name="first")
    for name in names:
        workflow.step(answer, name=name, after="first", spread=apart)
    workflow.step(answer, name="last", after=names)
    return workflow


@task
async def answer_task(n: int) -> int:
    """Return `n + 1`."""
    return n + 1


def program(members: int) -> Durable[Start, int]:
    """Return a durable function of so many steps."""

    @durable(f"program-{members}")
    async def run_steps(ctx: FlowContext[Start]) -> int:
        found = 0
        for _ in range(members):
            found = await ctx.step(answer_task, ctx.input.n)
        return found

    return run_steps


def pipeline(members: int) -> BenchGraph:
    """Return a pipeline of so many steps."""

    async def find(given: Start) -> Found:
        return Found(given.n + 1)

    def answer_found(given: Found) -> int:
        return given.found

    made = Pipeline(f"pipeline-{members}", input=Start, output=int)
    for number in range(members):
        made.then(find, name=f"step-{number}")
    return made.returns(answer_found)


def machine(members: int) -> type[StateMachine[Start]]:
    """Return a state machine that makes so many moves."""

    class Mover(StateMachine[Start], name=f"machine-{members}", start="going"):
        @transition("going", to="going", when=lambda ctx: ctx.moves < members - 1)
        async def go(self, ctx: MachineContext[Start]) -> None:
            """Stay, which is a move, too."""

        @transition("going", to=END)
        async def end(self, ctx: MachineContext[Start]) -> int:
            return ctx.state.n + 1

    return Mover


_MAKERS: dict[str, Callable[[int], BenchFlow]] = {
    "chain": chain,
    "fan": fan,
    "chain-spread": partial(chain, spread=True),
    "fan-spread": partial(fan, spread=True),
    "fan-apart": partial(fan, apart=True),
    "program": program,
    "pipeline": pipeline,
    "machine": machine,
}


def serve(provider: EventProvider, shape: str, members: int) -> tuple[WorkflowProvider, BenchFlow]:
    """Register the flow of a shape with a provider that has not started."""
    flows, workflow = WorkflowProvider(provider), _MAKERS[shape](members)
    flows.register(workflow)
    return flows, workflow


going: Signal[int] = Signal("going", int)


@durable("sleeper")
async def sleeper(ctx: FlowContext[Start]) -> int:
    """Sleep for 30 days."""
    await ctx.sleep("30 days")
    return ctx.input.n + 1


@durable("hearer")
async def hearer(ctx: FlowContext[Start]) -> int:
    """Wait for a signal, and return what it brings and 1."""
    return await ctx.wait_for(going) + 1


def serve_waits(provider: EventProvider) -> tuple[WorkflowProvider, Durable[Start, int], Durable[Start, int]]:
    """Register the flows that wait with a provider that has not started."""
    flows = WorkflowProvider(provider)
    flows.register(sleeper)
    flows.register(hearer)
    return flows, sleeper, hearer
