"""A program whose jobs save what is done, and one whose jobs are not kept: `eventbus worker apps.saved_app:provider`.

Run it in `integration/`. The handler of `walk` writes into the journal which part it does.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from harness.journal import Journal

from eventbus import Event, EventContext, EventProvider, Later

__all__ = ["provider"]

provider: EventProvider = EventProvider()
quick = Event("quick", payload=int, result=str, keep_completed=0)
_journal = Journal(Path(os.environ["EVENTBUS_TEST_FOLDER"]) / "journal")


@provider.on("walk", concurrency=100)
async def walk(payload: Any, ctx: EventContext) -> int:
    """Do the parts one by one, save how many are done, and put the job off now and then."""
    done = await ctx.saved(int, default=0)
    while done < payload["parts"]:
        _journal.write("part", ctx.job_id, ctx.attempt, done)
        await asyncio.sleep(0.03)  # the effect of a part takes a moment
        done += 1
        await ctx.save(done)
        if done % 10 == 0:
            raise Later("20ms")
    return done


@provider.on(quick, concurrency=100)
async def answer(size: int) -> str:
    """Return a text of that length."""
    return "x" * size
