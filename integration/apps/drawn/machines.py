"""A state machine whose course a seed draws: a ship sails when it is told to, lands by itself, and retires.

The input of a flow, its state, has a `Course`, as graphs have: it says how long each body takes, at which
attempt it succeeds, how its rollback goes, and whether it gives way when it is cancelled. The guards take a
while, too. Bodies write their effects into the journal, under the key of their move, without the flow.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import msgspec
from apps.drawn.graphs import RULE, Act, Course
from apps.step_actions import write

from workflows import END, MachineContext, StateMachine, transition

__all__ = ["MOST_TRIPS", "Ship", "Voyage", "acts_of_trips"]

MOST_TRIPS = 4


class Voyage(msgspec.Struct):
    """The state: the course, and what the ship has done. `orders` are the numbers of the triggers."""

    course: Course
    moves: list[str] = []
    orders: list[int] = []


def acts_of_trips() -> list[str]:
    """Return the names of all that a machine does."""
    return [f"{what}[{n}]" for n in range(MOST_TRIPS) for what in ("sail", "land", "guard")]


def _act_of(ctx: MachineContext[Voyage], what: str) -> Act:
    return ctx.state.course.acts.get(f"{what}[{len(ctx.state.orders)}]", Act())


def _note(what: str, ctx: MachineContext[Voyage]) -> None:
    write(what, ctx.flow_id, ctx.attempt, ctx.key.removeprefix(f"{ctx.flow_id}/").removesuffix("/undo"))


async def _do(ctx: MachineContext[Voyage], what: str) -> None:
    act = _act_of(ctx, what)
    _note("began", ctx)
    try:
        await asyncio.sleep(act.ms / 1000)
    except asyncio.CancelledError:
        if act.is_wanted:
            raise
    if ctx.attempt < act.good:
        raise ConnectionError(f"attempt {ctx.attempt} of {what}")
    _note("did", ctx)
    ctx.state.moves.append(what)


async def _is_free(ctx: MachineContext[Voyage], *_: Any) -> bool:
    await asyncio.sleep(_act_of(ctx, "guard").ms / 1000)
    return True


class Ship(StateMachine[Voyage], name="ship", start="port"):
    @transition("port", to="sea", wait=int, retry=RULE)
    async def sail(self, ctx: MachineContext[Voyage], order: int) -> None:
        await _do(ctx, "sail")
        ctx.state.orders.append(order)

    @sail.rollback
    async def come_back(self, ctx: MachineContext[Voyage]) -> None:
        _note("undoing", ctx)
        await asyncio.sleep(0.01)
        if ctx.attempt < random.Random(ctx.key).choices([1, 2], [90, 10])[0]:
            raise ConnectionError(f"attempt {ctx.attempt} to come back")
        _note("undid", ctx)

    @transition("sea", to="port", when=_is_free, retry=RULE)
    async def land(self, ctx: MachineContext[Voyage]) -> None:
        await _do(ctx, "land")

    @transition("port", to=END, wait=None)
    async def retire(self, ctx: MachineContext[Voyage], payload: None) -> list[int]:
        await _do(ctx, "retire")
        return ctx.state.orders
