"""Inspecting flows: reads their records, and returns reports and lists.

What must always hold: a record that is cut, foreign or missing costs only its own part of a report. Its step
is then `damaged`, and the flow of a sub-workflow names the problem in its `error`; only a root that cannot be
read fails the whole report, with StoreCorrupt. No errors except those of this package are raised.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

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
from workflows.client.reports.flow_report import report_flow
from workflows.client.reports.flow_values import with_values, without_long_values
from workflows.client.reports.local_report import report_local
from workflows.client.reports.machine_report import report_machine, tree_machine
from workflows.client.reports.member_report import report_apart, report_item, report_member
from workflows.client.step_progress import with_progress
from workflows.definition.codecs import Codecs
from workflows.distributed.activation import read_journal
from workflows.functions.calls.kept import kept_entries
from workflows.functions.rollbacks import undone_in
from workflows.records.checkpoints import read_undone
from workflows.records.entries import Entry
from workflows.records.graph_history import GraphHistory, read_graph
from workflows.records.ids import is_nested, parent_of, split_item, starter_of, workflow_of
from workflows.records.records import FlowMessage, error_text, read_message_of
from workflows.records.report import FlowReport, FlowState, FlowStatus, FlowTree, RollbackReport, StepReport
from workflows.records.status import is_seen_in, status_of

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

    def look(self, codecs_of: _FindCodecs | None = None, *, call_timeout: Duration | None = None) -> FlowLook:
        """Return what reads flows until the end of `call_timeout`.

        `codecs_of(workflow, version)` returns the codecs that give results their types; results of an unknown
        workflow are untyped JSON.
        """
        return FlowLook(self._jobs, self._inspector, codecs_of, self._jobs.settings.deadline(call_timeout))


class _Record(NamedTuple):
    """What the server has of a flow: its root, in `page`, its members, and the message of the root."""

    flow_id: str
    page: TreePage
    members: Sequence[TreeMember]
    message: FlowMessage

    @property
    def root(self) -> Mapping[str, str]:
        """The fields of the root."""
        return self.page.root

    def step_of(self, member: TreeMember) -> str | None:
        """Return the step of a job or of the flow of a sub-workflow; None if it does not count in this
        run.
        """
        is_flow = is_nested(member.id, self.flow_id)
        return step_of(self.flow_id, self.message, member.id, of_flow=is_flow)


class FlowLook(NamedTuple):
    """One call: all that is read for it, with the same codecs, until the same deadline."""

    jobs: JobClient
    inspector: Inspector
    codecs_of: _FindCodecs | None
    deadline: float

    async def report(self, flow_id: str) -> FlowReport:
        """Return the report of a flow, also with what the flow around it has undone."""
        return await self._with_around(await self._read_report(flow_id))

    async def tree(self, flow_id: str) -> FlowTree:
        """Return the tree of a flow, also with what the flow around it has undone."""
        tree = await self._tree(flow_id)
        return msgspec.structs.replace(tree, report=await self._with_around(tree.report))

    async def _with_around(self, report: FlowReport) -> FlowReport:
        """Return the report of a flow with what the flow around it has undone. One that has not completed
        undoes its own steps.
        """
        if report.state != "completed":
            return report
        found = await _rollbacks_around(self.jobs, report.flow_id, self.deadline)
        return msgspec.structs.replace(report, rollbacks=[*report.rollbacks, *found]) if found else report

    async def _read_report(self, flow_id: str) -> FlowReport:
        return await self._report(await self._read(flow_id))

    async def _report(self, record: _Record) -> FlowReport:
        report = await self._with_values(record, await self._report_steps(record))
        kept = await self._kept_signals(record.flow_id) if record.root.get("inbox") else {}
        return msgspec.structs.replace(report, kept_signals=kept) if kept else report

    async def _kept_signals(self, flow_id: str) -> dict[str, int]:
        """Count the signals that a flow was sent and that nobody waits for now, by name."""
        sent = await self.jobs.inbox(flow_id, deadline=self.deadline)
        # Steps tell their root by signals, too, and a trigger is one that its place has accepted.
        names = [signal.name for signal in sent if not signal.name.startswith(_NOT_SIGNALS)]
        if not names:
            return {}
        waits = await open_waits(self.jobs, await read_record(self.jobs, flow_id))
        awaited = {entry.name for entry in waits if entry.kind == "wait"}
        return Counter(name for name in names if name not in awaited)

    async def _with_values(self, record: _Record, report: FlowReport) -> FlowReport:
        message, root = record.message, record.root
        own_state = await self.jobs.live(record.flow_id, "state") if message.durable else None
        if len(report.steps) <= _FEW or not bytes(message.hidden):
            return with_values(report, message, root, own_state)
        # So many results are searched for what the input hides: in a thread, so that the loop goes on.
        return await to_thread.run_sync(with_values, report, message, root, own_state)

    async def _report_steps(self, record: _Record) -> FlowReport:
        flow_id, page, members, message = record
        if message.durable or message.machine:
            status = status_of(page.root, is_seen=is_seen_in(page, ()))
            # First where a machine stands: of what it records meanwhile the report then shows nothing.
            live = await self.jobs.lives(flow_id) if message.machine else {}
            entries = await self._journal(record)
            if message.machine:
                return report_machine(flow_id, message, page.root, status, entries, live)
            return report_durable(flow_id, message, page.root, status, entries)
        history = read_graph(await self._journal(record), message)
        version = version_of(message, page, history)
        codecs = self.codecs_of and self.codecs_of(workflow_of(flow_id), version)
        if _is_local(history, message, codecs):
            return await self._with_progress(record, _local_report(record, history, codecs, version))
        steps: dict[str, StepReport] = {}
        for member in members:
            step = None if is_nested(member.id, flow_id) else record.step_of(member)
            if step is not None:
                steps[step] = report_member(step, member, codecs, history.steps.get(step))
        _, done = await self._list(flow_id, "done")
        order = [step_of(flow_id, message, each.id) for each in done]
        report = report_flow(
            flow_id,
            message,
            page.root,
            status_of(page.root, is_seen=is_seen_in(page, members)),
            steps=steps,
            order=[
                name
                for name in order
                if name is not None and name in steps and steps[name].state in ("completed", "damaged")
            ],
            undone=read_undone(page.saved).items(),
            version=version,
        )
        return await self._with_progress(record, report)

    async def _with_progress(self, record: _Record, report: FlowReport) -> FlowReport:
        """Return a report with the progress of its steps, and of those of its sub-workflows."""
        jobs: dict[str, str] = {}
        flows: dict[str, str] = {}
        for member in record.members:
            step = record.step_of(member)
            if step is not None and member.state not in FINAL_STATES:
                (flows if is_nested(member.id, record.flow_id) else jobs)[step] = member.id
        return await with_progress(
            report,
            self.inspector,
            jobs=jobs,
            flows=flows,
            read_flow=self._read_report,
            deadline=self.deadline,
        )

    async def _tree(self, flow_id: str) -> FlowTree:
        record = await self._read(flow_id)
        report = await self._report(record)
        if record.message.durable:
            entries = await self._journal(record)
            nested = {
                label: [await self._nested(child, "pending")]
                for label, child in children_of(flow_id, entries).items()
            }
            return tree_durable(report, entries, nested)
        if record.message.machine:
            entries = await self._journal(record)
            nested = {
                starter_of(member.id).removeprefix(f"{flow_id}/"): [
                    await self._nested(member.id, member.state)
                ]
                for member in record.members
            }
            return tree_machine(report, entries, nested)
        errors: dict[str, list[str]] = {}
        history = read_graph(await self._journal(record), record.message)
        for name, step in history.steps.items():
            if earlier := step.errors:
                errors[name] = [error_text(text) for text in earlier[-_ERRORS:]]
        nested: dict[str, list[FlowTree]] = {}
        if log := await self._errors(flow_id):
            errors[""] = log
        for member in record.members:
            step = record.step_of(member)
            if step is None:
                continue
            if is_nested(member.id, flow_id):
                nested.setdefault(step, []).append(await self._nested(member.id, member.state))
            elif (member.attempts or member.stalls) and (log := await self._errors(member.id)):
                errors[step] = log
        return FlowTree(report=report, errors=errors, nested=nested)

    async def _nested(self, flow_id: str, known: str) -> FlowTree:
        """Return the tree of a flow that another one started; `known` is the state of its job."""
        try:
            return without_long_values(await self._tree(flow_id))
        except (StoreCorrupt, UnknownJob) as error:
            state: FlowState = known if known in (*FINAL_STATES, "pending") else "running"
            workflow = workflow_of(flow_id)
            return FlowTree(
                report=FlowReport(flow_id=flow_id, workflow=workflow, state=state, error=str(error))
            )

    async def _errors(self, job_id: str) -> list[str]:
        """Return the errors of a job's earlier attempts; none for a job whose record cannot be read."""
        left = max(self.deadline - clock.monotonic(), 0.001)
        try:
            return _earlier(await self.inspector.within(left).jobs.get(job_id))
        except UnknownJob:
            return []

    async def _journal(self, record: _Record) -> Sequence[Entry]:
        return await read_journal(self.jobs, record.flow_id, record.root, deadline=self.deadline)

    async def _read(self, flow_id: str) -> _Record:
        page, members = await self._list(flow_id, "members")
        if not page.root:
            raise UnknownJob(flow_id)
        return _Record(flow_id, page, members, read_message_of(flow_id, page.root.get("body", "")))

    async def _list(self, flow_id: str, listed: str) -> tuple[TreePage, list[TreeMember]]:
        """Read all members of a list; return the last call's page (for its root) and the members."""
        members: list[TreeMember] = []
        while True:
            page = await self.jobs.look(
                flow_id,
                listed=listed,
                first=len(members),
                max_bytes=PAGE_BYTES if listed == "members" else 0,
                deadline=self.deadline,
            )
            members += page.members
            if not page.members or len(members) >= page.total:
                return page, members


