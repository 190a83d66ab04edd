"""The app of workflows under test: `eventbus worker apps.flow_app:provider`, run in `integration/`.

Its workflows only do what `step_actions` has. Tests import it too, to execute them. Two variables make
a release with another `order`: EVENTBUS_TEST_WITHOUT names a step that it lacks, and
EVENTBUS_TEST_VERSION is its version.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec
from apps.step_actions import act, tell_completed, tell_failed, undo

from eventbus import EventProvider, Retry
from workflows import Workflow, WorkflowProvider, step

__all__ = ["WIDE", "Order", "declared", "flows", "order", "provider", "versioned", "wide"]

WIDE = 450
"""The number of members of `wide`: more than two calls can carry."""


class Order(msgspec.Struct):
    """The input of all flows here; `fails` names the step that fails for good."""

    number: int = 1
    fails: str = ""


def _undone(name: str) -> Any:
    return step(act, name=name, rollback=undo)


def versioned(version: str | None = None, without: str = "") -> Workflow[Order, str]:
    """Make `order`; with a version of None, its steps decide the version."""
    made: Workflow[Order, str] = Workflow(
        "order", input=Order, output=str, retry=Retry(attempts=1), version=version
    )
    groups = (("reserve",), ("pick", "wrap"), ("charge",))
    for group in groups:
        made.parallel(*(_undone(name) for name in group if name != without))
    if without != "ship":
        made.then(step(act, name="ship"))
    made.completed(tell_completed)
    made.failed(tell_failed)
    return made


def declared() -> Workflow[Order, str]:
    """Make `order` as a process knows it that executes it but has none of its steps."""
    return Workflow("order", input=Order, output=str)


order = versioned(os.environ.get("EVENTBUS_TEST_VERSION"), os.environ.get("EVENTBUS_TEST_WITHOUT", ""))

wide: Workflow[Order, Any] = Workflow("wide", input=Order, retry=Retry(attempts=1))
wide.parallel(*(step(act, name=f"m{n}") for n in range(WIDE)))

provider = EventProvider()
flows = WorkflowProvider(provider)
flows.register(order)
flows.register(wide)
