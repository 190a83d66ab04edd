"""What a machine owes: its rollbacks are bounded, cost a claim nothing, and are all there when it is given
up.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import pytest
from drivers.machines.acting import Open, Until, did

from eventbus import DefinitionError
from workflows import (
    END,
    FlowCancelled,
    FlowHandle,
    MachineContext,
    StateMachine,
    WorkflowProvider,
    transition,
)
from workflows.machines.snapshot import NAMES, read_snapshot

pytestmark = pytest.mark.virtual

Cost = Callable[..., Awaitable[tuple[int, int]]]


def make_ticking(most: int = 10_000) -> Any:
    """Return a machine whose state is how many moves, each with a rollback, it makes before it rests."""

    class Ticking(StateMachine[int], name="ticking", start="a", max_rollbacks=most):
        @transition("a", to="a", when=lambda ctx: ctx.state > 0)
        async def tick(self, ctx: MachineContext[int]) -> None:
            ctx.state -= 1

        @tick.rollback
        async def untick(self, ctx: MachineContext[int]) -> None:
            did.append("untick")

        @transition("a", to="a", wait=int)
        async def poke(self, ctx: MachineContext[int], moves: int) -> None:
            did.append("poke")
            ctx.state = moves

        @transition("a", to=END, wait=None)
        async def end(self, ctx: MachineContext[int], payload: None) -> int:
            return ctx.moves

    return Ticking


async def moves_of(flows: WorkflowProvider, flow: FlowHandle[Any]) -> int:
    """Return how often a flow has moved, without reading what it owes."""
    snapshot = read_snapshot(flow.id, await flows.provider.jobs.lives(flow.id, NAMES))
    return 0 if snapshot is None else snapshot.moves


async def test_at_its_bound_the_next_such_transition_fails_without_a_call_and_a_larger_one_goes_on(
    open_flows: Open, until: Until, logs: list[MutableMapping[str, Any]]
) -> None:
    small, large = make_ticking(10), make_ticking(20)
    flows = await open_flows(small, worker=False)
    async with flows.provider.worker():
        flow = await flows.execute(small, 12)

        async def is_refused() -> bool:
            return "owes 10 rollbacks, as many as state machine 'ticking' may" in (await flow.report()).error

        await until(is_refused, "it stands with its error")
        assert await moves_of(flows, flow) == 10
    told = [each["rollbacks"] for each in logs if each["event"] == "many rollbacks are owed"]
    assert told == [8]
    later = await open_flows(large)
    await later.handle(flow.id, large).retry()

    async def rests() -> bool:
        return await moves_of(later, flow) == 12 and (await flow.report()).state == "waiting"

    await until(rests, "it has moved on")
    assert (await flow.report()).error == ""
    assert await flow.cancel()
    with pytest.raises(FlowCancelled) as caught:
        await flow.result(240)
    assert (caught.value.rollback, did) == ("complete", ["untick"] * 12)


async def test_transitions_without_a_rollback_go_on_at_the_bound(open_flows: Open, until: Until) -> None:
    ticking = make_ticking(10)
    flows = await open_flows(ticking)
    flow = await flows.execute(ticking, 10)

    async def rests(moves: int) -> bool:
        return await moves_of(flows, flow) == moves and (await flow.report()).state == "waiting"

    await until(lambda: rests(10), "it rests")
    await flow.trigger(ticking.poke, 0)
    await until(lambda: rests(11), "it has moved")
    await flow.trigger(ticking.end)
    assert await flow.result(240) == 11


@pytest.mark.parametrize("most", [9, 100_001, "10", True])
def test_the_bound_is_a_number_of_its_range(most: Any) -> None:
    with pytest.raises(
        DefinitionError, match="max_rollbacks of state machine 'ticking' to be a whole number"
    ):
        make_ticking(most)


@pytest.mark.once
@pytest.mark.slow
@pytest.mark.real  # counts lines and bytes, also those of the virtual network
async def test_what_is_owed_costs_a_claim_nothing_and_about_a_hundred_bytes_each(
    open_flows: Open, until: Until, admin: Callable[..., Any], prefix: str, cost: Cost
) -> None:
    ticking, owed = make_ticking(), 3000
    flows = await open_flows(ticking)
    old, new = await flows.execute(ticking, owed), await flows.execute(ticking, 1)

    async def has_moved(flow: FlowHandle[Any], moves: int) -> bool:
        return await moves_of(flows, flow) == moves

    def size(flow: FlowHandle[Any]) -> int:
        (name,) = admin("KEYS", f"{prefix}*live*{flow.id}*")
        return admin("MEMORY", "USAGE", name, "SAMPLES", "0")

    async def rests(flow: FlowHandle[Any], moves: int) -> bool:
        return await has_moved(flow, moves) and (await flow.status()).state == "waiting"

    await until(lambda: rests(old, owed), "it owes many", within=600)
    await until(lambda: rests(new, 1), "it owes one")
    each = (size(old) - size(new)) / owed
    assert 40 < each < 150, f"{each} bytes for each rollback that is owed"
    (lines, sent), (few, little) = [await cost(flows, flow, ticking.poke, 0, "poke") for flow in (old, new)]
    assert lines < 1.5 * few, (lines, few)
    assert sent < 1.5 * little, (sent, little)
    assert await new.cancel()
    assert await old.cancel()
    with pytest.raises(FlowCancelled) as caught:
        await old.result(100)
    assert caught.value.rollback == "complete"
    assert did.count("untick") == owed + 1
