"""The records of many flows, read from the server: those that programs started, and those nested in them.

A nested flow is listed nowhere: the flow that started it knows it. So its root is read first, then what that
has started.

What must always hold: lists are read a page at a time, and of an open flow only the nested flows that are
open; of ended ones the newest alone. A record that cannot be read costs only its own flow.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping, Sequence

import msgspec

from eventbus import StoreCorrupt, UnknownJob
from eventbus.lowlevel import FINAL_STATES, JobClient
from workflows.client.reports.durable_report import children_of, open_children_of
from workflows.distributed.activation import read_journal
from workflows.functions.history_check import FlowHistory
from workflows.records.entries import Entry, encode_entry
from workflows.records.graph_history import read_graph
from workflows.records.ids import flow_queue, is_nested, workflow_of
from workflows.records.records import FlowMessage, read_message_of
from workflows.records.status import number_in

NEWEST = 100
"""How many ended flows of a workflow are read: the newest ones of each state, and as many nested ones."""

_PAGE = 100
_AT_ONCE = 20  # flows that are read side by side


class FlowRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What the server has of one flow. `root_id` is the flow that a program started, and that this one
    belongs to.

    `damage` says why the flow cannot be read; then there are no entries.
    """

    flow_id: str
    root_id: str
    fields: Mapping[str, str]
    message: FlowMessage = msgspec.field(default_factory=lambda: FlowMessage(input=msgspec.Raw(b"null")))
    entries: Sequence[Entry] = ()
    has_members: bool = False
    damage: str = ""

    @property
    def workflow(self) -> str:
        """The name of its workflow."""
        return workflow_of(self.flow_id)

    @property
    def has_ended(self) -> bool:
        """Whether it has an outcome."""
        return self.fields.get("state", "") in FINAL_STATES


async def read_history(jobs: JobClient, flow_id: str) -> FlowHistory | None:
    """Return what a flow has recorded; None for a flow of no durable function, and for one that is not there.

    Raises StoreCorrupt for what cannot be read, StoreError.
    """
    flow = await _read(jobs, flow_id, root_id=flow_id)
    if flow is not None and flow.damage:
        raise StoreCorrupt(flow.damage)
    return None if flow is None or not flow.message.durable else _history_of(flow)


async def histories_of(
    jobs: JobClient, names: Collection[str] = (), *, ended: bool
) -> AsyncIterator[FlowHistory | FlowRecord]:
    """Yield the histories of all open flows of some durable functions, or of all; with `ended` also of the
    newest ended ones.

    Flows that are nested in others are among them. Yields the record of a flow that is damaged. Raises
    StoreError.
    """
    count: Counter[str] = Counter()
    async for flow in recorded_flows(jobs, names, ended=ended):
        if flow.flow_id != flow.root_id and flow.has_ended:
            count[flow.workflow] += 1
            if count[flow.workflow] > NEWEST:
                continue
        if flow.damage:
            yield flow
        elif flow.message.durable:
            yield _history_of(flow)


async def recorded_flows(
    jobs: JobClient, names: Collection[str] = (), *, ended: bool = False
) -> AsyncIterator[FlowRecord]:
    """Yield the open flows of some workflows, or of all, each followed by those nested in it.

    With `ended` also the newest ended ones. Raises StoreError.
    """
    for queue in await jobs.root_queues():
        if queue.startswith(flow_queue("")):
            for state in ("open", *FINAL_STATES) if ended else ("open",):
                ids = await _ids(jobs, queue, state)
                for first in range(0, len(ids), _AT_ONCE):
                    page = [_read(jobs, each, names, root_id=each) for each in ids[first : first + _AT_ONCE]]
                    for root in await asyncio.gather(*page):
                        async for flow in _with_nested(jobs, root, names, ended=ended):
                            yield flow


