# pyright: reportUnnecessaryTypeIgnoreComment=true
"""The types of state machines, as a type checker sees them; nothing here is run."""

from __future__ import annotations

from typing import Any, assert_type

import msgspec

from workflows import (
    END,
    FlowContext,
    FlowHandle,
    MachineContext,
    Settled,
    StateMachine,
    Step,
    Transition,
    Workflow,
    WorkflowProvider,
    transition,
)
from workflows.testing import run_inline


class Draft(msgspec.Struct):
    text: str = ""


class Verdict(msgspec.Struct):
    ok: bool


class Review(StateMachine[Draft], name="review", start="draft"):
    @transition("draft", to="waiting")
    async def prepare(self, ctx: MachineContext[Draft]) -> None:
        assert_type(ctx.state, Draft)
        ctx.children(Part, [1, 2])
        ctx.children(Part, ["one"])  # type: ignore[misc]  # pyright: ignore[reportArgumentType]

    @transition("waiting", to="approved", wait=Verdict, when=lambda _, verdict: verdict.ok)
    async def approve(self, ctx: MachineContext[Draft], verdict: Verdict) -> None:
        assert_type(verdict, Verdict)

    @transition("waiting", to="approved", wait=None)
    async def skip(self, ctx: MachineContext[Draft], payload: None) -> None: ...

    @transition("waiting", to="draft", delay="30 days")
    async def remind(self, ctx: MachineContext[Draft]) -> None: ...

    @transition("approved", to=END, after="all_settled")
    async def publish(self, ctx: MachineContext[Draft], settled: Settled) -> list[Any]:
        return settled.results


class Part(StateMachine[int], name="part", start="a"):
    @transition("a", to=END)
    async def go(self, ctx: MachineContext[int]) -> int:
        return ctx.state


assert_type(Review.approve, Transition[Verdict])
assert_type(Review.skip, Transition[None])


@transition("a", to="b", wait=Draft)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
async def unfit(self: Any, ctx: MachineContext[Draft], verdict: Verdict) -> None: ...


transition(  # type: ignore[call-overload]
    "a",
    to="b",
    wait=Draft,
    delay=3,  # pyright: ignore[reportCallIssue]
)


async def run(flows: WorkflowProvider) -> None:
    """Run one."""
    flow = await flows.execute(Review, Draft("x"), idempotency_key="x")
    assert_type(flow, FlowHandle[Any])
    await flow.trigger(Review.approve, Verdict(ok=True))
    await flow.trigger(Review.skip)
    await flow.trigger("approve", {"ok": True})
    await flow.trigger(  # type: ignore[misc]
        Review.approve,
        "yes",  # pyright: ignore[reportCallIssue, reportArgumentType]
    )
    await flow.trigger(
        Review.approve  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
    )
    await flow.retry(target="draft")
    await flows.execute(  # type: ignore[misc]
        Review,
        Verdict(ok=True),  # pyright: ignore[reportCallIssue, reportArgumentType]
    )


async def inside(ctx: FlowContext[int], machine: MachineContext[int]) -> None:
    """Run one as a part of other flows."""
    assert_type(await ctx.flow(Review, Draft("x"), timeout="1 day"), Any)
    await ctx.flow(  # type: ignore[misc]
        Review,
        Verdict(ok=True),  # pyright: ignore[reportCallIssue, reportArgumentType]
    )
    machine.children(Part, [1])
    graph: Workflow[Draft, Any] = Workflow("graph", input=Draft)
    assert_type(graph.flow(Review), Step[Draft, Any])
    assert_type(await run_inline(Review, Draft("x")), Any)
    graph.then(Review, Part).parallel(Review, Part)
