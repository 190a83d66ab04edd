"""Inspecting flows: reads their records, and returns reports and lists.

What must always hold: a record that is cut, foreign or missing costs only its own part of a report. Its step
is then `damaged`, and the flow of a sub-workflow names the problem in its `error`; only a root that cannot be
read fails the whole report, with StoreCorrupt. No errors except those of this package are raised.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec
from anyio import to_thread

from eventbus import StoreCorrupt, UnknownJob
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
from workflows.client.flow_lister import step_of, version_of
from workflows.client.histories import read_record
from workflows.client.open_waits import open_waits
from workflows.client.reports.durable_report import children_of, report_durable, tree_durable
from workflows.client.reports.flow_values import with_values, without_long_values
from workflows.client.reports.local_report import report_local
from workflows.client.reports.machine_report import report_machine, tree_machine
from workflows.client.reports.member_report import report_apart, report_item, report_member
from workflows.client.rollbacks_around import rollbacks_around
from workflows.client.step_progress import with_progress
from workflows.definition.codecs import Codecs
from workflows.distributed.activation import read_journal
from workflows.records.checkpoints import read_undone
from workflows.records.graph_history import GraphHistory, read_graph
from workflows.records.ids import is_nested, split_item, starter_of, workflow_of
from workflows.records.records import FlowMessage, error_text, read_message_of
from workflows.records.report import FlowReport, FlowState, FlowStatus, FlowTree, RollbackReport, StepReport
from workflows.records.status import error_in, is_seen_in, number_in, status_of

__all__ = ["FlowInspector"]

_DONE = ("completed", "skipped")

_NOT_SIGNALS = ("@", "!")

_FEW = 50
"""So many steps are searched in the event loop."""
_ERRORS = 50
"""Errors of attempts that a report has for each step."""

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
        return await self._with_around(await self._read_report(codecs_of, deadline, flow_id), deadline)

    async def tree(
        self, flow_id: str, codecs_of: _FindCodecs | None = None, *, call_timeout: Duration | None = None
    ) -> FlowTree:
        """Return a flow with the flows of its sub-workflows, and the errors of attempts.

        Raises the errors of `report`.
        """
        deadline = self._jobs.settings.deadline(call_timeout)
        tree = await self._tree(flow_id, codecs_of, deadline)
        return msgspec.structs.replace(tree, report=await self._with_around(tree.report, deadline))

    async def _with_around(self, report: FlowReport, deadline: float) -> FlowReport:
        """Return the report of a flow with what the flow around it has undone. One that has not completed
        undoes its own steps.
        """
        if report.state != "completed":
            return report
        found = await rollbacks_around(self._jobs, report.flow_id, deadline)
        return msgspec.structs.replace(report, rollbacks=[*report.rollbacks, *found]) if found else report

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
        report = await self._report_steps(flow_id, page, members, codecs_of, deadline)
        kept = await self._kept_signals(flow_id, deadline) if page.root.get("inbox") else {}
        return msgspec.structs.replace(report, kept_signals=kept) if kept else report

    async def _kept_signals(self, flow_id: str, deadline: float) -> dict[str, int]:
        """Count the signals that a flow was sent and that nobody waits for now, by name."""
        sent = await self._jobs.inbox(flow_id, deadline=deadline)
        # Steps tell their root by signals, too, and a trigger is one that its place has accepted.
        names = [signal.name for signal in sent if not signal.name.startswith(_NOT_SIGNALS)]
        if not names:
            return {}
        waits = await open_waits(self._jobs, await read_record(self._jobs, flow_id))
        awaited = {entry.name for entry in waits if entry.kind == "wait"}
        return Counter(name for name in names if name not in awaited)

    async def _report_steps(
        self,
        flow_id: str,
        page: TreePage,
        members: Sequence[TreeMember],
        codecs_of: _FindCodecs | None,
        deadline: float,
    ) -> FlowReport:
        message = read_message_of(flow_id, page.root.get("body", ""))
        report = await self._read_steps(flow_id, message, page, members, codecs_of, deadline)
        own_state = await self._jobs.live(flow_id, "state") if message.durable else None
        if len(report.steps) <= _FEW or not bytes(message.hidden):
            return with_values(report, message, page.root, own_state)
        # So many results are searched for what the input hides: in a thread, so that the loop goes on.
        return await to_thread.run_sync(with_values, report, message, page.root, own_state)

    async def _read_steps(
        self,
        flow_id: str,
        message: FlowMessage,
        page: TreePage,
        members: Sequence[TreeMember],
        codecs_of: _FindCodecs | None,
        deadline: float,
    ) -> FlowReport:
        if message.durable or message.machine:
            status = status_of(page.root, is_seen=is_seen_in(page, ()))
            # First where a machine stands: of what it records meanwhile the report then shows nothing.
            live = await self._jobs.lives(flow_id) if message.machine else {}
            entries = await read_journal(self._jobs, flow_id, page.root, deadline=deadline)
            if message.machine:
                return report_machine(flow_id, message, page.root, status, entries, live)
            return report_durable(flow_id, message, page.root, status, entries)
        history = await self._history(flow_id, message, page, deadline)
        version = version_of(message, page, history)
        codecs = codecs_of and codecs_of(workflow_of(flow_id), version)
        if _is_local(history, message, codecs):
            apart = {each.id: each for each in members}
            report = _local_report(flow_id, message, page, history, codecs, apart, version)
            return await self._with_progress(report, message, members, codecs_of, deadline)
        steps: dict[str, StepReport] = {}
        for member in members:
            step = step_of(flow_id, message, member.id)
            if step is not None:
                steps[step] = report_member(step, member, codecs, history.steps.get(step))
        _, done = await self._read(flow_id, "done", deadline)
        status = status_of(page.root, is_seen=is_seen_in(page, members))
        order = [step_of(flow_id, message, each.id) for each in done]
        report = FlowReport(
            flow_id=flow_id,
            workflow=workflow_of(flow_id),
            state=status.state,
            run=message.run,
            version=version,
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
            is_parked=page.root.get("state") == "parked",
            error=error_in(page.root, status.state),
            created_ms=number_in(page.root, "created"),
            ended_ms=number_in(page.root, "ended"),
        )
        return await self._with_progress(report, message, members, codecs_of, deadline)

    async def _with_progress(
        self,
        report: FlowReport,
        message: FlowMessage,
        members: Sequence[TreeMember],
        codecs_of: _FindCodecs | None,
        deadline: float,
    ) -> FlowReport:
        """Return a report with the progress of its steps, and of those of its sub-workflows."""
        jobs: dict[str, str] = {}
        flows: dict[str, str] = {}
        for member in members:
            found = flows if is_nested(member.id, report.flow_id) else jobs
            step = step_of(report.flow_id, message, member.id, of_flow=found is flows)
            if step is not None and member.state not in FINAL_STATES:
                found[step] = member.id
        read_flow = partial(self._read_report, codecs_of, deadline)
        return await with_progress(
            report, self._inspector, jobs=jobs, flows=flows, read_flow=read_flow, deadline=deadline
        )

    async def _read_report(self, codecs_of: _FindCodecs | None, deadline: float, flow_id: str) -> FlowReport:
        page, members = await self._read(flow_id, "members", deadline)
        return await self._report(flow_id, page, members, codecs_of, deadline)

    async def _tree(self, flow_id: str, codecs_of: _FindCodecs | None, deadline: float) -> FlowTree:
        page, members = await self._read(flow_id, "members", deadline)
        report = await self._report(flow_id, page, members, codecs_of, deadline)
        message = read_message_of(flow_id, page.root.get("body", ""))
        if message.durable:
            entries = await read_journal(self._jobs, flow_id, page.root, deadline=deadline)
            nested = {
                label: [await self._nested(child, "pending", codecs_of, deadline)]
                for label, child in children_of(flow_id, entries).items()
            }
            return tree_durable(report, entries, nested)
        if message.machine:
            entries = await read_journal(self._jobs, flow_id, page.root, deadline=deadline)
            nested = {
                starter_of(member.id).removeprefix(f"{flow_id}/"): [
                    await self._nested(member.id, member.state, codecs_of, deadline)
                ]
                for member in members
            }
            return tree_machine(report, entries, nested)
        errors: dict[str, list[str]] = {}
        history = await self._history(flow_id, message, page, deadline)
        for name, step in history.steps.items():
            if earlier := step.errors:
                errors[name] = [error_text(text) for text in earlier[-_ERRORS:]]
        nested: dict[str, list[FlowTree]] = {}
        if log := await self._errors(flow_id, deadline):
            errors[""] = log
        for member in members:
            is_flow = is_nested(member.id, flow_id)
            step = step_of(flow_id, message, member.id, of_flow=is_flow)
            if step is None:
                continue
            if is_flow:
                nested.setdefault(step, []).append(
                    await self._nested(member.id, member.state, codecs_of, deadline)
                )
            elif (member.attempts or member.stalls) and (log := await self._errors(member.id, deadline)):
                errors[step] = log
        return FlowTree(report=report, errors=errors, nested=nested)

    async def _nested(
        self, flow_id: str, known: str, codecs_of: _FindCodecs | None, deadline: float
    ) -> FlowTree:
        """Return the tree of a flow that another one started; `known` is the state of its job."""
        try:
            return without_long_values(await self._tree(flow_id, codecs_of, deadline))
        except (StoreCorrupt, UnknownJob) as error:
            state: FlowState = known if known in (*FINAL_STATES, "pending") else "running"
            workflow = workflow_of(flow_id)
            return FlowTree(
                report=FlowReport(flow_id=flow_id, workflow=workflow, state=state, error=str(error))
            )

    async def _errors(self, job_id: str, deadline: float) -> list[str]:
        """Return the errors of a job's earlier attempts; none for a job whose record cannot be read."""
        left = max(deadline - clock.monotonic(), 0.001)
        try:
            return _earlier(await self._inspector.within(left).jobs.get(job_id))
        except UnknownJob:
            return []

    async def _history(
        self, flow_id: str, message: FlowMessage, page: TreePage, deadline: float
    ) -> GraphHistory:
        return read_graph(await read_journal(self._jobs, flow_id, page.root, deadline=deadline), message)

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


