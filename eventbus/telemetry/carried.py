"""Declared errors on their way: what is recorded of one, and the error that is made from that.

    raised -> its arguments and attributes as JSON values -> the record -> an object of its class with them

A constructor may take other parameters than those that it passes on (`super().__init__(f"no article
{sku}")`), so the error is made as pickle makes one: a new object, and then its state. No code of its class
runs.

What is carried: None, bool, int, float, str, bytes, lists, dicts, tuples, sets, dates and times, Decimal
and UUID; what the annotation of an attribute describes, as payloads are; notes; in an exception group and
elsewhere exceptions, as their own class if that is built in. An attribute of another kind, one that is too
long and one that holds a hidden value is left out. If an argument is of another kind, the text of the error
is its only argument.

What must always hold: nothing here raises; older releases read the record as before, for it only has a
field more.
"""

from __future__ import annotations

import builtins
import functools
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, cast
from uuid import UUID

import msgspec

from eventbus.model.codec import Codec
from eventbus.model.containment import contained
from eventbus.model.redaction.hidden_values import HiddenTexts
from eventbus.model.type_matching import is_untyped

_MOST = 16 * 1024
"""The most bytes of all arguments, and of all attributes."""
_DEEPEST = 20
_HEAP = 1 << 9
"""The flag of classes that were not made in C."""
_IS, _OF = "$is", "of"
_MARKS = ("__eventbus_", "__workflows_", "_workflows_")
_TAGGED: dict[str, Any] = {
    each.__name__: each for each in (bytes, datetime, date, time, timedelta, Decimal, UUID)
}
_GATHERED: dict[str, Callable[[Any], Any]] = {"tuple": tuple, "set": set, "frozenset": frozenset}

_encode = msgspec.json.Encoder().encode


class Carried(msgspec.Struct, omit_defaults=True):
    """What makes a declared error again. `args` are None if the `args` of the record say all."""

    attributes: dict[str, Any] = {}
    args: list[Any] | None = None


class _Uncarried(Exception):
    """A value cannot be carried."""


def carry(error: BaseException, kind: type[Exception], hidden: HiddenTexts) -> Carried:
    """Return what makes `error` again as one of `kind`, a class that it is of. Never raises."""
    codecs = _codecs(kind)
    attributes: dict[str, Any] = {}
    size = 0
    for name, value in _attributes_of(error):
        try:
            plain = _annotated(value, codecs[name]) if name in codecs else _UNSET
            plain = _plain(value) if plain is _UNSET else plain
            length = len(_encode(plain)) + len(name)
        except Exception:  # noqa: BLE001, S112  (whatever a value does that is looked at: it is left out)
            continue
        if size + length <= _MOST:
            size += length
            attributes[name] = plain
    args: list[Any] | None = None
    try:
        if not all(_is_json(each, 0) for each in error.args):
            args = [_plain(each) for each in error.args]
            args = args if len(_encode(args)) <= _MOST else None
    except Exception:  # noqa: BLE001  (as above)
        args = None
    return hide_in_carried(Carried(attributes, args), hidden)


def hide_in_carried(carried: Carried, hidden: HiddenTexts) -> Carried:
    """Return it without the attributes that hold one of these values; notes and exceptions hide them."""
    if not hidden.sensitive and hidden.has_all_sensitive:
        return carried
    kept = {
        name: [hidden.shown(each) for each in value] if name == "__notes__" else value
        for name, value in carried.attributes.items()
        if name == "__notes__" or not _holds(value, hidden)
    }
    args = None if carried.args is None else [_hide_exceptions(each, hidden) for each in carried.args]
    return Carried(kept, args)


def rebuild(kind: type[Exception], carried: Carried, args: Sequence[Any]) -> Exception | None:
    """Return an error of `kind` with these attributes and arguments; None if there can be none.

    `args` are its arguments if `carried` has none. Runs no code of its class.
    """
    try:
        given = tuple(args if carried.args is None else map(_from_plain, carried.args))
    except Exception:  # noqa: BLE001  (of a later release)
        given = tuple(args)
    error = _blank(kind, given)
    if error is None:
        return None
    codecs = _codecs(kind)
    for name, plain in carried.attributes.items():
        try:
            value = _read(plain, codecs.get(name))
            object.__setattr__(error, name, value)
        except Exception:  # noqa: BLE001, S112  (a slot or a type that this release of the class lacks)
            continue
    return error


def _blank(kind: type[Exception], args: tuple[Any, ...]) -> Exception | None:
    """Return an error of a class as its first base made in C makes one."""
    for base in kind.__mro__:
        if base.__flags__ & _HEAP or not issubclass(base, BaseException):
            continue
        made: Any = base
        try:
            error = made.__new__(kind, *args)
        except Exception:  # noqa: BLE001, S112  (another base knows the layout)
            continue
        try:
            made.__init__(error, *args)
        except Exception:  # noqa: BLE001, S110  (its arguments are not those of its base)
            pass
        object.__setattr__(error, "args", args)  # a frozen dataclass refuses other ways
        return cast("Exception", error)
    return None


def _attributes_of(error: BaseException) -> Iterator[tuple[str, Any]]:
    """Return the attributes of an error: of its dict, its slots, and those that classes made in C give it."""
    for name, value in dict(getattr(error, "__dict__", {})).items():
        if not name.startswith(_MARKS):
            yield name, value
    for base in type(error).__mro__:
        if base in (BaseException, BaseExceptionGroup, object):
            continue
        for name, member in vars(base).items():
            is_member = isinstance(member, (types.MemberDescriptorType, types.GetSetDescriptorType))
            if is_member and not name.startswith("__"):
                try:
                    value = member.__get__(error)
                except Exception:  # noqa: BLE001, S112  (it was never set)
                    continue
                if value is not None or base.__flags__ & _HEAP:
                    yield name, value


