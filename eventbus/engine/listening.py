"""Listening: a running job waits for the next signal that it is sent.

    waits for a moment -> the server is asked to tell of signals -> told | the time is over

What must always hold: a signal that came before the server's answer is not missed, for the answer counts all;
one that was told between two calls ends the next one. A message that is lost costs the whole time, so callers
look for signals afterwards.
"""

from __future__ import annotations

import asyncio

from eventbus.engine.executor import Running
from eventbus.store.calls.journal_store import JournalStore

_SHORT = 0.02  # seconds; who waits for less costs the server nothing


async def listen(run: Running, journals: JournalStore, *, within: float, deadline: float) -> None:
    """Wait until a running job is sent a signal that it does not know of, at most `within` seconds. Raises
    StoreError.
    """
    try:
        async with asyncio.timeout(within):
            if run.signalled is None:
                await asyncio.sleep(_SHORT)
                run.signalled = await _ask(run, journals, deadline)
            await run.signalled.wait()
            run.signalled.clear()
    except TimeoutError:
        return


async def _ask(run: Running, journals: JournalStore, deadline: float) -> asyncio.Event:
    run.signalled = signalled = asyncio.Event()  # now: the server may tell of one before it answers
    try:
        if await journals.listen(run.job.id, run.job.token, deadline=deadline) > run.job.heard:
            signalled.set()
    except BaseException:
        run.signalled = None
        raise
    return signalled
