"""A program with a state machine that has each kind of transition, for tests of what draws it."""

from __future__ import annotations

from eventbus import EventProvider
from workflows import END, MachineContext, Settled, StateMachine, WorkflowProvider, transition

__all__ = ["Part", "Review", "flows", "provider"]

provider: EventProvider = EventProvider("memory:")
flows: WorkflowProvider = WorkflowProvider(provider)


class Part(StateMachine[int], name="part", start="a", version="7"):
    @transition("a", to=END)
    async def go(self, ctx: MachineContext[int]) -> None: ...


class Review(StateMachine[int], name="review", start="draft"):
    @transition("draft", to="checking", error_place="broken")
    async def write(self, ctx: MachineContext[int]) -> None:
        if ctx.state < 0:
            raise ValueError("nothing to write")

    @transition("checking", to="waiting", after="all_settled")
    async def note(self, ctx: MachineContext[int], settled: Settled) -> None: ...

    @transition("waiting", to="done", wait=bool, when=lambda _, is_ok: is_ok, priority=1)
    async def approve(self, ctx: MachineContext[int], is_ok: bool) -> None: ...

    @transition(["waiting", "broken"], to="draft", wait=int)
    async def send_back(self, ctx: MachineContext[int], state: int) -> None:
        ctx.state = state

    @transition("done", to=END)
    async def publish(self, ctx: MachineContext[int]) -> str:
        return f"published {ctx.state}"


flows.register(Part)
flows.register(Review)
