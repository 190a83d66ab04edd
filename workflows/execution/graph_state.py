"""The state of a graph: its steps with their items, what they recorded, and what that lets happen next.

It does nothing by itself. A run of the graph (`execution.graph_run`) moves it on, and who undoes a flow reads
it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from workflows.definition.workflow import Workflow
from workflows.execution.step_run import StepRun
from workflows.records.ids import split_item
from workflows.records.records import StepRecord


class GraphState:
    """The steps of one run of a flow. Do not change its attributes from elsewhere than the run."""

    def __init__(self, workflow: Workflow[Any, Any], *, kept: Collection[str] = ()) -> None:
        """Begin with all steps as waiting.

        `kept` are the steps whose results count from an earlier run: a step that waited for one of them waits
        for what that one waited for.
        """
        self.workflow = workflow
        self.records: dict[str, StepRecord] = {}
        """The records of the steps that completed or were skipped."""
        self.ended: list[StepRun] = []
        """The steps that have ended, in the order of their ends."""
        self.failed: StepRun | None = None
        """The first step that failed for good."""
        plan = workflow.plan.without(kept) if kept else workflow.plan
        steps = workflow.steps
        self.steps: dict[str, StepRun] = {name: StepRun(steps[name], needs) for name, needs in plan.nodes}
        if kept:
            ended = {name: StepRun(steps[name], ()) for name, _ in workflow.plan.nodes if name in kept}
            self.steps = {name: ended.get(name) or self.steps[name] for name, _ in workflow.plan.nodes}
        self._followers = plan.followers

    def restore(self, run: StepRun) -> None:
        """Take over a step that ended in an earlier activation."""
        self.ended.append(run)
        if run.record is not None:
            if run.owner is None:
                self.records[run.step.name] = run.record
        elif run.state == "failed":
            self.failed = self.failed or run

    def find(self, name: str) -> StepRun | None:
        """Return a step, or an item of one; None if there is none of that name."""
        step, index = split_item(name)
        run = self.steps.get(step)
        if index < 0 or run is None:
            return run
        return run.items.runs[index] if run.items is not None and index < len(run.items.runs) else None

    @property
    def is_complete(self) -> bool:
        """Whether every step has completed or was skipped."""
        return len(self.records) == len(self.steps)

    @property
    def is_active(self) -> bool:
        """Whether a step is active here."""
        return any(run.state == "active" and not run.is_apart for run in self._all())

    @property
    def delayed(self) -> Sequence[StepRun]:
        """The steps that wait for their next attempt."""
        return [run for run in self._all() if run.state == "delayed"]

    @property
    def sleeping(self) -> Sequence[StepRun]:
        """The steps that wait for a time or a signal, those that began first before the others."""
        return sorted(
            (run for run in self.steps.values() if run.state == "sleeping"), key=lambda run: run.started_ms
        )

    def followers(self, name: str) -> Iterable[StepRun]:
        """Return the steps that wait for this one."""
        return [self.steps[follower] for follower in self._followers.get(name, ())]

    def settle_items(self) -> None:
        """Give steps whose items run no more their state, if the run has halted: nothing but their items is
        recorded.
        """
        for run in self.steps.values():
            if run.state == "active" and run.items is not None:
                states = {item.state for item in run.items.runs if item.record is None}
                run.state = "failed" if "failed" in states else "cancelled"

    def _all(self) -> Iterator[StepRun]:
        for run in self.steps.values():
            yield run
            if run.items is not None:
                yield from run.items.runs
