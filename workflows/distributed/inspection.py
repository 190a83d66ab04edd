"""Inspecting flows: reads their records, and returns reports and lists.

What must always hold: a record that is cut, foreign or missing costs only its own part of a report. Its step
is then `damaged`, and the flow of a sub-workflow names the problem in its `error`; only a root that cannot be
read fails the whole report, with StoreCorrupt. No errors except those of this package are raised.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from eventbus import PayloadError, StoreCorrupt, StoreRefused, UnknownJob
from eventbus.lowlevel import (
    FINAL_STATES,
    PAGE_BYTES,
    Duration,
    Inspector,
    JobClient,
    JobReport,
    TreeMember,
    TreePage,
    clock,
)
from workflows.definition.codecs import Codecs
from workflows.records.checkpoints import GRAPH, read_undone
from workflows.records.ids import find_member, flow_queue, is_nested, starter_of, workflow_of
from workflows.records.indeterminate import is_unknown
from workflows.records.records import FlowMessage, decode_step, error_text, read_message_of
from workflows.records.report import (
    FlowReport,
    FlowState,
    FlowStatus,
    FlowSummary,
    FlowTree,
    RollbackReport,
    StepReport,
    StepState,
)
from workflows.records.status import is_seen_in, number_in, status_of

__all__ = ["FlowInspector"]

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

_FindCodecs = Callable[[str, str], Codecs | None]


class FlowInspector:
    """Reads the records of flows. A `deadline` is a time of the monotonic clock; a call gives up then."""

    def __init__(self, jobs: JobClient, inspector: Inspector) -> None:
        self._jobs = jobs
        self._inspector = inspector

    async def status(self, flow_id: str, *, call_timeout: Duration | None = None) -> FlowStatus:
        """Return the state of a flow. Raises UnknownJob, StoreError."""
        deadline = self._jobs.settings.deadline(call_timeout)
        page = await self._jobs.look(flow_id, limit=1, deadline=deadline)
        if not page.root:
            raise UnknownJob(flow_id)
        return status_of(page.root, is_seen=is_seen_in(page, page.members))

    async def report(
        self, flow_id: str, codecs_of: _FindCodecs | None = None, *, call_timeout: Duration | None = None
    ) -> FlowReport:
        """Return the report of a flow. Raises UnknownJob, StoreError.

        `codecs_of(workflow, version)` returns the codecs that give results their types; results of an unknown
        workflow are untyped JSON.
        """
        deadline = self._jobs.settings.deadline(call_timeout)
        page, members = await self._read(flow_id, "members", deadline)
        return await self._report(flow_id, page, members, codecs_of, deadline)

    async def tree(
        self, flow_id: str, codecs_of: _FindCodecs | None = None, *, call_timeout: Duration | None = None
    ) -> FlowTree:
        """Return a flow with the flows of its sub-workflows, and the errors of attempts.

        Raises the errors of `report`.
        """
        return await self._tree(flow_id, codecs_of, self._jobs.settings.deadline(call_timeout))

    async def flows(
        self, workflow: str | None, *, state: str | None, limit: int, call_timeout: Duration | None = None
    ) -> list[FlowSummary]:
        """Return the newest flows of a workflow, or of all; `state` filters by the state of a flow."""
        deadline = self._jobs.settings.deadline(call_timeout)
        known = [flow_queue(workflow)] if workflow else await self._jobs.root_queues(deadline=deadline)
        queues = [each for each in known if each.startswith(flow_queue(""))]
        names = ("open", *FINAL_STATES) if state is None else (state,) if state in FINAL_STATES else ("open",)
        found = [
            each
            for queue in queues
            for name in names
            for each in await self._summaries(queue, name, deadline, state=state, limit=limit)
        ]
        return sorted(found, key=lambda each: each.created_ms, reverse=True)[:limit]

    async def _report(
        self,
        flow_id: str,
        page: TreePage,
        members: Sequence[TreeMember],
        codecs_of: _FindCodecs | None,
        deadline: float,
    ) -> FlowReport:
        if not page.root:
            raise UnknownJob(flow_id)
        message = read_message_of(flow_id, page.root.get("body", ""))
        codecs = codecs_of and codecs_of(workflow_of(flow_id), message.version or page.saved.get(GRAPH, ""))
        steps: dict[str, StepReport] = {}
        for member in members:
            step = _step_of(flow_id, message, member)
            if step is not None:
                steps[step] = _step_report(step, member, codecs)
        _, done = await self._read(flow_id, "done", deadline)
        status = status_of(page.root, is_seen=is_seen_in(page, members))
        order = [_step_of(flow_id, message, name) for name in done]
        return FlowReport(
            flow_id=flow_id,
            workflow=workflow_of(flow_id),
            state=status.state,
            run=message.run,
            rollback=status.rollback,
            steps=steps,
            order=[
                name
                for name in order
                if name is not None and name in steps and steps[name].state in ("completed", "damaged")
            ],
            rollbacks=[
                RollbackReport(step=path, error=error_text(text))
                for path, text in read_undone(page.saved).items()
            ],
            error=_error_in(page, status.state),
            created_ms=number_in(page.root, "created"),
            ended_ms=number_in(page.root, "ended"),
        )

    async def _tree(self, flow_id: str, codecs_of: _FindCodecs | None, deadline: float) -> FlowTree:
        page, members = await self._read(flow_id, "members", deadline)
        report = await self._report(flow_id, page, members, codecs_of, deadline)
        message = read_message_of(flow_id, page.root.get("body", ""))
        errors: dict[str, list[str]] = {}
        nested: dict[str, list[FlowTree]] = {}
        if log := await self._errors(flow_id, deadline):
            errors[""] = log
        for member in members:
            is_flow = is_nested(member.id, flow_id)
            step = _step_of(flow_id, message, member, of_flow=is_flow)
            if step is None:
                continue
            if is_flow:
                nested.setdefault(step, []).append(await self._nested(member, codecs_of, deadline))
            elif (member.attempts or member.stalls) and (log := await self._errors(member.id, deadline)):
                errors[step] = log
        return FlowTree(report=report, errors=errors, nested=nested)

    async def _nested(self, member: TreeMember, codecs_of: _FindCodecs | None, deadline: float) -> FlowTree:
        try:
            return await self._tree(member.id, codecs_of, deadline)
        except (StoreCorrupt, UnknownJob) as error:
            state: FlowState = member.state if member.state in FINAL_STATES else "running"
            workflow = workflow_of(member.id)
            return FlowTree(
                report=FlowReport(flow_id=member.id, workflow=workflow, state=state, error=str(error))
            )

    async def _errors(self, job_id: str, deadline: float) -> list[str]:
        """Return the errors of a job's earlier attempts; none for a job whose record cannot be read."""
        left = max(deadline - clock.monotonic(), 0.001)
        try:
            return _earlier(await self._inspector.job(job_id, call_timeout=left))
        except UnknownJob:
            return []

    async def _summaries(
        self, queue: str, name: str, deadline: float, *, state: str | None, limit: int
    ) -> list[FlowSummary]:
        """Return the newest flows in `state` of one set of roots; none if its key has another type."""
        found: list[FlowSummary] = []
        first = 0
        while len(found) < limit:
            try:
                ids = await self._jobs.roots(queue, name, first=first, limit=limit, deadline=deadline)
            except StoreRefused as error:
                if error.code != "WRONGTYPE":
                    raise
                break
            # Side by side: one after the other, a list of 50 flows would wait for 50 round trips.
            every = await asyncio.gather(*(self._summary(entry, deadline) for entry in ids))
            found += [entry for entry in every if entry is not None and state in (None, entry.state)]
            first += len(ids)
            if len(ids) < limit:
                break
        return found[:limit]

    async def _summary(self, flow_id: str, deadline: float) -> FlowSummary | None:
        page = await self._jobs.look(flow_id, listed="done", limit=0, deadline=deadline)
        try:
            workflow = workflow_of(flow_id)
        except UnknownJob:
            return None
        if not page.root:
            return None
        status, run = status_of(page.root), max(number_in(page.root, "run"), 1)
        # If no step of this run has completed yet, only the first member shows whether a worker has begun.
        if status.state == "running" and (run > 1 or not page.total):
            first = await self._jobs.look(flow_id, limit=1, deadline=deadline)
            status = status_of(first.root or page.root, is_seen=is_seen_in(first, first.members))
        return FlowSummary(
            flow_id=flow_id,
            workflow=workflow,
            state=status.state,
            run=run,
            rollback=status.rollback,
            completed=page.total if run == 1 else await self._count_completed(flow_id, page, deadline),
            created_ms=number_in(page.root, "created"),
            ended_ms=number_in(page.root, "ended"),
            error=_error_in(page, status.state),
        )

    async def _count_completed(self, flow_id: str, page: TreePage, deadline: float) -> int:
        """Return how many completed steps count in this run of a retried flow; 0 if that cannot be read."""
        try:
            message = read_message_of(flow_id, page.root.get("body", ""))
        except StoreCorrupt:
            return 0
        _, done = await self._read(flow_id, "done", deadline)
        return sum(_step_of(flow_id, message, member) is not None for member in done)

    async def _read(self, flow_id: str, listed: str, deadline: float) -> tuple[TreePage, list[TreeMember]]:
        """Read all members of a list; return the last call's page (for its root) and the members."""
        members: list[TreeMember] = []
        while True:
            page = await self._jobs.look(
                flow_id,
                listed=listed,
                first=len(members),
                max_bytes=PAGE_BYTES if listed == "members" else 0,
                deadline=deadline,
            )
            members += page.members
            if not page.members or len(members) >= page.total:
                return page, members


