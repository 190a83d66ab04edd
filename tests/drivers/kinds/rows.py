"""The same row of parts as a flow of every kind: a graph of steps, local and spread, a durable function, a
pipeline and a machine.

first -> second -> third, each adds 1 to the number that is the input; the output is the sum
with `asks`: first -> waits for a number, which is added too -> second -> third
"""

from __future__ import annotations

from typing import Any

import msgspec
from drivers.kinds.parts import Parts

from eventbus import Retry
from workflows import (
    END,
    FlowContext,
    FlowHandle,
    MachineContext,
    Pipeline,
    PipelineContext,
    Signal,
    StateMachine,
    StepContext,
    Workflow,
    durable,
    step,
    step_key,
    task,
    task_context,
    transition,
)

__all__ = ["KINDS", "NAMES", "answer", "answer_to", "given", "make_row", "name_of_part", "renew"]

KINDS = ("graph", "spread", "function", "pipeline", "machine")
NAMES = ("first", "second", "third")

parts: Parts = Parts()
answer = Signal("answer", int)
_ONCE = Retry(attempts=1)


class Given(msgspec.Struct):
    """The input of a pipeline, whose steps share the fields of an object."""

    number: int


def renew() -> Parts:
    """Begin anew, for the next test."""
    global parts
    parts = Parts()
    return parts


def make_row(
    kind: str, *, asks: bool = False, retry: Retry = _ONCE, limit: float | None = None, **options: Any
) -> Any:
    """Return a workflow of a kind, named `row`. Each part is tried as `retry` says, and may take `limit`
    seconds.
    """
    make = {
        "graph": _make_graph,
        "spread": _make_spread,
        "function": _make_function,
        "pipeline": _make_pipeline,
        "machine": _make_machine,
    }[kind]
    return make(asks, retry, limit, options)


def given(kind: str, number: int) -> Any:
    """Return a number as the input of a flow of a kind."""
    return Given(number) if kind == "pipeline" else number


async def answer_to(kind: str, flow: FlowHandle[Any], row: Any, number: int) -> None:
    """Give a flow that asks its number: a signal, or to a machine a trigger."""
    if kind == "machine":
        await flow.trigger(row.asked, number)
    else:
        await flow.signal(answer, number)


def name_of_part(label: str) -> str:
    """Return the part that a step of a report is: calls and moves have a position behind their name."""
    return label.partition("@")[0]


def _make_spread(asks: bool, retry: Retry, limit: float | None, options: dict[str, Any]) -> Any:
    return _make_graph(asks, retry, limit, {**options, "spread": True})


def _make_graph(asks: bool, retry: Retry, limit: float | None, options: dict[str, Any]) -> Any:
    row: Workflow[int, int] = Workflow("row", input=int, output=int, retry=_ONCE, **options)
    for name in NAMES:
        row.then(step(_step(name), name=name, retry=retry, timeout=limit, rollback=_undo(name)))
        if asks and name == "first":
            row.wait(answer, name="asked")

    @row.completed
    async def completed(ctx: StepContext[int]) -> int:
        return ctx.input + 3 + (ctx.result("asked") if asks else 0)

    return row


def _step(name: str) -> Any:
    async def run(ctx: StepContext[int]) -> None:
        parts.note(ctx)
        await parts.act(name, ctx.job_id, ctx.attempt)

    return run


def _undo(name: str) -> Any:
    async def undo(ctx: StepContext[int], result: None) -> None:
        await parts.undo(name)

    return undo


@task
async def first() -> None:
    await parts.act("first", step_key(), task_context().attempt)


@task
async def second() -> None:
    await parts.act("second", step_key(), task_context().attempt)


@task
async def third() -> None:
    await parts.act("third", step_key(), task_context().attempt)


@first.rollback(retry=_ONCE)
async def undo_first(result: None) -> None:
    await parts.undo("first")


@second.rollback(retry=_ONCE)
async def undo_second(result: None) -> None:
    await parts.undo("second")


@third.rollback(retry=_ONCE)
async def undo_third(result: None) -> None:
    await parts.undo("third")


def _make_function(asks: bool, retry: Retry, limit: float | None, options: dict[str, Any]) -> Any:
    @durable("row", output=int, retry=_ONCE, **options)
    async def row(ctx: FlowContext[int]) -> int:
        more = 0
        for each in (first, second, third):
            parts.note(ctx)
            await ctx.step(each.using(retry=retry, timeout=limit))
            if asks and each is first:
                more = await ctx.wait_for(answer)
        return ctx.input + 3 + more

    return row


def _make_pipeline(asks: bool, retry: Retry, limit: float | None, options: dict[str, Any]) -> Any:
    assert not asks, "the steps of a pipeline are functions, so none of them waits"
    row: Any = Pipeline("row", input=Given, output=int, retry=_ONCE, **options)
    for name in NAMES:
        row.then(_piece(name), name=name, retry=retry, timeout=limit, rollback=_undo_piece(name))
    return row.returns(lambda ctx: sum(ctx.values()))


def _piece(name: str) -> Any:
    async def run(ctx: PipelineContext[Any]) -> dict[str, int]:
        context = ctx.step_context
        parts.note(context)
        await parts.act(name, context.job_id, context.attempt)
        return {name: 1}

    return run


def _undo_piece(name: str) -> Any:
    async def undo(ctx: PipelineContext[Any]) -> None:
        await parts.undo(name)

    return undo


def _make_machine(asks: bool, retry: Retry, limit: float | None, options: dict[str, Any]) -> Any:
    class Row(StateMachine[int], name="row", start="begin", **options):
        @transition("begin", to="asking" if asks else "done-first", retry=retry, timeout=limit)
        async def first(self, ctx: MachineContext[int]) -> None:
            await _move(ctx, "first")

        @first.rollback
        async def undo_first(self, ctx: MachineContext[int]) -> None:
            await parts.undo("first")

        if asks:

            @transition("asking", to="done-first", wait=int)
            async def asked(self, ctx: MachineContext[int], number: int) -> None:
                ctx.state += number

        @transition("done-first", to="done-second", retry=retry, timeout=limit)
        async def second(self, ctx: MachineContext[int]) -> None:
            await _move(ctx, "second")

        @second.rollback
        async def undo_second(self, ctx: MachineContext[int]) -> None:
            await parts.undo("second")

        @transition("done-second", to=END, retry=retry, timeout=limit)
        async def third(self, ctx: MachineContext[int]) -> int:
            await _move(ctx, "third")
            return ctx.state

        @third.rollback
        async def undo_third(self, ctx: MachineContext[int]) -> None:
            await parts.undo("third")

    return Row


async def _move(ctx: MachineContext[int], name: str) -> None:
    ctx.state += 1
    parts.note(ctx)
    await parts.act(name, ctx.key, ctx.attempt)
