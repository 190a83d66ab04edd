"""The app of limits under test: handlers that take a while, of an event that few may run at once in the whole
fleet.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from harness.journal import Journal

from eventbus import Event, EventContext, EventProvider, Limit

AT_ONCE = 4

limited = Event("limited", payload=int, result=int, limit=Limit(at_once=AT_ONCE))
provider = EventProvider()

_journal = Journal(Path(os.environ["EVENTBUS_TEST_FOLDER"]) / "journal")


@provider.on(limited, concurrency=10)
async def work(n: int, ctx: EventContext) -> int:
    """Take a fifth of a second."""
    _journal.write("began", ctx.job_id, ctx.attempt, n)
    await asyncio.sleep(0.2)
    _journal.write("ended", ctx.job_id, ctx.attempt, n)
    return n
