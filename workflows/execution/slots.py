"""The places of one flow: how many of its steps run at a time where several flows share the places of a
worker.

What must always hold: each flow has one request in the line at most, so that a flow with a thousand parallel
steps takes turns with the others.
"""

from __future__ import annotations

import asyncio

from eventbus.lowlevel import Places

__all__ = ["FlowSlots"]


class FlowSlots:
    """Places as the steps of one flow see them."""

    def __init__(self, slots: Places) -> None:
        self._slots = slots
        self._turn = asyncio.Lock()

    def enter(self) -> bool:
        """Take a slot; return False if none is free or others wait for one."""
        return not self._turn.locked() and self._slots.enter()

    async def wait(self) -> None:
        """Wait for a slot and take it. A cancelled call takes none."""
        async with self._turn:
            await self._slots.wait()

    def leave(self) -> None:
        """Give a slot back."""
        self._slots.leave()
