"""Checks of the functions in a definition: their parameters, and the types in their annotations.

Not here: calling the functions, and converting values.

What must always hold: a function is refused only if its annotations are certainly wrong. A missing
annotation, `Any` and `object` agree with everything; an annotation that cannot be resolved (a name local to a
function) is checked later or not at all.
"""

from __future__ import annotations

import collections.abc
import functools
import inspect
import types
import typing
from typing import Any, cast

from eventbus import DefinitionError
from eventbus.lowlevel import hints_of, is_untyped, shown, types_agree

_EMPTY = inspect.Parameter.empty
_UNIONS = (typing.Union, types.UnionType)
_CONTEXT = "StepContext"  # by name: the class itself stands above this module


def name_of(function: Any) -> str:
    """Return the name of a function or of a partial's function; text that names no step for other values."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__name__", None) or shown(function)


def is_async(function: Any) -> bool:
    """Tell whether calling `function` returns a coroutine; it may be a partial or a callable object too."""
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004  (an object whose call is a coroutine function)
    )


def check_function(function: Any, where: str, *takes: str) -> None:
    """Raise DefinitionError unless `function` can be called with the arguments `takes`, in this order."""
    check_callable(function, where)
    try:
        signature = inspect.signature(function)
    except ValueError:  # some built-in functions have no signature
        return
    try:
        signature.bind(*takes)
    except TypeError:
        raise DefinitionError(
            f"expected {where} to take {_wanted(takes)}; "
            f"the parameters of {name_of(function)} are: {', '.join(signature.parameters) or 'none'}"
        ) from None


def check_callable(function: Any, where: str) -> None:
    """Raise DefinitionError for what is no function, or one whose body a call would not run."""
    if not callable(function) or inspect.isclass(function):
        raise DefinitionError(f"expected {where} to be a function, got: {shown(function)}")
    if _is_generator(function):
        raise DefinitionError(
            f"{where} is a generator ({name_of(function)} has `yield`), of which nothing would be run; "
            "return the values, for example as a list"
        )
    if not is_async(function) and _is_awaitable(returned := returned_by(function)):
        raise DefinitionError(
            f"{where} returns {told(returned)}, but is no `async def`; make it one that awaits"
        )


def _is_awaitable(type_: Any) -> bool:
    kind = typing.get_origin(type_) or type_
    return inspect.isclass(kind) and issubclass(kind, collections.abc.Awaitable)


def _is_generator(function: Any) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    call = function if inspect.isroutine(function) else getattr(function, "__call__", None)  # noqa: B004
    return inspect.isgeneratorfunction(call) or inspect.isasyncgenfunction(call)


def _wanted(takes: tuple[str, ...]) -> str:
    return f"one parameter, {takes[0]}" if len(takes) == 1 else f"{len(takes)} parameters, {', '.join(takes)}"


def returned_by(function: Any) -> Any:
    """Return the annotated return type: `Any` if there is none, its text if it cannot be resolved."""
    hint = hints_of(function, extras=True).get("return", Any)
    # A function that never returns fits everywhere.
    return Any if hint in (typing.NoReturn, typing.Never) else hint


def result_of(function: Any, where: str) -> Any:
    """Return the annotated return type, with which a recorded result is read back; `Any` without one.

    Raises DefinitionError, naming `where`, for the name of a type that cannot be found.
    """
    found = returned_by(function)
    if isinstance(found, str):
        raise DefinitionError(
            f"the return type {found!r} of {where} is not to be found from its module, so its "
            "result could not be read back; define that type at the top level of a module, and "
            "import it outside of `if TYPE_CHECKING`"
        )
    return found


def taken_by(function: Any, index: int, *, extras: bool = False) -> Any:
    """Return the annotation of the parameter that receives argument number `index`; `Any` without one.

    `Annotated` is kept only with `extras`.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:
        return Any
    positional = [parameter for parameter in parameters if parameter.kind is not parameter.KEYWORD_ONLY]
    taking = positional[min(index, len(positional) - 1)]  # the last one may be *args
    return hints_of(function, extras=extras).get(taking.name, Any)


def check_context(function: Any, where: str, input_type: Any) -> None:
    """Raise DefinitionError if the first parameter is annotated as anything but this workflow's context.

    `input_type` is the workflow's input. A context of a wider input type is accepted.
    """
    hint = taken_by(function, 0)
    if is_untyped(hint) or isinstance(hint, (str, typing.TypeVar)):
        return
    kind = typing.get_origin(hint) or hint
    if not inspect.isclass(kind) or getattr(kind, "_is_protocol", False):
        return
    if not any(base.__name__ == _CONTEXT for base in kind.__mro__):
        raise DefinitionError(
            f"the first parameter of {where} is annotated as {told(hint)}, but it gets the context; "
            f"annotate it as {_CONTEXT}[{told(input_type)}]"
        )
    args = typing.get_args(hint)
    if kind.__name__ == _CONTEXT and args and not accepts(args[0], input_type):
        raise DefinitionError(
            f"{where} takes {_CONTEXT}[{told(args[0])}], but the workflow's input is {told(input_type)}; "
            f"annotate it as {_CONTEXT}[{told(input_type)}]"
        )


def check_error(function: Any, where: str, wanted: str) -> None:
    """Raise DefinitionError if the second parameter, which receives the error, has another annotation."""
    hint = taken_by(function, 1)
    if not is_untyped(hint) and inspect.isclass(hint) and not issubclass(hint, BaseException):
        raise DefinitionError(
            f"the second parameter of {where} is annotated as {told(hint)}, but it gets the error "
            f"{'of the flow' if wanted == 'FlowError' else 'of the attempt'}; annotate it as {wanted}"
        )


def accepts(annotated: Any, given: Any, *, exact: bool = False) -> bool:
    """Tell whether a parameter annotated as `annotated` accepts every value of the type `given`.

    It does if both are the same type, if `annotated` is a union that contains `given`, if it is float and
    `given` is int, or, unless `exact`, if it is a base class of `given`. Unresolved text agrees with
    everything.
    """
    if isinstance(annotated, (str, typing.TypeVar)) or isinstance(given, (str, typing.TypeVar)):
        return True
    if types_agree(annotated, given):
        return True
    if typing.get_origin(given) in _UNIONS:
        return all(accepts(annotated, alternative, exact=exact) for alternative in typing.get_args(given))
    if typing.get_origin(annotated) in _UNIONS:
        return any(accepts(alternative, given, exact=exact) for alternative in typing.get_args(annotated))
    if annotated is float and given is int:
        return True
    return (
        not exact and inspect.isclass(annotated) and inspect.isclass(given) and issubclass(given, annotated)
    )


def told(type_: Any) -> str:
    """Return the name of a type for messages."""
    if type_ is None or type_ is type(None):
        return "None"
    if inspect.isclass(type_) and not typing.get_args(type_):
        return cast("type[Any]", type_).__name__
    return shown(type_)
