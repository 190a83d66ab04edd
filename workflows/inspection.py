"""Looking at flows: what is recorded of them, as reports and lists."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from eventbus import UnknownJob
from eventbus.lowlevel import Failure, Jobs, TreeMember, TreePage
from workflows.codecs import Codecs
from workflows.names import flow_queue, parse_member, workflow_of
from workflows.records import decode_message, decode_step
from workflows.report import FlowReport, FlowSummary, RollbackReport, StepReport, StepState
from workflows.rollback import read_undone
from workflows.status import status_of
from workflows.unknown import is_unknown

__all__ = ["Inspection"]

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

    async def report(
        self, flow_id: str, codecs_of: Callable[[str, str], Codecs | None] | None = None
    ) -> FlowReport:
        """Return what is recorded of a flow. Raises UnknownJob, StoreError.

        `codecs_of(workflow, version)` gives results their types where the workflow is known; else they are
        untyped JSON.
        """
        page, members = await self._read(flow_id, "members")
        if not page.root:
            raise UnknownJob(flow_id)
        message = decode_message(page.root.get("body", ""))
        codecs = codecs_of and codecs_of(workflow_of(flow_id), message.version or page.saved.get("graph", ""))
        steps: dict[str, StepReport] = {}
        for member in members:
            if "~" in member.id.removeprefix(flow_id):
                continue  # the flow of a sub-workflow: a report of its own
            job = parse_member(member.id)
            if message.kept.get(job.step, message.run) == job.run:
                steps[job.step] = _step_report(job.step, member, codecs)
        _, done = await self._read(flow_id, "done")
        status = status_of(page.root)
        ended = [parse_member(each.id) for each in done if "~" not in each.id.removeprefix(flow_id)]
        order = [each.step for each in ended if message.kept.get(each.step, message.run) == each.run]
        return FlowReport(
            flow_id=flow_id,
            workflow=workflow_of(flow_id),
            state=status.state,
            run=message.run,
            rollback=status.rollback,
            steps=steps,
            order=[each for each in order if each in steps and steps[each].state == "completed"],
            rollbacks=[
                RollbackReport(step=path, error=text) for path, text in read_undone(page.saved).items()
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
        status, run = status_of(page.root), int(page.root.get("run", 1))
        return FlowSummary(
            flow_id=flow_id,
            workflow=workflow_of(flow_id),
            state=status.state,
            run=run,
            rollback=status.rollback,
            completed=page.total if run == 1 else await self._count_completed(flow_id, page),
            created_ms=int(page.root.get("created", 0)),
            ended_ms=int(page.root.get("ended", 0)),
            error=_error(page.root.get("text", "")) if status.state in ("failed", "cancelled") else "",
        )

    async def _count_completed(self, flow_id: str, page: TreePage) -> int:
        """How many steps completed that count in this run, of a flow that was retried."""
        message = decode_message(page.root.get("body", ""))
        _, done = await self._read(flow_id, "done")
        ended = [parse_member(each.id) for each in done if "~" not in each.id.removeprefix(flow_id)]
        return sum(message.kept.get(each.step, message.run) == each.run for each in ended)

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
            if not page.members or len(members) >= page.total:
                return page, members


def _step_report(step: str, member: TreeMember, codecs: Codecs | None) -> StepReport:
    state = _STATES.get(member.state, "waiting")
    result: Any = None
    error = ""
    if state == "completed":
        record = decode_step(member.text or "{}")
        if record.skipped:
            state = "skipped"
        else:
            is_known = codecs is not None and step in codecs.workflow.steps
            read = codecs.result(step).decode if codecs is not None and is_known else msgspec.json.decode
            result = read(memoryview(record.result))
    elif member.text:
        error = _error(member.text)
        if is_unknown(member.state, member.stalls, member.text):
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
