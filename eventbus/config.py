"""The settings of a provider: their names, defaults, sources and limits.

Not here: settings of one event, handler or emission, and what a URL means (the store reads
it); here it is text.
Always holds: a `Settings` that exists is valid and normal (durations are float seconds,
sizes are bytes), and no text made from it shows the URL's password.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
import socket
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Literal, cast

import msgspec

from eventbus.durations import LONGEST, Duration, seconds
from eventbus.errors import ConfigError, DefinitionError
from eventbus.names import shown
from eventbus.redaction import EMBEDDED, redact
from eventbus.retry import Retry

__all__ = ["DEFAULT_URL", "Keep", "Settings"]

DEFAULT_URL = "embedded:./.eventbus"
"""Where a provider without a URL goes: an embedded server with its data in this directory."""

_VARIABLE = "EVENTBUS_"
_MIN_LEASE = 0.5
_LEASES_TO_HANG = 3
_MAX_BYTES = 512 * 1024 * 1024  # the longest string a server holds

_FLAGS: dict[str, object] = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}
_PREFIX = re.compile(r"[A-Za-z0-9_.-]{1,32}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(b|kb|mb|gb|kib|mib|gib)", re.IGNORECASE)
_SIZE_UNITS = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


class Keep(msgspec.Struct, frozen=True):
    """How long finished jobs are kept: the newest `count`, and none older than `age`.

    `None` means that this one does not limit; one of the two must. `age` is kept as float
    seconds. Raises DefinitionError for values out of range.
    """

    count: int | None = None
    age: Duration | None = None

    def __post_init__(self) -> None:
        count = cast("Any", self.count)
        if count is not None and (type(count) is not int or count < 0):
            raise DefinitionError(f"expected count to be an integer of 0 or more, got: {shown(count)}")
        if self.age is not None:
            msgspec.structs.force_setattr(self, "age", seconds(self.age, setting="age"))
        if count is None and self.age is None:
            raise DefinitionError(
                "expected a count, an age or both, got: neither; keeping all fills the server"
            )


_RETRY = Retry()
_KEEP_COMPLETED = Keep(10_000, "1 hour")
_KEEP_FAILED = Keep(10_000, "7 days")


def _default_name() -> str:
    """Return `<host>-<pid>`, with what a name cannot hold replaced by `-`."""
    host = re.sub(r"[^A-Za-z0-9_.-]", "-", socket.gethostname()).lstrip("_.-")[:100]
    return f"{host or 'host'}-{os.getpid()}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Settings:
    """The settings of one provider; durations in seconds, sizes in bytes.

    Made by `resolve`, or directly in tests; both check every value and raise ConfigError.
    """

    url: str = DEFAULT_URL
    name: str = dataclasses.field(default_factory=_default_name)
    """This process in logs and listings."""
    prefix: str = "eb"
    """What every key in the server begins with."""
    reply_timeout: float | None = 30.0
    """How long emitters wait for an outcome; None: without limit."""
    retry: Retry = _RETRY
    concurrency: int = 10
    """Jobs that one handler runs at a time in this process, unless it says otherwise."""
    max_concurrency: int = 100
    """Jobs that all handlers together run at a time in this process."""
    lease: float = 10.0
    """How long a worker holds a job without renewing it."""
    grace: float = 10.0
    """How long a stopping worker lets its handlers finish."""
    keep_completed: Keep = _KEEP_COMPLETED
    keep_failed: Keep = _KEEP_FAILED
    key_ttl: float = 86_400.0
    """How long an idempotency key is remembered after its job ended."""
    max_waiting: int | None = None
    """Jobs that may wait in one queue before emitting to it is refused; None: without limit."""
    max_payload: int = 1024 * 1024
    max_result: int = 1024 * 1024
    hang_after: float = 300.0
    """How long the event loop may be blocked before its jobs are given up; at least 3 leases."""
    max_stalls: int = 3
    durability: Literal["default", "replicated"] = "default"
    """`replicated`: an emission counts as enqueued only when a replica has it too."""
    allow_eviction: bool = False
    """Start even if the server may evict keys, and so lose jobs."""

    def __post_init__(self) -> None:
        for name, read in _READERS.items():
            try:
                value = read(name, getattr(self, name))
            except DefinitionError as error:
                raise ConfigError(_naming(name, str(error)), setting=name) from error
            object.__setattr__(self, name, value)
        if self.lease < _MIN_LEASE:
            raise ConfigError(
                f"expected lease to be at least {_MIN_LEASE} s, got: {self.lease:g} s", setting="lease"
            )
        if self.hang_after < _LEASES_TO_HANG * self.lease:
            raise ConfigError(
                f"expected hang_after to be at least {_LEASES_TO_HANG} leases of {self.lease:g} s, "
                f"got: {self.hang_after:g} s",
                setting="hang_after",
            )
        if self.durability == "replicated" and EMBEDDED.match(self.url):
            raise ConfigError(
                f'durability="replicated" needs a server with a replica, got: {self.url}; set url to one, '
                'or use durability="default"',
                setting="durability",
            )

    @classmethod
    def resolve(cls, environ: Mapping[str, str] | None = None, /, **explicit: object) -> Settings:
        """Return the settings: explicit ones over `EVENTBUS_<NAME>` variables over defaults.

        `environ` is read instead of `os.environ`, for tests. An explicit `msgspec.UNSET`, and
        `None` for url and name, count as not given; so does an empty variable. Variables hold
        what the arguments take, as text: `EVENTBUS_LEASE=15s`, `EVENTBUS_MAX_WAITING=none`,
        `EVENTBUS_RETRY=5` or `{"attempts": 5, "delay": "2s"}`, `EVENTBUS_KEEP_FAILED=1000,2 days`.
        Variables of unknown name are ignored. `hang_after`, where not given, grows with `lease`.

        Raises ConfigError, which names the setting and the variable that gave it, for a value out
        of range and for an unknown explicit setting.
        """
        for name in explicit:
            if name not in _READERS:
                raise ConfigError(_unknown(name), setting=name)
        from_variables = _from_environment(os.environ if environ is None else environ)
        given = {name: value for name, value in explicit.items() if _is_given(name, value)}
        try:
            return cls._of(from_variables | given)
        except ConfigError as error:
            if error.setting in from_variables and error.setting not in given:
                variable = _VARIABLE + error.setting.upper()
                raise ConfigError(f"{variable}: {error}", setting=error.setting) from None
            raise

    @classmethod
    def _of(cls, values: dict[str, Any]) -> Settings:
        if "hang_after" not in values:
            lease = cls(lease=values.get("lease", 10.0), hang_after=LONGEST).lease
            values["hang_after"] = max(300.0, _LEASES_TO_HANG * lease)
        return cls(**values)

    def __repr__(self) -> str:
        shown_values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        shown_values["url"] = redact(self.url)
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in shown_values.items())})"


def _is_given(name: str, value: object) -> bool:
    return value is not msgspec.UNSET and not (value is None and name in ("url", "name"))


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name, _READERS, n=1)
    hint = f"; did you mean {near[0]}?" if near else f"; known are {', '.join(_READERS)}"
    return f"unknown setting: {shown(name)}{hint}"


def _naming(name: str, message: str) -> str:
    """Return `message` with the setting's name in front, unless it says it."""
    return message if message.startswith(f"expected {name} ") else f"{name}: {message}"


