"""The fields that types have in JSON, and whether a pipeline has what a step takes.

What must always hold: a pipeline is refused only if a step is certain to miss what it takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import msgspec

from eventbus import DefinitionError
from eventbus.lowlevel import is_untyped
from workflows.definition.checks.signature import told

_PLAIN = (str, int, float, bool, bytes)
_OBJECTS = (
    msgspec.inspect.StructType,
    msgspec.inspect.DataclassType,
    msgspec.inspect.TypedDictType,
    msgspec.inspect.NamedTupleType,
)


class Field(NamedTuple):
    """One field of an object in JSON. `source` is what gives it; it is sure if that always does."""

    type: Any
    is_required: bool
    source: str = ""
    is_sure: bool = True


def fields_of(type_: Any) -> dict[str, Field] | None:
    """Return the fields of a type by their names in JSON; None for a type that does not tell them, such as a
    dict.
    """
    if (known := getattr(type_, "model_fields", None)) is not None:  # of a pydantic model
        return {
            field.alias or name: Field(field.annotation, bool(field.is_required()))
            for name, field in known.items()
        }
    if is_untyped(type_) or type_ is None:
        return None
    try:
        info = msgspec.inspect.type_info(type_)
    except Exception:  # noqa: BLE001  (a type that the codec refuses, with the reason)
        return None
    if isinstance(
        info, (msgspec.inspect.StructType, msgspec.inspect.DataclassType, msgspec.inspect.TypedDictType)
    ):
        if getattr(info, "array_like", False):
            return None
        is_partial = isinstance(info, msgspec.inspect.TypedDictType)  # others are made whole
        return {
            each.encode_name: Field(
                _class_of(each.type), each.required, is_sure=each.required or not is_partial
            )
            for each in info.fields
        }
    return None


def whole(value: Any, made: Any) -> Any:
    """Return the JSON of a value with the fields that its type leaves out because they have their defaults.

    Otherwise a field that is set back to its default would be one that was never set.
    """
    if isinstance(value, msgspec.Struct) and value.__struct_config__.omit_defaults and isinstance(made, dict):
        fields = cast("dict[str, Any]", made)
        for field in msgspec.structs.fields(value):
            if field.encode_name not in fields:
                default = getattr(value, field.name)
                fields[field.encode_name] = msgspec.json.decode(msgspec.json.encode(default))
    return cast("Any", made)


def check_object(type_: Any, what: str) -> None:
    """Raise DefinitionError if values of the type are certainly no JSON objects."""
    if (
        type_ in (None, type(None))
        or is_untyped(type_)
        or isinstance(type_, str)
        or hasattr(type_, "model_fields")
    ):
        return
    try:
        info = msgspec.inspect.type_info(type_)
    except Exception:  # noqa: BLE001  (as above)
        return
    is_list = isinstance(info, msgspec.inspect.NamedTupleType) or getattr(info, "array_like", False)
    open_ones = (
        msgspec.inspect.DictType,
        msgspec.inspect.CustomType,
        msgspec.inspect.UnionType,
        msgspec.inspect.AnyType,
    )
    if is_list or not isinstance(info, (*_OBJECTS, *open_ones)):
        raise DefinitionError(
            f"{what} is {told(type_)}, but the steps of a pipeline share the fields of objects; "
            "use a Struct, a dataclass, a TypedDict, a pydantic model or a dict"
        )


def check_has(known: Mapping[str, Field] | None, wanted: Mapping[str, Field] | None, where: str) -> None:
    """Raise DefinitionError if what a step takes is certainly not there. `known` is None where any field may
    be.
    """
    if known is None or wanted is None:
        return
    for name, field in wanted.items():
        found = known.get(name)
        if found is None:
            if field.is_required:
                raise DefinitionError(
                    f"{where} takes the field {name!r}, which neither the input nor a step before it has; "
                    f"there are: {', '.join(known) or 'none'}"
                )
            continue
        if field.is_required and not found.is_sure:
            raise DefinitionError(
                f"{where} takes the field {name!r}, which {found.source} gives, "
                "and that may be skipped or leave it out; give the field a default"
            )
        if _differ(found.type, field.type):
            raise DefinitionError(
                f"{where} takes the field {name!r} as {told(field.type)}, "
                f"but {found.source} gives {told(found.type)}"
            )


def _differ(given: Any, wanted: Any) -> bool:
    """Return whether two plain types certainly do not fit."""
    return given in _PLAIN and wanted in _PLAIN and given is not wanted and (given, wanted) != (int, float)


_CLASSES: dict[type, type] = {
    msgspec.inspect.StrType: str,
    msgspec.inspect.IntType: int,
    msgspec.inspect.FloatType: float,
    msgspec.inspect.BoolType: bool,
    msgspec.inspect.BytesType: bytes,
}


def _class_of(info: msgspec.inspect.Type) -> Any:
    if isinstance(info, msgspec.inspect.Metadata):
        return _class_of(info.type)
    return _CLASSES.get(type(info), Any)
