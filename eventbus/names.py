"""The names that users give: events, groups, idempotency keys; and the queue name made of them.

Not here: keys of the server (`store/keys.py`) and the meaning of a name.
Always holds: a name that passed a check is safe inside a key, a pattern, a log line and
a shell, because its alphabet has no `{`, `}`, `:`, `@`, `*` and no space.
"""

from __future__ import annotations

import re

from eventbus.errors import DefinitionError

__all__ = [
    "DEFAULT_GROUP",
    "check_event_name",
    "check_group",
    "check_job_id",
    "check_key",
    "queue_name",
    "shown",
]

DEFAULT_GROUP = "default"
"""The group that answers the emitter."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_EVENT_LENGTH = 128
_GROUP_LENGTH = 64
_KEY_LENGTH = 512
_SHOWN_LENGTH = 60


def shown(value: object) -> str:
    """Return `value` as an error message shows it: its repr, cut to 60 characters. Never raises."""
    try:  # text is cut first, so that no repr of a megabyte is made
        text = repr(value[: _SHOWN_LENGTH + 1] if isinstance(value, (str, bytes)) else value)
    except Exception:  # noqa: BLE001  (the caller is about to report something else)
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _SHOWN_LENGTH else text[: _SHOWN_LENGTH - 3] + "..."


def check_event_name(name: object) -> str:
    """Return `name` if it can name an event, such as `"order.placed"`.

    At most 128 letters, digits, `_`, `.` and `-` (ASCII), a letter or digit first.
    Raises DefinitionError for anything else.
    """
    return _check_name(name, "an event name", _EVENT_LENGTH)


def check_group(name: object) -> str:
    """Return `name` if it can name a group; `"default"` is one like any other.

    At most 64 characters, of the alphabet of event names. Raises DefinitionError otherwise.
    """
    return _check_name(name, "a group name", _GROUP_LENGTH)


def _check_name(name: object, what: str, length: int) -> str:
    if isinstance(name, str) and len(name) <= length and _NAME.fullmatch(name):
        return name
    raise DefinitionError(
        f"expected {what} of 1 to {length} letters, digits, '_', '.' and '-', "
        f"beginning with a letter or digit, got: {shown(name)}"
    )


def queue_name(event: str, group: str = DEFAULT_GROUP) -> str:
    """Return the name of the queue of one event and group: `event.<name>` or `event.<name>@<group>`.

    Both must have been checked. Different pairs have different names, since no name contains `@`.
    """
    return f"event.{event}" if group == DEFAULT_GROUP else f"event.{event}@{group}"


def check_key(key: object) -> str:
    """Return `key` if it can be an idempotency key: text of 1 to 512 characters.

    Any Unicode text but the NUL character and lone surrogates, which UTF-8 cannot hold.
    Raises DefinitionError otherwise.
    """
    if isinstance(key, str) and 0 < len(key) <= _KEY_LENGTH and "\0" not in key and _is_utf8(key):
        return key
    raise DefinitionError(
        f"expected an idempotency key to be text of 1 to {_KEY_LENGTH} characters "
        f"without NUL and lone surrogates, got: {shown(key)}"
    )


def check_job_id(job_id: object) -> str:
    """Return `job_id` if it can be the id of a job. Raises DefinitionError otherwise."""
    if isinstance(job_id, str) and 0 < len(job_id) <= _KEY_LENGTH and _is_utf8(job_id):
        return job_id
    raise DefinitionError(
        f'expected a job id, such as "0-4f1c2a9be07d-00000001" from emission.job_id, got: {shown(job_id)}'
    )


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
