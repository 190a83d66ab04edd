"""Where the sensitive values of a type are in its JSON: found in the annotations, once for each type.

The marks travel with a job, in its message. So whoever reads the job can hide them without the program, from
the moment at which the job is in the server, and no second record can be lost or come late. They are a graph,
because types may contain themselves: node 0 is a sensitive value, node 1 the value itself; each node has, by
the name of a field, the nodes that its value may be (several, for unions). `*` stands for each item of a
list, and for each value of a dict.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import msgspec

from eventbus.model.redaction.sensitive import Sensitive
from eventbus.model.type_matching import is_untyped

Marks: TypeAlias = list[dict[str, list[int]]]

HIDDEN, ROOT, EACH = 0, 1, "*"

_UNIONS = (typing.Union, types.UnionType)
_ATTRS = "__attrs_attrs__"
_AROUND = ("Required", "NotRequired", "ReadOnly", "Final")
"""By name, because some of them may be those of `typing_extensions`."""


def find_marks(type_: Any) -> Marks | None:
    """Return where a value of this type is sensitive; None where nothing is.

    Where the value itself is sensitive, the marks have no node 1. An annotation that cannot be resolved marks
    nothing.
    """
    if is_untyped(type_) or type_ is None:
        return None
    if _is_marked(type_):
        return [{}]
    search = _Search()
    search.visit(type_, ROOT)
    return search.marks if search.has_found else None


def encode_marks(**types_: Any) -> bytes:
    """Return the marks of several types as JSON, by what each of them is the type of; empty where nothing is
    sensitive.
    """
    found = {name: marks for name, type_ in types_.items() if (marks := find_marks(type_)) is not None}
    return msgspec.json.encode(found) if found else b""


class _Search:
    """The walk over a type and the types of its fields, each of them once."""

    def __init__(self) -> None:
        self.marks: Marks = [{}, {}]
        self.has_found = False
        self._nodes: dict[Any, int] = {}

    def visit(self, type_: Any, node: int) -> None:
        """Note at `node` what is sensitive below a value of this type."""
        for name, part in _parts_of(type_):
            targets = self.marks[node].setdefault(name, [])
            following = self._node_of(part)
            if following is not None and following not in targets:
                targets.append(following)
            if not targets:
                del self.marks[node][name]

    def _node_of(self, type_: Any) -> int | None:
        """Return the node of a part; None for one without parts."""
        if _is_marked(type_):
            self.has_found = True
            return HIDDEN
        known = self._nodes.get(type_) if (is_hashable := _is_hashable(type_)) else None
        if known is not None:
            return known
        self.marks.append({})
        node = len(self.marks) - 1
        if is_hashable:  # whatever has no hash is no class, so it does not contain itself
            self._nodes[type_] = node
        self.visit(type_, node)
        if not self.marks[node] and node == len(self.marks) - 1:
            self.marks.pop()
            self._nodes.pop(type_, None) if is_hashable else None
            return None
        return node


def _is_marked(type_: Any) -> bool:
    """Return whether a value of the type is sensitive as a whole, or of one of the types of a union."""
    while True:
        if any(
            each is Sensitive or isinstance(each, Sensitive) for each in getattr(type_, "__metadata__", ())
        ):
            return True
        inner = _inside(type_)
        if inner is None:
            break
        type_ = inner
    if _is_root(type_):
        return _is_marked(_type_of(_model_fields(type_)["root"]))
    return _is_union(type_) and any(map(_is_marked, typing.get_args(type_)))


def _inside(type_: Any) -> Any:
    """Return the type within Annotated, an alias, a NewType, or what says how a field is there; None if that
    is all.
    """
    if hasattr(type_, "__metadata__"):
        return type_.__origin__
    origin = typing.get_origin(type_)
    if getattr(origin, "_name", "") in _AROUND:
        return typing.get_args(type_)[0]
    if type(type_).__name__ == "TypeAliasType":
        return type_.__value__
    if type(origin).__name__ == "TypeAliasType":  # `type Secret[X] = ...`, used as `Secret[str]`
        given = dict(zip(origin.__type_params__, typing.get_args(type_), strict=False))
        return _filled(origin.__value__, given)
    return getattr(type_, "__supertype__", None)


def _is_root(type_: Any) -> bool:
    """Return whether it is a pydantic RootModel, which is its one field in JSON."""
    return getattr(type_, "__pydantic_root_model__", False) is True and "root" in _model_fields(type_)


def _model_fields(kind: Any) -> Mapping[str, Any]:
    """Return the fields of a pydantic model, with types that stood behind it in its module, too."""
    kind.model_rebuild(raise_errors=False)
    return kind.model_fields


def _parts_of(type_: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a value of the type consists of: the name in its JSON, or `*`, and its type."""
    type_ = _bare(type_)
    origin: Any = typing.get_origin(type_) or type_
    args = typing.get_args(type_)
    if _is_union(type_):
        for each in args:
            yield from _parts_of(each)
    elif isinstance(origin, type) and (fields := _fields_of(type_, origin)) is not None:
        yield from fields
    elif isinstance(origin, type) and args:  # a collection; of a dict the last one is the value
        is_mapping = issubclass(origin, Mapping)
        for each in args[1:] if is_mapping else args:
            if each is not Ellipsis:
                yield EACH, each


