"""The registry: the workflows that one process knows, by name and version; it runs only their steps.

Not here: the queues of these workflows (`distributed.extension`), and flows of unknown workflows, which are
parked (`distributed.flow_consumer`).

What must always hold: every registered workflow is complete and checked, and its sub-workflows are registered
too; a name and version identify one definition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from eventbus import DefinitionError
from eventbus.lowlevel import shown
from workflows.definition.plan import listed
from workflows.definition.step import Step
from workflows.definition.workflow import Workflow
from workflows.errors import StepNotFound
from workflows.functions.definition import Durable
from workflows.functions.task import check_tasks
from workflows.graphs.definitions import graph_of
from workflows.graphs.graph import Graph
from workflows.machines.definition import MachineDefinition
from workflows.machines.machine import StateMachine, definition_of

__all__ = ["StepRegistry"]


class StepRegistry:
    """The registered workflows by name and version, with their steps.

    A `version` of None means the version that was registered last.
    """

    def __init__(self) -> None:
        self._versions: dict[str, dict[str, Workflow[Any, Any]]] = {}
        self._durables: dict[str, dict[str, Durable[Any, Any]]] = {}
        self._machines: dict[str, dict[str, MachineDefinition]] = {}

    def register(
        self, workflow: Workflow[Any, Any] | Durable[Any, Any] | type[StateMachine[Any]]
    ) -> list[Workflow[Any, Any]]:
        """Add a workflow and its sub-workflows; return those that were not registered before.

        A durable function or a state machine is added alone. The same workflow may be registered again. Raises DefinitionError, and adds nothing, for a definition
        that does not pass its check, and for a different definition of the same name and version. A
        registered workflow takes no further steps.
        """
        if isinstance(workflow, Durable):
            self._register_durable(workflow)
            return []
        machine = definition_of(workflow)
        if machine is not None:
            self._register_machine(machine)
            return []
        if not isinstance(workflow, Workflow):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DefinitionError(f"expected a workflow to register, got: {shown(workflow)}")
        workflow.check()
        fresh: dict[tuple[str, str], Workflow[Any, Any]] = {}
        for definition in (workflow, *workflow.nested()):
            if definition.name in self._durables or definition.name in self._machines:
                raise _other_kind(definition.name)
            place = (definition.name, definition.version)
            known = fresh.get(place) or self._versions.get(definition.name, {}).get(definition.version)
            if known is None:
                fresh[place] = definition
            elif known is not definition:
                raise DefinitionError(
                    f"another workflow {definition.name!r} is registered in version {definition.version!r} already; "
                    "rename one, or give them versions of their own with version=..."
                )
        # Only now, when nothing can be refused any more: a refusal must add nothing.
        for definition in fresh.values():
            definition.seal()
            self._versions.setdefault(definition.name, {})[definition.version] = definition
        return list(fresh.values())

    def _register_durable(self, durable: Durable[Any, Any]) -> None:
        if durable.name in self._versions or durable.name in self._machines:
            raise _other_kind(durable.name)
        check_tasks(durable.function, durable.where, durable.errors, durable.retry_on)
        known = self._durables.setdefault(durable.name, {})
        if known.setdefault(durable.version, durable) is not durable:
            raise DefinitionError(
                f"another durable function {durable.name!r} is registered in version {durable.version!r} already; "
                "rename one, or give them versions of their own with version=..."
            )
        known[durable.version] = known.pop(durable.version)  # the one that was registered last

    def _register_machine(self, machine: MachineDefinition) -> None:
        if machine.name in self._versions or machine.name in self._durables:
            raise _other_kind(machine.name)
        known = self._machines.setdefault(machine.name, {})
        if known.setdefault(machine.version, machine) is not machine:
            raise DefinitionError(
                f"another state machine {machine.name!r} is registered in version {machine.version!r} already; "
                "rename one, or give them versions of their own with version=..."
            )
        known[machine.version] = known.pop(machine.version)  # the one that was registered last

    def machine(self, name: str, version: str | None = None) -> MachineDefinition | None:
        """Return a state machine that may run flows of this version, the one registered last; None without one."""
        versions = self._machines.get(name, {})
        if version is not None and version in versions:
            return versions[version]
        every = reversed(versions.values())
        return next((each for each in every if version is None or each.knows(version)), None)

    @property
    def machines(self) -> list[MachineDefinition]:
        """Every state machine in every version."""
        return [machine for versions in self._machines.values() for machine in versions.values()]

    def durable(self, name: str, version: str | None = None) -> Durable[Any, Any] | None:
        """Return a durable function; None if it is not registered in this version."""
        versions = self._durables.get(name, {})
        if version is not None or not versions:
            return versions.get(version or "")
        return versions[next(reversed(versions))]

    @property
    def durables(self) -> list[Durable[Any, Any]]:
        """Every durable function in every version."""
        return [durable for versions in self._durables.values() for durable in versions.values()]

    def workflow(self, name: str, version: str | None = None) -> Workflow[Any, Any]:
        """Return a workflow. Raises StepNotFound if it is not registered in this version."""
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
        """Tell whether a workflow, or a step of it, is registered."""
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

    def limited(self, name: str) -> dict[str, Step[Any, Any]]:
        """Return the steps of a workflow whose jobs have a queue of their own; the version that was registered last counts."""
        every = self._versions.get(name, {}).values()
        return {step.name: step for workflow in every for step in workflow.steps.values() if step.has_queue}

    def graph(self, name: str, version: str | None = None) -> Graph | None:
        """Return the graph of a workflow or durable function; None if it is not registered in this version, or has no steps here."""
        durable = self.durable(name, version)
        if durable is not None:
            return graph_of(durable)
        if not self.has(name, version=version) or not self.steps(name, version):
            return None
        return graph_of(self.workflow(name, version))

    def versions(self, name: str) -> list[str]:
        """Return the registered versions of a workflow in the order of registration."""
        return list(self._versions.get(name, ()))

    def clear(self) -> None:
        """Forget all workflows."""
        self._versions.clear()
        self._durables.clear()
        self._machines.clear()

    def __iter__(self) -> Iterator[Workflow[Any, Any]]:
        """Yield every workflow in every version, without durable functions and state machines."""
        return iter([workflow for versions in self._versions.values() for workflow in versions.values()])

    def __len__(self) -> int:
        return sum(map(len, self._versions.values()))


def _other_kind(name: str) -> DefinitionError:
    return DefinitionError(
        f"{name!r} is the name of two workflows of different kinds (steps, a durable function, a state machine); rename one of them"
    )
