"""The flows inside an inline flow: sub-workflows of a graph, and the children of a durable function or of a
state machine.

What must always hold: an inner flow of any kind is settled, stopped and undone in the same way, whatever kind
its outer one is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import msgspec

from workflows.definition.flow_definition import AnyDefinition
from workflows.definition.flow_tools import FlowFacts
from workflows.execution.rollback import UndoPlan


class InnerFlow(Protocol):
    """A flow that runs here, inside another one."""

    async def settle(self) -> None:
        """Run it to its end."""
        ...

    def ended(self) -> tuple[str, str]:
        """Return its state, and its outcome as JSON text, after its end."""
        ...

    def cancel(self, reason: str, *, is_cut: bool = True) -> None:
        """Stop it; it undoes itself. Without `is_cut` active steps finish first."""
        ...

    async def plan_undo(self, prefix: str = "") -> UndoPlan:
        """Return what is to be undone of it after its end; `prefix` begins the paths of its steps."""
        ...

    def progress(self) -> Any:
        """Return the progress of its steps, None if none has told any."""
        ...


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """What is given to an inner flow: its definition, its id, its input as JSON, its timeout, and the facts
    of its outer flow.
    """

    definition: AnyDefinition
    id: str
    given: bytes
    timeout: float | None
    outer: FlowFacts


OpenInner: TypeAlias = Callable[[Opening], InnerFlow]
