"""What defines flows: a workflow of steps, a durable function, or a state machine.

The kinds live in rooms of their own, two of them above this one. What starts a flow of any kind needs no more
of it than this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, TypeVar

from eventbus import DefinitionError
from eventbus.lowlevel import shown

if TYPE_CHECKING:
    from workflows.definition.workflow import Workflow
    from workflows.functions.definition import Durable
    from workflows.machines.definition import MachineDefinition
    from workflows.machines.machine import StateMachine

__all__ = [
    "AnyDefinition",
    "AnyWorkflow",
    "FlowDefinition",
    "FlowKind",
    "definition_in",
    "definition_of",
    "kind_of",
    "most_of_input",
]

I = TypeVar("I")  # noqa: E741  (input)
O = TypeVar("O")  # noqa: E741  (output)

FlowKind: TypeAlias = Literal["graph", "function", "machine"]

AnyDefinition: TypeAlias = "Workflow[Any, Any] | Durable[Any, Any] | MachineDefinition"

AnyWorkflow: TypeAlias = "Workflow[I, O] | Durable[I, O] | type[StateMachine[I]]"
"""What a caller gives: a workflow of any kind. The output of a state machine has no type of its own."""


class FlowDefinition:
    """The base of the three kinds. `_max_input` bounds the JSON of an input in bytes; None: the provider
    alone bounds it.
    """

    _kind: ClassVar[FlowKind]
    _max_input: ClassVar[int | None] = None


def kind_of(definition: AnyDefinition) -> FlowKind:
    """Return the kind of a definition."""
    return definition._kind  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  (no name for users)


def most_of_input(definition: AnyDefinition, max_bytes: int) -> int:
    """Return the bytes that the JSON of an input may have where `max_bytes` is the limit of all values."""
    return min(max_bytes, definition._max_input or max_bytes)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def definition_in(given: object) -> AnyDefinition | None:
    """Return the definition of a workflow, a durable function or the class of a state machine; None for other
    values.
    """
    if isinstance(given, type):
        given = given.__dict__.get("definition")  # that of a base class is another machine
    return given if isinstance(given, FlowDefinition) else None  # type: ignore[return-value]  # pyright: ignore[reportReturnType]


def definition_of(given: object, what: str) -> AnyDefinition:
    """Return the definition of a workflow of any kind. Raises DefinitionError for other values."""
    found = definition_in(given)
    if found is None:
        raise DefinitionError(
            f"expected {what} to be a Workflow, a durable function or a StateMachine, got: {shown(given)}"
        )
    return found
