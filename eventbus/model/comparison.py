"""Finds why the codec refuses a value: the place at which, and the way in which, another value would arrive.

Not here: converting values (`codec`). All functions here are slow. The codec calls them only after it has
found an error, or if equality is not proof enough.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import re
import typing
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, TypeAlias, cast
from uuid import UUID

import msgspec

from eventbus.model.containment import as_exception
from eventbus.model.type_matching import is_untyped

MAX_DEPTH = 100
"""The most arrays and objects that may be nested in one value."""

Json: TypeAlias = bytes | str | memoryview
Difference: TypeAlias = tuple[str, str]
"""The path in the value, and the description of the error there."""

TOO_DEEP = f"expected at most {MAX_DEPTH} levels of nesting, got: more"
_LEAVES = (str, int, float, type(None), bytes)
_ALIKE: tuple[tuple[type, ...], ...] = ((list, tuple), (set, frozenset), (bytes, bytearray, memoryview))
_PLAIN = (dict, list, str, int, float, bool, type(None))
_PATH = re.compile(r" - at (?:`key` in )?`(\$.*)`$", re.DOTALL)


def difference(sent: Any, arrived: Any, path: str, *, strict: bool) -> Difference | None:
    """Return where and how `arrived` differs from `sent`, or None.

    With `strict` a tuple differs from a list. Without it, lists and tuples count as the same, and so do sets
    and frozensets.
    """
    refused = _unwanted(sent)
    if refused and not (isinstance(sent, datetime) and not isinstance(arrived, datetime)):
        return path, refused
    if not _is_kind(sent, arrived, strict=strict):
        if type(arrived) not in _PLAIN:  # JSON became such a value only because the type declares it
            return path, expected(cast("Any", type(arrived)), sent)
        return path, f"a value of type {type_name(type(sent))} would arrive as {type_name(type(arrived))}"
    pairs = _pairs(sent, arrived)
    if pairs is not None:
        found = (difference(one, other, path + step, strict=strict) for step, one, other in pairs)
        return next(filter(None, found), None)
    same = sent - arrived == timedelta(0) if isinstance(sent, datetime) else sent == arrived
    return None if same else (path, f"a value of type {type_name(type(sent))} would arrive changed")


def is_other(value: Any, type_: Any) -> bool:
    """Return whether `value` is certainly not of a declared class. False for all containers and unions."""
    if (
        is_untyped(type_)
        or not isinstance(type_, type)
        or typing.get_args(type_)
        or typing.is_typeddict(type_)
    ):
        return False
    wide = (int, float) if type_ is float else type_
    return not issubclass(type_, (dict, *itertools.chain(*_ALIKE))) and not isinstance(value, wide)


def expected(want: Any, got: Any) -> str:
    """Return the message that a `want` was expected, with a hint how to write one if possible."""
    name = type_name(want)
    if isinstance(got, type):
        return f"expected {name}, got: the class {type_name(got)} itself"
    hint = ""
    if isinstance(got, dict) and _field_names(want) is not None:
        hint = f"; write {name}(**...)"
    elif isinstance(got, (str, int, float)) and issubclass(want, (Decimal, Enum, UUID)):
        hint = f"; write {name}(...)"
    kind: Any = type(cast("object", got))
    return f"expected {name}, got: {type_name(kind)}{hint}"


def _unwanted(value: Any) -> str:
    """Return why `value`, apart from its parts, can never be sent; empty if it can."""
    if (isinstance(value, float) and not math.isfinite(value)) or (
        isinstance(value, Decimal) and not value.is_finite()
    ):
        return "expected a finite number, got: NaN or infinity"
    if isinstance(value, datetime) and value.utcoffset() is None:
        return "expected a datetime with a timezone, got: one without; add one, such as tzinfo=datetime.UTC"
    if isinstance(value, str) and not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value):
        return "expected Unicode text, got: text with a lone surrogate"
    return ""


def _is_kind(sent: Any, arrived: Any, *, strict: bool) -> bool:
    got, want = cast("type[Any]", type(sent)), cast("type[Any]", type(arrived))
    if got is want or (want is float and got is int):
        return True
    if not strict and any(issubclass(got, kinds) and issubclass(want, kinds) for kinds in _ALIKE):
        return True
    # A subclass of a class with fields would lose its own fields. A subclass of a plain type loses nothing.
    return issubclass(got, want) and _field_names(want) is None


def _pairs(sent: Any, arrived: Any) -> Iterable[tuple[str, Any, Any]] | None:
    """Return the parts of both values in pairs, with their steps of the path.

    None if the values have no parts, or parts that cannot be paired.
    """
    kind = cast("type[Any]", type(sent))
    if issubclass(kind, (dict, list, tuple, set, frozenset)) and len(sent) != len(arrived):
        return None
    if issubclass(kind, dict):
        keys = (("[...]", one, other) for one, other in zip(sent, arrived, strict=True))
        pairs = zip(sent.items(), arrived.values(), strict=True)
        return itertools.chain(keys, ((_key_step(key), one, other) for (key, one), other in pairs))
    if issubclass(kind, (list, tuple)):
        return ((f"[{i}]", *pair) for i, pair in enumerate(zip(sent, arrived, strict=True)))
    if issubclass(kind, (set, frozenset)):  # sets have no order, so only equal ones can be paired
        return (("[...]", item, item) for item in sent) if sent == arrived else None
    names = _field_names(kind)
    if names is None:
        return None
    return ((f".{name}", getattr(sent, name, None), getattr(arrived, name, None)) for name in names)


@functools.lru_cache(maxsize=1024)
def _field_names(cls: Any) -> tuple[str, ...] | None:
    """Return the names of the fields of `cls`; None if it is not a class with fields."""
    if issubclass(cls, type):  # somebody passed a class instead of an object
        return None
    if hasattr(cls, "__struct_fields__"):
        return cls.__struct_fields__
    if hasattr(cls, "__dataclass_fields__"):
        return tuple(field.name for field in dataclasses.fields(cls))
    if hasattr(cls, "__attrs_attrs__"):
        return tuple(field.name for field in cls.__attrs_attrs__)
    if hasattr(cls, "__pydantic_fields__"):
        return (*cls.__pydantic_fields__, "__pydantic_extra__")
    return None


def _key_step(key: object) -> str:
    return f".{key}" if isinstance(key, str) and key.isidentifier() and len(key) <= 60 else "[...]"


def is_too_deep(value: Any, data: Json) -> bool:
    """Return whether a value, which was decoded from `data`, is nested too deep."""
    raw = data.encode() if isinstance(data, str) else bytes(data)
    if raw.count(b"[") + raw.count(b"{") <= MAX_DEPTH:  # a shortcut: the depth cannot exceed this number
        return False
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [part for item in level for part in _parts(item) if not isinstance(part, _LEAVES)]
    return any(_pairs(item, item) is not None for item in level)


def _parts(item: Any) -> Iterable[Any]:
    if type(item) is dict:  # a shortcut for dict and list, the containers of untyped JSON
        return cast("dict[Any, Any]", item).values()
    if type(item) is list:
        return cast("list[Any]", item)
    return [part for _, part, _ in _pairs(item, item) or ()]


def reason(value: Any, error: Exception) -> tuple[str | None, str]:
    """Return the path, if known, and the message for an `error` that converting `value` raised."""
    if isinstance(error, RecursionError):
        return None, TOO_DEEP
    for path, item in _walk(value):
        unwanted = _unwanted(item)
        if unwanted:
            return path, unwanted
    if isinstance(error, msgspec.DecodeError):
        text = str(error)
        match = _PATH.search(text)
        return (match[1], text[: match.start()]) if match else (None, text)
    if hasattr(error, "errors"):  # pydantic's ValidationError; its text would repeat the payload
        first = cast("Any", error).errors(include_url=False, include_input=False, include_context=False)[0]
        steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"])
        return "$" + "".join(steps), first["msg"]
    models = not isinstance(error, TypeError)  # msgspec raises TypeError, pydantic does not
    return next((path for path, item in _walk(value) if not _is_convertible(item, models=models)), None), str(
        error
    )


def _walk(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield every part of `value` with its path; each container once, even if it contains itself."""
    stack, seen = [("$", value)], set[int]()
    while stack:
        path, item = stack.pop()
        yield path, item
        if not isinstance(item, _LEAVES) and id(item) not in seen:
            seen.add(id(item))
            stack += [(path + step, part) for step, part, _ in reversed([*(_pairs(item, item) or ())])]


def _is_convertible(item: Any, *, models: bool) -> bool:
    """Return whether `item`, apart from its parts, can be encoded; pydantic models only with `models`."""
    try:
        parts = None if hasattr(item, "__pydantic_fields__") and not models else _pairs(item, item)
        return parts is not None or bool(msgspec.json.encode(item))
    except BaseException as error:  # noqa: BLE001  (the caller is already reporting an error)
        as_exception(error)
        return False


def type_name(type_: Any) -> str:
    """Return the name of a type for a message, at most 120 characters."""
    if type_ is type(None):
        return "None"
    name = type_.__name__ if isinstance(type_, type) and not typing.get_args(type_) else repr(type_)
    return re.sub(r"\b(?:typing|builtins|collections\.abc)\.", "", name)[:120]
