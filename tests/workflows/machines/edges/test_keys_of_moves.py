"""The idempotency keys of machines: the same in all attempts of one thing, and never those of another."""

from __future__ import annotations

import pytest
from drivers.machines.acting import Draft, Open, Until, broken, stands_at

from eventbus import Retry
from workflows import END, FlowCancelled, MachineContext, StateMachine, transition

pytestmark = pytest.mark.virtual

keys: list[str] = []


def note(ctx: MachineContext[Draft], name: str) -> None:
    keys.append(f"{name} {ctx.key.partition('/')[2]}")
    if name in broken:
        raise ConnectionError(f"{name} has no answer")


class Paying(StateMachine[Draft], name="paying", start="open"):
    @transition("open", to="paid", wait=int, retry=Retry(attempts=2, delay=0.01))
    async def by_card(self, ctx: MachineContext[Draft], amount: int) -> None:
        note(ctx, "by_card")

    @transition("open", to="paid", wait=int)
    async def by_bank(self, ctx: MachineContext[Draft], amount: int) -> None:
        note(ctx, "by_bank")

    @by_bank.rollback
    async def send_back(self, ctx: MachineContext[Draft]) -> None:
        note(ctx, "send_back")

    @transition("paid", to="packed")
    async def pack(self, ctx: MachineContext[Draft]) -> None:
        note(ctx, "pack")

    @pack.rollback
    async def unpack(self, ctx: MachineContext[Draft]) -> None:
        note(ctx, "unpack")

    @transition("packed", to=END, wait=None)
    async def end(self, ctx: MachineContext[Draft], nothing: None) -> None: ...


async def test_two_transitions_out_of_a_place_and_two_rollbacks_have_keys_of_their_own(
    open_flows: Open, until: Until
) -> None:
    """The answer of the first payment was lost: the second one, made another way, must not be taken for its
    repeat.
    """
    keys.clear()
    flows = await open_flows(Paying)
    flow = await flows.execute(Paying, Draft())
    await stands_at(flow, "open", until)
    broken.add("by_card")
    await flow.trigger(Paying.by_card, 990)
    await until(lambda: len(keys) == 2, "both attempts failed")
    await stands_at(flow, "open", until)
    await flow.trigger(Paying.by_bank, 990)
    await stands_at(flow, "packed", until)
    await flow.cancel("the customer left")
    with pytest.raises(FlowCancelled):
        await flow.result(timeout=240)
    assert keys == [
        "by_card 1/1/by_card",
        "by_card 1/1/by_card",
        "by_bank 1/1/by_bank",
        "pack 1/2/pack",
        "unpack 1/2/pack/undo",
        "send_back 1/1/by_bank/undo",
    ]
