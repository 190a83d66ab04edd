"""What the flow around a nested flow has undone of it.

The steps of a sub-workflow that completed are undone as steps of the flow around it, and recorded there,
under the path of the sub-workflow. What must always hold: a record around it that is gone or cannot be read
leaves the report of the nested flow as it is.
"""

from __future__ import annotations

from eventbus import StoreCorrupt
from eventbus.lowlevel import JobClient
from workflows.client.flow_lister import step_of
from workflows.client.reports.durable_report import children_of
from workflows.distributed.activation import read_journal
from workflows.functions.calls.kept import kept_entries
from workflows.functions.rollbacks import undone_in
from workflows.records.checkpoints import read_undone
from workflows.records.graph_history import read_graph
from workflows.records.ids import parent_of
from workflows.records.records import error_text, read_message_of
from workflows.records.report import RollbackReport

__all__ = ["rollbacks_around"]


async def rollbacks_around(jobs: JobClient, flow_id: str, deadline: float) -> list[RollbackReport]:
    """Return the rollbacks of a flow that the flows around it have run, in running order, by the paths of its
    own steps.
    """
    place = parent_of(flow_id)
    if place is None:
        return []
    outer = place.flow_id
    page = await jobs.look(outer, limit=0, deadline=deadline)
    try:
        message = read_message_of(outer, page.root.get("body", ""))
        entries = await read_journal(jobs, outer, page.root, deadline=deadline)
        if message.durable:
            undone = undone_in(kept_entries(entries).entries)
            label = next(
                (name for name, child in children_of(outer, entries).items() if child == flow_id), None
            )
        else:
            undone = read_undone(page.saved) | read_graph(entries, message).undone
            label = step_of(outer, message, flow_id, of_flow=True)
    except StoreCorrupt:
        return []
    found = [RollbackReport(step=path, error=error_text(text)) for path, text in undone.items()]
    found += await rollbacks_around(jobs, outer, deadline)
    start = f"{label}/"
    return [
        RollbackReport(step=each.step.removeprefix(start), error=each.error)
        for each in found
        if label is not None and each.step.startswith(start)
    ]
