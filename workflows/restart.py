"""Retry by hand: the next run of a flow that has ended, under the same id.

    read (its root, and what its last run recorded) -> kept (steps that still count) -> begun, in one call

The root runs again as one that was started bare: it adds the steps itself, in a worker that has the flow's
version, so whoever asks for the retry needs no definition. What must hold: a step that completed and was
not undone is not run again by a resumed flow, and its record stays where it is (`FlowMessage.kept`); of
those who ask at the same time one begins the run, for the server checks the number of the last one.

Crash windows: `asker-dies` (before the call: nothing happened; after it: the flow runs), `not-answered` (the
same call is sent again, and is answered the same), `worker-dies-adding-steps` (the root runs again, and what
it added already is a repeat).
"""

from __future__ import annotations

import msgspec

from eventbus import UnknownJob, UsageError
from eventbus.lowlevel import Jobs, TreePage
from workflows.errors import FlowNotEnded
from workflows.names import parent_of, parse_member
from workflows.records import FlowMessage, encode_message, read_message_of
from workflows.rollback import read_undone
from workflows.status import status_of

__all__ = ["restart_flow"]

_GRAPH = "graph"
_PAGE = 200
_ENDED = ("completed", "failed", "cancelled")


async def restart_flow(jobs: Jobs, flow_id: str, *, resume: bool | None) -> int:
    """Begin the next run of a flow; returns its number.

    With `resume` steps that completed and were not undone keep their records, without it all run; None: a
    completed flow runs from the start, any other is resumed. Raises FlowNotEnded, UnknownJob, UsageError for the
    flow of a sub-workflow, StoreError.
    """
    _check_whole(flow_id)
    page = await jobs.look(flow_id, listed="done", limit=0)
    if not page.root:
        raise UnknownJob(flow_id)
    state = status_of(page.root).state
    if state not in _ENDED:
        raise FlowNotEnded(flow_id=flow_id, state=state)
    last = read_message_of(flow_id, page.root.get("body", ""))
    is_resumed = state != "completed" if resume is None else resume
    following = msgspec.structs.replace(last, run=last.run + 1, kept={}, bare=True)
    if is_resumed:
        following.kept = await _find_kept(jobs, flow_id, last, page)
        following.version = following.version or page.saved.get(_GRAPH, "")
    word = await jobs.restart(flow_id, encode_message(following), run=last.run, timeout=last.timeout)
    if word == "unknown":
        raise UnknownJob(flow_id)
    if word != "restarted":
        raise FlowNotEnded(flow_id=flow_id, state="running")
    return following.run


def _check_whole(flow_id: str) -> None:
    parent = parent_of(flow_id)
    if parent is not None:
        raise UsageError(
            f"flow {flow_id} is a part of flow {parent.flow_id}, whose step {parent.step!r} started it; "
            "retry that flow"
        )


async def _find_kept(jobs: Jobs, flow_id: str, last: FlowMessage, page: TreePage) -> dict[str, int]:
    """The steps whose records still count, each with the run that its record is of.

    Of a sub-workflow it counts if nothing of it was undone. A rollback that failed undid nothing for sure, so
    its step is not done a second time.
    """
    undone = {path.partition("/")[0] for path, failure in read_undone(page.saved).items() if not failure}
    kept: dict[str, int] = {}
    first = 0
    while first < page.total:
        more = await jobs.look(flow_id, listed="done", first=first, limit=_PAGE)
        if not more.members:
            break
        first += len(more.members)
        for member in more.members:
            if "~" in member.id.removeprefix(flow_id):
                continue  # the flow of a sub-workflow; its step tells
            job = parse_member(member.id)
            if last.kept.get(job.step, last.run) == job.run and job.step not in undone:
                kept[job.step] = job.run
    return kept
