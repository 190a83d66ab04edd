"""Listing flows: the newest ones, or all of them a page at a time.

    open flows, the last added first -> ended ones, the last ended first
                                     -> ended ones that go at a time of their own

What must always hold: a page begins behind the last flow of the page before, by the place of that flow, so no
flow is missed or listed twice, however many come and go meanwhile. A flow that ends while somebody pages
moves to a later part of the list: it may be listed once more, as it is then. A filter looks at a bounded
number of flows for one page; a page says how many it has seen, and leads on. A record that cannot be read
costs only its own line.
"""

from __future__ import annotations

import asyncio
import base64
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from eventbus import DefinitionError, StoreCorrupt, UnknownJob
from eventbus.lowlevel import FINAL_STATES, JobClient, RootPlace, RootRow, TreePage, shown
from workflows.client.reports.durable_report import count_completed
from workflows.client.reports.machine_report import machine_error
from workflows.distributed.activation import read_journal
from workflows.machines.snapshot import NAMES, Snapshot, read_snapshot
from workflows.records.checkpoints import GRAPH
from workflows.records.entries import read_entries
from workflows.records.graph_history import GraphHistory, read_graph
from workflows.records.ids import find_member, flow_queue, is_nested, starter_of, workflow_of
from workflows.records.records import FlowMessage, read_message_of
from workflows.records.report import FlowPage, FlowSummary
from workflows.records.status import is_seen_in, number_in, status_of

_DONE = ("completed", "skipped")
_AT_ONCE = 50  # flows that are read side by side
_PARTS: tuple[tuple[str, ...], ...] = (("open",), FINAL_STATES, ("leaving",))


class OpenVersions(NamedTuple):
    """How many flows are open, by workflow and version; of the workflows in `cut` there are more."""

    counts: Counter[tuple[str, str]]
    cut: set[str]


class _Run(NamedTuple):
    """The version of a flow, how many completed steps count in its run, and where a state machine stands."""

    version: str = ""
    completed: int = 0
    snapshot: Snapshot | None = None


