"""The app of workflows under test: `eventbus worker apps.flow_app:provider`, run in `integration/`.

Its workflows only do what `step_actions` has. Tests import it too, to execute them. The steps of `order` and
`wide` are jobs of their own; `local-order` has the steps of `order`, and one worker runs them. Two variables
make a release with another `order` and `local-order`: EVENTBUS_TEST_WITHOUT names a step that it lacks, and
EVENTBUS_TEST_VERSION is its version.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec
from apps.step_actions import (
    act,
    act_item,
    fail_twice,
    tell_completed,
    tell_failed,
    undo,
    undo_anyway,
    undo_item,
)

from eventbus import EventProvider, Retry
from workflows import Workflow, WorkflowProvider, step

__all__ = [
    "WIDE",
    "WORKFLOWS",
    "Order",
    "declared",
    "flows",
    "ignoring",
    "local_each",
    "local_first",
    "local_order",
    "local_retry",
    "local_wait",
    "local_wide",
    "order",
    "provider",
    "spread_each",
    "spread_wait",
    "versioned",
    "wide",
]

WIDE = 450
"""The number of members of `wide`: more than two calls can carry."""


class Order(msgspec.Struct):
    """The input of all flows here: which step fails for good, and which one kills its process whenever it
    runs.
    """

    number: int = 1
    fails: str = ""
    poison: str = ""


def _undone(name: str) -> Any:
    return step(act, name=name, rollback=undo)


def versioned(
    version: str | None = None, without: str = "", *, name: str = "order", spread: bool = True
) -> Workflow[Order, str]:
    """Make `order`; with a version of None, its steps decide the version."""
    made: Workflow[Order, str] = Workflow(
        name, input=Order, output=str, retry=Retry(attempts=1), version=version, spread=spread
    )
    groups = (("reserve",), ("pick", "wrap"), ("charge",))
    for group in groups:
        made.parallel(*(_undone(step) for step in group if step != without))
    if without != "ship":
        made.then(step(act, name="ship"))
    made.completed(tell_completed)
    made.failed(tell_failed)
    return made


def declared() -> Workflow[Order, str]:
    """Make `order` as a process knows it that executes it but has none of its steps."""
    return Workflow("order", input=Order, output=str, spread=True)


_release = (os.environ.get("EVENTBUS_TEST_VERSION"), os.environ.get("EVENTBUS_TEST_WITHOUT", ""))
order = versioned(*_release)
local_order = versioned(*_release, name="local-order", spread=False)

wide: Workflow[Order, Any] = Workflow("wide", input=Order, retry=Retry(attempts=1), spread=True)
wide.parallel(*(step(act, name=f"m{n}") for n in range(WIDE)))

local_wide: Workflow[Order, Any] = Workflow("local-wide", input=Order, retry=Retry(attempts=1))
local_wide.parallel(*(_undone(f"m{n}") for n in range(12)))

local_retry: Workflow[Order, str] = Workflow("local-retry", input=Order, output=str)
"""The steps `short` and `long` fail twice. The pauses of `short` hold its worker, those of `long` do not."""
local_retry.then(_undone("reserve"))
local_retry.then(
    step(fail_twice, name="short", retry=Retry(attempts=3, delay="300ms", backoff="fixed"), rollback=undo)
)
local_retry.then(
    step(fail_twice, name="long", retry=Retry(attempts=3, delay="1500ms", backoff="fixed"), rollback=undo)
)
local_retry.then(step(act, name="ship"))
local_retry.completed(tell_completed)
local_retry.failed(tell_failed)

packing: Workflow[Order, str] = Workflow("packing", input=Order, output=str, retry=Retry(attempts=1))
packing.then(_undone("wrap"), _undone("label"))
packing.completed(tell_completed)

mixed: Workflow[Order, str] = Workflow("mixed", input=Order, output=str, retry=Retry(attempts=1))
"""The step `away` is a job of its own, `packing` is a flow, and the worker of the root runs the others."""
mixed.then(_undone("reserve"))
mixed.parallel(step(act, name="away", rollback=undo, spread=True), _undone("pick"))
mixed.then(packing, step(act, name="ship"))
mixed.completed(tell_completed)
mixed.failed(tell_failed)

ignoring: Workflow[Order, str] = Workflow("ignoring", input=Order, output=str, retry=Retry(attempts=1))
"""The failure of `away`, a job of its own, is ignored."""
ignoring.then(step(act, name="away", rollback=undo, spread=True, on_failure="ignore"), _undone("pick"))
ignoring.then(step(act, name="ship"))
ignoring.completed(tell_completed)
ignoring.failed(tell_failed)

local_wait: Workflow[Order, str] = Workflow("local-wait", input=Order, output=str)
"""Between two steps it sleeps, and then waits for the signal `go`."""
local_wait.then(_undone("reserve"))
local_wait.sleep("1500ms", name="nap")
local_wait.wait("go", int)
local_wait.then(step(act, name="ship"))
local_wait.completed(tell_completed)
local_wait.failed(tell_failed)

spread_wait: Workflow[Order, str] = Workflow("spread-wait", input=Order, output=str, spread=True)
"""The steps of `local-wait` as jobs of their own, with a shorter sleep."""
spread_wait.then(_undone("reserve"))
spread_wait.sleep("300ms", name="nap")
spread_wait.wait("go", int)
spread_wait.then(step(act, name="ship"))
spread_wait.completed(tell_completed)
spread_wait.failed(tell_failed)

local_first: Workflow[Order, str] = Workflow("local-first", input=Order, output=str, retry=Retry(attempts=1))
"""The rollback of its first step runs also if that did not complete."""
local_first.then(step(act, name="reserve", rollback=undo_anyway, rollback_on_failure=True))
local_first.then(step(act, name="ship"))
local_first.completed(tell_completed)
local_first.failed(tell_failed)

local_each: Workflow[Order, str] = Workflow("local-each", input=Order, output=str, retry=Retry(attempts=1))
"""Its step `convert` runs for each of five numbers, two at a time."""
local_each.then(_undone("reserve"))
local_each.each(over=lambda _: list(range(5)), at_once=2, name="convert")(act_item).rollback(undo_item)
local_each.then(step(act, name="ship"))
local_each.completed(tell_completed)
local_each.failed(tell_failed)

spread_each: Workflow[Order, str] = Workflow("spread-each", input=Order, output=str, retry=Retry(attempts=1))
"""The same, and each item is a job of its own."""
spread_each.then(_undone("reserve"))
spread_each.each(over=lambda _: list(range(5)), at_once=2, name="convert", spread=True)(act_item).rollback(
    undo_item
)
spread_each.then(step(act, name="ship"))
spread_each.completed(tell_completed)
spread_each.failed(tell_failed)

provider = EventProvider()
flows = WorkflowProvider(provider)
WORKFLOWS = (
    order,
    wide,
    local_order,
    local_wide,
    local_retry,
    ignoring,
    local_first,
    local_wait,
    local_each,
    spread_each,
    mixed,
    spread_wait,
)
for each in WORKFLOWS:
    flows.register(each)
