"""The ledger of durable functions: it compares the record of a flow, the journal of its effects, and its
result.

What must always hold for each flow, besides what `ledger` says of any flow:
- the recorded result of a step is that of its last run, so no recorded step ran again;
- whatever began is recorded, and what took effect is recorded as completed, or as unknown if its
  worker was killed;
- the rollbacks ran in the reverse order of the ends of steps and of the flows that the function started;
- each replay of its code saw the same of each piece: results, winners, signals, times and random numbers;
- no step began after the code had ended;
- the function failed if its course lets it, and otherwise returned what its code did, in that order.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias

from apps.drawn.functions import TASKS, Function
from apps.drawn.graphs import Course
from checks.account import STOPPED, Account, find_nested, is_of_last_run, read_account, split_around
from checks.ledger import Ledger
from checks.returned import Fates, can_fail, judge_lines

from workflows import FlowReport, StepError, StepReport, WorkflowProvider

__all__ = ["FunctionAccount", "FunctionLedger", "InnerAccount", "has_undo", "read_function_account"]


class FunctionAccount(NamedTuple):
    """One flow of a function: its record, the flows that it started by the label of the call, and what the
    caller got.
    """

    function: Function
    report: FlowReport
    inner: dict[str, InnerAccount]
    course: Course
    heard: Any = None
    around: dict[str, str] = {}  # noqa: RUF012  (nobody changes it)

    @property
    def id(self) -> str:
        return self.report.flow_id

    def ids(self) -> Iterator[str]:
        """The ids of the flow and of all that it started."""
        yield self.id
        for inner in self.inner.values():
            yield from inner.ids()

    def doubts(self) -> list[str]:
        """Paths of indeterminate steps, which were therefore not undone, in the last run."""
        found = [
            label for label, step in self.report.steps.items() if step.state == "unknown" and _has_undo(label)
        ]
        for label, inner in self.inner.items():
            if inner.report.state in STOPPED and is_of_last_run(inner, self):
                found += [f"{label}/{path}" for path in inner.doubts()]
        return found

    def failures(self) -> list[str]:
        """Paths of rollbacks that failed for good, in the last run."""
        found = [each.step for each in self.report.rollbacks if each.error]
        for label, inner in self.inner.items():
            if inner.report.state in STOPPED and is_of_last_run(inner, self):
                found += [f"{label}/{path}" for path in inner.failures()]
        return found

    def to_undo(self) -> list[str]:
        """Paths of the steps that must be undone if the flow stops. Of a graph that it started the order is
        not told.
        """
        found: list[str] = []
        for label in reversed(self.report.order):
            if label in self.inner:
                found += [f"{label}/{path}" for path in self.inner[label].to_undo()]
            elif _has_undo(label):
                found.append(label)
        return found


InnerAccount: TypeAlias = "Account | FunctionAccount"


class FunctionLedger:
    """Compares flows of functions with the journal."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def flaws(self, account: FunctionAccount) -> list[str]:
        """Return all that is wrong with one flow and those that it started."""
        return [*self._ledger.judge_heard(account), *self._judge(account, {})]

    def _judge(self, account: FunctionAccount, inherited: dict[str, str]) -> Iterator[str]:
        """`inherited` are rollbacks that an outer flow ran, path -> error."""
        report = account.report
        own = {each.step: each.error for each in report.rollbacks}
        if report.state not in ("completed", *STOPPED):
            yield f"{account.id}: is {report.state}"
        if len(own) < len(report.rollbacks) or set(own) & set(inherited):
            yield f"{account.id}: undone twice, {[each.step for each in report.rollbacks]}, {inherited}"
        yield from self._ledger.judge_around(account, inherited)
        ran = own | inherited
        for label, step in report.steps.items():
            if label in account.inner:
                yield from self._judge_inner(account.inner[label], _below(label, ran))
            elif _task_of(label) in TASKS:
                yield from self._judge_step(account, step)
                yield from self._ledger.judge_rollback(account, label, ran)
        yield from self._judge_unrecorded(account)
        yield from self._judge_code(account)
        yield from self._judge_order(account)
        yield from self._ledger.judge_verdict(account)
        yield from _judge_output(account)

    def _judge_inner(self, inner: InnerAccount, inherited: dict[str, str]) -> Iterator[str]:
        if isinstance(inner, FunctionAccount):
            yield from self._judge(inner, inherited)
        else:
            yield from self._ledger.judge(inner, inherited)

    def _judge_step(self, account: FunctionAccount, step: StepReport) -> Iterator[str]:
        began, did = (self._ledger.lines(account.id, what, step.step) for what in ("began", "did"))
        where = f"{account.id}: step {step.step}, {step.state},"
        if step.state == "completed":
            if not did or not began:
                yield f"{where} is not in the journal"
                return
            if account.report.order.count(step.step) != 1:
                yield f"{where} is {account.report.order.count(step.step)} times in the order of completion"
            pid = step.result["pid"]
            if {began[-1].pid, did[-1].pid} != {pid} or began[-1].place > did[-1].place:
                yield f"{where} is recorded by {pid}, and ran again: {began}, {did}"
            did = did[:-1]
        elif step.state not in ("failed", "cancelled", "unknown"):
            yield f"{where} has not ended"
        elif did and step.state != "unknown":
            yield f"{where} did what it says it did not"
        if not self._ledger.are_of_killed(did):
            yield f"{where} did it once more, and no kill explains that"
        if began and not step.started_ms:
            yield f"{where} began and has no time for it"

    def _judge_unrecorded(self, account: FunctionAccount) -> Iterator[str]:
        """Check that all that happened is recorded. Of a task without a rollback nobody needs to know what a
        dead worker began.
        """
        for label in sorted(self._ledger.done_in(account.id) - set(account.report.steps)):
            lines = [
                line for what in ("began", "did") for line in self._ledger.lines(account.id, what, label)
            ]
            if _has_undo(label) or not self._ledger.are_of_killed(lines):
                yield f"{account.id}: {label} happened, and is not recorded"

    def _judge_code(self, account: FunctionAccount) -> Iterator[str]:
        """Check that each replay saw the same, and that the code called nothing once it had ended.

        A task that lost a race may begin later, on another worker: its flow waits for it.
        """
        seen: dict[str, str] = {}
        for each in self._ledger.seen_in(account.id):
            name, _, told = each.partition("=")
            if seen.setdefault(name, told) != told:
                saw = f"its code saw {seen[name]!r} of {name}, and {told!r} in another run of it"
                yield f"{account.id}: {saw}"
        steps, late = account.report.steps, self._ledger.begun_after_end(account.id)
        labels = {each.payload for each in late}
        end = max((step.ended_ms for label, step in steps.items() if label not in labels), default=0)
        if late := [each for each in late if not _is_called_by(steps.get(each.payload), end)]:
            yield f"{account.id}: after it had ended {late}"

    def _judge_order(self, account: FunctionAccount) -> Iterator[str]:
        """Check the rollbacks that this flow itself ran: that none is missing, and their order."""
        report = account.report
        due = account.to_undo() if report.state in STOPPED else []
        found = [each.step for each in report.rollbacks]
        if sorted(found) != sorted(due):
            yield f"{account.id}: {report.state}, undone were {found}, due were {due}"
            return
        yield from _misordered(account, found)
        places = [self._last_undone(account, each.step) for each in report.rollbacks if not each.error]
        if places != sorted(places):
            yield f"{account.id}: really undone in another order than {found}"

    def _last_undone(self, account: InnerAccount, path: str) -> int:
        name, _, rest = path.partition("/")
        if rest:
            return self._last_undone(account.inner[name], rest)
        lines = self._ledger.lines(account.id, "undid", name)
        return lines[-1].place if lines else -1


