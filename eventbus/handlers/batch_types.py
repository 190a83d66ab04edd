"""The types of batch handlers: what their annotations must be, and how type checkers see the decorator.

Not here: how other annotations are compared (`model.type_matching`).
"""

from __future__ import annotations

import collections.abc
import inspect
import types
import typing
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from eventbus.errors import DefinitionError
from eventbus.model.names import shown
from eventbus.model.type_matching import is_untyped, types_agree

P = TypeVar("P")
T = TypeVar("T")
A = ParamSpec("A")

_LISTS = (list, collections.abc.Sequence, collections.abc.Collection, collections.abc.Iterable)
_RETURNED = (list, tuple, collections.abc.Sequence)
_UNIONS = (typing.Union, types.UnionType)


class BatchRegistrar(Protocol[P, T]):
    """The decorator of a batch handler: it takes a function of `list[P]` that returns `T`, async or not."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[list[P], A], Coroutine[Any, Any, T]], /
    ) -> Callable[Concatenate[list[P], A], Coroutine[Any, Any, T]]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[list[P], A], T], /
    ) -> Callable[Concatenate[list[P], A], T]: ...


def check_batch_types(first: Any, returned: Any, *, payload: Any, result: Any, where: str) -> None:
    """Raise DefinitionError unless a function takes a list of payloads and returns a list of results and
    exceptions.

    `first` and `returned` are its annotations. A function that returns nothing fits an event without a
    result.
    """
    name = _name_of(payload)
    if not _is_open(first) and not is_list_of(first, payload):
        raise DefinitionError(
            f"the payload parameter of {where} is {shown(first)}, but with batch it gets a list of payloads: "
            f"list[{name}]"
        )
    if not _is_open(returned) and not _fits(returned, result):
        name = _name_of(result)
        raise DefinitionError(
            f"the return type of {where} is {shown(returned)}, "
            "but with batch it returns a result or an exception for each "
            f"payload: list[{name} | Exception]" + (", or None" if result is None else "")
        )


def _is_open(annotated: Any) -> bool:
    return isinstance(annotated, str) or is_untyped(annotated)


def is_list_of(annotated: Any, payload: Any) -> bool:
    """Return whether an annotation is a list of payloads."""
    origin, arguments = typing.get_origin(annotated) or annotated, typing.get_args(annotated)
    return origin in _LISTS and (not arguments or types_agree(payload, arguments[0]))


def _fits(annotated: Any, result: Any) -> bool:
    """Return whether a return type is a list of results and exceptions, or nothing where there is no
    result.
    """
    if typing.get_origin(annotated) in _UNIONS:
        return all(_fits(member, result) for member in typing.get_args(annotated))
    if annotated is None or annotated is type(None):
        return result is None or is_untyped(result)
    origin, arguments = typing.get_origin(annotated) or annotated, typing.get_args(annotated)
    if origin not in _RETURNED:
        return False
    return all(_is_outcome(each, result) for each in arguments if each is not ...)


def _is_outcome(annotated: Any, result: Any) -> bool:
    is_union = typing.get_origin(annotated) in _UNIONS
    members = [
        each for each in (typing.get_args(annotated) if is_union else (annotated,)) if not _is_error(each)
    ]
    return not members or types_agree(result, typing.Union[tuple(members)])  # noqa: UP007  (of a list)


def _is_error(annotated: Any) -> bool:
    return inspect.isclass(annotated) and issubclass(annotated, BaseException)


def _name_of(type_: Any) -> str:
    if type_ is None:
        return "None"
    if is_untyped(type_):
        return "Any"
    return type_.__name__ if inspect.isclass(type_) and not typing.get_args(type_) else str(type_)
