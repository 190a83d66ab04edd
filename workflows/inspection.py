"""Looking at flows: what is recorded of them, as reports and lists."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from eventbus import UnknownJob
from eventbus.lowlevel import Inspector, Jobs, TreeMember, TreePage
from workflows.codecs import Codecs
from workflows.names import flow_queue, parse_member, workflow_of
from workflows.records import decode_step, error_text, read_message_of
from workflows.report import FlowReport, FlowSummary, FlowTree, RollbackReport, StepReport, StepState
from workflows.rollback import read_undone
from workflows.status import status_of
from workflows.unknown import is_unknown

__all__ = ["Inspection"]

_ENDED = ("completed", "failed", "cancelled")
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

    def __init__(self, jobs: Jobs, inspector: Inspector) -> None:
        self._jobs = jobs
        self._inspector = inspector

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
        message = read_message_of(flow_id, page.root.get("body", ""))
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
                RollbackReport(step=path, error=error_text(text))
                for path, text in read_undone(page.saved).items()
            ],
            error=error_text(page.root.get("text", "")) if status.state in ("failed", "cancelled") else "",
            created_ms=int(page.root.get("created", 0)),
            ended_ms=int(page.root.get("ended", 0)),
        )

    async def tree(
        self, flow_id: str, codecs_of: Callable[[str, str], Codecs | None] | None = None
    ) -> FlowTree:
        """Return a flow with those of its sub-workflows, and the errors of attempts. Raises as `report`."""
        report = await self.report(flow_id, codecs_of)
        page, members = await self._read(flow_id, "members")
        message = read_message_of(flow_id, page.root.get("body", ""))
        errors: dict[str, list[str]] = {}
        nested: dict[str, list[FlowTree]] = {}
        if log := (await self._inspector.job(flow_id)).errors:
            errors[""] = log
        for member in members:
            is_flow = "~" in member.id.removeprefix(flow_id)
            job = parse_member(member.id.rpartition("/")[0] if is_flow else member.id)
            if message.kept.get(job.step, message.run) != job.run:
                continue
            if is_flow:
                nested.setdefault(job.step, []).append(await self.tree(member.id, codecs_of))
            elif (member.attempts or member.stalls) and (
                log := (await self._inspector.job(member.id)).errors
            ):
                errors[job.step] = log
        return FlowTree(report=report, errors=errors, nested=nested)

    async def flows(self, workflow: str | None, *, state: str | None, limit: int) -> list[FlowSummary]:
        """Return the newest flows of a workflow, or of all; `state` is one of a flow's."""
        known = [flow_queue(workflow)] if workflow else await self._jobs.root_queues()
        queues = [each for each in known if each.startswith(flow_queue(""))]
        names = ("open", *_ENDED) if state is None else (state,) if state in _ENDED else ("open",)
        found = [
            each
            for queue in queues
            for name in names
            for each in await self._summaries(queue, name, state=state, limit=limit)
        ]
        return sorted(found, key=lambda each: each.created_ms, reverse=True)[:limit]

    async def _summaries(self, queue: str, name: str, *, state: str | None, limit: int) -> list[FlowSummary]:
        """The newest of one set of roots that are in `state`."""
        found: list[FlowSummary] = []
        first = 0
        while len(found) < limit:
            ids = await self._jobs.roots(queue, name, first=first, limit=limit)
            every = await asyncio.gather(*map(self._summary, ids))
            found += [each for each in every if each is not None and state in (None, each.state)]
            first += len(ids)
            if len(ids) < limit:
                break
        return found[:limit]

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
            error=error_text(page.root.get("text", "")) if status.state in ("failed", "cancelled") else "",
        )

    async def _count_completed(self, flow_id: str, page: TreePage) -> int:
        """How many steps completed that count in this run, of a flow that was retried."""
        message = read_message_of(flow_id, page.root.get("body", ""))
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
        error = error_text(member.text)
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
