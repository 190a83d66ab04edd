"""One step of a flow that runs in this process: its state, its attempts, its record and its error; and the
items of a step that runs for each item of a list, which are steps of their own.

What must always hold: items begin in order, and at most `at_once` have begun without having ended; so which
ones may have run follows from those that are recorded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

import msgspec

from eventbus import Later, PayloadError, Retry
from eventbus.lowlevel import describe
from workflows.definition.codecs import Codecs
from workflows.definition.each import EachStep, join_results, make_item
from workflows.definition.step import Step
from workflows.definition.workflow import Workflow
from workflows.execution.step_runner import judge, rule_of
from workflows.records.records import StepRecord, error_text
from workflows.records.report import StepReport, StepState

if TYPE_CHECKING:
    from workflows.execution.attempt import AttemptRun


class StepRun:
    """A step of one flow. `attempts` counts the attempts that ended in an error."""

    __slots__ = (
        "attempt",
        "attempts",
        "child",
        "delay",
        "due_ms",
        "failure",
        "has_saved",
        "is_apart",
        "is_started",
        "items",
        "needs",
        "owner",
        "record",
        "signal",
        "started_ms",
        "state",
        "step",
        "told",
        "took_ms",
        "trace",
    )

    def __init__(self, step: Step[Any, Any], needs: tuple[str, ...]) -> None:
        """Begin as waiting; `needs` are the steps that it waits for."""
        self.step: Step[Any, Any] = step
        self.needs: tuple[str, ...] = needs
        self.state: StepState = "waiting"
        self.attempts: int = 0
        self.record: StepRecord | None = None
        self.failure: str = ""
        """The record of the error with which it failed for good or with its last attempt."""
        self.told: str = ""
        """The same error for people."""
        self.attempt: AttemptRun | None = None
        """The attempt that runs here, or that ran last."""
        self.has_saved: bool = False
        """Whether a value may be there that an attempt saved for the next one."""
        self.is_started: bool = False
        self.is_apart: bool = False
        """Nothing of it is active here itself: what runs it elsewhere, or its items, are waited for."""
        self.items: Items | None = None
        """The items that run, once they are known."""
        self.owner: StepRun | None = None
        """The step whose item this is."""
        self.child: str = ""
        """The id of the job or flow that runs it elsewhere."""
        self.signal: str = ""
        """The id of the signal that ended its wait."""
        self.started_ms: int = 0
        self.took_ms: int = 0
        self.trace: Mapping[str, str] = {}
        """The fields of log events that identify the span of the last attempt."""
        self.delay: float = 0.0
        """The seconds until the next attempt, while it is delayed."""
        self.due_ms: int = 0
        """When that is, in ms; 0 if nobody knows."""

    @property
    def shown(self) -> StepState:
        """Its state in reports: who waits for a signal is waiting."""
        is_wait = self.step.pause is not None and self.step.pause.signal is not None
        return "waiting" if self.state == "sleeping" and is_wait else self.state

    @property
    def listens(self) -> bool:
        """Whether a signal may end what it waits for."""
        return self.state == "sleeping" and self.step.pause is not None and self.step.pause.signal is not None

    def is_ready(self, records: Collection[str]) -> bool:
        """Tell whether it waits, and all that it needs is among `records`."""
        if self.state != "waiting":
            return False
        for need in self.needs:  # noqa: SIM110  (a generator costs more than the loop)
            if need not in records:
                return False
        return True

    def start(self) -> None:
        """Begin an attempt."""
        self.state = "active"
        self.is_started = True

    def complete(self, record: StepRecord) -> None:
        """End with `record`: the function returned, the condition was false, or its failure is ignored."""
        self.record = record
        self.state = "skipped" if record.skipped else "failed" if record.error else "completed"

    def fail(
        self, rule: Retry, error: BaseException, workflow: Workflow[Any, Any], *, event: str = ""
    ) -> float | None:
        """Count a failed attempt; return the seconds until the next one, or None if it was the last."""
        self.attempts += 1
        delay, error = judge(rule, self.attempts, error, workflow)
        self.failure = describe(error, attempts=self.attempts, declared=workflow.errors, event=event)
        self.told = error_text(self.failure)
        self.state = "failed"
        return delay

    def put_off(self, later: Later) -> float:
        """Note that its function asked for a later time, without an attempt or an error; return the seconds
        until then.
        """
        self.failure = self.told = ""
        return later.delay

    def fail_with(self, failure: str) -> None:
        """Fail for good with the record of the failure of what ran it elsewhere."""
        self.attempts += 1
        self.failure = failure
        self.told = failure
        self.state = "failed"

    def ignore_failure(self) -> None:
        """Let the flow go on although the step failed for good."""
        self.record = StepRecord(error=msgspec.Raw(self.failure.encode()))

    def end_cut(self, *, is_lost: bool) -> None:
        """End as cancelled while active; with `is_lost` as unknown, because its function may still run."""
        self.state = "unknown" if is_lost else "cancelled"

    @property
    def wants_undo(self) -> bool:
        """Whether its rollback belongs to the saga: it completed, or it began with `rollback_on_failure`."""
        if self.step.undo is None or self.step.is_each or self.state == "skipped":
            return False
        return self.state == "completed" or (self.is_started and self.step.rollback_on_failure)

    @property
    def is_doubtful(self) -> bool:
        """Whether its effect is unknown and no rollback undoes it."""
        has_undo = self.step.undo is not None and not self.step.is_each
        return self.state == "unknown" and has_undo and not self.wants_undo

    def report(self, codecs: Codecs, *, progress: Any = None) -> StepReport:
        """Return the report of the step so far; `progress` is that of a running attempt."""
        result = None
        if self.record is not None and self.record.has_result:
            result = codecs.result(self.step.name).decode(memoryview(self.record.result))
        return StepReport(
            step=self.step.name,
            state=self.shown,
            result=result,
            attempts=self.attempts,
            error=self.told,
            progress=self.items.told if self.items is not None else progress,
            started_ms=self.started_ms,
            ended_ms=self.started_ms + self.took_ms if self.took_ms else 0,
        )


class Items:
    """The items of one step. Call `begin` in each activation, and `end` after each item."""

    def __init__(self, owner: StepRun, given: msgspec.Raw) -> None:
        """Prepare the items `given`, a list as JSON, as waiting."""
        self.owner = owner
        self.given = given
        self.step: EachStep[Any, Any] = cast("EachStep[Any, Any]", owner.step)
        self.texts: list[msgspec.Raw] = msgspec.json.decode(given, type=list[msgspec.Raw])
        """Each item as JSON."""
        self.runs: list[StepRun] = []
        for index, text in enumerate(self.texts):
            run = StepRun(make_item(self.step, index, text), ())
            run.owner = owner
            self.runs.append(run)
        self._next: Iterator[StepRun] = iter(())
        self._open, self._ended = 0, -1  # not counted before `begin`

    @property
    def are_done(self) -> bool:
        """Whether all items have completed, or failed without an effect on the others."""
        return self._ended == len(self.runs)

    def begin(self) -> list[StepRun]:
        """Return the items that begin in this activation, besides those that have begun before."""
        self._next = iter([run for run in self.runs if run.state == "waiting"])
        self._open = sum(run.state in ("active", "delayed") for run in self.runs)
        self._ended = sum(run.record is not None for run in self.runs)
        return self._take()

    def end(self) -> list[StepRun]:
        """Note that an item has ended; return those that begin now."""
        if self._ended < 0:
            return []
        self._open -= 1
        self._ended += 1
        return self._take()

    def complete(self, workflow: Workflow[Any, Any]) -> None:
        """End the step with the results of all items; it fails if they are too large together."""
        owner = self.owner
        owner.is_apart = False
        try:
            result = join_results(self.step, [run.record or StepRecord() for run in self.runs])
        except PayloadError as error:
            owner.fail(rule_of(workflow, owner.step), error, workflow)
        else:
            owner.complete(StepRecord(result=msgspec.Raw(result)))

    @property
    def open(self) -> int:
        """The number of items that have not ended."""
        return len(self.runs) - max(self._ended, 0)

    @property
    def told(self) -> str:
        """How far the items are, for reports."""
        return f"{sum(run.record is not None for run in self.runs)}/{len(self.runs)}"

    def _take(self) -> list[StepRun]:
        found: list[StepRun] = []
        while self._open < self.step.at_once and (run := next(self._next, None)) is not None:
            self._open += 1
            run.state = "active"
            found.append(run)
        return found


def begin_items(owner: StepRun, given: msgspec.Raw) -> Items:
    """Give a step its items."""
    owner.items = Items(owner, given)
    owner.record, owner.state = None, "active"
    return owner.items
