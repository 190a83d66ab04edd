"""A hook for failed jobs, as a program registers it.

Not here: when hooks are called (`failures.desk`).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from eventbus.errors import DefinitionError
from eventbus.model.names import shown
from eventbus.model.type_matching import hints_of
from eventbus.telemetry.job_failure import JobFailure

FailureFunction: TypeAlias = Callable[[JobFailure], Any]
"""A function of a JobFailure; async, or not and then called in a thread. What it returns is ignored."""


class FailureHook(msgspec.Struct, frozen=True):
    """A function that is called for failed jobs, or for the flows among them alone."""

    function: FailureFunction
    name: str
    is_async: bool
    flows_only: bool = False

    def wants(self, failure: JobFailure) -> bool:
        """Tell whether the function is called for this failure."""
        return not self.flows_only or bool(failure.flow_id)

    def __call__(self, failure: JobFailure) -> Any:
        """Call the function."""
        return self.function(failure)


def make_failure_hook(given: Any, *, owner: str = "provider", flows_only: bool = False) -> FailureHook:
    """Return a function as a hook; a hook is returned as it is. `owner` names the object with the
    `on_failure`, in errors.

    Raises DefinitionError unless `given` is a function, async or not, that takes a JobFailure.
    """
    if isinstance(given, FailureHook):
        return given
    if reason := _misfit(given):
        raise DefinitionError(
            f"expected a hook for failed jobs to be a function of one JobFailure, got: {shown(given)}, "
            f"{reason}" + (f"; write @{owner}.on_failure without parentheses" if given is None else "")
        )
    name = getattr(given, "__qualname__", None) or shown(given)
    return FailureHook(given, name, _is_async(given), flows_only)


def _misfit(given: Any) -> str:
    """Return what keeps a value from being a hook; empty if nothing does."""
    if not callable(given):
        return "which is no function"
    if inspect.isclass(given):
        return "which is a class"
    if inspect.isgeneratorfunction(given) or inspect.isasyncgenfunction(given):
        return "which yields"
    try:
        bound = inspect.signature(given).bind(None)
    except TypeError:
        return "which takes other arguments"
    except ValueError:  # some built-in functions have no signature
        return ""
    hint = hints_of(given).get(next(iter(bound.arguments)))
    return f"which takes {shown(hint)}" if inspect.isclass(hint) and not issubclass(JobFailure, hint) else ""


def _is_async(function: Any) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004  (an object whose call is a coroutine function)
    )
