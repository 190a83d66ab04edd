"""A machine that moves for years: what a worker reads of it, and what the server keeps, does not grow.

`EVENTBUS_TEST_MOVES=100000` lets it move for as long as `.ci/run` does.
"""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from drivers.machines.acting import did

from workflows import END, FlowHandle, MachineContext, StateMachine, WorkflowProvider, transition
from workflows.machines.snapshot import HISTORY

Open = Callable[..., Awaitable[WorkflowProvider]]
Until = Callable[..., Awaitable[None]]
Cost = Callable[..., Awaitable[tuple[int, int]]]

_MOVES = int(os.environ.get("EVENTBUS_TEST_MOVES", "10000"))


class Endless(StateMachine[int], name="endless", start="a"):
    """Its state is how many moves are left before it rests."""

    @transition("a", to="a", when=lambda ctx: ctx.state > 0)
    async def tick(self, ctx: MachineContext[int]) -> None:
        ctx.state -= 1

    @transition("a", to="a", wait=int)
    async def poke(self, ctx: MachineContext[int], moves: int) -> None:
        did.append("poke")
        ctx.state = moves

    @transition("a", to=END, wait=None)
    async def end(self, ctx: MachineContext[int], payload: None) -> int:
        return ctx.moves


async def _poke(flow: FlowHandle[Any], until: Until, moves: int = 0, *, within: float = 60) -> None:
    """Let the machine wake up and move so often more, until it rests again."""
    machine = (await flow.report()).machine
    assert machine is not None
    wanted = machine.version + moves + 1

    async def rests() -> bool:
        report = await flow.report()
        return report.state == "waiting" and report.machine is not None and report.machine.version == wanted

    await flow.trigger(Endless.poke, moves)
    await until(rests, f"it has made {moves} moves", within=within)


@pytest.mark.once
@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_many_moves_leave_claims_and_memory_as_they_were(
    open_flows: Open, until: Until, admin: Callable[..., Any], prefix: str, cost: Cost
) -> None:
    flows = await open_flows(Endless)
    flow = await flows.execute(Endless, 3 * HISTORY)

    async def rests() -> bool:
        return (await flow.report()).state == "waiting"

    await until(rests, "it rests for the first time")

    def size() -> int:
        names = [
            each
            for kind in ("journal", "live", "inbox")
            for each in admin("KEYS", f"{prefix}*{kind}*{flow.id}*")
        ]
        return sum(admin("MEMORY", "USAGE", name) for name in names)

    (lines_before, sent_before), size_before = await cost(flows, flow, Endless.poke, 0, "poke"), size()
    tracemalloc.start()
    await _poke(flow, until, 1000, within=600)
    used_before, _ = tracemalloc.get_traced_memory()
    await _poke(flow, until, 2000, within=600)
    used_after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used_after - used_before < 2000 * 50, (
        "less than 50 bytes a move, which are caches of the whole process"
    )
    await _poke(flow, until, _MOVES, within=3000)
    (lines, sent), size_after = await cost(flows, flow, Endless.poke, 0, "poke"), size()
    assert size_after < 1.2 * size_before, (size_before, size_after)
    assert lines < 1.5 * lines_before, (lines_before, lines)
    assert sent < 1.5 * sent_before, (sent_before, sent)
    await flow.trigger(Endless.end)
    assert await flow.result(timeout=240) > _MOVES
    machine = (await flow.report()).machine
    assert machine is not None
    assert [each.version for each in machine.moves][-1] == machine.version
    assert len(machine.moves) == HISTORY