def _earlier(job: JobReport) -> list[str]:
    """Return the errors that another attempt or run followed; the final error is reported separately."""
    return job.errors[:-1] if job.state == "failed" else job.errors


def _step_of(flow_id: str, message: FlowMessage, member: TreeMember, *, of_flow: bool = False) -> str | None:
    """Return the step of a member; None if the member does not count in this run or is of the other kind.

    The kinds are the jobs of steps, and with `of_flow` the flows of sub-workflows.
    """
    if is_nested(member.id, flow_id) != of_flow:
        return None
    job = find_member(starter_of(member.id) if of_flow else member.id)
    if job is None or message.kept.get(job.step, message.run) != job.run:
        return None
    return job.step


def _error_in(page: TreePage, state: str) -> str:
    return error_text(page.root.get("text", "")) if state in ("failed", "cancelled") else ""


def _step_report(step: str, member: TreeMember, codecs: Codecs | None) -> StepReport:
    state: StepState = _STATES.get(member.state, "damaged")
    result: Any = None
    error = "" if state != "damaged" else f"no record of its job {member.id!r} that could be read"
    if state == "completed":
        state, result, error = _read_result(step, member.text, codecs)
    elif state != "damaged" and member.text:
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


def _read_result(step: str, text: str, codecs: Codecs | None) -> tuple[StepState, Any, str]:
    """Return a completed step's state and result from its record, and the error if they cannot be read."""
    try:
        record = decode_step(text)
        untyped = None if record.skipped else msgspec.json.decode(record.result)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        return "damaged", None, f"its record cannot be read: {error}"
    if record.skipped:
        return "skipped", None, ""
    if codecs is None or step not in codecs.workflow.steps:
        return "completed", untyped, ""
    try:
        return "completed", codecs.result(step).decode(memoryview(record.result)), ""
    except PayloadError as error:
        return "completed", None, str(error)
