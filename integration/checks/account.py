"""Accounts of flows: what the server has recorded about a flow and its sub-workflows, and the result that the
caller got.

The items of an each step are steps here, with the name of their step and their number, from the journal of
the flow.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

import msgspec

from eventbus import UnknownJob
from workflows import FlowReport, Step, StepError, StepReport, Workflow, WorkflowProvider
from workflows.records.entries import Entry, read_entries
from workflows.records.ids import member_id, nested_flow_id, split_item
from workflows.records.report import StepState

__all__ = [
    "STOPPED",
    "Account",
    "AnyAccount",
    "find_nested",
    "is_of_last_run",
    "read_account",
    "split_around",
]

STOPPED = ("failed", "cancelled")

_ENDS = ("step", "failed", "cut")
"""The kinds of entries that say how a step or an item ended."""


class AnyAccount(Protocol):
    """An account of a flow of any kind, as far as all are judged alike."""

    @property
    def id(self) -> str: ...
    @property
    def report(self) -> FlowReport: ...
    @property
    def heard(self) -> Any: ...
    @property
    def around(self) -> dict[str, str]: ...
    def ids(self) -> Iterator[str]: ...
    def doubts(self) -> list[str]: ...
    def failures(self) -> list[str]: ...


class Account(NamedTuple):
    """One flow: its definition, its record, its sub-workflows by step, the result that the caller got, and
    what flows around it undid of it.
    """

    workflow: Workflow[Any, Any]
    report: FlowReport
    inner: dict[str, Account]
    heard: Any = None
    around: dict[str, str] = {}  # noqa: RUF012  (nobody changes it)

    @property
    def id(self) -> str:
        return self.report.flow_id

    @property
    def stopped_ms(self) -> int:
        """When the step ended that made the flow fail; 0 if no step did, or if nobody knows when the flow
        heard of it.

        A local flow hears of the end of a step that ran as a job, or as a flow of its own, when a worker has
        it again.
        """
        if not isinstance(self.heard, StepError) or self.heard.step not in self.report.steps:
            return 0
        if self.workflow.runs_apart(self.step_of(self.heard.step)) and not self.workflow.spreads:
            return 0
        return self.report.steps[self.heard.step].ended_ms

    def ids(self) -> Iterator[str]:
        """The ids of the flow and of all its sub-workflows."""
        yield self.id
        for inner in self.inner.values():
            yield from inner.ids()

    def doubts(self) -> list[str]:
        """Paths of indeterminate steps, which were therefore not undone, in the last run."""
        found = [
            name
            for name, step in self.report.steps.items()
            if step.state == "unknown" and not self._is_undone_anyway(name) and self.has_rollback(name)
        ]
        for name, inner in self.inner.items():
            if inner.report.state in STOPPED and is_of_last_run(inner, self):
                found += [f"{name}/{path}" for path in inner.doubts()]
        return found

    def failures(self) -> list[str]:
        """Paths of rollbacks that failed for good, in the last run."""
        found = [each.step for each in self.report.rollbacks if each.error]
        for name, inner in self.inner.items():
            if inner.report.state in STOPPED and is_of_last_run(inner, self):
                found += [f"{name}/{path}" for path in inner.failures()]
        return found

    def to_undo(self) -> dict[str, int]:
        """Paths of steps that must be undone if the flow stops -> when they ended, ms."""
        found: dict[str, int] = {}
        for name, step in self.report.steps.items():
            inner = self.inner.get(name)
            if inner is not None and inner.report.state == "completed":
                # A local flow has its own record of that end, which decides the order.
                ended_ms = inner.report.ended_ms if self.workflow.spreads else step.ended_ms
                found |= {f"{name}/{path}": ended_ms for path in inner.to_undo()}
            is_due = step.state == "completed" or (step.started_ms and self._is_undone_anyway(name))
            if is_due and step.state != "skipped" and self.has_rollback(name):
                found[name] = step.ended_ms
        return found

    def step_of(self, name: str) -> Step[Any, Any]:
        """Return the definition of a step, or that of the each step which an item belongs to."""
        return self.workflow.steps[split_item(name)[0]]

    def is_bare(self, name: str) -> bool:
        """Tell whether a step does nothing itself: it only waits, or it has items."""
        step = self.workflow.steps.get(name)
        return step is not None and (step.pause is not None or step.is_each)

    def has_rollback(self, name: str) -> bool:
        """Tell whether a step has a rollback of its own."""
        return self.step_of(name).undo is not None and not self.is_bare(name)

    def _is_undone_anyway(self, name: str) -> bool:
        return self.step_of(name).rollback_on_failure


async def read_account(
    flows: WorkflowProvider, shape: Workflow[Any, Any], flow_id: str, heard: Any
) -> Account:
    """Read the account of a flow, with those of its sub-workflows that have a record."""
    report, around = split_around(await flows.report(flow_id))
    if any(step.is_each for step in shape.steps.values()):
        entries = read_entries(flow_id, await flows.provider.jobs.journal(flow_id))
        report = _with_items(report, entries)
    inner: dict[str, Account] = {}
    for name, step in shape.steps.items():
        if not isinstance(step.workflow, Workflow):  # the shapes have sub-workflows of steps alone
            continue
        nested = await find_nested(flows, flow_id, report.run, name, step.workflow.name)
        if nested is not None:
            inner[name] = await read_account(flows, step.workflow, nested, None)
    return Account(shape, report, inner, heard, around)


async def find_nested(
    flows: WorkflowProvider, flow_id: str, runs: int, step: str, workflow: str
) -> str | None:
    """Return the flow that a step has started last, in any of so many runs; None if none has a record.

    The record counts, not the journal: a worker that is killed between the two leaves a doubt of a step that
    never told that it began.
    """
    for run in range(runs, 0, -1):
        nested = nested_flow_id(member_id(flow_id, run, step), workflow)
        with suppress(UnknownJob):
            await flows.status(nested)
            return nested
    return None


def is_of_last_run(inner: AnyAccount, account: AnyAccount) -> bool:
    """Tell whether a nested flow is of the last run of the flow around it."""
    return inner.id.startswith(f"{account.id}/{account.report.run}/")


def split_around(report: FlowReport) -> tuple[FlowReport, dict[str, str]]:
    """Return the report with the rollbacks of the flow itself, and those of flows around it: path -> error.

    A flow that has completed undoes nothing itself.
    """
    if report.state != "completed":
        return report, {}
    return msgspec.structs.replace(report, rollbacks=[]), {each.step: each.error for each in report.rollbacks}


def _with_items(report: FlowReport, entries: list[Entry]) -> FlowReport:
    """Return a report in which the items of each steps are steps, too."""
    last: dict[str, Entry] = {}
    for entry in entries:
        if entry.kind in _ENDS:
            last.pop(entry.place, None)  # the last entry decides the order
            last[entry.place] = entry
    items = {name: _report_item(entry) for name, entry in last.items() if split_item(name)[1] >= 0}
    steps = report.steps | items
    order = [name for name in last if name in steps and steps[name].state == "completed"]
    return msgspec.structs.replace(report, steps=steps, order=order)


def _report_item(entry: Entry) -> StepReport:
    state: StepState = "cancelled"
    if entry.is_lost:
        state = "unknown"
    elif entry.kind == "failed" or entry.failure:
        state = "failed"
    elif entry.kind == "step":
        state = "completed"
    return StepReport(
        step=entry.place,
        state=state,
        attempts=entry.attempts,
        started_ms=entry.started_ms,
        ended_ms=entry.started_ms + entry.took_ms,
    )