async def flows_within(jobs: JobClient, flow_id: str) -> AsyncIterator[FlowRecord]:
    """Yield a flow, if it is open, and the open flows that are nested in it. Raises StoreError."""
    async for flow in _with_nested(jobs, await _read(jobs, flow_id, root_id=flow_id), (), ended=False):
        yield flow


async def _with_nested(
    jobs: JobClient, root: FlowRecord | None, names: Collection[str], *, ended: bool
) -> AsyncIterator[FlowRecord]:
    """Yield a flow and those nested in it, the outer ones first."""
    known = [] if root is None else [root]
    while known:
        flow = known.pop()
        if flow.has_ended and not ended:
            continue
        if not names or flow.workflow in names:
            yield flow
        if not flow.has_members or flow.damage:
            continue
        ids = await _nested_in(jobs, flow, ended=ended)
        found: list[FlowRecord] = []
        for first in range(0, len(ids), _AT_ONCE):
            page = [_read(jobs, each, names, root_id=flow.root_id) for each in ids[first : first + _AT_ONCE]]
            found += [each for each in await asyncio.gather(*page) if each is not None]
        known += reversed(found)


async def _nested_in(jobs: JobClient, flow: FlowRecord, *, ended: bool) -> list[str]:
    """Return the ids of the flows that a flow has started itself; without `ended` those that may be open."""
    if flow.message.durable:
        find = children_of if ended else open_children_of
        return list(find(flow.flow_id, flow.entries).values())
    history = None if flow.message.machine else read_graph(flow.entries, flow.message)
    if history is not None and history.is_local:
        children = history.children if ended else history.open_children
        return [each.child for each in children.values() if is_nested(each.child, flow.flow_id)]
    found: list[str] = []
    first = 0
    while members := (await jobs.look(flow.flow_id, first=first, limit=_PAGE, max_bytes=0)).members:
        first += len(members)
        found += [
            each.id
            for each in members
            if is_nested(each.id, flow.flow_id) and (ended or each.state not in FINAL_STATES)
        ]
    return found


async def read_record(jobs: JobClient, flow_id: str) -> FlowRecord:
    """Return what the server has of a flow of any kind. Raises UnknownJob, StoreCorrupt, StoreError."""
    flow = await _read(jobs, flow_id, root_id=flow_id)
    if flow is None:
        raise UnknownJob(flow_id)
    if flow.damage:
        raise StoreCorrupt(flow.damage)
    return flow


async def _read(
    jobs: JobClient, flow_id: str, names: Collection[str] = (), *, root_id: str
) -> FlowRecord | None:
    """Return the record of a flow; None if it is not there, or if neither it nor a nested one has one of
    `names`.
    """
    try:
        page = await jobs.look(flow_id, limit=0)
        if not page.root or (names and not page.total and workflow_of(flow_id) not in names):
            return None
        message = read_message_of(flow_id, page.root.get("body", ""))
        entries = await read_journal(jobs, flow_id, page.root)
    except StoreCorrupt as error:
        return FlowRecord(flow_id=flow_id, root_id=root_id, fields={}, damage=str(error))
    return FlowRecord(
        flow_id=flow_id,
        root_id=root_id,
        fields=page.root,
        message=message,
        entries=entries,
        has_members=page.total > 0,
    )


def _history_of(flow: FlowRecord) -> FlowHistory:
    return FlowHistory(
        flow_id=flow.flow_id,
        version=flow.message.version,
        input=flow.message.input,
        created_ms=number_in(flow.fields, "created"),
        run=flow.message.run,
        entries=tuple(msgspec.Raw(encode_entry(entry).encode()) for entry in flow.entries),
    )


async def _ids(jobs: JobClient, queue: str, state: str) -> list[str]:
    found: list[str] = []
    while True:
        page = await jobs.roots(queue, state, first=len(found), limit=_PAGE)
        found += page
        if len(page) < _PAGE or state != "open":
            return found[:NEWEST] if state != "open" else found
