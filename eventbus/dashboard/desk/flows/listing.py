"""Lists of flows, a page at a time, and the versions of workflows that are in use.

What must always hold: a filter, and what the caller may not see, hide no other flow: a page looks on until it
is full, or has seen so many that it says so and leads on.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from eventbus.dashboard import timeouts
from eventbus.dashboard.desk.desk import Desk
from eventbus.dashboard.desk.flows.flow import flow_target, flows_of, may_see
from eventbus.dashboard.desk.rows import Read
from eventbus.dashboard.entry.gate import Caller

_SEEN = 1000
"""How many flows are looked at for one page."""


class FlowsQuery(msgspec.Struct, frozen=True):
    """Which flows are listed: open ones first, then ended ones, the newest first in both; of one workflow and
    in one state if these are given. `cursor` is that of the page before.
    """

    workflow: str = ""
    state: str = ""
    limit: Annotated[int, msgspec.Meta(ge=1, le=200)] = 50
    cursor: str = ""


class FlowLine(msgspec.Struct, frozen=True, kw_only=True):
    """One flow in a list. `completed` counts completed steps."""

    flow_id: str
    workflow: str
    state: str
    run: int = 1
    version: str = ""
    rollback: str = "none"
    completed: int = 0
    is_parked: bool = False
    created_ms: int = 0
    ended_ms: int = 0
    error: str = ""


class FlowList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of flows. `cursor` asks for the next one, None at the end. `seen` is how many flows were looked
    at: with a filter a page may have few, or none, and a cursor.
    """

    flows: list[FlowLine]
    cursor: str | None = None
    seen: int = 0


class VersionLine(msgspec.Struct, frozen=True, kw_only=True):
    """A version of a workflow: how many of its flows are open, and how many live workers can run them.

    `is_newest`: a live worker registered it last. `is_exact` is False if there are more open flows
    than were looked at. `is_safe` tells that the code of the version may go: it is not the newest
    one, and no flow of it is open.
    """

    workflow: str
    version: str
    open: int = 0
    workers: int = 0
    is_newest: bool = False
    is_exact: bool = True
    is_safe: bool = False


class VersionList(msgspec.Struct, frozen=True, kw_only=True):
    """The versions that have open flows or a live worker. They are read at most each 10 s for all viewers
    together.
    """

    versions: list[VersionLine]


async def read_flows(desk: Desk, caller: Caller, _path: dict[str, str], query: FlowsQuery) -> FlowList:
    """Return a page of the flows that the caller may see."""
    source = flows_of(desk)
    lines: list[FlowLine] = []
    cursor, seen = query.cursor, 0
    while len(lines) < query.limit and seen < _SEEN:
        page = await source.flow_page(
            query.workflow or None,
            state=query.state or None,
            limit=query.limit - len(lines),
            cursor=cursor,
            call_timeout=timeouts.READ,
        )
        found = [msgspec.convert(each, FlowLine, from_attributes=True) for each in page.flows]
        lines += [each for each in found if may_see(desk, caller, each.flow_id, each.workflow)]
        cursor, seen = page.cursor, seen + page.seen
        if not cursor:
            break

    def clean(line: FlowLine) -> FlowLine:
        redaction = desk.redaction(caller, flow_target(line.flow_id, line.workflow))
        return msgspec.structs.replace(line, error=redaction.error(line.error))

    return FlowList(flows=list(map(clean, lines)), cursor=cursor or None, seen=seen)


async def read_versions(desk: Desk, caller: Caller, _path: dict[str, str], _query: object) -> VersionList:
    """Return the versions of the workflows that the caller may see."""
    flows_of(desk)
    found = [msgspec.convert(each, VersionLine, from_attributes=True) for each in await desk.versions.read()]
    return VersionList(
        versions=[
            msgspec.structs.replace(each, is_safe=not each.open and each.is_exact and not each.is_newest)
            for each in found
            if desk.may(caller, "flow.read", flow_target("", each.workflow))
        ]
    )


READS = (
    Read("/flows", "A page of flows.", FlowList, read_flows, FlowsQuery),
    Read(
        "/workflows",
        "The versions of workflows: open flows, and workers that know them.",
        VersionList,
        read_versions,
    ),
)
