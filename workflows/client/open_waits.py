"""What open flows wait for: signals, triggers and times, read from their journals, or from the snapshots of
state machines.
"""

from __future__ import annotations

from collections.abc import Sequence

from eventbus.lowlevel import FINAL_STATES, JobClient
from workflows.client.histories import FlowRecord
from workflows.client.reports.durable_report import waits_of
from workflows.client.reports.machine_report import machine_waits
from workflows.records.entries import Entry, entries_of_run
from workflows.records.graph_history import read_graph
from workflows.records.ids import member_id


async def open_waits(jobs: JobClient, flow: FlowRecord) -> Sequence[Entry]:
    """Return the entry of each wait and sleep of a flow that is open; of one that is being stopped none
    count.

    Of a flow whose steps are jobs these are the waits for signals alone. A state machine that stands with an
    error has an entry `failed` besides: it waits for a retry. Raises StoreCorrupt, StoreError.
    """
    if flow.has_ended or flow.fields.get("stop"):
        return ()
    if flow.message.machine:
        return machine_waits(flow.flow_id, await jobs.lives(flow.flow_id))
    if flow.message.durable:
        return waits_of(flow.entries)
    history = read_graph(flow.entries, flow.message)
    if history.is_local:
        return [step.last for step in history.steps.values() if step.state == "sleeping"]
    run = flow.message.run
    own = [entry for number, entry in entries_of_run(flow.entries, run) if number == run]
    given = {entry.place for entry in own if entry.kind == "signal"}
    waits = {entry.place: entry for entry in own if entry.kind == "wait" and entry.place not in given}
    members = {member_id(flow.flow_id, run, step): step for step in waits}
    outcomes = await jobs.outcomes(list(members)) if members else []
    return [waits[members[each.job]] for each in outcomes if each.state not in FINAL_STATES]
