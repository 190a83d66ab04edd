"""Checks of workflows inside workflows: their flows must be able to end, and their job ids must fit."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from eventbus import DefinitionError
from eventbus.lowlevel import JOB_ID_LENGTH
from workflows.definition.flow_definition import kind_of
from workflows.records.ids import member_id, nested_flow_id, new_flow_id

if TYPE_CHECKING:
    from workflows.definition.flow_definition import AnyDefinition
    from workflows.definition.step import Step

_RUN = 999  # ids must leave room for this run number: a flow that is retried by hand counts its runs up


def check_ends(workflow: AnyDefinition) -> None:
    """Raise DefinitionError if every flow of `workflow` would start another flow of it, without end.

    A circle that contains a step with a condition (`when`) is accepted, because that step may be skipped.
    """
    seen: set[int] = set()
    ahead: list[tuple[AnyDefinition, tuple[str, ...]]] = [(workflow, (workflow.name,))]
    while ahead:
        outer, path = ahead.pop()
        for step in _steps_of(outer):
            inner = step.workflow
            if inner is None or step.when is not None:
                continue
            if inner is workflow:
                told = " runs ".join(map(repr, (*path, workflow.name)))
                raise DefinitionError(
                    f"workflow {workflow.name!r} would run itself without end: {told}; "
                    f"give step {step.name!r} of workflow {outer.name!r} a condition: when=..."
                )
            if id(inner) not in seen:
                seen.add(id(inner))
                ahead.append((inner, (*path, inner.name)))


def check_depth(workflow: AnyDefinition) -> None:
    """Raise DefinitionError if flows of `workflow` would have jobs with ids that are too long.

    Sub-workflows of a step with a condition (`when`) may never run, so their jobs are checked when they run.
    """
    length, steps = _longest(workflow, {})
    length += len(member_id(new_flow_id(workflow.name), _RUN, ""))
    if length > JOB_ID_LENGTH:
        raise DefinitionError(
            f"workflow {workflow.name!r} nests too deep: the id of the job of step "
            f"{' / '.join(map(repr, steps))} would have {length} characters, more than {JOB_ID_LENGTH}; nest "
            "workflows less deep, or give them and their steps shorter names"
        )


def start_id(job_id: str, inner: AnyDefinition, index: int = 0) -> str:
    """Return the id of the flow of `inner` that the step job `job_id` starts.

    Raises DefinitionError if the ids of that flow's own jobs would be too long.
    """
    flow_id = nested_flow_id(job_id, inner.name, index)
    names = [step.name for step in _steps_of(inner)]
    member_id(flow_id, 1, max(names, key=len, default=""))  # raises for the longest name
    return flow_id


def _steps_of(definition: AnyDefinition) -> Collection[Step[Any, Any]]:
    """Return the steps that are known before a flow runs: those of a graph. Jobs of other kinds are checked
    when they start.
    """
    return definition.steps.values() if kind_of(definition) == "graph" else ()  # type: ignore[union-attr]


def _longest(
    workflow: AnyDefinition, known: dict[int, tuple[int, tuple[str, ...]]]
) -> tuple[int, tuple[str, ...]]:
    """Return how many characters the longest job id adds to the flow's id, and the steps on the way to it."""
    if id(workflow) not in known:
        known[id(workflow)] = (0, ())  # ends the recursion at a circle, which `check_ends` reports
        found: list[tuple[int, tuple[str, ...]]] = [(0, ())]
        for step in _steps_of(workflow):
            length, steps = len(step.name), (step.name,)
            if step.workflow is not None:
                length += len(nested_flow_id("", step.workflow.name))
                if step.when is None:
                    more, inside = _longest(step.workflow, known)
                    length, steps = length + len(member_id("", 1, "")) + more, (*steps, *inside)
            found.append((length, steps))
        known[id(workflow)] = max(found)
    return known[id(workflow)]