def _is_local(history: GraphHistory, message: FlowMessage, codecs: Codecs | None) -> bool:
    """Tell whether the steps are no jobs. A flow that has not begun may still become either."""
    if history.mode:
        return history.is_local
    return message.bare and codecs is not None and not codecs.workflow.spreads


def _local_report(record: _Record, history: GraphHistory, codecs: Codecs | None, version: str) -> FlowReport:
    root, members = record.root, {each.id: each for each in record.members}
    steps = report_local(history, codecs, root, status_of(root).state)
    for name, entry in history.children.items():
        member, (step, index) = members.get(entry.child), split_item(name)
        if member is not None and step in steps:
            report = report_apart if index < 0 else report_item
            steps[step] = report(steps[step], member, history, codecs)
    return report_flow(
        record.flow_id,
        record.message,
        root,
        status_of(root, is_seen=is_seen_in(record.page, ())),
        steps=steps,
        order=history.completed(),
        undone=history.undone.items(),
        version=version,
    )


def _earlier(job: JobReport) -> list[str]:
    """Return the errors that another attempt or run followed; the final error is reported separately."""
    return job.errors[:-1] if job.state == "failed" else job.errors


async def _rollbacks_around(jobs: JobClient, flow_id: str, deadline: float) -> list[RollbackReport]:
    """Return the rollbacks of a flow that the flows around it have run, in running order, by the paths of its
    own steps.

    The steps of a sub-workflow that completed are undone as steps of the flow around it, and recorded there,
    under the path of the sub-workflow. A record around it that is gone or cannot be read leaves the report as
    it is.
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
    found += await _rollbacks_around(jobs, outer, deadline)
    start = f"{label}/"
    return [
        RollbackReport(step=each.step.removeprefix(start), error=each.error)
        for each in found
        if label is not None and each.step.startswith(start)
    ]
