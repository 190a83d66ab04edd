"""The undo plan of a stopped flow whose steps are jobs: its completed steps, from their records, the last one
first.

What must always hold: every step that completed in this run, or was kept from an earlier run, is listed once
if it has a rollback. That includes the steps of completed sub-workflows, and a step that was cancelled on its
own but completed nevertheless. A step that failed, or whose effect is unknown, is listed only if it has
`rollback_on_failure`. Nothing that may have been done is skipped silently (`is_doubtful`): a record that
cannot be read counts as not undone.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from eventbus import StoreCorrupt
from eventbus.lowlevel import TreeMember, describe, get_logger
from workflows.definition.context import StepContext
from workflows.distributed.worker_runtime import Flow
from workflows.execution.rollback import Undo, UndoPlan, UnknownHere
from workflows.records.ids import is_nested, member_id, parse_member, starter_of
from workflows.records.indeterminate import is_unknown, unknown_text
from workflows.records.records import FlowMessage, decode_step, read_step

_log = get_logger("workflows")

_PAGE_BYTES = 8 << 20  # bytes of results that one call reads
_KEPT_BYTES = 4096  # results larger than this are kept in memory only for the rollback of their own step


class _Done(msgspec.Struct):
    member: TreeMember
    step: str
    text: str
    is_done: bool = True
    """The step completed, whatever the state of its job."""


class _Kept(msgspec.Struct):
    """The record of a step that was cancelled on its own but completed nevertheless."""

    kept: str = ""


_decode_kept = msgspec.json.Decoder(_Kept).decode


async def read_spread_plan(flow: Flow, prefix: str = "") -> UndoPlan:
    """Read the records of a flow and return its undo plan; `prefix` begins the paths of its steps.

    Raises UnknownHere, StoreError.
    """
    done = await _read_done(flow)
    ended = await _read_ended(flow)
    unloaded = [entry.step for entry in done if entry.step and not entry.text]
    found = UndoPlan(unloaded=unloaded)
    for entry in [*done, *ended]:
        if entry.step and entry.text and entry.is_done:
            _read_record(entry, found)
    for entry in reversed(_merged(done, ended)):
        await _add(flow, entry, found, prefix)
    return found


def _merged(done: list[_Done], ended: list[_Done]) -> list[_Done]:
    """Return the completed members in their recorded order, with the others inserted by their end times.

    Sorting all by time would be wrong: times can be equal, and the clock may go back after a failover.
    """
    merged = list(done)
    for entry in sorted(ended, key=lambda one: one.member.ended):
        later = (place for place, other in enumerate(merged) if other.member.ended > entry.member.ended)
        merged.insert(next(later, len(merged)), entry)
    return merged


async def _add(flow: Flow, each: _Done, found: UndoPlan, prefix: str) -> None:
    member = each.member
    if not each.step:
        path = prefix + parse_member(starter_of(member.id)).step
        await flow.runtime.add_inner(found, member.id, member.state, each.text, path)
        return
    step = flow.workflow.steps.get(each.step)
    if step is None:
        raise UnknownHere(f"step {each.step} of workflow {flow.workflow.name}")
    record = found.records.get(each.step) if each.is_done else None
    if record is not None and record.has_undo and step.undo is None:
        raise UnknownHere(f"the rollback of step {each.step} of workflow {flow.workflow.name}")
    if step.undo is None or step.workflow is not None or (record is not None and record.skipped):
        return
    is_done = each.is_done and not (record is not None and record.failure)
    if each.is_done and record is None:
        found.inherited.append((prefix + each.step, _unreadable(member.id)))
    elif is_done or step.rollback_on_failure:
        context = partial(_context, flow, each.step, member.id, found)
        found.undos.append(
            Undo(path=prefix + each.step, step=step, workflow=flow.workflow, record=record, ctx=context)
        )
    elif is_unknown(member.state, member.stalls, each.text):
        found.inherited.append((prefix + each.step, unknown_text(member.stalls, each.text)))


def _context(flow: Flow, step: str, job_id: str, found: UndoPlan, attempt: int) -> StepContext[Any]:
    return flow.context(
        step,
        job_id=job_id,
        attempt=attempt,
        traceparent=flow.message.traceparent,
        records=found.records,
        reach=flow.workflow.steps,
        unloaded=found.unloaded,
    )


async def _read_done(flow: Flow) -> list[_Done]:
    """Return the members that completed, in order of completion, with the records that are needed."""
    done: list[_Done] = []
    first = 0
    while True:
        page = await flow.runtime.jobs.look(flow.flow_id, listed="done", first=first, max_bytes=_PAGE_BYTES)
        for member in page.members:
            step = _step_in_run(member, flow.flow_id, flow.message)
            if step is not None:
                done.append(_Done(member, step, _needed(member, step, flow)))
        first += len(page.members)
        if first >= page.total or not page.members:
            return done


def _needed(member: TreeMember, step: str, flow: Flow) -> str:
    known = flow.workflow.steps.get(step)
    is_needed = known is not None and (known.undo is not None or _owes_undo(member.text))
    return member.text if is_needed or len(member.text) <= _KEPT_BYTES else ""


async def _read_ended(flow: Flow) -> list[_Done]:
    """Return the members that began and did not complete, with the records of their errors."""
    members: list[TreeMember] = []
    first = 0
    while True:
        page = await flow.runtime.jobs.look(flow.flow_id, first=first)
        members += [
            entry for entry in page.members if entry.claimed and entry.state in ("failed", "cancelled")
        ]
        first += len(page.members)
        if first >= page.total or not page.members:
            break
    texts = {
        entry.job: entry.text or ""
        for entry in await flow.runtime.jobs.outcomes([entry.id for entry in members])
    }
    return [
        _Done(entry, step, kept or texts[entry.id], is_done=kept != "")
        for entry in members
        if (step := _step_in_run(entry, flow.flow_id, flow.message)) is not None
        for kept in [_kept_in(entry, step, texts[entry.id])]
    ]


def _kept_in(member: TreeMember, step: str, text: str) -> str:
    return kept_in(text) if step and member.state == "cancelled" else ""


def kept_in(text: str) -> str:
    """Return the record of a step that was cancelled on its own but completed, from its outcome; empty for
    others.
    """
    try:
        return _decode_kept(text).kept
    except (msgspec.MsgspecError, UnicodeError):
        return ""


def _owes_undo(text: str) -> bool:
    """Tell whether the record in a text, if it is one, is of a step that a rollback undoes."""
    try:
        return decode_step(text).has_undo
    except (msgspec.MsgspecError, UnicodeError):
        return False


def _read_record(each: _Done, found: UndoPlan) -> None:
    try:
        found.records[each.step] = read_step(each.member.id, each.text)
    except StoreCorrupt as error:
        _log.error("step not undone, its record cannot be read", job_id=each.member.id, error=str(error))


def _unreadable(job_id: str) -> str:
    return describe(
        StoreCorrupt(f"the record of job {job_id} cannot be read, so it was not undone"), attempts=0
    )


def _step_in_run(member: TreeMember, flow_id: str, message: FlowMessage) -> str | None:
    """Return the step of a member of this run; None for a member of another run.

    The step is empty for the flow of a sub-workflow.
    """
    is_flow = is_nested(member.id, flow_id)
    job = parse_member(starter_of(member.id) if is_flow else member.id)
    if member_id(flow_id, message.kept.get(job.step, message.run), job.step, job.index) != member_id(
        flow_id, job.run, job.step, job.index
    ):
        return None
    return "" if is_flow else job.step
