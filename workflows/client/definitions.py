"""The definitions that a provider knows, with their codecs: what encodes an input, and decodes an outcome.

What must always hold: what a caller gives is a definition that is registered here, before anything is encoded
with it.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from eventbus import DefinitionError, PayloadError, UsageError
from eventbus.lowlevel import Codec, JobClient, shown
from workflows.client.handle import FlowOutcomeDecoder
from workflows.definition.codecs import Codecs
from workflows.definition.flow_definition import AnyDefinition, AnyWorkflow, definition_of
from workflows.definition.workflow import Workflow
from workflows.functions.definition import Durable, DurableCodecs
from workflows.machines.definition import MachineCodecs, MachineDefinition
from workflows.registry import StepRegistry

AnyCodecs: TypeAlias = Codecs | DurableCodecs | MachineCodecs


class Definitions:
    """The definitions of one provider."""

    def __init__(self, registry: StepRegistry, jobs: JobClient) -> None:
        self._registry = registry
        self._jobs = jobs
        self._codecs: dict[int, Codecs | DurableCodecs] = {}

    def registered(self, given: AnyWorkflow[Any, Any]) -> AnyDefinition:
        """Return the definition of what a caller gives. Raises DefinitionError if it is not
        registered here.
        """
        known = definition_of(given, "a workflow to execute")
        registry = self._registry
        if not any(each is known for each in (*registry, *registry.durables, *registry.machines)):
            raise DefinitionError(
                f"workflow {known.name!r} is not registered here; call flows.register({known.name}) before"
            )
        return known

    def codecs_of(self, workflow: AnyDefinition) -> AnyCodecs:
        """Return the codecs of a definition; they are made once."""
        if isinstance(workflow, MachineDefinition):
            return workflow.codecs
        # By identity, because two versions of a workflow share their name.
        known = self._codecs.get(id(workflow))
        if known is None:
            limit = int(self._jobs.settings.max_payload)
            if isinstance(workflow, Durable):
                known = DurableCodecs(workflow, max_bytes=limit)
            else:
                assert isinstance(workflow, Workflow)  # noqa: S101  (there are three kinds)
                known = Codecs(workflow, max_bytes=limit)
            self._codecs[id(workflow)] = known
        return known

    def find_codecs(self, workflow: str, version: str) -> Codecs | None:
        """Return the codecs of a workflow of steps; None if it is not registered here in this version."""
        if not self._registry.has(workflow, version=version or None):
            return None
        found = self.codecs_of(self._registry.workflow(workflow, version or None))
        return found if isinstance(found, Codecs) else None

    def encode_input(self, workflow: AnyDefinition, given: Any) -> bytes:
        """Return an input as JSON. Raises PayloadError."""
        try:
            return self.codecs_of(workflow).input.encode(given)
        except PayloadError as error:
            raise PayloadError(
                f"the input of workflow {workflow.name!r} failed its validation: {error}",
                event=workflow.name,
                path=error.path,
                role="payload",
            ) from error

    def check_place(self, workflow: str, place: object) -> None:
        """Raise UsageError if a state machine of this name is registered here, and has no such place."""
        machine = self._registry.machine(workflow)
        if machine is not None and place not in machine.out_of:
            known = ", ".join(map(repr, machine.places))
            raise UsageError(f"{machine.where} has no place {shown(place)}; its places: {known}")

    def reading(self, workflow: str) -> FlowOutcomeDecoder:
        """Return what decodes the outcomes of the workflow of this name, untyped if that is not registered
        here.
        """
        registry = self._registry
        known = registry.durable(workflow) or registry.machine(workflow)
        if known is not None:
            return self.reading_of(known)
        if registry.has(workflow):
            return self.reading_of(registry.workflow(workflow))
        limit = int(self._jobs.settings.max_result)
        return FlowOutcomeDecoder(workflow, Codec(Any, role="result", owner=workflow, max_bytes=limit), ())

    def reading_of(self, workflow: AnyDefinition) -> FlowOutcomeDecoder:
        """Return what decodes the outcomes of a workflow."""
        codecs = self.codecs_of(workflow)
        state = None if isinstance(codecs, Codecs) else codecs.state
        return FlowOutcomeDecoder(workflow.name, codecs.output, workflow.errors, state, workflow)