def _fields_of(type_: Any, kind: Any) -> Iterator[tuple[str, Any]] | None:
    """Return the fields of a class that has any, with their names in JSON."""
    if issubclass(kind, msgspec.Struct):
        fields = msgspec.structs.fields(type_)
        is_list = kind.__struct_config__.array_like
        return iter([(EACH if is_list else each.encode_name, each.type) for each in fields])
    is_model = hasattr(kind, "model_fields")
    fields = _model_fields(kind) if is_model else getattr(kind, "__pydantic_fields__", None)
    if fields is not None:  # of a pydantic model or dataclass
        return iter([(_name_of(name, field), _type_of(field)) for name, field in fields.items()])
    is_tuple = tuple in kind.__mro__ and hasattr(kind, "_fields")
    if not (is_tuple or dataclasses.is_dataclass(kind) or typing.is_typeddict(kind) or hasattr(kind, _ATTRS)):
        return None
    try:
        hints = typing.get_type_hints(kind, include_extras=True)
    except Exception:  # noqa: BLE001  (whatever evaluating a user's annotation raises; the codec tells it)
        return None
    given = _variables_of(type_)
    return iter([(EACH if is_tuple else name, _filled(hint, given)) for name, hint in hints.items()])


def _name_of(name: str, field: Any) -> str:
    return field.serialization_alias or field.alias or name


def _type_of(field: Any) -> Any:
    return typing.Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation


def _variables_of(type_: Any) -> dict[Any, Any]:
    """Return what stands for the variables of a generic class, and of those that it inherits from."""
    kind: Any = typing.get_origin(type_) or type_
    given: dict[Any, Any] = dict(
        zip(getattr(kind, "__parameters__", ()), typing.get_args(type_), strict=False)
    )
    for base in getattr(kind, "__orig_bases__", ()):
        if typing.get_origin(base) is not typing.Generic:
            given |= _variables_of(_filled(base, given))
    return given


def _filled(hint: Any, given: Mapping[Any, Any]) -> Any:
    """Return the type with what a generic class was given in the place of its variables."""
    if isinstance(hint, typing.TypeVar):
        return given.get(hint, hint)
    parameters = getattr(hint, "__parameters__", ())
    return hint[tuple(given.get(each, each) for each in parameters)] if parameters and given else hint


def _bare(type_: Any) -> Any:
    """Return the type without Annotated, aliases and NewTypes."""
    while (inner := _inside(type_)) is not None:
        type_ = inner
    return _bare(_type_of(_model_fields(type_)["root"])) if _is_root(type_) else type_


def _is_union(type_: Any) -> bool:
    return typing.get_origin(type_) in _UNIONS


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True
