"""What open flows wait for: the signals and times of durable functions and of step graphs, read from their journals."""

from __future__ import annotations

from collections.abc import AsyncIterator

from eventbus.lowlevel import FINAL_STATES, JobClient
from workflows.client.durable_report import waits_of
from workflows.client.histories import open_flows
from workflows.distributed.activation import read_journal
from workflows.records.entries import Entry, entries_of_run
from workflows.records.graph_history import read_graph
from workflows.records.ids import member_id
from workflows.records.records import FlowMessage, read_message_of

__all__ = ["open_waits"]


async def open_waits(jobs: JobClient, name: str | None = None) -> AsyncIterator[tuple[str, Entry]]:
    """Yield the id of each open flow of one workflow, or of all, with the entry of each wait and sleep that is open.

    Of a flow whose steps are jobs these are the waits for signals alone. Raises StoreCorrupt, StoreError.
    """
    async for flow_id in open_flows(jobs, name):
        root = (await jobs.look(flow_id, limit=0)).root
        if not root:
            continue
        message = read_message_of(flow_id, root.get("body", ""))
        entries = await read_journal(jobs, flow_id, root)
        found = waits_of(entries) if message.durable else await _waits_in(jobs, flow_id, message, entries)
        for entry in found:
            yield flow_id, entry


async def _waits_in(jobs: JobClient, flow_id: str, message: FlowMessage, entries: list[Entry]) -> list[Entry]:
    history = read_graph(entries, message)
    if history.is_local:
        return [step.last for step in history.steps.values() if step.state == "sleeping"]
    own = [entry for run, entry in entries_of_run(entries, message.run) if run == message.run]
    given = {entry.place for entry in own if entry.kind == "signal"}
    waits = {entry.place: entry for entry in own if entry.kind == "wait" and entry.place not in given}
    members = {member_id(flow_id, message.run, step): step for step in waits}
    outcomes = await jobs.outcomes(list(members)) if members else []
    return [waits[members[each.job]] for each in outcomes if each.state not in FINAL_STATES]
