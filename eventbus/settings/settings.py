"""The settings of a provider: their names, defaults, sources and limits.

Not here: the settings of one event, handler or emission (`keywords`), how a value is read (`readers`), and
the meaning of a URL. The store reads URLs; here they are text.

What must always hold: a `Settings` that exists is valid and normal (durations are float seconds, sizes are
bytes), and no text made from it shows the URL's password.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
import socket
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from eventbus.errors import ConfigError, DefinitionError
from eventbus.model import clock
from eventbus.model.durations import LONGEST, Duration, seconds
from eventbus.model.keep import Keep
from eventbus.model.names import shown
from eventbus.model.retry import Retry
from eventbus.model.url_redaction import EMBEDDED, redact
from eventbus.model.windows import Windows
from eventbus.settings.readers import READERS, VARIABLES

DEFAULT_URL = "embedded:./.eventbus"
"""The URL of a provider that got none: an embedded server with its data in this directory."""

_VARIABLE = "EVENTBUS_"
_MIN_LEASE = 0.5  # seconds; one call that renews leases may take as long
_LEASES_TO_HANG = 3
_PATIENCE = 30.0  # seconds for a call if `reply_timeout` has no limit: a call always has one


_RETRY = Retry()
_KEEP_COMPLETED = Keep(10_000, "1 hour")
_KEEP_FAILED = Keep(10_000, "7 days")
_HISTORY = Windows()


def _default_name() -> str:
    """Return `<host>-<pid>`, with `-` for the characters that a name must not have."""
    host = re.sub(r"[^A-Za-z0-9_.-]", "-", socket.gethostname()).lstrip("_.-")[:100]
    return f"{host or 'host'}-{os.getpid()}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Settings:
    """The settings of one provider. Durations are in seconds, sizes in bytes.

    `resolve` makes them; tests make them directly. Both check every value and raise ConfigError.
    """

    url: str = DEFAULT_URL
    """The server, such as `redis://host:6379` or `embedded:./folder`."""
    name: str = dataclasses.field(default_factory=_default_name)
    """The name of this process in logs and listings."""
    prefix: str = "eb"
    """The beginning of every key in the server."""
    reply_timeout: float | None = 30.0
    """How long emitters wait for an outcome; None: without limit."""
    retry: Retry = _RETRY
    concurrency: int = 10
    """The most jobs that one handler runs at a time in this process, if `on` does not set it."""
    max_concurrency: int = 100
    """The most jobs that all handlers together run at a time in this process."""
    lease: float = 10.0
    """How long a worker holds a job without renewing its lease."""
    grace: float = 10.0
    """How long handlers may finish when their worker stops."""
    keep_completed: Keep = _KEEP_COMPLETED
    keep_failed: Keep = _KEEP_FAILED
    key_ttl: float = 86_400.0
    """How long an idempotency key is remembered after its job ended."""
    max_waiting: int | None = None
    """The most jobs that may wait in one queue; emitting to a full queue is refused. None: without limit."""
    max_payload: int = 1024 * 1024
    max_result: int = 1024 * 1024
    hang_after: float = 300.0
    """How long the event loop may be blocked before the worker gives its jobs up; at least 3 leases."""
    max_stalls: int = 3
    """How often a job may be blamed for the end of its worker; once more fails it, if nothing else can be
    blamed.
    """
    durability: Literal["default", "replicated"] = "default"
    """With `replicated`, an emission counts as enqueued only when a replica has it too."""
    scripting: Literal["auto", "functions", "eval"] = "auto"
    """How the server runs scripts: with `functions` by FCALL or not at all, with `eval` by EVALSHA."""
    history: Windows | None = _HISTORY
    """How long charts of each queue are kept, by minute and by hour, such as "48h,90d"; "none": nothing is
    counted.
    """
    allow_eviction: bool = False
    """Start even if the server may evict keys and so lose jobs."""

    def __post_init__(self) -> None:
        for name, read in READERS.items():
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
        """Return the settings: explicit values first, then `EVENTBUS_<NAME>` variables, then defaults.

        Tests pass `environ` in place of `os.environ`. An explicit `msgspec.UNSET`, None for url and name,
        and an empty variable all count as not given. Variables have the values of the arguments as text:
        `EVENTBUS_LEASE=15s`, `EVENTBUS_MAX_WAITING=none`, `EVENTBUS_RETRY=5` or
        `{"attempts": 5, "delay": "2s"}`, `EVENTBUS_KEEP_FAILED=1000,2 days`. Variables with an unknown
        name are ignored. The default of `hang_after` is 300 s, or 3 leases if that is longer.

        Raises ConfigError for a value out of range and for an unknown explicit setting. The error names
        the setting, and the variable if the value came from one.
        """
        for name in explicit:
            if name not in READERS:
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

    def call_timeout(self, given: Duration | None = None) -> float:
        """Return how many seconds the server may take to answer a call.

        That is `given`, or the setting `reply_timeout`, or 30 s if that has no limit. Raises DefinitionError
        if `given` is not a duration above 0.
        """
        if given is None:
            return self.reply_timeout or _PATIENCE
        timeout = seconds(given, setting="call_timeout")
        if timeout <= 0:
            raise DefinitionError(f"expected call_timeout to be above 0 s, got: {shown(given)}")
        return timeout

    def deadline(self, call_timeout: Duration | None = None) -> float:
        """Return the deadline of a call that begins now, by the monotonic clock. Raises as `call_timeout`."""
        return clock.monotonic() + self.call_timeout(call_timeout)

    @property
    def is_named(self) -> bool:
        """Whether the program chose the name, so that its next process has it too."""
        return self.name != _default_name()

    def __repr__(self) -> str:
        shown_values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        shown_values["url"] = redact(self.url)
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in shown_values.items())})"


def _is_given(name: str, value: object) -> bool:
    return value is not msgspec.UNSET and not (value is None and name in ("url", "name"))


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name, READERS, n=1)
    hint = f"; did you mean {near[0]}?" if near else f"; known are {', '.join(READERS)}"
    return f"unknown setting: {shown(name)}{hint}"


def _naming(name: str, message: str) -> str:
    """Return `message` with the setting's name in front, unless it begins with it."""
    return message if message.startswith(f"expected {name} ") else f"{name}: {message}"


# Variables: these functions convert text into the value of an explicit argument. Text that they cannot
# convert stays text, so that the reader of the setting refuses it with the setting's name.


def _from_environment(environ: Mapping[str, str]) -> dict[str, object]:
    texts = {name: environ.get(_VARIABLE + name.upper(), "").strip() for name in READERS}
    return {name: VARIABLES.get(READERS[name], str)(text) for name, text in texts.items() if text}
