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
- no step began once the `completed` hook had begun;
- the caller got the result that is recorded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

from checks.account import STOPPED, Account, AnyAccount
from harness.journal import Entry, Journal

from workflows import FlowCancelled, FlowError, FlowTimeout, StepError, StepReport
from workflows.records.ids import parent_of, split_item

__all__ = ["Ledger", "Line"]

_LAG_MS = 1000
"""How far the time of a worker may be behind that of the server: more than the leases of these tests, without
which it records nothing."""

_ROUND_MS = 100
"""How much later than the failure of a step another one may begin that had been taken up before it: in the
next round of the worker's event loop, which all of its flows share."""

_OF_STEPS = ("began", "did", "undoing", "undid")

_ENDS = ("ended", "completed")

_UNDOING = ("undoing", "failed")
"""What the journal has only of a flow that has stopped."""


class Line(NamedTuple):
    """One line of the journal: its number, and the process that wrote it."""

    place: int
    pid: int


class Ledger:
    """Compares flows with their journal; `killed` are the ids of the killed processes."""

    def __init__(self, journal: Journal, killed: Collection[int]) -> None:
        self._killed = killed
        self._entries: list[Entry] = journal.read()
        self._lines: dict[tuple[str, str, str], list[Line]] = defaultdict(list)
        self._places: dict[str, list[int]] = defaultdict(list)
        """flow -> the numbers of its lines."""
        for place, entry in enumerate(self._entries):
            self._lines[entry.job, entry.what, entry.payload].append(Line(place, entry.pid))
            self._places[entry.job].append(place)

    @property
    def flows(self) -> set[str]:
        """The ids of all flows in the journal, including sub-workflows, and of those that started them."""
        found = set(self._places)
        for flow_id in self._places:
            outer = parent_of(flow_id)
            while outer is not None:
                found.add(outer.flow_id)
                outer = parent_of(outer.flow_id)
        return found

    def lines(self, flow_id: str, what: str, done: str) -> list[Line]:
        """Return the lines of one action, in order."""
        return self._lines[flow_id, what, done]

    def done_in(self, flow_id: str) -> set[str]:
        """Return the steps that the journal names in a flow."""
        return {each.payload for each in self.lines_of(flow_id) if each.what in _OF_STEPS}

    def seen_in(self, flow_id: str) -> list[str]:
        """Return what the code of a durable function saw in its runs, as `piece=what`."""
        return [each.payload for each in self.lines_of(flow_id) if each.what == "saw"]

    def begun_after_end(self, flow_id: str) -> list[Entry]:
        """Return what began after the code of a durable function had ended, or the last step of a graph."""
        lines = [each for each in self.lines_of(flow_id) if each.what in ("began", *_ENDS)]
        first = next((place for place, each in enumerate(lines) if each.what in _ENDS), len(lines))
        return [each for each in lines[first:] if each.what == "began"]

    def lines_of(self, flow_id: str) -> list[Entry]:
        """Return all that the journal says about a flow, in order."""
        return [self._entries[place] for place in self._places.get(flow_id, ())]

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
        return [
            *self.judge_heard(account),
            *self._judge_result(account),
            *self.judge(account, {}, account.stopped_ms),
        ]

    def judge(self, account: Account, inherited: dict[str, str], stopped_ms: int = 0) -> Iterator[str]:
        """Yield what is wrong with a flow. `inherited` are rollbacks of an outer flow, path -> error."""
        report = account.report
        own = {each.step: each.error for each in report.rollbacks}
        if report.state not in ("completed", *STOPPED):
            yield f"{account.id}: is {report.state}"
        if len(own) < len(report.rollbacks) or set(own) & set(inherited):
            yield f"{account.id}: undone twice, {[each.step for each in report.rollbacks]}, {inherited}"
        yield from self.judge_around(account, inherited)
        ran = own | inherited
        for name, step in report.steps.items():
            if name in account.inner:
                inner = {
                    path.removeprefix(f"{name}/"): error
                    for path, error in ran.items()
                    if path.startswith(f"{name}/")
                }
                # A worker that had claimed a local flow hears of the stop of the outer one with its next
                # entry. And a local flow tells its members of its stop only after it has recorded the failed
                # step, later by a lease and more if its worker dies in between. So there is no bound in time;
                # `_judge_end` has the one in order.
                is_told = account.workflow.spreads and account.inner[name].workflow.spreads
                known_ms = stopped_ms if is_told else 0
                yield from self._judge_end_of_inner(account, account.inner[name], step)
                yield from self.judge(account.inner[name], inner, known_ms)
            elif account.step_of(name).workflow is None:
                is_member = (
                    account.workflow.runs_apart(account.step_of(name)) and not account.workflow.spreads
                )
                yield from self._judge_step(account, name, step, 0 if is_member else stopped_ms)
                yield from self.judge_rollback(account, name, ran)
        yield from self._judge_order(account)
        yield from self._judge_hooks(account)
        yield from self.judge_verdict(account)

    def judge_around(self, account: AnyAccount, inherited: dict[str, str]) -> Iterator[str]:
        """Check that the report of a flow that completed has what the flow around it undid of it."""
        if account.report.state == "completed" and account.around != inherited:
            yield f"{account.id}: says that it was undone by {account.around}, was {inherited}"

    def _judge_end_of_inner(self, account: Account, inner: Account, step: StepReport) -> Iterator[str]:
        """Check that a local flow recorded the end of a sub-workflow no earlier than that was."""
        early = inner.report.ended_ms - step.ended_ms
        if not account.workflow.spreads and step.state == "completed" and early > _LAG_MS:
            yield f"{account.id}: step {step.step} was recorded {early} ms before the end of {inner.id}"

    def _judge_step(self, account: Account, name: str, step: StepReport, stopped_ms: int) -> Iterator[str]:
        began, did = (self._lines[account.id, what, name] for what in ("began", "did"))
        where = f"{account.id}: step {name}, {step.state},"
        if step.state == "completed":
            if not did and not account.is_bare(name):
                yield f"{where} is not in the journal"
            if account.report.order.count(name) != 1:
                yield f"{where} is {account.report.order.count(name)} times in the order of completion"
            did = did[:-1]
        elif step.state not in ("skipped", "failed", "cancelled", "unknown"):
            yield f"{where} has not ended"
        elif did and step.state in ("skipped", "cancelled"):
            yield f"{where} did what it says it did not"
        if not self.are_of_killed(did):
            yield f"{where} did it once more, and no kill explains that"
        if began and not step.started_ms:
            yield f"{where} began and has no time for it"
        if stopped_ms and step.started_ms > stopped_ms + _ROUND_MS:
            late = step.started_ms - stopped_ms
            yield f"{where} began {late} ms after the flow was stopped, after {step.attempts} failed attempts"

    def judge_rollback(self, account: AnyAccount, name: str, ran: dict[str, str]) -> Iterator[str]:
        """Yield what is wrong with the rollback of a step; `ran` are all that are recorded, path -> error."""
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
        if not self.are_of_killed(undid):
            yield f"{where} ran once more, and no kill explains that"

    def _judge_order(self, account: Account) -> Iterator[str]:
        """Check the rollbacks that this flow itself ran: that none is missing, and their order."""
        report = account.report
        due = account.to_undo() if report.state in STOPPED else {}
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

    def _judge_hooks(self, account: Account) -> Iterator[str]:
        report = account.report
        is_stopped = report.state in STOPPED
        failed, completed = (self._lines[account.id, what, what] for what in ("failed", "completed"))
        told = failed if is_stopped else completed
        hook = account.workflow.failed_hook if is_stopped else account.workflow.completed_hook
        if bool(told) != (hook is not None) or not self.are_of_killed(told[:-1]):
            yield f"{account.id}: {report.state}, and its hook ran {len(told)} times"
        if failed and not is_stopped:
            yield f"{account.id}: {report.state}, but its failed hook ran"
        if late := self.begun_after_end(account.id):
            yield f"{account.id}: after it had completed {late}"

    def judge_verdict(self, account: AnyAccount) -> Iterator[str]:
        """Check what the record says of the rollback as a whole, and that no step began during it."""
        report = account.report
        is_incomplete = account.doubts() or account.failures()
        verdict = "incomplete" if is_incomplete else "complete" if report.rollbacks else "none"
        if report.state == "completed":  # what it ignored, or what lost a race, may be in doubt for ever
            verdict = "none"
        if report.rollback != verdict:
            yield f"{account.id}: rollback {report.rollback}, expected {verdict}"
        undoing = [each for each in self._places.get(account.id, ()) if self._entries[each].what in _UNDOING]
        if report.state in STOPPED and undoing:
            ids = set(account.ids())
            late = [
                each
                for each in self._entries[undoing[0] :]
                if each.job in ids and each.what in ("began", "did")
            ]
            if late:
                yield f"{account.id}: while it was undone {late}"

    def judge_heard(self, account: AnyAccount) -> Iterator[str]:
        """Check that the caller heard what is recorded."""
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

    def _judge_result(self, account: Account) -> Iterator[str]:
        """Check that the caller heard of the steps that completed, or of one that failed."""
        report, heard = account.report, account.heard
        if isinstance(heard, StepError):
            step = report.steps.get(heard.step)
            if step is None or step.state not in ("failed", "unknown"):
                yield f"{account.id}: failed, heard that {heard.step} did, which is {step}"
        if isinstance(heard, dict):
            told: dict[str, Any] = heard
            completed = {name for name in report.order if name in account.workflow.steps}
            if completed != set(told):
                yield f"{account.id}: completed {sorted(completed)}, heard of {sorted(told)}"
            for name in (name for name in completed & set(told) if account.workflow.steps[name].is_each):
                items = [each for each in report.order if split_item(each)[0] == name != each]
                if told[name] != len(items):
                    yield f"{account.id}: completed {items}, heard of {told[name]} of {name}"

    def _last_undone(self, account: Account, path: str) -> int:
        name, _, rest = path.partition("/")
        if rest:
            return self._last_undone(account.inner[name], rest)
        lines = self._lines[account.id, "undid", name]
        return lines[-1].place if lines else -1

    def are_of_killed(self, lines: list[Line]) -> bool:
        """Tell whether all entries were written by processes that were killed."""
        return all(each.pid in self._killed for each in lines)
