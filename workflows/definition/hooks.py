"""Hooks: the functions that a workflow calls when a flow ends.

Not here: calling them (`execution.hook_runner`), and the consequences if they fail
(`distributed.flow_consumer`, `inline.flow`).

What must always hold: every hook accepts the arguments that it will get, as far as its annotations tell.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

from eventbus import DefinitionError
from workflows.definition.signature import (
    accepts,
    check_context,
    check_error,
    check_function,
    is_async,
    name_of,
    returned_by,
    told,
)

__all__ = ["NOTHING", "Hook", "HookName", "check_hook", "check_output", "make_hook"]

HookName: TypeAlias = Literal["completed", "failed"]

NOTHING: Any = None
"""The argument that a hook's decorator gets if it is written with parentheses."""

_TAKES = {"completed": ("the context",), "failed": ("the context", "the error")}


class Hook(NamedTuple):
    """A function that a workflow calls at its end: `completed(ctx)` or `failed(ctx, error)`."""

    function: Callable[..., Any]
    is_async: bool


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
    if name == "failed":
        check_error(hook.function, where)
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
