"""Readers of settings: each returns a given value in its setting's normal form.

Not here: which settings there are and how they limit each other (`settings`).

What must always hold: a reader raises DefinitionError or ConfigError for each value that it does not return.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeAlias, cast

import msgspec

from eventbus.errors import ConfigError
from eventbus.model.durations import seconds
from eventbus.model.keep import read_keep
from eventbus.model.names import shown
from eventbus.model.retry import Retry
from eventbus.model.windows import read_windows

_MAX_BYTES = 512 * 1024 * 1024  # the longest string a server holds
_FLAGS: dict[str, object] = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}
_PREFIX = re.compile(r"[A-Za-z0-9_.-]{1,32}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(b|kb|mb|gb|kib|mib|gib)", re.IGNORECASE)
_SIZE_UNITS = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


def _text_to_number(text: str) -> object:
    if text.lower() == "none":
        return None
    return int(text) if re.fullmatch(r"[+-]?[0-9]{1,18}", text) else text


def _text_to_retry(text: str) -> object:
    if not text.startswith("{"):
        return _text_to_number(text)
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def _text_to_keep(text: str) -> object:
    first, comma, second = (part.strip() for part in text.partition(","))
    age = None if second.lower() == "none" else second
    return (_text_to_number(first), age) if comma else _text_to_number(first)


def refused(name: str, expected: str, value: object) -> ConfigError:
    """Return the error for a setting whose value is none of the `expected`."""
    return ConfigError(f"expected {name} to be {expected}, got: {shown(value)}", setting=name)


def _url(name: str, value: object) -> str:
    if isinstance(value, str) and value.strip():
        return value.strip()
    raise ConfigError(
        f"expected {name} to be text such as redis://host:6379, got: {type(value).__name__}", setting=name
    )


def _process_name(name: str, value: object) -> str:
    if isinstance(value, str) and _NAME.fullmatch(value):
        return value
    raise refused(name, "1 to 128 letters, digits, '_', '.' and '-', beginning with a letter or digit", value)


def _prefix(name: str, value: object) -> str:
    if isinstance(value, str) and _PREFIX.fullmatch(value):
        return value
    raise refused(name, "1 to 32 letters, digits, '_', '.' and '-'", value)


def _duration(name: str, value: object) -> float:
    return seconds(cast("Any", value), setting=name)


def _duration_above_zero(name: str, value: object) -> float:
    result = _duration(name, value)
    if result > 0:
        return result
    raise refused(name, "a duration above 0", value)


def _duration_or_none(name: str, value: object) -> float | None:
    if value is None or (isinstance(value, str) and value.strip().lower() == "none"):
        return None
    return _duration(name, value) or None


def _retry(name: str, value: object) -> Retry:
    if isinstance(value, Retry):
        return value
    if isinstance(value, dict):
        options = cast("dict[str, Any]", value)
        for key in options:
            if key not in Retry.__struct_fields__:
                raise refused(name, f"made of {', '.join(Retry.__struct_fields__)}", key)
        return Retry(**options)
    if isinstance(value, int) and not isinstance(value, bool):
        return Retry(attempts=value)
    raise refused(name, "a Retry or a number of attempts", value)


def _positive(name: str, value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    raise refused(name, "a positive integer", value)


def _positive_or_none(name: str, value: object) -> int | None:
    return None if value is None else _positive(name, value)


def _count(name: str, value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise refused(name, "an integer of 0 or more", value)


def _size(name: str, value: object) -> int:
    size: object = value
    if isinstance(value, str):
        match = _SIZE.fullmatch(value.strip())
        size = int(float(match[1]) * _SIZE_UNITS[match[2].lower()]) if match and len(value) <= 40 else value
    if isinstance(size, int) and not isinstance(size, bool) and 0 < size <= _MAX_BYTES:
        return size
    raise refused(name, 'a number of bytes or text such as "1 MiB", at most 512 MiB', value)


def _durability(name: str, value: object) -> str:
    if value in ("default", "replicated"):
        return cast("str", value)
    raise refused(name, '"default" or "replicated"', value)


def _scripting(name: str, value: object) -> str:
    if value in ("auto", "functions", "eval"):
        return cast("str", value)
    raise refused(name, '"auto", "functions" or "eval"', value)


def _flag(name: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise refused(name, "True or False", value)


Reader: TypeAlias = Callable[[str, object], object]

READERS: dict[str, Reader] = {
    "url": _url,
    "name": _process_name,
    "prefix": _prefix,
    "reply_timeout": _duration_or_none,
    "retry": _retry,
    "concurrency": _positive,
    "max_concurrency": _positive,
    "lease": _duration,
    "grace": _duration,
    "keep_completed": read_keep,
    "keep_failed": read_keep,
    "key_ttl": _duration_above_zero,
    "max_waiting": _positive_or_none,
    "max_payload": _size,
    "max_result": _size,
    "hang_after": _duration,
    "max_stalls": _count,
    "durability": _durability,
    "scripting": _scripting,
    "history": read_windows,
    "allow_eviction": _flag,
}
"""The reader of each setting, by its name."""

VARIABLES: dict[Reader, Callable[[str], object]] = {
    _positive: _text_to_number,
    _positive_or_none: _text_to_number,
    _count: _text_to_number,
    _size: _text_to_number,
    _flag: lambda text: _FLAGS.get(text.lower(), text),
    _retry: _text_to_retry,
    read_keep: _text_to_keep,
}
"""How the text of an environment variable becomes a value for a reader; others take the text itself."""
