"""Payloads and results: from Python values to JSON bytes and back, checked at both ends.

Not here: the envelope around a payload, compression, and where the bytes are kept.
Always holds: what `encode` accepts, `decode` of the same type in any process turns into an
equal value of the same type; what would arrive as something else is refused where it is sent.

How: instance checks say nothing about the types of fields, and a walk in Python costs more than
all else. So `encode` reads its own bytes back with the strict decoder of the type and compares,
both in C, about 0.3 us for a small Struct. One comparison finds nearly everything: NaN (written
as null), a dict where a Struct is declared, a tuple or datetime in untyped JSON, a subclass that
would lose its fields. Python looks closer only where the two are unequal, where long JSON may be
too deep, and where equality says too little (`_Shape.delicate`). Paths and reasons are looked for
once it is known that there is an error.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import re
import typing
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Literal, TypeAlias, cast

import msgspec

from eventbus.annotations import is_untyped
from eventbus.errors import DefinitionError, PayloadError

__all__ = ["MAX_DEPTH", "Codec"]

MAX_DEPTH = 100
"""How many arrays and objects may be nested in one value."""

Role: TypeAlias = Literal["payload", "result", "meta", "progress"]
_Json: TypeAlias = bytes | str | memoryview
_Difference: TypeAlias = tuple[str, str]  # the path, and what is wrong there

_TOO_DEEP = f"expected at most {MAX_DEPTH} levels of nesting, got: more"
_LEAVES = (str, int, float, type(None), bytes)
_WITH_FIELDS = (msgspec.inspect.StructType, msgspec.inspect.DataclassType)
_ALIKE: tuple[tuple[type, ...], ...] = ((list, tuple), (set, frozenset), (bytes, bytearray, memoryview))
_PATH = re.compile(r" - at (?:`key` in )?`(\$.*)`$", re.DOTALL)


class Codec:
    """Converts the values of one type; made once for each event and role.

    `type_` is whatever msgspec converts, or what holds pydantic models. `Any` is untyped:
    JSON values only (dict with text keys, list, str, int, float, bool, None; an IntEnum or
    StrEnum member counts as the int or str it is). `None` means that the value is None.
    Raises DefinitionError if the type cannot be converted.
    """

    def __init__(self, type_: Any = Any, *, role: Role, owner: str, max_bytes: int) -> None:
        self.type = type_
        self.role: Role = role
        self.owner = owner
        self.max_bytes = max_bytes
        self._untyped = is_untyped(type_)
        try:
            self._encode, self._decode, shape = _prepare(Any if self._untyped else type_)
        except Exception as error:
            raise DefinitionError(
                f'{role} type of "{owner}": {_type_name(type_)} cannot be used: {error}'
            ) from error
        self._open = shape.open
        self._delicate = shape.delicate
        self._delicate_fields = shape.delicate_fields

    def encode(self, value: Any) -> bytes:
        """Return `value` as JSON, after making sure that it arrives as it is.

        A value of a declared type must be of that type; only an int for a float, and a list,
        tuple or set for another of its kind, arrive as what is declared. Raises PayloadError
        for everything else, for NaN, infinity, datetimes without a timezone, lone
        surrogates, more than 100 levels and more than `max_bytes`. Runs the type's own
        validation (`__post_init__`, pydantic validators) on a copy.
        """
        try:
            data = self._encode(value)
        except Exception as error:
            raise self._error(*_reason(value, error)) from error
        if len(data) > self.max_bytes:
            raise self._error(None, f"expected at most {self.max_bytes} bytes, got: {len(data)} bytes")
        try:
            arrived = self._decode(data)
            equal = arrived == value
        except Exception as error:
            raise self._error(*_reason(value, error)) from error
        if self._open and len(data) > 2 * MAX_DEPTH and _is_too_deep(arrived, data):
            raise self._error(None, _TOO_DEEP)
        if self._delicate or not equal:
            found = self._difference(value, arrived, equal=equal)
            if found is not None:
                raise self._error(*found)
        return data

    def decode(self, data: _Json) -> Any:
        """Return the value that `data`, JSON text, stands for.

        Raises PayloadError, with the path, if it is no JSON, does not fit the type or is
        nested deeper than 100 levels. Does not judge its size.
        """
        try:
            value = self._decode(data)
        except Exception as error:
            raise self._error(*_reason(None, error)) from error
        if self._open and len(data) > 2 * MAX_DEPTH and _is_too_deep(value, data):
            raise self._error(None, _TOO_DEEP)
        return value

    def _difference(self, sent: Any, arrived: Any, *, equal: bool) -> _Difference | None:
        if self._untyped:
            found = _difference(sent, arrived, "$", strict=True)
            return found and (found[0], f"{found[1]}; expected dict, list, str, int, float, bool or None")
        if not equal or not self._delicate_fields:
            return _difference(sent, arrived, "$", strict=False)
        for name in self._delicate_fields:  # equal, so of one class
            one, other = getattr(sent, name), getattr(arrived, name)
            if type(one) is datetime and type(other) is datetime and one.utcoffset() is not None:
                continue  # the common case, at less cost
            found = _difference(one, other, f"$.{name}", strict=False)
            if found is not None:
                return found
        return None

    def _error(self, path: str | None, reason: str) -> PayloadError:
        kind = "" if self._untyped else f" ({_type_name(self.type)})"
        message = f'{self.role} of "{self.owner}"{kind}: {reason}{f" at {path}" if path else ""}'
        return PayloadError(message, event=self.owner, path=path, role=self.role)


# Preparing: the functions of a type, and what must be known of its shape.


@dataclasses.dataclass(slots=True)
class _Shape:
    """What `encode` must know of a type beyond its coder and decoder."""

    open: bool = False
    """Its depth has no bound: it holds Any, or itself."""
    delicate: bool = False
    """Equality with the decoded copy is not enough: naive datetimes, infinite Decimals,
    enum members that equal plain values, classes with an equality of their own."""
    delicate_fields: tuple[str, ...] = ()
    """Where the delicate parts can only be: these fields of the top object."""
    has_pydantic: bool = False


def _prepare(type_: Any) -> tuple[Callable[[Any], bytes], Callable[[_Json], Any], _Shape]:
    if _names_pydantic(type_):
        return _prepare_pydantic(type_)
    root = msgspec.inspect.type_info(type_)
    shape = _shape_of(root)
    if shape.has_pydantic:
        return _prepare_pydantic(type_)
    if (
        shape.delicate
        and isinstance(root, _WITH_FIELDS)
        and _compares_all(typing.get_origin(root.cls) or root.cls)
    ):
        shape.delicate_fields = tuple(field.name for field in root.fields if _shape_of(field.type).delicate)
    return msgspec.json.Encoder().encode, msgspec.json.Decoder(type_).decode, shape


def _prepare_pydantic(type_: Any) -> tuple[Callable[[Any], bytes], Callable[[_Json], Any], _Shape]:
    from pydantic import TypeAdapter  # noqa: PLC0415  (optional; who has a model has the package)

    adapter: TypeAdapter[Any] = TypeAdapter(type_)

    def decode(data: _Json) -> Any:
        return adapter.validate_json(bytes(data) if isinstance(data, memoryview) else data)

    encode = functools.partial(adapter.dump_json, by_alias=True, warnings="none")
    return encode, decode, _Shape(open=True, delicate=True, has_pydantic=True)


def _names_pydantic(type_: Any) -> bool:
    """Say whether a pydantic class stands in the annotation itself, such as `list[Model]`."""
    return hasattr(type_, "__pydantic_validator__") or any(map(_names_pydantic, typing.get_args(type_)))


def _shape_of(root: msgspec.inspect.Type) -> _Shape:
    """Look at a type and all that it is made of; raise TypeError for a class that cannot travel."""
    shape = _Shape()
    _survey(root, shape, above=frozenset(), seen=set())
    return shape


def _survey(node: msgspec.inspect.Type, shape: _Shape, above: frozenset[int], seen: set[int]) -> None:
    shape.open |= id(node) in above
    if id(node) not in seen:
        seen.add(id(node))
        _note(node, shape)
        for child in _inner_nodes(node):
            _survey(child, shape, above | {id(node)}, seen)


def _note(node: msgspec.inspect.Type, shape: _Shape) -> None:
    cls: Any = getattr(node, "cls", None)
    cls = typing.get_origin(cls) or cls
    if hasattr(cls, "__pydantic_validator__"):
        shape.has_pydantic = True
    elif isinstance(node, (msgspec.inspect.AnyType, msgspec.inspect.RawType)) or cls is object:
        shape.open = True
    elif isinstance(node, msgspec.inspect.CustomType):
        raise TypeError(f"{_type_name(cls)} is no type that msgspec or pydantic converts")
    elif isinstance(node, (msgspec.inspect.DateTimeType, msgspec.inspect.DecimalType)):
        shape.delicate = True
    elif isinstance(node, msgspec.inspect.EnumType):
        shape.delicate |= issubclass(cls, (int, str))
    elif isinstance(node, _WITH_FIELDS):
        shape.delicate |= not _compares_all(cls)


def _inner_nodes(node: msgspec.Struct) -> Iterator[msgspec.inspect.Type]:
    for value in msgspec.structs.astuple(node):
        for part in cast("Iterable[object]", value if isinstance(value, tuple) else (value,)):
            if isinstance(part, (msgspec.inspect.Type, msgspec.inspect.Field)):
                yield part.type if isinstance(part, msgspec.inspect.Field) else part


def _compares_all(cls: Any) -> bool:
    """Say whether `==` of two objects of `cls` certainly compares all their fields."""
    if issubclass(cls, msgspec.Struct):
        return cls.__struct_config__.eq and cls.__eq__ is msgspec.Struct.__eq__
    if not dataclasses.is_dataclass(cls):  # attrs, whose fields may have comparisons of their own
        return False
    return cast("Any", cls).__dataclass_params__.eq and all(
        field.compare for field in dataclasses.fields(cls)
    )


# Looking closer: at values that are not equal, not certain, or refused already.


def _difference(sent: Any, arrived: Any, path: str, *, strict: bool) -> _Difference | None:
    """Return where and how `arrived` is not what was sent, or None.

    `strict`: a tuple is not a list. Otherwise they, and sets and frozensets, stand for each other.
    """
    refused = _unwanted(sent)
    if refused and not (isinstance(sent, datetime) and not isinstance(arrived, datetime)):
        return path, refused
    if not _is_kind(sent, arrived, strict=strict):
        return path, f"a value of type {_type_name(type(sent))} would arrive as {_type_name(type(arrived))}"
    pairs = _pairs(sent, arrived)
    if pairs is not None:
        found = (_difference(one, other, path + step, strict=strict) for step, one, other in pairs)
        return next(filter(None, found), None)
    same = sent - arrived == timedelta(0) if isinstance(sent, datetime) else sent == arrived
    return None if same else (path, f"a value of type {_type_name(type(sent))} would arrive changed")


def _unwanted(value: Any) -> str:
    """Return why `value`, by itself, is never sent; empty if it may be."""
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
    # A subclass of a class with fields would lose its own; of a plain type, it is what was declared.
    return issubclass(got, want) and _field_names(want) is None


def _pairs(sent: Any, arrived: Any) -> Iterable[tuple[str, Any, Any]] | None:
    """Return the parts of both with their steps of the path; None if they have none or cannot be paired."""
    kind = cast("type[Any]", type(sent))
    if issubclass(kind, (dict, list, tuple, set, frozenset)) and len(sent) != len(arrived):
        return None
    if issubclass(kind, dict):
        keys = (("[...]", one, other) for one, other in zip(sent, arrived, strict=True))
        pairs = zip(sent.items(), arrived.values(), strict=True)
        return itertools.chain(keys, ((_key_step(key), one, other) for (key, one), other in pairs))
    if issubclass(kind, (list, tuple)):
        return ((f"[{i}]", *pair) for i, pair in enumerate(zip(sent, arrived, strict=True)))
    if issubclass(kind, (set, frozenset)):  # only equal ones can be paired
        return (("[...]", item, item) for item in sent) if sent == arrived else None
    names = _field_names(kind)
    if names is None:
        return None
    return ((f".{name}", getattr(sent, name, None), getattr(arrived, name, None)) for name in names)


@functools.lru_cache(maxsize=1024)
def _field_names(cls: Any) -> tuple[str, ...] | None:
    """Return the attributes that make up an object of `cls`; None if it is no class with fields."""
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


def _is_too_deep(value: Any, data: _Json) -> bool:
    raw = data.encode() if isinstance(data, str) else bytes(data)
    if raw.count(b"[") + raw.count(b"{") <= MAX_DEPTH:  # the depth is never more
        return False
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [part for item in level for part in _parts(item) if not isinstance(part, _LEAVES)]
    return any(_pairs(item, item) is not None for item in level)


def _parts(item: Any) -> Iterable[Any]:
    if type(item) is dict:  # this and the next are what untyped JSON is made of, at less cost
        return cast("dict[Any, Any]", item).values()
    if type(item) is list:
        return cast("list[Any]", item)
    return [part for _, part, _ in _pairs(item, item) or ()]


def _reason(value: Any, error: Exception) -> tuple[str | None, str]:
    """Return the path, where known, and what to say about the `error` that coding `value` raised."""
    if isinstance(error, RecursionError):
        return None, _TOO_DEEP
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
    models = not isinstance(error, TypeError)  # which is what msgspec raises, and pydantic does not
    return next((path for path, item in _walk(value) if not _is_convertible(item, models=models)), None), str(
        error
    )


def _walk(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield every part of `value` with its path, each container once even if it holds itself."""
    stack, seen = [("$", value)], set[int]()
    while stack:
        path, item = stack.pop()
        yield path, item
        if not isinstance(item, _LEAVES) and id(item) not in seen:
            seen.add(id(item))
            stack += [(path + step, part) for step, part, _ in reversed([*(_pairs(item, item) or ())])]


def _is_convertible(item: Any, *, models: bool) -> bool:
    """Say whether `item`, apart from its parts, is something that is written; pydantic models if `models`."""
    try:
        parts = None if hasattr(item, "__pydantic_fields__") and not models else _pairs(item, item)
        return parts is not None or bool(msgspec.json.encode(item))
    except Exception:  # noqa: BLE001  (asked about an error that is raised already)
        return False


def _type_name(type_: Any) -> str:
    name = type_.__name__ if isinstance(type_, type) and not typing.get_args(type_) else repr(type_)
    return re.sub(r"\b(?:typing|builtins|collections\.abc)\.", "", name)[:120]