def _is_local(history: GraphHistory, message: FlowMessage, codecs: Codecs | None) -> bool:
    """Tell whether the steps are no jobs. A flow that has not begun may still become either."""
    if history.mode:
        return history.is_local
    return message.bare and codecs is not None and not codecs.workflow.spreads


def _local_report(
    flow_id: str,
    message: FlowMessage,
    page: TreePage,
    history: GraphHistory,
    codecs: Codecs | None,
    members: Mapping[str, TreeMember],
    version: str,
) -> FlowReport:
    steps = report_local(history, codecs, page.root, status_of(page.root).state)
    for name, entry in history.children.items():
        member, (step, index) = members.get(entry.child), split_item(name)
        if member is not None and step in steps:
            report = report_apart if index < 0 else report_item
            steps[step] = report(steps[step], member, history, codecs)
    status = status_of(page.root, is_seen=is_seen_in(page, ()))
    return FlowReport(
        flow_id=flow_id,
        workflow=workflow_of(flow_id),
        state=status.state,
        run=message.run,
        version=version,
        rollback=status.rollback,
        steps=steps,
        order=history.completed(),
        rollbacks=[
            RollbackReport(step=path, error=error_text(text)) for path, text in history.undone.items()
        ],
        is_parked=page.root.get("state") == "parked",
        error=error_in(page.root, status.state),
        created_ms=number_in(page.root, "created"),
        ended_ms=number_in(page.root, "ended"),
    )


def _earlier(job: JobReport) -> list[str]:
    """Return the errors that another attempt or run followed; the final error is reported separately."""
    return job.errors[:-1] if job.state == "failed" else job.errors
