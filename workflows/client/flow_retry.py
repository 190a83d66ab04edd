"""Retry by hand: the next run of a flow that has ended, under the same id.

    read the root and its last run's records -> find the steps that still count -> begin the run, in one call

The root runs again like that of a bare flow: it runs or adds the steps itself, in a worker that has the
flow's version, so the caller of the retry needs no definition.

What must always hold: a resumed flow does not run a step again that completed, or whose failure was ignored,
and that was not undone. The record of that step stays where it is (`FlowMessage.kept`), and so does that of
an item of a step. A signal with an id that its sender chose goes with what took it: what is kept keeps the
id, so the same signal does not come again; what runs again may be sent it once more. If several callers retry
at the same time, only one begins the run, because the server checks the number of the last run.

Crash windows: `asker-dies` (before the call: nothing happened; after it: the flow runs), `not-answered` (the
same call is sent again, and gets the same answer), `worker-dies-adding-steps` (the root runs again; adding a
step a second time changes nothing).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from eventbus import UnknownJob, UsageError
from eventbus.lowlevel import FINAL_STATES, JobClient, TreePage
from workflows.client.sent_signals import send_retry
from workflows.distributed.activation import read_journal
from workflows.errors import FlowNotEnded
from workflows.functions.calls.kept import kept_entries
from workflows.machines.snapshot import MACHINE, Snapshot, read_snapshot
from workflows.records.checkpoints import GRAPH, read_undone
from workflows.records.entries import Entry, entries_of_run
from workflows.records.graph_history import GraphHistory, read_graph
from workflows.records.ids import find_member, is_nested, list_name, parent_of, split_item
from workflows.records.records import FlowMessage, encode_message, read_message_of
from workflows.records.status import status_of

_MOST_IDS = 2050
"""The server remembers no more, even of one byte each."""


async def retry_flow(
    jobs: JobClient,
    flow_id: str,
    *,
    resume: bool | None,
    run: int | None = None,
    target: str | None = None,
    deadline: float,
) -> int:
    """Begin the next run of a flow; return its number.

    If `resume` is true, steps that completed and were not undone keep their records; if it is false, all
    steps run. None runs a completed flow from the start, and resumes any other. A `run` that is not the last
    one is refused as if that run had not ended. A state machine that has not ended is told to run again what
    failed, or to move to `target`. `deadline` is a time of the monotonic clock. Raises FlowNotEnded,
    UnknownJob, UsageError for the flow of a sub-workflow, StoreError, and StoreUnavailable past the deadline.
    """
    page = await jobs.look(flow_id, listed="done", limit=0, deadline=deadline)
    if not page.root:
        check_whole(flow_id, "retry")
        raise UnknownJob(flow_id)
    state = status_of(page.root).state
    last = read_message_of(flow_id, page.root.get("body", ""))
    if state in FINAL_STATES or not last.machine:
        check_whole(flow_id, "retry")  # a machine that stands inside another flow goes on for that one
    if state not in FINAL_STATES:
        if not last.machine:
            raise FlowNotEnded(flow_id=flow_id, state=state)
        await _retry_standing(jobs, flow_id, page, resume=resume, target=target)
        return last.run
    if target is not None:
        raise UsageError(f"flow {flow_id} has ended and stands at no place; retry it without a target")
    if (
        run is not None and run != last.run
    ):  # another caller began the run after it, whatever became of that one
        raise FlowNotEnded(flow_id=flow_id, state=f"at run {last.run} and not at run {run}")
    is_resumed = state != "completed" if resume is None else resume
    following = msgspec.structs.replace(last, run=last.run + 1, kept={}, bare=True)
    following.mode = ""
    journal = await read_journal(jobs, flow_id, page.root, deadline=deadline) if is_resumed else []
    if is_resumed and not last.machine:
        history = read_graph(journal, last)
        # What is kept lies where the last run recorded it, whatever later releases say.
        following.mode = history.mode
        following.kept = (
            _kept_in(history, last)
            if history.is_local
            else await _find_kept(jobs, flow_id, last, page, deadline)
        )
        following.version = following.version or page.saved.get(GRAPH, "") or history.version
    forgotten = await _forgotten(jobs, flow_id, journal, last, following, deadline) if is_resumed else ()
    word = await jobs.restart(
        flow_id,
        encode_message(following),
        run=last.run,
        timeout=last.timeout,
        keeps=_kept_of(last, is_resumed=is_resumed),
        forgets=forgotten,
        deadline=deadline,
    )
    if word == "unknown":
        raise UnknownJob(flow_id)
    if word != "restarted":  # another caller began this run first
        raise FlowNotEnded(flow_id=flow_id, state="running")
    return following.run


async def _retry_standing(
    jobs: JobClient, flow_id: str, page: TreePage, *, resume: bool | None, target: str | None
) -> None:
    """Have a state machine that has not ended run again what failed, or move to `target`. Raises
    FlowNotEnded, SignalRefused.
    """
    state = status_of(page.root).state
    if resume is False:
        raise FlowNotEnded(
            flow_id=flow_id,
            state=state,
            advice="only a flow that has ended begins from its start: cancel it first, or retry it where it "
            "stands",
        )
    if not await send_retry(jobs, flow_id, target):
        raise FlowNotEnded(
            flow_id=flow_id,
            state=f"{state}, and nothing failed at its place",
            advice="trigger one of its transitions, or cancel it and retry it then",
        )


def _kept_of(
    last: FlowMessage, *, is_resumed: bool
) -> Sequence[Literal["journal", "inbox", "live", "texts"]]:
    """Return what stays in the server of the last run."""
    if is_resumed:
        return ("journal", "inbox", "live", "texts") if last.machine else ("journal", "inbox", "live")
    return () if last.durable or last.machine else ("journal",)


async def _forgotten(
    jobs: JobClient,
    flow_id: str,
    journal: Sequence[Entry],
    last: FlowMessage,
    following: FlowMessage,
    deadline: float,
) -> list[str]:
    """Return the ids of the signals that a resumed run may be sent once more: those that nothing took that
    it keeps, as far as a sender chose them.

    So their wait runs again, or the place of a machine where one failed waits again, or they did not fit.
    """
    if last.machine:
        snapshot = read_snapshot(flow_id, await jobs.lives(flow_id, [MACHINE], deadline=deadline))
        return _unique(() if snapshot is None else _unspent(journal, snapshot))
    if last.durable:
        before = kept_entries(journal).entries
        after = kept_entries([*journal, Entry(kind="run", run=following.run)]).entries
        kept = {entry.signal for entry in after if entry.kind == "signal"}
    else:
        numbered = entries_of_run(journal, last.run)
        # What an earlier run took, and forgot, has no id any more.
        before = [entry for number, entry in numbered if number == last.kept.get(entry.place, last.run)]
        kept = {
            entry.signal
            for number, entry in numbered
            if entry.kind != "refused" and number == following.kept.get(entry.place)
        }
    return _unique(entry.signal for entry in before if entry.signal not in kept)


def _unspent(journal: Sequence[Entry], snapshot: Snapshot) -> list[str]:
    """Return the ids of the triggers that moved a machine nowhere: those that did not fit in the last run,
    and those whose transition failed since the machine came to its place.

    Its journal has only the newest entries, perhaps without the one that began the run.
    """
    refused: list[str] = []
    failed: list[str] = []
    for entry in journal:
        if entry.kind == "run":
            refused.clear()  # the retry before has forgotten them
        elif entry.kind == "refused":
            refused.append(entry.signal)
        elif entry.kind == "failed" and entry.move == snapshot.moves:
            failed.append(entry.signal)
    trouble = snapshot.trouble
    if trouble is not None and trouble.origin == snapshot.place:
        failed.append(trouble.chosen)
    return [*refused, *failed]


def _unique(ids: Iterable[str]) -> list[str]:
    """Return the ids that senders chose, each once, at most as many of the last as the server remembers."""
    return [one for one in dict.fromkeys(ids) if one][-_MOST_IDS:]


def _kept_in(history: GraphHistory, last: FlowMessage) -> dict[str, int]:
    """Return the steps of a local flow whose entries still count, as `_find_kept` does, and the items and
    lists of others.
    """
    paths = [path.partition("/")[0] for path, failure in history.undone.items() if not failure]
    undone = {*paths, *(split_item(path)[0] for path in paths)}
    done = [name for name in history.order if history.steps[name].last.kind == "step" and name not in undone]
    kept = {name: last.run_of(name) for name in done}
    for step in {split_item(name)[0] for name in done}.intersection(history.lists):
        kept[list_name(step)] = last.run_of(list_name(step))
    # The number of a step counts for its items, too.
    return {
        name: run
        for name, run in kept.items()
        if (step := split_item(name)[0]) == name or kept.get(step) != run
    }


def check_whole(flow_id: str, verb: str) -> None:
    """Raise UsageError for the flow of a sub-workflow, which is changed with the whole alone."""
    parent = parent_of(flow_id)
    if parent is not None:
        raise UsageError(
            f"flow {flow_id} is a part of flow {parent.flow_id}, whose step {parent.step!r} started it; "
            f"{verb} that flow"
        )


async def _find_kept(
    jobs: JobClient, flow_id: str, last: FlowMessage, page: TreePage, deadline: float
) -> dict[str, int]:
    """Return the steps whose records still count, each with the run that recorded it.

    A sub-workflow counts if none of its steps was undone. A step whose rollback failed counts too, because it
    may still be in effect, and running it again could apply it twice.
    """
    undone = {path.partition("/")[0] for path, failure in read_undone(page.saved).items() if not failure}
    kept: dict[str, int] = {}
    first = 0
    while first < page.total:
        more = await jobs.look(flow_id, listed="done", first=first, deadline=deadline)
        if not more.members:
            break
        first += len(more.members)
        for member in more.members:
            if is_nested(member.id, flow_id):
                continue  # the flow of a sub-workflow: the record of its step decides
            job = find_member(member.id)
            if job is None or member.state != "completed":
                continue  # its record is lost, or it is no step of a flow: it runs again
            if last.kept.get(job.step, last.run) == job.run and job.step not in undone:
                kept[job.step] = job.run
    return kept
