"""The items of a step that runs for each item of a list, in one run of a graph: which of them may begin.

What must always hold: items begin in order, and at most `at_once` have begun without having ended; so which
ones may have run follows from those that are recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

import msgspec

from eventbus import PayloadError
from workflows.definition.each import EachStep, join_results, make_item
from workflows.definition.workflow import Workflow
from workflows.execution.step_run import StepRun
from workflows.execution.step_runner import rule_of
from workflows.records.ids import split_item
from workflows.records.records import StepRecord

__all__ = ["Items", "begin_items", "find_run", "runs_of", "settle_items"]


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


def find_run(steps: Mapping[str, StepRun], name: str) -> StepRun | None:
    """Return a step, or an item of one; None if there is none of that name."""
    step, index = split_item(name)
    run = steps.get(step)
    if index < 0 or run is None:
        return run
    return run.items.runs[index] if run.items is not None and index < len(run.items.runs) else None


def runs_of(steps: Mapping[str, StepRun]) -> Iterable[StepRun]:
    """Return all steps and items."""
    for run in steps.values():
        yield run
        if run.items is not None:
            yield from run.items.runs


def settle_items(runs: Iterable[StepRun], *, is_halted: bool) -> None:
    """Give steps whose items run no more their state, if the run has halted: nothing but their items is
    recorded.
    """
    for run in runs:
        if is_halted and run.state == "active" and run.items is not None:
            states = {item.state for item in run.items.runs if item.record is None}
            run.state = "failed" if "failed" in states else "cancelled"


def begin_items(owner: StepRun, given: msgspec.Raw) -> Items:
    """Give a step its items."""
    owner.items = Items(owner, given)
    owner.record, owner.state = None, "active"
    return owner.items