def _misordered(account: InnerAccount, found: list[str]) -> Iterator[str]:
    """Tell of rollbacks that ran in another order than the reverse one of what they undo."""
    heads = [head for head, _ in groupby(path.partition("/")[0] for path in found)]
    if isinstance(account, FunctionAccount) or not account.workflow.spreads:
        known = [each for each in reversed(account.report.order) if each in heads]
        if [each for each in heads if each in known] != known:
            yield f"{account.id}: undone in the order {found}, completed in the order {account.report.order}"
    for head in heads:
        if head in account.inner:
            paths = _below(head, dict.fromkeys(found, ""))
            yield from _misordered(account.inner[head], list(paths))


def _judge_output(account: FunctionAccount) -> Iterator[str]:
    """Check that a flow that ended by itself ended as it can, and what it returned."""
    steps, heard = account.report.steps, account.heard
    ends: dict[str, set[str]] = {}
    for label, step in steps.items():
        ends.setdefault(_task_of(label), set()).add(step.state)
    body, fates = account.function.body, Fates(account.course, ends)
    if isinstance(heard, StepError) and not can_fail(body, fates):
        yield f"{account.id}: heard {heard!r}, and nothing in it fails"
    if account.report.state != "completed" or not isinstance(heard, list):
        return  # `judge_heard` tells of an error
    lines: list[str] = heard
    yield from (f"{account.id}: completed with {lines}: {flaw}" for flaw in judge_lines(body, lines, fates))
    recorded = {
        _told(step.result) for label, step in steps.items() if _task_of(label) in TASKS and step.result
    }
    told = {each for each in lines if " by " in each}
    if not told <= recorded:
        yield f"{account.id}: completed with {lines}, recorded {sorted(recorded)}"


def _told(result: Any) -> str:
    return f"{result['errand']['name']} by {result['pid']}"


def _task_of(label: str) -> str:
    return label.rpartition("@")[0]


def _is_called_by(step: StepReport | None, time_ms: int) -> bool:
    return step is not None and step.started_ms <= time_ms


def _has_undo(label: str) -> bool:
    task = TASKS.get(_task_of(label))
    return task is not None and task.undo is not None


def has_undo(account: InnerAccount, name: str) -> bool:
    """Tell whether a step of a flow has a rollback."""
    return _has_undo(name) if isinstance(account, FunctionAccount) else account.has_rollback(name)


def _below(head: str, paths: dict[str, str]) -> dict[str, str]:
    """Return the paths below one, without it."""
    return {
        path.removeprefix(f"{head}/"): error for path, error in paths.items() if path.startswith(f"{head}/")
    }


async def read_function_account(
    flows: WorkflowProvider, function: Function, course: Course, flow_id: str, heard: Any
) -> FunctionAccount:
    """Read the account of a flow, with those of the flows that it started."""
    report, around = split_around(await flows.report(flow_id))
    known = {piece.flow.name: piece.flow for piece in function.body.all() if piece.flow is not None}
    inner: dict[str, InnerAccount] = {}
    for label, step in report.steps.items():
        name, _, position = label.rpartition("@")
        if name not in known:
            continue
        nested = await find_nested(flows, flow_id, report.run, position.replace(".", "-"), name)
        if nested is None:
            continue
        started: Any = known[name]
        if isinstance(started, Function):
            inner[label] = await read_function_account(flows, started, course, nested, step.result)
        else:
            inner[label] = await read_account(flows, started, nested, None)
    return FunctionAccount(function, report, inner, course, heard, around)
