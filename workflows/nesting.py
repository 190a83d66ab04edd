"""Workflows inside workflows: whether running one comes to an end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eventbus import DefinitionError

if TYPE_CHECKING:
    from workflows.definition import Workflow

__all__ = ["check_ends"]


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
