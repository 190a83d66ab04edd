"""Workers: which processes run jobs, and how far behind they are."""

from __future__ import annotations

import msgspec

from eventbus.admin.workers import WorkerReport
from eventbus.dashboard.desk.desk import Desk
from eventbus.dashboard.desk.queues import queue_target
from eventbus.dashboard.desk.rows import NoQuery, Read
from eventbus.dashboard.entry.gate import Caller
from eventbus.dashboard.entry.rights import Target


class WorkerList(msgspec.Struct, frozen=True, kw_only=True):
    """The workers that were heard within ten minutes."""

    workers: list[WorkerReport]


async def read_workers(desk: Desk, caller: Caller, _path: dict[str, str], _query: NoQuery) -> WorkerList:
    """Return the workers, each without the queues that the caller may not see.

    And without the versions of their jobs.
    """
    desk.demand(caller, "server.read", Target("server"), "such page")
    found = await desk.inspector.workers.list()
    return WorkerList(workers=[_shown(desk, caller, each) for each in found])


def _shown(desk: Desk, caller: Caller, worker: WorkerReport) -> WorkerReport:
    named = {*worker.queues, *worker.versions}
    seen = {queue for queue in named if desk.sees(caller, queue_target(queue))}
    return msgspec.structs.replace(
        worker,
        queues=[queue for queue in worker.queues if queue in seen],
        versions={queue: known for queue, known in worker.versions.items() if queue in seen},
    )


READS = (Read("/workers", "The workers.", WorkerList, read_workers),)
