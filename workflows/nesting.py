"""Workflows inside workflows: whether running one comes to an end, and whether the ids of its jobs fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eventbus import DefinitionError
from workflows.names import ID_LENGTH, member_id, nested_flow_id, new_flow_id

if TYPE_CHECKING:
    from workflows.definition import Workflow

__all__ = ["check_depth", "check_ends", "start_id"]

_RUN = 999  # a flow may be retried by hand so often


def check_ends(workflow: Workflow[Any, Any]) -> None:
    """Raise DefinitionError if a flow of `workflow` would start another one of it, and so on without end.

    A step with a condition (`when`) may be skipped, so a circle over one can end.
    """
    seen: set[int] = set()
    ahead: list[tuple[Workflow[Any, Any], tuple[str, ...]]] = [(workflow, (workflow.name,))]
    while ahead:
        each, path = ahead.pop()
        for step in each.steps.values():
            inner = step.workflow
            if inner is None or step.when is not None:
                continue
            if inner is workflow:
                told = " runs ".join(map(repr, (*path, workflow.name)))
                raise DefinitionError(
                    f"workflow {workflow.name!r} would run itself without end: {told}; "
                    f"give step {step.name!r} of workflow {each.name!r} a condition: when=..."
                )
            if id(inner) not in seen:
                seen.add(id(inner))
                ahead.append((inner, (*path, inner.name)))


def check_depth(workflow: Workflow[Any, Any]) -> None:
    """Raise DefinitionError if flows of `workflow` would have jobs with ids that are too long.

    Sub-workflows with a condition (`when`) may be skipped, so those inside are judged when they run.
    """
    length, steps = _longest(workflow, {})
    length += len(member_id(new_flow_id(workflow.name), _RUN, ""))
    if length > ID_LENGTH:
        raise DefinitionError(
            f"workflow {workflow.name!r} nests too deep: the id of the job of step {' / '.join(map(repr, steps))} "
            f"would have {length} characters, more than {ID_LENGTH}; nest workflows less deep, or give them and "
            "their steps shorter names"
        )


def start_id(job_id: str, inner: Workflow[Any, Any], index: int = 0) -> str:
    """Return the id of the flow of `inner` that the step job starts. Raises DefinitionError if its jobs' would be too long."""
    flow_id = nested_flow_id(job_id, inner.name, index)
    member_id(flow_id, 1, max(inner.steps, key=len, default=""))
    return flow_id


def _longest(
    workflow: Workflow[Any, Any], known: dict[int, tuple[int, tuple[str, ...]]]
) -> tuple[int, tuple[str, ...]]:
    """How much longer than that of its flow, without a step, an id becomes; and by which steps."""
    if id(workflow) not in known:
        known[id(workflow)] = (0, ())  # where workflows run each other without end, another check says so
        found: list[tuple[int, tuple[str, ...]]] = [(0, ())]
        for step in workflow.steps.values():
            length, steps = len(step.name), (step.name,)
            if step.workflow is not None:
                length += len(nested_flow_id("", step.workflow.name))
                if step.when is None:
                    more, inside = _longest(step.workflow, known)
                    length, steps = length + len(member_id("", 1, "")) + more, (*steps, *inside)
            found.append((length, steps))
        known[id(workflow)] = max(found)
    return known[id(workflow)]
