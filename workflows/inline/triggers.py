"""The triggers of inline flows, which a test gives beforehand: each machine takes its own, in their order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from eventbus import UsageError
from workflows.definition.flow_definition import AnyDefinition
from workflows.machines.definition import MachineDefinition
from workflows.machines.transition import Transition


class InlineTriggers:
    """The triggers that nobody has taken. The flows inside a flow share them with it."""

    def __init__(
        self, given: Iterable[tuple[Transition[Any] | str, Any]] = (), outermost: AnyDefinition | None = None
    ) -> None:
        """Take transitions, or their names, with their payloads. Raises DefinitionError for one that waits
        for none, and PayloadError.
        """
        self._left = list(given)
        for transition, payload in self._left:
            if isinstance(transition, Transition):
                if not transition.waits and isinstance(outermost, MachineDefinition):
                    outermost.find_trigger(transition)  # raises if it is not one of its own
                transition.encode(payload)

    def next(self, machine: MachineDefinition) -> Transition[Any] | None:
        """Return the next one for flows of a machine; None if there is none."""
        return next((found for each, _ in self._left if (found := _of(machine, each)) is not None), None)

    def take(self, machine: MachineDefinition) -> str:
        """Take the next one for flows of a machine, which there must be; return its payload as JSON text.
        Raises PayloadError.
        """
        for place, (each, payload) in enumerate(self._left):
            transition = _of(machine, each)
            if transition is not None:
                del self._left[place]
                return transition.encode(payload)
        raise AssertionError("no trigger is left")

    def check_taken(self, flow_id: str) -> None:
        """Raise UsageError if some are left at the end of the outermost flow."""
        if self._left:
            names = ", ".join(each if isinstance(each, str) else each.name for each, _ in self._left)
            raise UsageError(
                f"flow {flow_id} has ended before these triggers were sent: {names}; leave them out"
            )


def _of(machine: MachineDefinition, given: Transition[Any] | str) -> Transition[Any] | None:
    """Return the transition of a machine that is given, or named; None if it is one of another machine."""
    found = machine.transitions.get(given if isinstance(given, str) else given.name)
    return found if isinstance(given, str) or found is given else None
