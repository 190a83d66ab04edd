"""Which workflows one process knows, in which versions; it runs the steps of these and of no others.

Not here: the queues that are served for them, and what becomes of a flow that nobody here knows.
Always holds: what is registered is whole and checked, and with a workflow its sub-workflows are
registered; one name and version stands for one definition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from eventbus import DefinitionError
from eventbus.lowlevel import shown
from workflows.definition import Workflow
from workflows.errors import StepNotFound
from workflows.flow import listed
from workflows.step import Step

__all__ = ["StepRegistry"]


class StepRegistry:
    """The workflows that were registered, each by its name and version, and so their steps.

    Where a `version` may be given, None stands for the one that was registered last.
    """

    def __init__(self) -> None:
        self._versions: dict[str, dict[str, Workflow[Any, Any]]] = {}

    def register(self, workflow: Workflow[Any, Any]) -> list[Workflow[Any, Any]]:
        """Add a workflow and its sub-workflows; return those that were not there before.

        The same workflow may be registered again. Raises DefinitionError, and adds nothing, for a
        definition that does not pass its check, and for another one of the same name and version.
        A workflow that is registered takes no further step.
        """
        if not isinstance(workflow, Workflow):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DefinitionError(f"expected a workflow to register, got: {shown(workflow)}")
        workflow.check()
        fresh: dict[tuple[str, str], Workflow[Any, Any]] = {}
        for each in (workflow, *workflow.nested()):
            place = (each.name, each.version)
            known = fresh.get(place) or self._versions.get(each.name, {}).get(each.version)
            if known is None:
                fresh[place] = each
            elif known is not each:
                raise DefinitionError(
                    f"another workflow {each.name!r} is registered in version {each.version!r} already; "
                    "rename one, or give them versions of their own with version=..."
                )
        for each in fresh.values():
            each.seal()
            self._versions.setdefault(each.name, {})[each.version] = each
        return list(fresh.values())

    def workflow(self, name: str, version: str | None = None) -> Workflow[Any, Any]:
        """Return a workflow. Raises StepNotFound if it is not registered, or not in this version."""
        versions = self._versions.get(name, {})
        if not versions or (version is not None and version not in versions):
            kind, known = ("versions", versions) if versions else ("workflows", self._versions)
            raise StepNotFound(
                workflow=name, version=version, known=f"{kind} {listed(list(known))}" if known else ""
            )
        return versions[next(reversed(versions)) if version is None else version]

    def get(self, workflow: str, step: str, version: str | None = None) -> Step[Any, Any]:
        """Return a step. Raises StepNotFound, with both names, if workflow or step is not registered."""
        try:
            steps = self.workflow(workflow, version).steps
        except StepNotFound as error:
            raise StepNotFound(workflow=workflow, step=step, version=version, known=error.known) from None
        if step not in steps:
            raise StepNotFound(
                workflow=workflow, step=step, version=version, known=f"steps {listed(list(steps))}"
            )
        return steps[step]

    def has(self, workflow: str, step: str | None = None, version: str | None = None) -> bool:
        """Say whether a workflow, or a step of one, is registered."""
        try:
            known = self.workflow(workflow, version)
        except StepNotFound:
            return False
        return step is None or step in known.steps

    def rollback_of(self, workflow: str, step: str, version: str | None = None) -> Callable[..., Any] | None:
        """Return the rollback of a step; None if it has none, or is not registered."""
        return self.get(workflow, step, version).undo if self.has(workflow, step, version) else None

    def steps(self, workflow: str, version: str | None = None) -> list[str]:
        """Return the names of a workflow's steps in the order of definition; none if it is not registered."""
        return list(self.workflow(workflow, version).steps) if self.has(workflow, None, version) else []

    def versions(self, name: str) -> list[str]:
        """Return the versions in which a workflow is registered, the last one last."""
        return list(self._versions.get(name, ()))

    def clear(self) -> None:
        """Forget all of them."""
        self._versions.clear()

    def __iter__(self) -> Iterator[Workflow[Any, Any]]:
        """Yield every workflow in every version."""
        return iter([each for versions in self._versions.values() for each in versions.values()])

    def __len__(self) -> int:
        return sum(map(len, self._versions.values()))
