"""The codec: converts payloads and results to JSON bytes and back, and checks them at both ends.

Not here: the envelope around a payload (`model.message`), compression, and the place of the bytes.
What must always hold: a value that `encode` accepts becomes an equal value of the same type in `decode`, in
any process. A value that would arrive as another one is refused by its sender.

How: instance checks ignore the types of fields, and a walk over the value in Python costs more than all other
steps. So `encode` decodes its own bytes with the strict decoder of the type and compares the two values. Both
steps run in C and take about 0.3 us for a small Struct. This comparison finds nearly every error: NaN
(written as null), a dict where a Struct is declared, a tuple or datetime in untyped JSON, a subclass that
would lose its fields. Python code looks closer only if the two are unequal, if long JSON may be too deep, and
if equality is not proof enough (`_Shape.delicate`). Paths and reasons are worked out only after an error was
found.
"""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any, Literal, TypeAlias, cast

import msgspec

from eventbus.errors import DefinitionError, PayloadError
from eventbus.model.comparison import (
    MAX_DEPTH,
    TOO_DEEP,
    Difference,
    Json,
    difference,
    expected,
    is_other,
    is_too_deep,
    reason,
    type_name,
)
from eventbus.model.containment import as_exception
from eventbus.model.type_matching import is_untyped

Role: TypeAlias = Literal["payload", "result", "meta", "progress", "saved value"]

_WITH_FIELDS = (msgspec.inspect.StructType, msgspec.inspect.DataclassType)