_UNSET: Any = object()


@functools.lru_cache(maxsize=1000)
def _codecs(kind: type[Exception]) -> Mapping[str, Codec]:
    """Return a codec for each attribute with an annotation that describes a type."""
    try:
        hints = typing.get_type_hints(kind)
    except Exception:  # noqa: BLE001  (whatever evaluating a user's annotation raises)
        return {}
    found: dict[str, Codec] = {}
    for name, hint in hints.items():
        if not is_untyped(hint):
            try:
                found[name] = Codec(
                    hint, role="saved value", owner=f"{kind.__name__}.{name}", max_bytes=_MOST
                )
            except Exception:  # noqa: BLE001, S112  (a type that no codec knows)
                continue
    return found


def _annotated(value: Any, codec: Codec) -> Any:
    try:
        return msgspec.json.decode(contained(codec.encode, value))
    except Exception:  # noqa: BLE001  (the annotation does not describe it)
        return _UNSET


def _read(plain: Any, codec: Codec | None) -> Any:
    if codec is not None:
        try:
            return contained(codec.decode, _encode(plain))
        except Exception:  # noqa: BLE001, S110  (it was carried without the annotation)
            pass
    return _from_plain(plain)


def _is_json(value: Any, depth: int) -> bool:
    if type(value) is list:
        return depth < _DEEPEST and all(_is_json(each, depth + 1) for each in cast("list[Any]", value))
    if type(value) is dict:
        inside = cast("dict[Any, Any]", value)
        names = all(type(name) is str and name != _IS for name in inside)
        return depth < _DEEPEST and names and all(_is_json(each, depth + 1) for each in inside.values())
    if type(value) is float:
        return value - value == 0.0
    return value is None or type(value) in (bool, int, str)


def _plain(value: Any, depth: int = 0) -> Any:
    """Return a value as JSON values, with a tag where JSON has no such kind. Raises _Uncarried."""
    if _is_json(value, depth):
        _encode(value)  # raises for a lone surrogate
        return value
    if depth > _DEEPEST:
        raise _Uncarried
    kind: Any = cast("Any", type(value))
    name: str = kind.__name__
    if kind is list:
        return [_plain(each, depth + 1) for each in value]
    if kind is dict:
        return {_IS: "dict", _OF: [[_plain(k, depth + 1), _plain(v, depth + 1)] for k, v in value.items()]}
    if _GATHERED.get(name) is kind:
        return {_IS: name, _OF: [_plain(each, depth + 1) for each in value]}
    if kind is float:
        return {_IS: name, _OF: repr(value)}
    if _TAGGED.get(name) is kind:
        return {_IS: name, _OF: msgspec.to_builtins(value)}
    if isinstance(value, Exception):
        return _plain_exception(value, depth)
    raise _Uncarried


def _plain_exception(error: Exception, depth: int) -> dict[str, Any]:
    name, text = type(error).__qualname__, contained(str, error)
    found: dict[str, Any] = {_IS: "exception", "type": name, "text": text[:1000]}
    if getattr(builtins, name, None) is type(error):
        try:
            found[_OF] = [_plain(each, depth + 1) for each in error.args]
        except Exception:  # noqa: BLE001, S110  (then its text is all)
            pass
    return found


def _from_plain(plain: Any) -> Any:
    if isinstance(plain, list):
        return [_from_plain(each) for each in cast("list[Any]", plain)]
    if not isinstance(plain, dict):
        return plain
    found = cast("dict[str, Any]", plain)
    name = found.get(_IS)
    if name is None:
        return {key: _from_plain(value) for key, value in found.items()}
    if name == "dict":
        return {_from_plain(key): _from_plain(value) for key, value in found[_OF]}
    if name in _GATHERED:
        return _GATHERED[name](_from_plain(found[_OF]))
    if name == "float":
        return float(found[_OF])
    if name == "exception":
        return _read_exception(found)
    return msgspec.convert(found[_OF], _TAGGED[name], strict=False)


def _read_exception(found: Mapping[str, Any]) -> Exception:
    kind: Any = getattr(builtins, found["type"], None)
    if _OF in found and isinstance(kind, type) and issubclass(kind, Exception):
        error = _blank(kind, tuple(map(_from_plain, found[_OF])))
        if error is not None:
            return error
    return Exception(f"{found['type']}: {found['text']}" if found["text"] else found["type"])


def _hide_exceptions(plain: Any, hidden: HiddenTexts) -> Any:
    """Return an argument whose exceptions do not show these values; others stay: they are the answer."""
    if isinstance(plain, list):
        return [_hide_exceptions(each, hidden) for each in cast("list[Any]", plain)]
    if not isinstance(plain, dict):
        return plain
    found = cast("dict[str, Any]", plain)
    if found.get(_IS) == "exception" and _holds(found, hidden):
        return {_IS: "exception", "type": found["type"], "text": hidden.shown(found["text"])}
    return {name: _hide_exceptions(value, hidden) for name, value in found.items()}


def _holds(plain: Any, hidden: HiddenTexts) -> bool:
    """Return whether one of these values stands in the texts and numbers of a value."""
    text = "\n".join(_texts(plain))
    return hidden.shown(text) != text


def _texts(plain: Any) -> Iterator[str]:
    if isinstance(plain, list):
        for each in cast("list[Any]", plain):
            yield from _texts(each)
    elif isinstance(plain, dict):
        for name, value in cast("dict[str, Any]", plain).items():
            yield name
            yield from _texts(value)
    elif isinstance(plain, (str, int, float)):
        yield str(plain)
