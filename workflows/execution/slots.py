"""The slots of one flow: how many of its steps run at a time where several flows share the slots of a worker.

An attempt takes one of each limit that applies to it, and gives all of them back. It holds none while it
waits for another one: whoever has that one may need what is held here.

What must always hold: each flow has one request in the line at most, so that a flow with a thousand parallel
steps takes turns with the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from eventbus.lowlevel import Places


class FlowSlots:
    """Places as the steps of one flow see them."""

    def __init__(self, slots: Places) -> None:
        self.places: Places = slots
        self.leave: Callable[[], None] = slots.leave
        self._turn = asyncio.Lock()

    def enter(self) -> bool:
        """Take a slot; return False if none is free or others wait for one."""
        return not self._turn.locked() and self.places.enter()

    async def wait(self) -> None:
        """Wait for a slot and take it. A cancelled call takes none."""
        async with self._turn:
            await self.places.wait()


def enter_all(every: Sequence[FlowSlots], held: FlowSlots | None = None) -> FlowSlots | None:
    """Take a slot of each but `held`, which has been taken. Return one that has none; then all are given
    back.
    """
    taken = [] if held is None else [held]
    for slots in every:
        if slots is held:
            continue
        if not slots.enter():
            leave_all(taken)
            return slots
        taken.append(slots)
    return None


def leave_all(every: Sequence[FlowSlots]) -> None:
    """Give a slot of each back."""
    for slots in every:
        slots.leave()


async def wait_all(every: Sequence[FlowSlots], halted: asyncio.Future[None]) -> bool:
    """Wait for a slot of each, and take them; return False, without one, if `halted` is done first. A
    cancelled call takes none.
    """
    waiting = asyncio.ensure_future(_wait(every))
    is_taken = False
    try:
        await asyncio.wait({waiting, halted}, return_when=asyncio.FIRST_COMPLETED)
        is_taken = waiting.done() and not halted.done()
    finally:
        if not waiting.done():
            waiting.cancel()
        elif not is_taken:
            leave_all(every)
    return is_taken


async def _wait(every: Sequence[FlowSlots]) -> None:
    busy: FlowSlots | None = every[0]
    while busy is not None:
        await busy.wait()
        busy = enter_all(every, held=busy)
