"""One step of an inline flow: its state, its record and its error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eventbus import Retry
from eventbus.lowlevel import describe
from workflows.definition.codecs import Codecs
from workflows.definition.step import Step
from workflows.definition.workflow import Workflow
from workflows.execution.rollback import RollbackResult
from workflows.execution.step_runner import judge
from workflows.records.indeterminate import unknown_text
from workflows.records.records import StepRecord
from workflows.records.report import StepReport, StepState

if TYPE_CHECKING:
    from workflows.inline.flow import InlineFlow

__all__ = ["InlineStep"]


class InlineStep:
    """A step of one inline flow. `attempts` counts the attempts that ended in an error."""

    def __init__(self, step: Step[Any, Any], needs: tuple[str, ...]) -> None:
        """Begin as waiting; `needs` are the steps that it waits for."""
        self.step = step
        self.needs = needs
        self.state: StepState = "waiting"
        self.attempts: int = 0
        self.record: StepRecord | None = None
        self.failure: str = ""
        self.nested: InlineFlow | None = None
        self._is_started = False
        self._last_error = ""

    def start(self) -> None:
        """Begin an attempt."""
        self.state = "active"
        self._is_started = True

    def complete(self, record: StepRecord) -> None:
        """Complete with `record`: the function returned, or the condition was false."""
        self.record = record
        self.state = "skipped" if record.skipped else "completed"

    def fail(self, rule: Retry, error: BaseException, workflow: Workflow[Any, Any]) -> float | None:
        """Count a failed attempt; return the seconds until the next one, or None if it was the last."""
        self.attempts += 1
        delay, error = judge(rule, self.attempts, error, workflow)
        self.failure = describe(error, attempts=self.attempts, declared=workflow.errors)
        self._last_error = f"{type(error).__name__}: {error}"
        self.state = "failed"
        return delay

    def fail_with(self, failure: str) -> None:
        """Fail for good with the record of its sub-workflow's failure."""
        self.attempts += 1
        self.failure = failure
        self._last_error = failure
        self.state = "failed"

    def end_cut(self, *, is_lost: bool) -> None:
        """End as cancelled while active; with `is_lost` as unknown, because its function may still run."""
        self.state = "unknown" if is_lost else "cancelled"

    @property
    def wants_undo(self) -> bool:
        """Whether its rollback belongs to the saga: it completed, or it began with `rollback_on_failure`."""
        if self.step.undo is None or self.state == "skipped":
            return False
        return self.state == "completed" or (self._is_started and self.step.rollback_on_failure)

    @property
    def is_doubtful(self) -> bool:
        """Whether its effect is unknown and no rollback undoes it."""
        return self.state == "unknown" and self.step.undo is not None and not self.wants_undo

    def rollback_failures(self) -> list[RollbackResult]:
        """Return the failures that no rollback here covers: its own if doubtful, or its sub-workflow's."""
        if self.is_doubtful:
            return [(self.step.name, unknown_text(1, ""))]
        if self.nested is None or self.state == "completed":
            return []
        name = self.step.name
        return [(f"{name}/{path}", failure) for path, failure in self.nested.rollback_errors]

    def report(self, codecs: Codecs) -> StepReport:
        """Return the report of the step so far."""
        result = None
        if self.record is not None and not self.record.skipped:
            result = codecs.result(self.step.name).decode(memoryview(self.record.result))
        return StepReport(
            step=self.step.name,
            state=self.state,
            result=result,
            attempts=self.attempts,
            error=self._last_error,
        )
