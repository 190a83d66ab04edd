"""The ledger of flows: it compares the record of a flow, the journal of its effects, and its result.

What must always hold for each flow:
- every completed step is recorded once and in the journal; it has a second effect only if the process
  of the first one was killed before it could report it, because steps run at least once;
- an effect without a recorded completion belongs to a killed process, and its step is recorded as
  failed or unknown, never as one that did not run;
- in a stopped flow every completed step with a rollback was undone once, the last one first, and no
  other step was undone; no step began once the rollback had begun, in its sub-workflows neither;
- the end of a sub-workflow is recorded in the outer flow after that end;
- `complete` says that all of that went well; `incomplete` names what did not;
- the caller got the result that is recorded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

from harness.journal import Entry, Journal

from workflows import (
    FlowCancelled,
    FlowError,
    FlowReport,
    FlowTimeout,
    StepError,
    StepReport,
    Workflow,
    WorkflowProvider,
)
from workflows.records.ids import member_id, nested_flow_id

__all__ = ["Account", "Ledger", "read_account"]

_STOPPED = ("failed", "cancelled")

_LAG_MS = 1000
"""How far the time of a worker may be behind that of the server: more than the leases of these tests, without which it
records nothing."""


class Account(NamedTuple):
    """One flow: its definition, its record, its sub-workflows by step, and the result that the caller got."""

    workflow: Workflow[Any, Any]
    report: FlowReport
    inner: dict[str, Account]
    heard: Any = None

    @property
    def id(self) -> str:
        return self.report.flow_id

    @property
    def stopped_ms(self) -> int:
        """When the step ended that made the flow fail; 0 if no step did, or if nobody knows when the flow heard of it.

        A local flow hears of the end of a step that ran as a job, or as a flow of its own, when a worker has it again.
        """
        if not isinstance(self.heard, StepError) or self.heard.step not in self.report.steps:
            return 0
        if self.workflow.steps[self.heard.step].runs_apart and not self.workflow.spreads:
            return 0
        return self.report.steps[self.heard.step].ended_ms

    def ids(self) -> Iterator[str]:
        """The ids of the flow and of all its sub-workflows."""
        yield self.id
        for inner in self.inner.values():
            yield from inner.ids()

    def doubts(self) -> list[str]:
        """Paths of indeterminate steps, which were therefore not undone."""
        found = [
            name
            for name, step in self.report.steps.items()
            if step.state == "unknown" and not self._is_undone_anyway(name) and self._has_rollback(name)
        ]
        for name, inner in self.inner.items():
            if inner.report.state in _STOPPED:
                found += [f"{name}/{path}" for path in inner.doubts()]
        return found

    def failures(self) -> list[str]:
        """Paths of rollbacks that failed for good."""
        found = [each.step for each in self.report.rollbacks if each.error]
        for name, inner in self.inner.items():
            if inner.report.state in _STOPPED:
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
            if is_due and step.state != "skipped" and self._has_rollback(name):
                found[name] = step.ended_ms
        return found

    def _has_rollback(self, name: str) -> bool:
        return self.workflow.steps[name].undo is not None

    def _is_undone_anyway(self, name: str) -> bool:
        return self.workflow.steps[name].rollback_on_failure


class _Line(NamedTuple):
    place: int
    pid: int


class Ledger:
    """Compares flows with their journal; `killed` are the ids of the killed processes."""

    def __init__(self, journal: Journal, killed: Collection[int]) -> None:
        self._killed = killed
        self._entries: list[Entry] = journal.read()
        self._lines: dict[tuple[str, str, str], list[_Line]] = defaultdict(list)
        for place, entry in enumerate(self._entries):
            self._lines[entry.job, entry.what, entry.payload].append(_Line(place, entry.pid))

    @property
    def flows(self) -> set[str]:
        """The ids of all flows in the journal, including sub-workflows."""
        return {each.job for each in self._entries}

    def count(self, flow_id: str, what: str, done: str) -> int:
        """Return how often an action happened."""
        return len(self._lines[flow_id, what, done])

    def repeated(self, flow_id: str, what: str) -> list[str]:
        """Return the actions that happened more than once."""
        return [
            done
            for (job, kind, done), lines in self._lines.items()
            if (job, kind) == (flow_id, what) and len(lines) > 1
        ]

    def flaws(self, account: Account) -> list[str]:
        """Return all that is wrong with one flow and its sub-workflows."""
        return [*self._judge_heard(account), *self._judge(account, {}, account.stopped_ms)]

    def _judge(self, account: Account, inherited: dict[str, str], stopped_ms: int) -> Iterator[str]:
        """`inherited` are rollbacks that an outer flow ran, path -> error."""
        report = account.report
        own = {each.step: each.error for each in report.rollbacks}
        if report.state not in ("completed", *_STOPPED):
            yield f"{account.id}: is {report.state}"
        if len(own) < len(report.rollbacks) or set(own) & set(inherited):
            yield f"{account.id}: undone twice, {[each.step for each in report.rollbacks]}, {inherited}"
        ran = own | inherited
        for name, step in report.steps.items():
            if name in account.inner:
                inner = {
                    path.removeprefix(f"{name}/"): error
                    for path, error in ran.items()
                    if path.startswith(f"{name}/")
                }
                # A worker that had claimed a local flow hears of the stop of the outer one with its next entry. And a
                # local flow tells its members of its stop only after it has recorded the failed step, later by a lease
                # and more if its worker dies in between. So there is no bound in time; `_judge_end` has the one in order.
                is_told = account.workflow.spreads and account.inner[name].workflow.spreads
                known_ms = stopped_ms if is_told else 0
                yield from self._judge_end_of_inner(account, account.inner[name], step)
                yield from self._judge(account.inner[name], inner, known_ms)
            elif account.workflow.steps[name].workflow is None:
                is_member = account.workflow.steps[name].spread and not account.workflow.spreads
                yield from self._judge_step(account, name, step, 0 if is_member else stopped_ms)
                yield from self._judge_rollback(account, name, ran)
        yield from self._judge_order(account)
        yield from self._judge_end(account)

    def _judge_end_of_inner(self, account: Account, inner: Account, step: StepReport) -> Iterator[str]:
        """Check that a local flow recorded the end of a sub-workflow no earlier than that was."""
        early = inner.report.ended_ms - step.ended_ms
        if not account.workflow.spreads and step.state == "completed" and early > _LAG_MS:
            yield f"{account.id}: step {step.step} was recorded {early} ms before the end of {inner.id}"

    def _judge_step(self, account: Account, name: str, step: StepReport, stopped_ms: int) -> Iterator[str]:
        began, did = (self._lines[account.id, what, name] for what in ("began", "did"))
        where = f"{account.id}: step {name}, {step.state},"
        if step.state == "completed":
            if not did and account.workflow.steps[name].pause is None:  # a step that only waits does nothing
                yield f"{where} is not in the journal"
            if account.report.order.count(name) != 1:
                yield f"{where} is {account.report.order.count(name)} times in the order of completion"
            did = did[:-1]
        elif step.state not in ("skipped", "failed", "cancelled", "unknown"):
            yield f"{where} has not ended"
        elif did and step.state in ("skipped", "cancelled"):
            yield f"{where} did what it says it did not"
        if not self._are_of_killed(did):
            yield f"{where} did it once more, and no kill explains that"
        if began and not step.started_ms:
            yield f"{where} began and has no time for it"
        if stopped_ms and step.started_ms > stopped_ms:
            late = step.started_ms - stopped_ms
            yield f"{where} began {late} ms after the flow was stopped, after {step.attempts} failed attempts"

    def _judge_rollback(self, account: Account, name: str, ran: dict[str, str]) -> Iterator[str]:
        undid = self._lines[account.id, "undid", name]
        where = f"{account.id}: the rollback of {name}"
        if name not in ran:
            if undid or self._lines[account.id, "undoing", name]:
                yield f"{where} ran and is not recorded"
            return
        if not ran[name]:
            if not undid:
                yield f"{where} is not in the journal"
            undid = undid[:-1]
        if not self._are_of_killed(undid):
            yield f"{where} ran once more, and no kill explains that"

    def _judge_order(self, account: Account) -> Iterator[str]:
        """Check the rollbacks that this flow itself ran: that none is missing, and their order."""
        report = account.report
        due = account.to_undo() if report.state in _STOPPED else {}
        found = [each.step for each in report.rollbacks]
        if sorted(found) != sorted(due):
            yield f"{account.id}: {report.state}, undone were {found}, due were {list(due)}"
            return
        completed = [each for each in reversed(report.order) if each in due]
        if [each for each in found if each in report.order] != completed:
            yield f"{account.id}: undone in the order {found}, completed in the order {report.order}"
        if any(due[first] < due[second] for first, second in pairwise(found)):
            yield f"{account.id}: undone in the order {found}, ended at {due}"
        places = [self._last_undone(account, each.step) for each in report.rollbacks if not each.error]
        if places != sorted(places):
            yield f"{account.id}: really undone in another order than {found}"

    def _judge_end(self, account: Account) -> Iterator[str]:
        """Check the hooks, the verdict, and that no step began during the rollback."""
        report = account.report
        is_stopped = report.state in _STOPPED
        failed, completed = (self._lines[account.id, what, what] for what in ("failed", "completed"))
        told = failed if is_stopped else completed
        hook = account.workflow.failed_hook if is_stopped else account.workflow.completed_hook
        if bool(told) != (hook is not None) or not self._are_of_killed(told[:-1]):
            yield f"{account.id}: {report.state}, and its hook ran {len(told)} times"
        if failed and not is_stopped:
            yield f"{account.id}: {report.state}, but its failed hook ran"
        is_incomplete = account.doubts() or account.failures()
        verdict = "incomplete" if is_incomplete else "complete" if report.rollbacks else "none"
        if report.rollback != verdict:
            yield f"{account.id}: rollback {report.rollback}, expected {verdict}"
        undoing = min(
            (
                line[0].place
                for (job, what, _), line in self._lines.items()
                if job == account.id and what in ("undoing", "failed") and line
            ),
            default=None,
        )
        if is_stopped and undoing is not None:
            ids = set(account.ids())
            late = [
                each for each in self._entries[undoing:] if each.job in ids and each.what in ("began", "did")
            ]
            if late:
                yield f"{account.id}: while it was undone {late}"

    def _judge_heard(self, account: Account) -> Iterator[str]:
        report, heard = account.report, account.heard
        if report.state == "completed":
            if isinstance(heard, Exception):
                yield f"{account.id}: completed, heard {heard!r}"
            return
        kinds: tuple[type[FlowError], ...] = (
            (StepError, FlowTimeout) if report.state == "failed" else (FlowCancelled,)
        )
        if not isinstance(heard, kinds):
            yield f"{account.id}: {report.state}, heard {heard!r}"
            return
        if heard.rollback != report.rollback:
            yield f"{account.id}: rollback {report.rollback}, heard {heard.rollback}"
        named = sorted(each.step for each in heard.rollback_errors)
        if named != sorted([*account.failures(), *account.doubts()]):
            yield f"{account.id}: incomplete for {account.failures()}, {account.doubts()}, heard of {named}"
        if isinstance(heard, StepError):
            step = report.steps.get(heard.step)
            if step is None or step.state not in ("failed", "unknown"):
                yield f"{account.id}: failed, heard that {heard.step} did, which is {step}"

    def _last_undone(self, account: Account, path: str) -> int:
        name, _, rest = path.partition("/")
        if rest:
            return self._last_undone(account.inner[name], rest)
        lines = self._lines[account.id, "undid", name]
        return lines[-1].place if lines else -1

    def _are_of_killed(self, lines: list[_Line]) -> bool:
        """Tell whether all entries were written by processes that were killed."""
        return all(each.pid in self._killed for each in lines)


async def read_account(
    flows: WorkflowProvider, ledger: Ledger, shape: Workflow[Any, Any], flow_id: str, heard: Any
) -> Account:
    """Read the account of a flow, with those of its sub-workflows that have started."""
    report = await flows.report(flow_id)
    inner: dict[str, Account] = {}
    for name, step in shape.steps.items():
        if step.workflow is None:
            continue
        nested = nested_flow_id(member_id(flow_id, 1, name), step.workflow.name)
        if nested in ledger.flows:
            inner[name] = await read_account(flows, ledger, step.workflow, nested, None)
    return Account(shape, report, inner, heard)
