"""The flows inside an inline flow: sub-workflows of a graph, and the children of a durable function or of a
state machine.

What must always hold: an inner flow of any kind is settled, stopped and undone in the same way, whatever kind
its outer one is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import msgspec

from workflows.definition.context import FlowFacts
from workflows.definition.flow_definition import AnyDefinition
from workflows.execution.rollback import RollbackResult, Undoable
from workflows.records.records import read_flow_failure

__all__ = ["InnerFlow", "OpenInner", "Opening", "failed_undos_in"]


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

    def undos(self, prefix: str = "") -> Sequence[Undoable]:
        """Return the rollbacks that it owes after it completed, the newest first; `prefix` begins their
        paths.
        """
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


def failed_undos_in(state: str, text: str, prefix: str = "") -> tuple[list[RollbackResult], bool]:
    """Return the rollbacks that failed in an inner flow, and whether what it did may be there; `prefix`
    begins their paths.
    """
    failure = None if state == "completed" else read_flow_failure(text)
    if failure is None:
        return [], False
    found = [(prefix + name, bytes(record).decode()) for name, record in failure.rollback_errors]
    return found, failure.rollback == "incomplete"
