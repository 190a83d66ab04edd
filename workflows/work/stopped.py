"""What a stopped flow had done: read from its records, and listed for undoing, the last one first.

What must hold: every step that completed in this run, or was kept from an earlier one, is listed once if
it has a rollback, those of completed sub-workflows among them; one that failed or is unknown only if it
asked for that; and nothing that may have been done is passed over silently (`is_doubtful`).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from eventbus.lowlevel import TreeMember
from workflows.context import StepContext
from workflows.names import member_id, parse_member, workflow_of
from workflows.records import FlowFailure, FlowMessage, StepRecord, decode_message, decode_step
from workflows.rollback import Outcome, Undo
from workflows.unknown import is_unknown, unknown_text
from workflows.work.site import Flow, Site

__all__ = ["Stopped", "UnknownHere", "read_stopped"]

_PAGE = 200
_PAGE_BYTES = 8 << 20
_KEPT_BYTES = 4096  # results larger than this are kept in memory only for the rollback of their own step

_decode_failure = msgspec.json.Decoder(FlowFailure).decode


class UnknownHere(Exception):
    """This process does not know a workflow that is to be undone, or not in this version."""


class Stopped(msgspec.Struct):
    """What is to be undone, the last one first, and what a caller must know beside it."""

    undos: list[Undo]
    records: dict[str, StepRecord]
    inherited: list[Outcome]
    """What was not undone: steps that are unknown, and what sub-workflows say that stopped by themselves."""
    unloaded: list[str]
    """Steps that completed and whose results were left out for their size."""
    is_doubtful: bool


class _Done(msgspec.Struct):
    member: TreeMember
    step: str
    text: str


async def read_stopped(site: Site, flow: Flow, prefix: str = "") -> Stopped:
    """Read what a flow has done. Raises UnknownHere, StoreError."""
    done = await _read_done(site, flow)
    ended = await _read_ended(site, flow)
    records = {each.step: decode_step(each.text) for each in done if each.step and each.text}
    unloaded = [each.step for each in done if each.step and not each.text]
    found = Stopped([], records, [], unloaded, is_doubtful=False)
    for each in reversed(_merged(done, ended)):
        await _add(site, flow, each, found, prefix)
    return found


def _merged(done: list[_Done], ended: list[_Done]) -> list[_Done]:
    """What completed, in its recorded order, with the others where their times belong.

    The times alone would not do: they tie, and a clock may go back after a failover.
    """
    merged = list(done)
    for each in sorted(ended, key=lambda one: one.member.ended):
        later = (place for place, other in enumerate(merged) if other.member.ended > each.member.ended)
        merged.insert(next(later, len(merged)), each)
    return merged


async def _add(site: Site, flow: Flow, each: _Done, found: Stopped, prefix: str) -> None:
    member = each.member
    if not each.step:
        await _add_nested(site, each, found, prefix)
        return
    step = flow.workflow.steps.get(each.step)
    if step is None:
        raise UnknownHere(f"step {each.step} of workflow {flow.workflow.name}")
    is_completed = member.state == "completed"
    record = found.records.get(each.step) if is_completed else None
    if step.undo is None or step.workflow is not None or (record is not None and record.skipped):
        return
    if is_completed or step.rollback_on_failure:
        context = partial(_context, flow, each.step, member.id, found)
        found.undos.append(
            Undo(path=prefix + each.step, step=step, workflow=flow.workflow, record=record, ctx=context)
        )
    elif is_unknown(member.state, member.stalls, each.text):
        found.inherited.append((prefix + each.step, unknown_text(member.stalls, each.text)))


async def _add_nested(site: Site, each: _Done, found: Stopped, prefix: str) -> None:
    """The flow of a sub-workflow: undone from here if it completed; else it has done that itself."""
    path = prefix + parse_member(each.member.id.rpartition("/")[0]).step + "/"
    if each.member.state != "completed":
        failure = _read_failure(each.text)
        if failure is None:
            found.is_doubtful = True
        else:
            found.is_doubtful = found.is_doubtful or failure.rollback == "incomplete"
            found.inherited += [(path + name, bytes(raw).decode()) for name, raw in failure.rollback_errors]
        return
    page = await site.jobs.look(each.member.id, limit=0)
    message = decode_message(page.root["body"])
    name = workflow_of(each.member.id)
    workflow = site.find(name, message.version or page.saved.get("graph", ""))
    if workflow is None:
        raise UnknownHere(f"workflow {name} in version {message.version}")
    inner = await read_stopped(site, Flow(site, workflow, each.member.id, message), path)
    found.undos += inner.undos
    found.is_doubtful = found.is_doubtful or inner.is_doubtful


def _context(flow: Flow, step: str, job_id: str, found: Stopped, attempt: int) -> StepContext[Any]:
    return flow.context(
        step,
        job_id=job_id,
        attempt=attempt,
        traceparent=flow.message.traceparent,
        records=found.records,
        reach=flow.workflow.steps,
        unloaded=found.unloaded,
    )


async def _read_done(site: Site, flow: Flow) -> list[_Done]:
    """What completed, in that order, with the records that are needed."""
    done: list[_Done] = []
    first = 0
    while True:
        page = await site.jobs.look(
            flow.flow_id, listed="done", first=first, limit=_PAGE, max_bytes=_PAGE_BYTES
        )
        for member in page.members:
            step = _step_in_run(member, flow.flow_id, flow.message)
            if step is not None:
                done.append(_Done(member, step, _needed(member, step, flow)))
        first += len(page.members)
        if first >= page.total or not page.members:
            return done


def _needed(member: TreeMember, step: str, flow: Flow) -> str:
    known = flow.workflow.steps.get(step)
    is_needed = known is not None and known.undo is not None
    return member.text if is_needed or len(member.text) <= _KEPT_BYTES else ""


async def _read_ended(site: Site, flow: Flow) -> list[_Done]:
    """Members that began and did not complete, with their errors."""
    members: list[TreeMember] = []
    first = 0
    while True:
        page = await site.jobs.look(flow.flow_id, first=first, limit=_PAGE)
        members += [each for each in page.members if each.claimed and each.state in ("failed", "cancelled")]
        first += len(page.members)
        if first >= page.total or not page.members:
            break
    texts = {each.job: each.text or "" for each in await site.jobs.outcomes([each.id for each in members])}
    return [
        _Done(each, step, texts[each.id])
        for each in members
        if (step := _step_in_run(each, flow.flow_id, flow.message)) is not None
    ]


def _step_in_run(member: TreeMember, flow_id: str, message: FlowMessage) -> str | None:
    """The step of a member that counts in this run; empty for the flow of a sub-workflow, None for one of another run."""
    is_nested = "~" in member.id.removeprefix(flow_id)
    job = parse_member(member.id.rpartition("/")[0] if is_nested else member.id)
    if member_id(flow_id, message.kept.get(job.step, message.run), job.step, job.index) != member_id(
        flow_id, job.run, job.step, job.index
    ):
        return None
    return "" if is_nested else job.step


def _read_failure(text: str) -> FlowFailure | None:
    try:
        return msgspec.json.decode(text, type=_Failure).whole(text)
    except (msgspec.MsgspecError, UnicodeError):
        return None


class _Failure(msgspec.Struct):
    """Any error's record; only a flow's own has all fields of a FlowFailure."""

    type: str = ""
    message: str = ""
    stalls: int = 0

    def whole(self, text: str) -> FlowFailure:
        try:
            return _decode_failure(text)
        except msgspec.MsgspecError:
            return FlowFailure(
                type=self.type, message=self.message, stalls=self.stalls, flow_id="", workflow=""
            )
