"""The registry: the workflows that one process knows, by name and version; it runs only their steps.

Not here: the queues of these workflows (`distributed.extension`), and flows of unknown workflows, which are
parked (`distributed.flow_consumer`).

What must always hold: every registered workflow is complete and checked, and its sub-workflows are registered
too; a name and version identify one definition.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

from eventbus import DefinitionError
from eventbus.lowlevel import shown
from workflows.definition.flow_definition import AnyDefinition, AnyWorkflow, FlowKind, definition_in, kind_of
from workflows.definition.plan import listed
from workflows.definition.step import Step
from workflows.definition.task import check_tasks
from workflows.definition.workflow import Workflow
from workflows.errors import StepNotFound
from workflows.functions.definition import Durable
from workflows.graphs.definitions import graph_of
from workflows.graphs.graph import Graph, encode_graph
from workflows.machines.definition import MachineDefinition

_KINDS: dict[FlowKind, str] = {
    "graph": "workflow",
    "function": "durable function",
    "machine": "state machine",
}


class StepRegistry:
    """The registered workflows by name and version, with their steps.

    A `version` of None means the version that was registered last.
    """

    def __init__(self) -> None:
        self._known: dict[str, dict[str, AnyDefinition]] = {}

    def register(self, workflow: AnyWorkflow[Any, Any]) -> list[AnyDefinition]:
        """Add a workflow of any kind and its sub-workflows; return what was not registered before.

        The same workflow may be registered again. Raises DefinitionError, and adds nothing, for a definition
        that does not pass its check, and for a different definition of the same name and version. A
        registered workflow takes no further steps.
        """
        given = definition_in(workflow)
        if given is None:
            raise DefinitionError(f"expected a workflow to register, got: {shown(workflow)}")
        if isinstance(given, Workflow):
            given.check()
        fresh: dict[tuple[str, str], AnyDefinition] = {}
        for definition in (given, *(given.inner() if isinstance(given, Workflow) else ())):
            self._check(definition, fresh)
        # Only now, when nothing can be refused any more: a refusal must add nothing.
        for definition in fresh.values():
            if isinstance(definition, Workflow):
                definition.seal()
            self._known.setdefault(definition.name, {})[definition.version] = definition
        if not isinstance(given, Workflow):
            versions = self._known[given.name]
            versions[given.version] = versions.pop(given.version)  # the one that was registered last
        return list(fresh.values())

    def _check(self, definition: AnyDefinition, fresh: dict[tuple[str, str], AnyDefinition]) -> None:
        """Note a definition as `fresh` unless it is known. Raises DefinitionError for one that cannot be
        registered.
        """
        name, version = definition.name, definition.version
        others = [
            *self._known.get(name, {}).values(),
            *(each for key, each in fresh.items() if key[0] == name),
        ]
        if any(kind_of(each) != kind_of(definition) for each in others):
            raise DefinitionError(
                f"{name!r} is the name of two workflows of different kinds (steps, a durable function, "
                "a state machine); rename one of them"
            )
        if isinstance(definition, Durable):
            check_tasks(definition.function, definition.where, definition.errors, definition.retry_on)
        known = fresh.get((name, version)) or self._known.get(name, {}).get(version)
        if known is None:
            fresh[name, version] = definition
        elif known is not definition:
            raise DefinitionError(
                f"another {_KINDS[kind_of(definition)]} {name!r} is registered in version {version!r} "
                "already; rename one, or give them versions of their own with version=..."
            )

    def find(self, name: str, version: str) -> AnyDefinition | None:
        """Return what may run flows of this version, of whatever kind; None without one."""
        return self._known.get(name, {}).get(version) or self.machine(name, version)

    def machine(self, name: str, version: str | None = None) -> MachineDefinition | None:
        """Return a state machine that may run flows of this version, the one registered last; None without
        one.
        """
        versions = {
            each.version: each for each in self._versions(name) if isinstance(each, MachineDefinition)
        }
        if version is not None and version in versions:
            return versions[version]
        every = reversed(versions.values())
        return next((each for each in every if version is None or each.knows(version)), None)

    @property
    def machines(self) -> list[MachineDefinition]:
        """Every state machine in every version."""
        return [each for each in self._every() if isinstance(each, MachineDefinition)]

    def durable(self, name: str, version: str | None = None) -> Durable[Any, Any] | None:
        """Return a durable function; None if it is not registered in this version."""
        found = [each for each in self._versions(name) if isinstance(each, Durable)]
        return next((each for each in reversed(found) if version in (None, each.version)), None)

    @property
    def durables(self) -> list[Durable[Any, Any]]:
        """Every durable function in every version."""
        return [each for each in self._every() if isinstance(each, Durable)]

    def workflow(self, name: str, version: str | None = None) -> Workflow[Any, Any]:
        """Return a workflow. Raises StepNotFound if it is not registered in this version."""
        versions = {each.version: each for each in self._versions(name) if isinstance(each, Workflow)}
        if not versions or (version is not None and version not in versions):
            kind, known = ("versions", [*versions]) if versions else ("workflows", self._names())
            raise StepNotFound(
                workflow=name, version=version, known=f"{kind} {listed(known)}" if known else ""
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
        """Return the steps of a workflow whose jobs have a queue of their own; the version that was
        registered last counts.
        """
        every = [each for each in self._versions(name) if isinstance(each, Workflow)]
        return {step.name: step for workflow in every for step in workflow.steps.values() if step.has_queue}

    def graph(self, name: str, version: str | None = None) -> Graph | None:
        """Return the graph of a workflow of any kind; None if it is not registered in this version, or has no
        steps here.
        """
        known = self.durable(name, version) or self.machine(name, version)
        if known is not None:
            return graph_of(known)
        if not self.has(name, version=version) or not self.steps(name, version):
            return None
        return graph_of(self.workflow(name, version))

    def told_graphs(self, name: str) -> dict[str, str]:
        """Return the graphs of a workflow of any kind as JSON, by version, of those that it runs here."""
        every = ((each.version, self.graph(name, each.version)) for each in self._versions(name))
        return {version: encode_graph(graph) for version, graph in every if graph is not None}

    def versions(self, name: str) -> list[str]:
        """Return the registered versions of a workflow in the order of registration."""
        return [each.version for each in self._versions(name) if isinstance(each, Workflow)]

    def clear(self) -> None:
        """Forget all workflows."""
        self._known.clear()

    def _versions(self, name: str) -> Collection[AnyDefinition]:
        return self._known.get(name, {}).values()

    def _every(self) -> Iterator[AnyDefinition]:
        return (definition for versions in self._known.values() for definition in versions.values())

    def _names(self) -> list[str]:
        return list(dict.fromkeys(each.name for each in self))

    def __iter__(self) -> Iterator[Workflow[Any, Any]]:
        """Yield every workflow in every version, without durable functions and state machines."""
        return iter([each for each in self._every() if isinstance(each, Workflow)])

    def __len__(self) -> int:
        return sum(1 for _ in self)