# Variables: text into what an explicit argument could have been. What cannot be read is left
# as text, and the reader of the setting refuses it with its name.


def _from_environment(environ: Mapping[str, str]) -> dict[str, object]:
    texts = {name: environ.get(_VARIABLE + name.upper(), "").strip() for name in _READERS}
    return {name: _VARIABLES.get(_READERS[name], str)(text) for name, text in texts.items() if text}


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


# Readers: any value into the setting's normal form, or DefinitionError or ConfigError.


def _refused(name: str, expected: str, value: object) -> ConfigError:
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
    raise _refused(
        name, "1 to 128 letters, digits, '_', '.' and '-', beginning with a letter or digit", value
    )


def _prefix(name: str, value: object) -> str:
    if isinstance(value, str) and _PREFIX.fullmatch(value):
        return value
    raise _refused(name, "1 to 32 letters, digits, '_', '.' and '-'", value)


def _duration(name: str, value: object) -> float:
    return seconds(cast("Any", value), setting=name)


def _duration_above_zero(name: str, value: object) -> float:
    result = _duration(name, value)
    if result > 0:
        return result
    raise _refused(name, "a duration above 0", value)


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
                raise _refused(name, f"made of {', '.join(Retry.__struct_fields__)}", key)
        return Retry(**options)
    if isinstance(value, int) and not isinstance(value, bool):
        return Retry(attempts=value)
    raise _refused(name, "a Retry or a number of attempts", value)


def _keep(name: str, value: object) -> Keep:
    if isinstance(value, Keep):
        return value
    if isinstance(value, tuple):
        pair = cast("tuple[Any, ...]", value)
        if len(pair) == 2:
            return Keep(*pair)
        raise _refused(name, "(count, age)", pair)
    if isinstance(value, int) and not isinstance(value, bool):
        return Keep(count=value)
    if isinstance(value, (str, timedelta)):
        return Keep(age=value)
    raise _refused(name, 'a Keep, a count, an age such as "7 days", or (count, age)', value)


def _positive(name: str, value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    raise _refused(name, "a positive integer", value)


def _positive_or_none(name: str, value: object) -> int | None:
    return None if value is None else _positive(name, value)


def _count(name: str, value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise _refused(name, "an integer of 0 or more", value)


def _size(name: str, value: object) -> int:
    size: object = value
    if isinstance(value, str):
        match = _SIZE.fullmatch(value.strip())
        size = int(float(match[1]) * _SIZE_UNITS[match[2].lower()]) if match and len(value) <= 40 else value
    if isinstance(size, int) and not isinstance(size, bool) and 0 < size <= _MAX_BYTES:
        return size
    raise _refused(name, 'a number of bytes or text such as "1 MiB", at most 512 MiB', value)


def _durability(name: str, value: object) -> str:
    if value in ("default", "replicated"):
        return cast("str", value)
    raise _refused(name, '"default" or "replicated"', value)


def _flag(name: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise _refused(name, "True or False", value)


_Reader = Callable[[str, object], object]

_READERS: dict[str, _Reader] = {
    "url": _url,
    "name": _process_name,
    "prefix": _prefix,
    "reply_timeout": _duration_or_none,
    "retry": _retry,
    "concurrency": _positive,
    "max_concurrency": _positive,
    "lease": _duration,
    "grace": _duration,
    "keep_completed": _keep,
    "keep_failed": _keep,
    "key_ttl": _duration_above_zero,
    "max_waiting": _positive_or_none,
    "max_payload": _size,
    "max_result": _size,
    "hang_after": _duration,
    "max_stalls": _count,
    "durability": _durability,
    "allow_eviction": _flag,
}

_VARIABLES: dict[_Reader, Callable[[str], object]] = {
    _positive: _text_to_number,
    _positive_or_none: _text_to_number,
    _count: _text_to_number,
    _size: _text_to_number,
    _flag: lambda text: _FLAGS.get(text.lower(), text),
    _retry: _text_to_retry,
    _keep: _text_to_keep,
}
