"""Durable functions under test that wait for signals, one after another.

Run by `eventbus worker apps.signal_app:provider` in `integration/`; `python -m apps.signal_app COUNT FLOW...`
sends.
"""

from __future__ import annotations

import asyncio
import sys

import msgspec

from eventbus import EventProvider
from workflows import FlowContext, FlowHandle, Signal, WorkflowProvider, durable

__all__ = ["Note", "flows", "hearing", "listen", "provider"]


class Note(msgspec.Struct):
    """What a signal brings: who sent it, and which of its notes it is."""

    sender: int
    number: int


provider: EventProvider = EventProvider()
flows: WorkflowProvider = WorkflowProvider(provider)
hearing: Signal[Note] = Signal("hearing", Note)


@durable("listen", state=int)
async def listen(ctx: FlowContext[int]) -> list[Note]:
    """Take so many signals; the state is how many it has taken."""
    heard: list[Note] = []
    while len(heard) < ctx.input:
        heard.append(await ctx.wait_for(hearing))
        ctx.state = len(heard)
    return heard


flows.register(listen)


async def _send_at_once(flow: FlowHandle[list[Note]], sender: int, count: int) -> None:
    for number in range(count):
        await flow.signal(hearing, Note(sender, number))


async def _send_in_turn(flow: FlowHandle[list[Note]], sender: int, count: int) -> None:
    """Send each note as soon as the one before is recorded, which is when the flow is about to sleep."""
    for number in range(count):
        while number and (await flow.state() or 0) < number:  # noqa: ASYNC110  (the server notifies nobody)
            await asyncio.sleep(0)
        await flow.signal(hearing, Note(sender, number))


async def main(count: int, ids: list[str]) -> None:
    """Send each flow `count` signals: half of the flows in turn, the others from two senders at once."""
    async with EventProvider() as own:
        sending = WorkflowProvider(own)
        sending.register(listen)
        async with asyncio.TaskGroup() as group:
            for place, flow in enumerate(sending.handle(each, listen) for each in ids):
                if place % 2:
                    group.create_task(_send_in_turn(flow, 0, count))
                else:
                    group.create_task(_send_at_once(flow, 0, count // 2))
                    group.create_task(_send_at_once(flow, 1, count - count // 2))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2:]))
