"""The workers of the fleet, whatever queues they serve."""

from __future__ import annotations

from typing import Final

import msgspec

from eventbus.admin.namespace import Namespace, OldName
from eventbus.store.calls.roster import WorkerLook
from eventbus.store.readable import number


class WorkerReport(msgspec.Struct, frozen=True, kw_only=True):
    """One worker. Times are Unix times in ms by the server's clock, 0 where there is none.

    `name` is the name of its provider, `host`, `pid` and `version` are those of its process, as it said
    itself. `queues` are those that it serves, sorted, and `versions` the versions of jobs that it can run, by
    queue, where jobs have any. `running` is how many jobs it holds, `concurrency` how many it may run at a
    time. `lag_ms` is how far its event loop was behind when it was last heard. `started_ms` is when it first
    announced itself, `heard_ms` when the server last heard of it. A worker that lives is heard each 3 s; one
    that was killed stays listed for 10 minutes. Of a worker of an earlier release only `id`, `running`,
    `heard_ms` and `lag_ms` are known.
    """

    id: str
    name: str = ""
    host: str = ""
    pid: int = 0
    version: str = ""
    started_ms: int = 0
    heard_ms: int = 0
    queues: list[str] = []
    versions: dict[str, list[str]] = {}
    running: int = 0
    concurrency: int = 0
    lag_ms: int = 0


class Workers(Namespace):
    """The workers: `list` tells those that live, or did a while ago."""

    async def list(self) -> list[WorkerReport]:
        """Return every worker that was heard within the last 10 minutes and has not ended; sorted by name and
        id.

        Raises ProviderStopped and StoreError.
        """
        store, deadline = self._begin("list workers")
        looks = await store.inspection.roster.workers(deadline=deadline)
        return sorted(map(_report_worker, looks), key=lambda each: (each.name, each.id))

    __call__: Final = OldName(list)  # noqa: A003  (the method)


def _report_worker(look: WorkerLook) -> WorkerReport:
    fields = look.fields
    return WorkerReport(
        id=look.id,
        name=fields.get("name", ""),
        host=fields.get("host", ""),
        pid=number(fields.get("pid")),
        version=fields.get("version", ""),
        started_ms=number(fields.get("started")),
        heard_ms=max(look.announced, number(fields.get("heard"))),
        queues=sorted(fields.get("queues", "").split()),
        versions=_read_versions(fields.get("versions", "")),
        running=look.held,
        concurrency=number(fields.get("concurrency")),
        lag_ms=number(fields.get("lag")),
    )


def _read_versions(text: str) -> dict[str, list[str]]:
    try:
        return msgspec.json.decode(text or "{}", type=dict[str, list[str]])
    except (msgspec.MsgspecError, UnicodeError):
        return {}
