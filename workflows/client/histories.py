"""The histories of flows of durable functions, read from the server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from eventbus.lowlevel import FINAL_STATES, JobClient
from workflows.distributed.activation import read_journal
from workflows.functions.history_check import FlowHistory
from workflows.records.entries import encode_entry
from workflows.records.ids import flow_queue
from workflows.records.records import read_message_of
from workflows.records.status import number_in

__all__ = ["NEWEST", "histories_of", "open_flows", "read_history"]

NEWEST = 100
"""How many ended flows of a function are read, the newest ones of each state."""

_PAGE = 100


async def read_history(jobs: JobClient, flow_id: str) -> FlowHistory | None:
    """Return what a flow has recorded; None for a flow of no durable function, and for one that is not there.

    Raises StoreCorrupt for what cannot be read, StoreError.
    """
    root = (await jobs.look(flow_id, limit=0)).root
    if not root:
        return None
    message = read_message_of(flow_id, root.get("body", ""))
    if not message.durable:
        return None
    entries = await read_journal(jobs, flow_id, root)
    return FlowHistory(
        flow_id=flow_id,
        version=message.version,
        input=message.input,
        created_ms=number_in(root, "created"),
        run=message.run,
        entries=tuple(msgspec.Raw(encode_entry(entry).encode()) for entry in entries),
    )


async def histories_of(
    jobs: JobClient, name: str | None = None, *, ended: bool
) -> AsyncIterator[FlowHistory]:
    """Yield the histories of all open flows of one durable function, or of all; with `ended` also of the newest ended ones."""
    queues = [flow_queue(name)] if name else await jobs.root_queues()
    for queue in queues:
        if not queue.startswith(flow_queue("")):
            continue
        for state in ("open", *FINAL_STATES) if ended else ("open",):
            for flow_id in await _ids(jobs, queue, state):
                history = await read_history(jobs, flow_id)
                if history is not None:
                    yield history


async def open_flows(jobs: JobClient, name: str | None = None) -> AsyncIterator[str]:
    """Yield the ids of all open flows of one workflow, or of all."""
    for queue in [flow_queue(name)] if name else await jobs.root_queues():
        if queue.startswith(flow_queue("")):
            for flow_id in await _ids(jobs, queue, "open"):
                yield flow_id


async def _ids(jobs: JobClient, queue: str, state: str) -> list[str]:
    found: list[str] = []
    while True:
        page = await jobs.roots(queue, state, first=len(found), limit=_PAGE)
        found += page
        if len(page) < _PAGE or state != "open":
            return found[:NEWEST] if state != "open" else found
