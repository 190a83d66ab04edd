"""Looking at flows: what is recorded of them, as reports and lists."""

from __future__ import annotations

from typing import Any

import msgspec

from eventbus import UnknownJob
from eventbus.lowlevel import Failure, Jobs, TreeMember, TreePage
from workflows.names import flow_queue, parse_member, workflow_of
from workflows.records import decode_message, decode_step
from workflows.report import FlowReport, FlowSummary, RollbackReport, StepReport, StepState
from workflows.status import status_of

__all__ = ["Inspection"]

_UNDO = "undo:"
_PAGE = 200
_PAGE_BYTES = 4 << 20

_STATES: dict[str, StepState] = {
    "waiting-children": "waiting",
    "waiting": "waiting",
    "parked": "waiting",
    "active": "active",
    "delayed": "delayed",
    "completed": "completed",
    "failed": "failed",
    "cancelled": "cancelled",
}


class Inspection:
    """Reads the records of flows."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    async def report(self, flow_id: str) -> FlowReport:
        """Return what is recorded of a flow. Raises UnknownJob, StoreError."""
        page, members = await self._read(flow_id, "members")
        if not page.root:
            raise UnknownJob(flow_id)
        message = decode_message(page.root.get("body", ""))
        steps: dict[str, StepReport] = {}
        for member in members:
            if "~" in member.id.removeprefix(flow_id):
                continue  # the flow of a sub-workflow: a report of its own
            job = parse_member(member.id)
            if message.kept.get(job.step, message.run) == job.run:
                steps[job.step] = _step_report(job.step, member)
        _, done = await self._read(flow_id, "done")
        status = status_of(page.root)
        order = [parse_member(each.id).step for each in done if "~" not in each.id.removeprefix(flow_id)]
        return FlowReport(
            flow_id=flow_id,
            workflow=workflow_of(flow_id),
            state=status.state,
            rollback=status.rollback,
            steps=steps,
            order=[each for each in order if each in steps and steps[each].state == "completed"],
            rollbacks=[
                RollbackReport(step=name.removeprefix(_UNDO), error=text)
                for name, text in page.saved.items()
                if name.startswith(_UNDO)
            ],
            error=_error(page.root.get("text", "")) if status.state in ("failed", "cancelled") else "",
            created_ms=int(page.root.get("created", 0)),
            ended_ms=int(page.root.get("ended", 0)),
        )

    async def flows(self, workflow: str | None, *, state: str | None, limit: int) -> list[FlowSummary]:
        """Return the newest flows of a workflow, or of all; `state` is one of a flow's."""
        queues = [flow_queue(workflow)] if workflow else await self._jobs.root_queues()
        is_ended = state in ("completed", "failed", "cancelled")
        sets = (
            [state]
            if is_ended and state
            else ["open"]
            if state
            else ["open", "completed", "failed", "cancelled"]
        )
        ids = [
            flow_id
            for queue in queues
            for name in sets
            for flow_id in await self._jobs.roots(queue, name, limit=limit)
        ]
        found = [each for flow_id in ids if (each := await self._summary(flow_id)) is not None]
        found = [each for each in found if state in (None, each.state)]
        return sorted(found, key=lambda each: each.created_ms, reverse=True)[:limit]

    async def _summary(self, flow_id: str) -> FlowSummary | None:
        page = await self._jobs.look(flow_id, listed="done", limit=0)
        if not page.root:
            return None
        status = status_of(page.root)
        return FlowSummary(
            flow_id=flow_id,
            workflow=workflow_of(flow_id),
            state=status.state,
            rollback=status.rollback,
            completed=page.count,
            created_ms=int(page.root.get("created", 0)),
            ended_ms=int(page.root.get("ended", 0)),
            error=_error(page.root.get("text", "")) if status.state in ("failed", "cancelled") else "",
        )

    async def _read(self, flow_id: str, listed: str) -> tuple[TreePage, list[TreeMember]]:
        """All members of a list; the page of the last call tells of the root."""
        members: list[TreeMember] = []
        while True:
            page = await self._jobs.look(
                flow_id,
                listed=listed,
                first=len(members),
                limit=_PAGE,
                max_bytes=_PAGE_BYTES if listed == "members" else 0,
            )
            members += page.members
            if not page.members or len(members) >= page.count:
                return page, members


def _step_report(step: str, member: TreeMember) -> StepReport:
    state = _STATES.get(member.state, "waiting")
    result: Any = None
    error = ""
    if state == "completed":
        record = decode_step(member.text or "{}")
        if record.skipped:
            state = "skipped"
        else:
            result = msgspec.json.decode(record.result)
    elif member.text:
        failure = _failure(member.text)
        error = _error(member.text)
        if state == "failed" and failure is not None and failure.stalls:
            state = "unknown"
    return StepReport(
        step=step,
        state=state,
        result=result,
        attempts=member.attempts,
        error=error,
        started_ms=member.claimed,
        ended_ms=member.ended,
    )


def _failure(text: str) -> Failure | None:
    try:
        return msgspec.json.decode(text, type=Failure)
    except (msgspec.MsgspecError, UnicodeError):
        return None


def _error(text: str) -> str:
    failure = _failure(text)
    if failure is None:
        return text[:200]
    return f"{failure.type}: {failure.message}" if failure.message else failure.type
