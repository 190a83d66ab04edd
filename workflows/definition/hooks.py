"""Hooks: the functions that a workflow calls when a flow ends and around each step, and the one that makes
its data.

Not here: calling them (`execution.hook_runner`), and the consequences if they fail
(`distributed.flow_consumer`, `inline.flow`). Those around each step: `execution.step_hooks`.

What must always hold: every hook accepts the arguments that it will get, as far as its annotations tell.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from eventbus import DefinitionError
from workflows.definition.checks.signature import (
    accepts,
    check_context,
    check_error,
    check_function,
    is_async,
    name_of,
    returned_by,
    told,
)
from workflows.definition.context import StepContext
from workflows.definition.outline import Hook, HookName

NOTHING: Any = None
"""The argument that a hook's decorator gets if it is written with parentheses."""

_TAKES: dict[HookName, tuple[str, ...]] = {
    "completed": ("the context",),
    "failed": ("the context", "the error"),
    "before_each": ("the context",),
    "after_each": ("the context", "the result"),
    "on_error": ("the context", "the error"),
    "data": ("the context",),
}

I = TypeVar("I")  # noqa: E741  (input)
T = TypeVar("T")


class StepHooks(Generic[I]):
    """The methods of a workflow that define what runs around its steps; `hooks` has these functions by their
    names.
    """

    hooks: dict[HookName, Hook]

    def before_each(
        self, function: Callable[[StepContext[I]], T] = NOTHING, /
    ) -> Callable[[StepContext[I]], T]:
        """Make the decorated function the `before_each` hook: it runs before each attempt of each step's
        function.

        `before_each(ctx)` is not called for a step that is skipped, that only waits or that is a
        sub-workflow. It is a part of the attempt: its error fails the attempt, and it counts for the step's
        timeout. Raises DefinitionError as `completed` does.
        """
        return self._add_hook("before_each", function)

    def after_each(
        self, function: Callable[[StepContext[I], Any], T] = NOTHING, /
    ) -> Callable[[StepContext[I], Any], T]:
        """Make the decorated function the `after_each` hook: it runs after each attempt whose function
        returned.

        `after_each(ctx, result)` gets the value that the function returned, before the result is recorded. It
        is a part of the attempt: its error fails the attempt, whose function may run again. Raises
        DefinitionError as `completed` does.
        """
        return self._add_hook("after_each", function)

    def on_error(
        self, function: Callable[[StepContext[I], Any], T] = NOTHING, /
    ) -> Callable[[StepContext[I], Any], T]:
        """Make the decorated function the `on_error` hook: it runs after each attempt that raised an error.

        `on_error(ctx, error)` gets the error of the function, of its condition, or of `before_each` and
        `after_each`. If it returns False, the error is final, and no attempt follows; any other value changes
        nothing. Its own error is logged and changes nothing. It is not called for a timeout, a cancellation
        or the death of a worker. Raises DefinitionError as `completed` does.
        """
        return self._add_hook("on_error", function)

    def data(self, function: Callable[[StepContext[I]], T] = NOTHING, /) -> Callable[[StepContext[I]], T]:
        """Make the decorated function the one that makes `ctx.data`, which the functions of a flow share.

        `data(ctx)` runs when a function of the flow is called first in an activation: so a flow that sleeps
        or moves to another worker gets its data anew, and in a spread flow each job of a step does. It gets
        no results of steps. Its value is never stored. Its error is that of the function that was to be
        called. Raises DefinitionError as `completed` does.
        """
        return self._add_hook("data", function)

    def _add_hook(self, name: HookName, function: Callable[..., T]) -> Callable[..., T]:
        raise NotImplementedError


def make_hook(name: HookName, function: Callable[..., Any], known: Hook | None, owner: str) -> Hook:
    """Return `function` as the hook `name` of the workflow `owner`.

    Raises DefinitionError if the hook is `known` already, and if it does not accept its arguments.
    """
    if function is NOTHING:
        raise DefinitionError(
            f"@workflow.{name} of workflow {owner!r} takes the function itself: write it without parentheses"
        )
    if known is not None:
        raise DefinitionError(
            f"workflow {owner!r} has a {name} hook already: {name_of(known.function)}; it can have one, "
            f"so {name_of(function)} must become part of it"
        )
    check_function(function, _where(name, owner), *_TAKES[name])
    return Hook(function, is_async(function))


def check_hook(name: HookName, hook: Hook, owner: str, *, input_type: Any, output: Any) -> None:
    """Raise DefinitionError if the hook's annotations do not fit the types of its workflow."""
    where = _where(name, owner)
    check_context(hook.function, where, input_type)
    if name in ("failed", "on_error"):
        check_error(hook.function, where, "FlowError" if name == "failed" else "Exception")
    if name != "completed":
        return
    returned = returned_by(hook.function)
    if not accepts(output, returned, exact=True):
        raise DefinitionError(
            f"{where} returns {told(returned)}, but the workflow's output is {told(output)}; "
            "make them the same"
        )


def check_output(hook: Hook | None, owner: str, output: Any) -> None:
    """Raise DefinitionError if there is no `completed` hook for an output that cannot be None."""
    if hook is None and not accepts(output, None):
        raise DefinitionError(
            f"workflow {owner!r} has the output {told(output)}, but no completed hook that returns it; "
            "decorate one with `completed`, or leave `output` out"
        )


def _where(name: HookName, owner: str) -> str:
    return f"the {name} hook of workflow {owner!r}"