class Codec:
    """Converts the values of one type; made once for each event and role.

    `type_` is a type that msgspec converts, or that contains pydantic models. `Any` means untyped JSON
    values (dict with text keys, list, str, int, float, bool, None; an IntEnum or StrEnum member counts as
    its int or str). `None` means that the value is None. `max_bytes` limits the JSON of `encode`.
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
                f'{role} type of "{owner}": {type_name(type_)} cannot be used: {error}'
            ) from error
        self._open = shape.open
        self._delicate = shape.delicate
        self._delicate_fields = shape.delicate_fields

    def encode(self, value: Any) -> bytes:
        """Return `value` as JSON, after a check that an equal value will arrive.

        A value must be of the declared type, with two exceptions that arrive as declared: an int for a float,
        and a list, tuple or set for another of its kind. Raises PayloadError for other values, for NaN,
        infinity, datetimes without a timezone, lone surrogates, more than 100 levels and more than
        `max_bytes`. Runs the type's own validation (`__post_init__`, pydantic validators) on a copy.
        """
        try:
            data = self._encode(value)
        except BaseException as error:
            raise self._refusal(value, as_exception(error)) from error
        if len(data) > self.max_bytes:
            raise self._error(None, f"expected at most {self.max_bytes} bytes, got: {len(data)} bytes")
        try:
            arrived = self._decode(data)
            equal = arrived == value
        except BaseException as error:
            raise self._refusal(value, as_exception(error)) from error
        if self._open and len(data) > 2 * MAX_DEPTH and is_too_deep(arrived, data):
            raise self._error(None, TOO_DEEP)
        if self._delicate or not equal:
            try:
                found = self._difference(value, arrived, equal=equal)
            except BaseException as error:
                raise self._refusal(value, as_exception(error)) from error
            if found is not None:
                raise self._error(*found)
        return data

    def decode(self, data: Json) -> Any:
        """Return the value of `data`, which is JSON text.

        Raises PayloadError, with the path, if the text is not JSON, does not fit the type or is
        nested deeper than 100 levels. Does not limit the size.
        """
        try:
            value = self._decode(data)
        except BaseException as error:
            raise self._error(*reason(None, as_exception(error))) from error
        if self._open and len(data) > 2 * MAX_DEPTH and is_too_deep(value, data):
            raise self._error(None, TOO_DEEP)
        return value

    def _difference(self, sent: Any, arrived: Any, *, equal: bool) -> Difference | None:
        if self._untyped:
            found = difference(sent, arrived, "$", strict=True)
            return found and (found[0], f"{found[1]}; expected dict, list, str, int, float, bool or None")
        if not equal or not self._delicate_fields:
            return difference(sent, arrived, "$", strict=False)
        for name in self._delicate_fields:  # both have them: they are equal, so they have one class
            one, other = getattr(sent, name), getattr(arrived, name)
            if type(one) is datetime and type(other) is datetime and one.utcoffset() is not None:
                continue  # a shortcut for the common case
            found = difference(one, other, f"$.{name}", strict=False)
            if found is not None:
                return found
        return None

    def _refusal(self, value: Any, error: Exception) -> PayloadError:
        """Return the error for a value that could not be converted. A wrong type is checked for first."""
        if is_other(value, self.type):
            return self._error("$", expected(self.type, value))
        return self._error(*reason(value, error))

    def _error(self, path: str | None, reason: str) -> PayloadError:
        kind = "" if self._untyped else f" ({type_name(self.type)})"
        message = f'{self.role} of "{self.owner}"{kind}: {reason}{f" at {path}" if path else ""}'
        return PayloadError(message, event=self.owner, path=path, role=self.role)


# Preparing a type: its encoder and decoder, and its shape.


@dataclasses.dataclass(slots=True)
class _Shape:
    """The facts about a type that `encode` needs besides the encoder and the decoder."""

    open: bool = False
    """Values may have any depth, because the type contains Any or itself."""
    delicate: bool = False
    """Equality with the decoded copy is not proof enough: naive datetimes, infinite Decimals,
    enum members that equal plain values, classes with an equality of their own."""
    delicate_fields: tuple[str, ...] = ()
    """If not empty, only these fields of the top object have delicate parts."""
    has_pydantic: bool = False


def _prepare(type_: Any) -> tuple[Callable[[Any], bytes], Callable[[Json], Any], _Shape]:
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


def json_values(value: Any) -> Any:
    """Return a value of any type as JSON values, to be looked at: what has none is text."""
    return msgspec.to_builtins(value, enc_hook=_of_model)


def _of_model(value: Any) -> Any:
    try:
        return value.model_dump(mode="json")  # of a pydantic model
    except Exception:  # noqa: BLE001  (it is none, or one that has fields without JSON)
        return str(value)


def _prepare_pydantic(type_: Any) -> tuple[Callable[[Any], bytes], Callable[[Json], Any], _Shape]:
    from pydantic import TypeAdapter  # noqa: PLC0415  (optional; a program with models has the package)

    adapter: TypeAdapter[Any] = TypeAdapter(type_)

    def decode(data: Json) -> Any:
        return adapter.validate_json(bytes(data) if isinstance(data, memoryview) else data)

    encode = functools.partial(adapter.dump_json, by_alias=True, round_trip=True, warnings="none")
    return encode, decode, _Shape(open=True, delicate=True, has_pydantic=True)


def _names_pydantic(type_: Any) -> bool:
    """Return whether the annotation itself names a pydantic class, such as `list[Model]`."""
    return hasattr(type_, "__pydantic_validator__") or any(map(_names_pydantic, typing.get_args(type_)))


def _shape_of(root: msgspec.inspect.Type) -> _Shape:
    """Return the shape of a type with all its parts. Raises TypeError for one that cannot be converted."""
    shape = _Shape()
    _survey(root, shape, above=frozenset(), seen=set())
    return shape


def _survey(node: msgspec.inspect.Type, shape: _Shape, above: frozenset[int], seen: set[int]) -> None:
    shape.open |= id(node) in above  # the type contains itself
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
        raise TypeError(f"{type_name(cls)} is no type that msgspec or pydantic converts")
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
    """Return whether `==` of two objects of `cls` certainly compares all their fields."""
    if issubclass(cls, msgspec.Struct):
        return cls.__struct_config__.eq and cls.__eq__ is msgspec.Struct.__eq__
    if not dataclasses.is_dataclass(cls):  # an attrs class; its fields may have comparisons of their own
        return False
    return cast("Any", cls).__dataclass_params__.eq and all(
        field.compare for field in dataclasses.fields(cls)
    )
