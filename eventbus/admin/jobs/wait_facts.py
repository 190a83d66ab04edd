"""What is around a job that waits: who holds its place, and which workers of its queue do not answer.

What must hold: a look costs a bounded number of calls, however many jobs run.
"""

from __future__ import annotations

from eventbus.admin.controls import QueueControls
from eventbus.admin.jobs.job_report import worker_of
from eventbus.admin.jobs.reasons import Holder, WaitFacts
from eventbus.store.bounds import PAGE_JOBS
from eventbus.store.calls.queries import Cursor
from eventbus.store.calls.silent_workers import find_silent
from eventbus.store.store import Store

__all__ = ["look_around", "look_before"]

_LOOKED = 50
"""Of so many jobs that run longest the record is read."""


async def look_around(store: Store, queue: QueueControls, lane: str, deadline: float) -> WaitFacts:
    """Return what is around a waiting job of this queue. `lane` is its limit key, `''` for none."""
    inspection = store.inspection
    now = await inspection.roster.now(deadline=deadline)
    around = WaitFacts(queue=queue, now=now)
    if not queue.workers:
        silent = find_silent(await inspection.roster.workers(deadline=deadline), now)
        return around._replace(silent=silent.get(queue.queue, ()))
    if queue.limit is not None:
        around = around._replace(
            hindrance=await store.controls.hindrance(queue.queue, lane, deadline=deadline)
        )
    is_key = around.hindrance is not None and around.hindrance.rests
    holders = await _find_holders(store, queue.queue, lane if is_key else None, deadline)
    return around._replace(holders=holders)


async def look_before(store: Store, job: str, deadline: float) -> WaitFacts:
    """Return what is around a job that begins once another one has ended."""
    now = await store.inspection.roster.now(deadline=deadline)
    look = await store.inspection.job(job, deadline=deadline)
    if look.fields.get("state") != "active":
        return WaitFacts(now=now)
    since = int(look.fields.get("claimed") or now)
    return WaitFacts(holders=[Holder(job, since, worker_of(look.fields.get("token", "")))], now=now)


async def _find_holders(store: Store, queue: str, lane: str | None, deadline: float) -> list[Holder]:
    """Return the jobs of a queue that run, the longest first; with a `lane` those of that limit key alone."""
    page = await store.inspection.jobs(queue, "active", cursor=Cursor(), limit=PAGE_JOBS, deadline=deadline)
    holders: list[Holder] = []
    for row in sorted(page.jobs, key=lambda each: each.claimed)[:_LOOKED]:
        fields = (await store.inspection.job(row.id, deadline=deadline)).fields
        if fields.get("state") == "active" and lane in (None, fields.get("limit", "")):
            holders.append(Holder(row.id, row.claimed, worker_of(fields.get("token", ""))))
    return holders
