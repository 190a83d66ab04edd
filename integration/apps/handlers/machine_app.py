"""A state machine under test: its bodies write what they do into a journal outside of the server, and die on
demand.

Run by `eventbus worker apps.handlers.machine_app:provider` in `integration/`. A file `die in <body>` in the
test's folder kills once.
"""

from __future__ import annotations

import asyncio
import os
from functools import cache
from pathlib import Path

import msgspec
from apps.step_actions import die_at, hold_at
from harness.journal import Journal

from eventbus import EventProvider
from workflows import END, MachineContext, Settled, StateMachine, WorkflowProvider, step_key, transition

__all__ = ["Cutting", "Draft", "Part", "Review", "Toggle", "flows", "provider"]

provider: EventProvider = EventProvider()
flows: WorkflowProvider = WorkflowProvider(provider)


class Draft(msgspec.Struct):
    """`breaks` names a body that fails for good."""

    done: list[str] = msgspec.field(default_factory=list[str])
    breaks: str = ""


@cache
def _journal() -> Journal:
    return Journal(Path(os.environ["EVENTBUS_TEST_FOLDER"]) / "journal")


async def act(name: str) -> None:
    _journal().write("began", step_key(), 1, name)
    die_at(f"in {name}")
    await hold_at(name)
    _journal().write("did", step_key(), 1, name)


async def work(ctx: MachineContext[Draft], name: str) -> None:
    await act(name)
    if ctx.state.breaks == name:
        raise ValueError(f"{name} is broken")
    ctx.state.done.append(name)


class Part(StateMachine[int], name="part", start="a"):
    @transition("a", to=END)
    async def go(self, ctx: MachineContext[int]) -> int:
        await act(f"part {ctx.state}")
        return ctx.state


class Review(StateMachine[Draft], name="review", start="draft"):
    @transition("draft", to="waiting", error_place="broken")
    async def prepare(self, ctx: MachineContext[Draft]) -> None:
        ctx.save("summary", "half")
        await work(ctx, "prepare")

    @prepare.rollback
    async def unprepare(self, ctx: MachineContext[Draft]) -> None:
        await act("unprepare")

    @transition("broken", to="waiting")
    async def mend(self, ctx: MachineContext[Draft]) -> None:
        assert await ctx.load("summary") is None
        await work(ctx, "mend")

    @transition("waiting", to="analysing", wait=bool)
    async def approve(self, ctx: MachineContext[Draft], is_ok: bool) -> None:
        ctx.children(Part, [1, 2])
        await work(ctx, "approve")

    @transition("analysing", to="approved", after="all")
    async def collect(self, ctx: MachineContext[Draft], settled: Settled) -> None:
        assert settled.results == [1, 2]
        await work(ctx, "collect")

    @transition("approved", to=END)
    async def publish(self, ctx: MachineContext[Draft]) -> list[str]:
        await work(ctx, "publish")
        return ctx.state.done


class Toggle(StateMachine[list[int]], name="toggle", start="off"):
    """Each trigger that it takes leaves its number in the state."""

    @transition("off", to="on", wait=int)
    async def switch_on(self, ctx: MachineContext[list[int]], number: int) -> None:
        ctx.state.append(number)

    @transition("on", to="off", wait=int)
    async def switch_off(self, ctx: MachineContext[list[int]], number: int) -> None:
        ctx.state.append(number)

    @transition("off", to=END, wait=None)
    async def end(self, ctx: MachineContext[list[int]], payload: None) -> list[int]:
        return ctx.state


class Cutting(StateMachine[bool], name="cutting", start="a"):
    """Its first body may be stubborn, and take effect although it was cancelled; the guard of its second
    place takes its time."""

    @transition("a", to="b")
    async def one(self, ctx: MachineContext[bool]) -> None:
        _journal().write("began", step_key(), 1, "one")
        try:
            await hold_at("one")
        except asyncio.CancelledError:
            if not ctx.state:
                raise
        _journal().write("did", step_key(), 1, "one")

    @one.rollback
    async def undo_one(self, ctx: MachineContext[bool]) -> None:
        await act("undo one")

    @transition("b", to=END, when=lambda ctx: _slowly(ctx.flow_id))
    async def two(self, ctx: MachineContext[bool]) -> str:
        await act("two")
        return "done"


async def _slowly(flow_id: str) -> bool:
    _journal().write("asked", flow_id, 1, "guard")
    await hold_at("guard")
    return True


flows.register(Cutting)
flows.register(Part)
flows.register(Review)
flows.register(Toggle)
