"""One step in an inline flow: how far it is, and what it left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from eventbus import Retry
from eventbus.lowlevel import describe
from workflows.codecs import Codecs
from workflows.records import StepRecord
from workflows.report import StepReport, StepState
from workflows.rollback import Outcome
from workflows.step import Step
from workflows.steps import judge
from workflows.unknown import unknown_text

if TYPE_CHECKING:
    from workflows.inline import InlineFlow

__all__ = ["Member"]


class Member:
    """A step of one flow. `attempts` counts those that ended in an error."""

    def __init__(self, step: Step[Any, Any], needs: tuple[str, ...]) -> None:
        """`needs` are the steps that it waits for."""
        self.step = step
        self.needs = needs
        self.state: StepState = "waiting"
        self.attempts = 0
        self.record: StepRecord | None = None
        self.failure = ""
        self.nested: InlineFlow | None = None
        self._is_started = False
        self._last_error = ""

    def start(self) -> None:
        """An attempt begins."""
        self.state = "active"
        self._is_started = True

    def complete(self, record: StepRecord) -> None:
        """Its function returned, or its condition was false."""
        self.record = record
        self.state = "skipped" if record.skipped else "completed"

    def fail(self, rule: Retry, error: BaseException, declared: Sequence[type[Exception]]) -> float | None:
        """Count a failed attempt; return the seconds until the next one, None if there is none."""
        self.attempts += 1
        delay, error = judge(rule, self.attempts, error)
        self.failure = describe(error, attempts=self.attempts, declared=declared)
        self._last_error = f"{type(error).__name__}: {error}"
        self.state = "failed"
        return delay

    def fail_with(self, failure: str) -> None:
        """Its sub-workflow failed, which left this record."""
        self.attempts += 1
        self.failure = failure
        self._last_error = failure
        self.state = "failed"

    def end_cut(self, *, is_lost: bool) -> None:
        """It was cancelled while active; `is_lost`: nobody knows what it does still."""
        self.state = "unknown" if is_lost else "cancelled"

    @property
    def wants_undo(self) -> bool:
        """Its rollback is part of the saga: it completed, or it asks for it also when it did not."""
        if self.step.undo is None or self.state == "skipped":
            return False
        return self.state == "completed" or (self._is_started and self.step.rollback_on_failure)

    @property
    def is_doubtful(self) -> bool:
        """Nobody knows whether it did something, and nothing undoes it."""
        return self.state == "unknown" and self.step.undo is not None and not self.wants_undo

    def rollback_failures(self) -> list[Outcome]:
        """What was not undone: itself when it is doubtful, and inside its sub-workflow when that stopped by itself."""
        if self.is_doubtful:
            return [(self.step.name, unknown_text(1, ""))]
        if self.nested is None or self.state == "completed":
            return []
        name = self.step.name
        return [(f"{name}/{path}", failure) for path, failure in self.nested.rollback_errors]

    def report(self, codecs: Codecs) -> StepReport:
        """Return what became of it so far."""
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
