"""The program under test for flows: `eventbus worker depot:provider`, run in this folder.

Its workflows do nothing but what `deeds` says. Tests import it too, to execute them.
"""

from __future__ import annotations

from typing import Any

import msgspec
from deeds import act, tell_completed, tell_failed, undo

from eventbus import EventProvider, Retry
from workflows import Workflow, WorkflowProvider, step

__all__ = ["WIDE", "Order", "declared", "flows", "order", "provider", "wide"]

WIDE = 450
"""Members of `wide`: more than go in two calls."""


class Order(msgspec.Struct):
    """The input of all flows here; `fails` names the step that fails for good."""

    number: int = 1
    fails: str = ""


def _undone(name: str) -> Any:
    return step(act, name=name, rollback=undo)


order: Workflow[Order, str] = Workflow("order", input=Order, output=str, retry=Retry(attempts=1))
order.then(_undone("reserve")).parallel(_undone("pick"), _undone("wrap")).then(_undone("charge"))
order.then(step(act, name="ship"))
order.completed(tell_completed)
order.failed(tell_failed)

wide: Workflow[Order, Any] = Workflow("wide", input=Order, retry=Retry(attempts=1))
wide.parallel(*(step(act, name=f"m{n}") for n in range(WIDE)))


def declared() -> Workflow[Order, str]:
    """`order` as a process knows it that executes it and has none of its steps."""
    return Workflow("order", input=Order, output=str)


provider = EventProvider()
flows = WorkflowProvider(provider)
flows.register(order)
flows.register(wide)
