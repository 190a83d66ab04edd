"""Compares the annotations of handlers with the types that events declare.

Not here: converting values (`codec`).
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from typing import Any, Literal

_UNIONS = (typing.Union, types.UnionType)


def hints_of(function: Any, *, extras: bool = False) -> dict[str, Any]:
    """Return the annotations of a function, a partial or a callable object, by parameter name.

    An annotation that cannot be resolved stays text (names local to a function). `Annotated` is
    kept only with `extras`.
    """
    while isinstance(function, functools.partial):
        function = function.func
    target = function if inspect.isroutine(function) else type(function).__call__
    try:
        return typing.get_type_hints(target, include_extras=extras)
    except Exception:  # noqa: BLE001  (whatever evaluating a user's annotation raises)
        return {name: _resolved(target, hint, extras) for name, hint in target.__annotations__.items()}


def _resolved(target: Any, hint: Any, extras: bool) -> Any:
    holder = types.SimpleNamespace(__annotations__={"hint": hint})
    names = getattr(target, "__globals__", {})
    try:
        return typing.get_type_hints(holder, names, include_extras=extras)["hint"]
    except Exception:  # noqa: BLE001  (as above)
        return hint


def is_untyped(type_: Any) -> bool:
    """Return whether a type allows every value: Any, `object`, or a missing annotation."""
    return type_ is Any or type_ is object or type_ is inspect.Parameter.empty


def types_agree(declared: Any, annotated: Any) -> bool:
    """Return whether a handler's annotation is the type that its event declares.

    Any, `object` and a missing annotation agree with every type, also inside other types (`list` is
    `list[Any]`). Other types must be the same, however they are written: `Optional[int]` is
    `int | None`, `List[int]` is `list[int]`, the order in a union does not matter, and `Annotated[T, ...]`
    is `T`. The caller must have resolved annotations that are text.
    """
    one, other = _bare(declared), _bare(annotated)
    if is_untyped(one) or is_untyped(other):
        return True
    args, other_args = typing.get_args(one), typing.get_args(other)
    origin, other_origin = typing.get_origin(one) or one, typing.get_origin(other) or other
    if origin in _UNIONS and other_origin in _UNIONS:
        return _each_agrees(args, other_args) and _each_agrees(other_args, args)
    if origin != other_origin:
        return False
    if origin is Literal or not args or not other_args:
        return one == other or origin is not Literal
    return len(args) == len(other_args) and all(map(types_agree, args, other_args))


def _each_agrees(types_: tuple[Any, ...], others: tuple[Any, ...]) -> bool:
    return all(any(types_agree(one, other) for other in others) for one in types_)


def _bare(type_: Any) -> Any:
    """Return `type_` without Annotated and aliases."""
    while True:
        if hasattr(type_, "__metadata__"):
            type_ = type_.__origin__
        elif type(type_).__name__ == "TypeAliasType":
            type_ = type_.__value__
        else:
            return type(None) if type_ is None else type_
