"""What stays of jobs that were awaited: about what `keep_completed` says, however many there were."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from harness.backends import Backend

from eventbus import EventProvider, Keep

_KEEP = 1000
_UNREAD = 3000
"""Above what is kept: what the emitter got since its floor last rose, about 1,000 outcomes twice, and what
waits for the next turn that removes."""


@pytest.mark.servers("both")
@pytest.mark.parametrize(("each", "rounds"), [(2_000, 12), pytest.param(10_000, 4, marks=pytest.mark.long)])
async def test_awaited_jobs_leave_about_what_is_kept(server: Backend, each: int, rounds: int) -> None:
    provider = EventProvider(url=server.url, prefix="eb", keep_completed=Keep(count=_KEEP))
    done = "eb:2:{0}:completed:event.ask"
    most: list[int] = []

    @provider.on("ask")
    async def ask(n: int) -> int:
        return n

    with server.client() as client:
        records: Any = client
        async with provider.worker():
            for _ in range(rounds):
                found = await asyncio.gather(
                    *(provider.emit("ask", n, reply_timeout="3 minutes") for n in range(each))
                )
                assert found == list(range(each))
                most.append(records.llen(done))
        records_left = sum(1 for _ in records.scan_iter("eb:2:{0}:job:*", count=1000))
        assert max(most) <= _KEEP + _UNREAD, most
        assert _KEEP <= records_left == records.llen(done)
        assert records.exists("eb:2:{0}:emitters") == 0