class FlowLister:
    """Lists flows. A `deadline` is a time of the monotonic clock; a call gives up then."""

    def __init__(self, jobs: JobClient) -> None:
        self._jobs = jobs

    async def newest(
        self, workflow: str | None, *, state: str | None, limit: int, deadline: float
    ) -> list[FlowSummary]:
        """Return the newest flows of a workflow, or of all; `state` filters by the state of a flow."""
        names = ("open", *FINAL_STATES) if state is None else (state,) if state in FINAL_STATES else ("open",)
        found = [
            each
            for queue in await self._queues(workflow, deadline)
            for name in names
            for each in await self._summaries(queue, name, deadline, state=state, limit=limit)
        ]
        return sorted(found, key=lambda each: each.created_ms, reverse=True)[:limit]

    async def page(
        self, workflow: str | None, *, state: str | None, limit: int, cursor: str, most: int, deadline: float
    ) -> FlowPage:
        """Return a page of the flows behind `cursor`, after a look at `most` of them. Raises DefinitionError
        for a bad cursor.
        """
        part, place = _read_cursor(cursor)
        queues = await self._queues(workflow, deadline)
        found: list[FlowSummary] = []
        seen = 0
        while part < len(_PARTS) and len(found) < limit and seen < most:
            kinds, room = _kinds_of(part, state), min(limit - len(found), most - seen)
            rows = (
                await self._jobs.root_page(queues, kinds, after=place, limit=room, deadline=deadline)
                if kinds
                else []
            )
            if not rows:
                part, place = part + 1, None
                continue
            seen, place = seen + len(rows), RootPlace(rows[-1].at_ms, rows[-1].id)
            found += [each for each in await self._read(rows, deadline) if state in (None, each.state)]
        return FlowPage(
            flows=found, seen=seen, cursor=_write_cursor(part, place) if part < len(_PARTS) else ""
        )

    async def _read(self, rows: Sequence[RootRow], deadline: float) -> list[FlowSummary]:
        """Return the flows that stand where their rows say; one that has moved is listed at its new place."""
        there = [row for row in rows if row.is_there]
        read = await asyncio.gather(*(self._summary(row.id, deadline) for row in there))
        return [
            flow
            for row, flow in zip(there, read, strict=True)
            if flow is not None and (row.kind == "open") == (flow.state not in FINAL_STATES)
        ]

    async def open_versions(self, *, most: int, deadline: float) -> OpenVersions:
        """Count the open flows of each workflow by version, `most` of each workflow at most."""
        counts: Counter[tuple[str, str]] = Counter()
        cut: set[str] = set()
        for queue in await self._queues(None, deadline):
            rows = await self._jobs.root_page([queue], _PARTS[0], limit=most + 1, deadline=deadline)
            if len(rows) > most:
                cut.add(workflow_of(rows[0].id))
            there = [row.id for row in rows[:most] if row.is_there]
            for first in range(0, len(there), _AT_ONCE):
                batch = there[first : first + _AT_ONCE]
                versions = await asyncio.gather(*(self._read_version(each, deadline) for each in batch))
                counts.update(
                    (workflow_of(each), version) for each, version in zip(batch, versions, strict=True)
                )
        return OpenVersions(counts, cut)

    async def _read_version(self, flow_id: str, deadline: float) -> str:
        page = await self._jobs.look(flow_id, limit=0, deadline=deadline)
        try:
            message = read_message_of(flow_id, page.root.get("body", ""))
            known = message.version or page.saved.get(GRAPH, "")
            if known or message.machine or not page.root.get("journal"):
                return known
            first = await self._jobs.journal(flow_id, first=0, limit=1, deadline=deadline)
            return read_graph(read_entries(flow_id, first), message).version
        except StoreCorrupt:
            return ""

    async def _queues(self, workflow: str | None, deadline: float) -> list[str]:
        known = [flow_queue(workflow)] if workflow else await self._jobs.root_queues(deadline=deadline)
        return [each for each in known if each.startswith(flow_queue(""))]

    async def _summaries(
        self, queue: str, name: str, deadline: float, *, state: str | None, limit: int
    ) -> list[FlowSummary]:
        """Return the newest flows in `state` of one set of roots; none if its key has another type."""
        found: list[FlowSummary] = []
        first = 0
        while len(found) < limit:
            ids = await self._jobs.roots(queue, name, first=first, limit=limit, deadline=deadline)
            # Side by side: one after the other, a list of 50 flows would wait for 50 round trips.
            every = await asyncio.gather(*(self._summary(entry, deadline) for entry in ids))
            found += [entry for entry in every if entry is not None and state in (None, entry.state)]
            first += len(ids)
            if len(ids) < limit:
                break
        return found[:limit]

    async def _summary(self, flow_id: str, deadline: float) -> FlowSummary | None:
        page = await self._jobs.look(flow_id, listed="done", limit=0, deadline=deadline)
        try:
            workflow = workflow_of(flow_id)
        except UnknownJob:
            return None
        if not page.root:
            return None
        status, run = status_of(page.root), max(number_in(page.root, "run"), 1)
        # If no step of this run has completed yet, only the first member shows whether a worker has begun.
        if status.state in ("running", "waiting") and (run > 1 or not page.total):
            first = await self._jobs.look(flow_id, limit=1, deadline=deadline)
            status = status_of(first.root or page.root, is_seen=is_seen_in(first, first.members))
        run_of = await self._read_run(flow_id, page, deadline)
        return FlowSummary(
            flow_id=flow_id,
            workflow=workflow,
            state=status.state,
            run=run,
            version=run_of.version,
            rollback=status.rollback,
            completed=run_of.completed,
            created_ms=number_in(page.root, "created"),
            ended_ms=number_in(page.root, "ended"),
            is_parked=page.root.get("state") == "parked",
            error=machine_error(page.root, status, run_of.snapshot),
        )

    async def _read_run(self, flow_id: str, page: TreePage, deadline: float) -> _Run:
        """Return what the history of a flow says of this run; nothing if that cannot be read."""
        try:
            message = read_message_of(flow_id, page.root.get("body", ""))
            if message.machine:
                snapshot = read_snapshot(flow_id, await self._jobs.lives(flow_id, NAMES))
                return _Run(message.version, 0 if snapshot is None else snapshot.moves, snapshot)
            entries = await read_journal(self._jobs, flow_id, page.root, deadline=deadline)
        except StoreCorrupt:
            return _Run()
        if message.durable:
            return _Run(message.version, count_completed(entries))
        history = read_graph(entries, message)
        version = version_of(message, page, history)
        if history.is_local:
            done = [name for name in history.step_order if history.steps[name].state in _DONE]
            return _Run(version, len(done))
        return _Run(version, await self._count_done(flow_id, message, page, deadline))

    async def _count_done(self, flow_id: str, message: FlowMessage, page: TreePage, deadline: float) -> int:
        if message.run == 1:
            return page.total
        first, count = 0, 0
        while first < page.total:
            more = await self._jobs.look(flow_id, listed="done", first=first, deadline=deadline)
            if not more.members:
                break
            first += len(more.members)
            count += sum(step_of(flow_id, message, member.id) is not None for member in more.members)
        return count


def version_of(message: FlowMessage, page: TreePage, history: GraphHistory) -> str:
    """Return the version of a graph's flow; empty until a worker has chosen it."""
    return message.version or page.saved.get(GRAPH, "") or history.version


def step_of(flow_id: str, message: FlowMessage, member: str, *, of_flow: bool = False) -> str | None:
    """Return the step of a member, by its id; None if the member does not count in this run or is of the
    other kind.

    The kinds are the jobs of steps, and with `of_flow` the flows of sub-workflows.
    """
    if is_nested(member, flow_id) != of_flow:
        return None
    job = find_member(starter_of(member) if of_flow else member)
    if job is None or message.run_of(job.name) != job.run:
        return None
    return job.name


def _kinds_of(part: int, state: str | None) -> Sequence[str]:
    """Return the sets of a part of the list in which flows of a state can be."""
    if state is None or part == 2:
        return _PARTS[part] if state is None or state in FINAL_STATES else ()
    if part == 0:
        return () if state in FINAL_STATES else _PARTS[0]
    return (state,) if state in FINAL_STATES else ()


def _write_cursor(part: int, place: RootPlace | None) -> str:
    fields = [part] if place is None else [part, place.at_ms, place.id]
    return base64.urlsafe_b64encode(msgspec.json.encode(fields)).decode().rstrip("=")


def _read_cursor(cursor: str) -> tuple[int, RootPlace | None]:
    if not cursor:
        return 0, None
    try:
        raw = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        part, at_ms, flow_id = msgspec.json.decode(raw, type=tuple[int, int, str])
    except (ValueError, msgspec.MsgspecError):
        part, at_ms, flow_id = -1, 0, ""
    if not 0 <= part < len(_PARTS):
        raise DefinitionError(f"expected the cursor of a page of flows, got: {shown(cursor)}")
    return part, RootPlace(at_ms, flow_id)
