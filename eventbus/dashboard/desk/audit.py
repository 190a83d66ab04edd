"""The audit, as those see it who may."""

from __future__ import annotations

from typing import Annotated

import msgspec

from eventbus.admin.audit import AuditEntry, AuditPage
from eventbus.dashboard.desk.desk import Desk
from eventbus.dashboard.desk.rows import Read
from eventbus.dashboard.entry.gate import Caller
from eventbus.dashboard.entry.rights import Target


class AuditQuery(msgspec.Struct, frozen=True):
    """Of one actor, action, target (an id or an event) or outcome. `cursor` is that of the page before."""

    actor: str | None = None
    action: str | None = None
    target: str | None = None
    outcome: str | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=200)] = 50
    cursor: str | None = None


async def read_audit(desk: Desk, caller: Caller, _path: dict[str, str], query: AuditQuery) -> AuditPage:
    """Return a page of the audit, newest first, without what is about queues that the caller may not see."""
    desk.demand(caller, "audit.read", Target("server"), "audit")
    page = await desk.inspector.audit.list(**msgspec.structs.asdict(query))
    seen = [entry for entry in page.entries if _is_seen(desk, caller, entry)]
    return AuditPage(entries=seen, cursor=page.cursor)


def _is_seen(desk: Desk, caller: Caller, entry: AuditEntry) -> bool:
    """Return whether what the entry is about exists for the caller; `queue` is its event.

    As rights know it.
    """
    if not entry.queue:
        return True
    kind = entry.kind if entry.kind in ("job", "flow", "schedule") else "queue"
    targets = [Target("queue", entry.queue, entry.queue), Target(kind, entry.target, entry.queue)]
    return all(desk.sees(caller, target) for target in targets)


READS = (Read("/audit", "Who did what, or was refused.", AuditPage, read_audit, AuditQuery),)
