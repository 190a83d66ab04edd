"""Checks of the names that users give (events, groups, idempotency keys), and the queue name made of them.

Not here: the server's keys (`store/keys.py`) and the meaning of a name.
What must always hold: a name of an event or group that passed its check is safe inside a key, a pattern, a
log line and a shell, because its alphabet has no `{`, `}`, `:`, `@`, `*` and no space.
"""

from __future__ import annotations

import re

from eventbus.errors import DefinitionError, UnknownJob
from eventbus.model.containment import as_exception

DEFAULT_GROUP = "default"
"""The group that answers the emitter."""

EVENT_QUEUES = "event."
"""What the name of every event's queue begins with."""

JOB_ID_LENGTH = 512
"""The most characters that the id of a job may have."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_EVENT_LENGTH = 128
_GROUP_LENGTH = 64
_KEY_LENGTH = 512
_SHOWN_LENGTH = 60


def shown(value: object) -> str:
    """Return the repr of `value` for an error message, cut to 60 characters. Never raises."""
    try:  # text is cut first, so that a megabyte of it does not become a repr
        text = repr(value[: _SHOWN_LENGTH + 1] if isinstance(value, (str, bytes)) else value)
    except BaseException as error:  # noqa: BLE001  (the caller is about to report something else)
        as_exception(error)
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _SHOWN_LENGTH else text[: _SHOWN_LENGTH - 3] + "..."


def check_event_name(name: object) -> str:
    """Return `name` if it can name an event, such as `"order.placed"`.

    At most 128 letters, digits, `_`, `.` and `-` (ASCII), a letter or digit first.
    Raises DefinitionError for anything else.
    """
    return _check_name(name, "an event name", _EVENT_LENGTH)


def check_group(name: object) -> str:
    """Return `name` if it can name a group. `"default"` passes as any other name.

    At most 64 characters, from the alphabet of event names. Raises DefinitionError otherwise.
    """
    return _check_name(name, "a group name", _GROUP_LENGTH)


def check_pool_name(name: object) -> str:
    """Return `name` if it can name a pool, as `check_group` does. Raises DefinitionError otherwise."""
    return _check_name(name, "a pool name", _GROUP_LENGTH)


def _check_name(name: object, what: str, length: int) -> str:
    if isinstance(name, str) and len(name) <= length and _NAME.fullmatch(name):
        return name
    raise DefinitionError(
        f"expected {what} of 1 to {length} letters, digits, '_', '.' and '-', "
        f"beginning with a letter or digit, got: {shown(name)}"
    )


def queue_name(event: str, group: str = DEFAULT_GROUP) -> str:
    """Return the name of the queue of one event and group: `event.<name>` or `event.<name>@<group>`.

    Both names must have been checked. Different pairs have different queues, because no name contains `@`.
    """
    queue = EVENT_QUEUES + event
    return queue if group == DEFAULT_GROUP else group_queue(queue, group)


def group_queue(queue: str, group: str) -> str:
    """Return the name of the queue that a group beside the default one has, from that of the default
    group.
    """
    return f"{queue}@{group}"


def split_group(queue: str) -> tuple[str, str]:
    """Return what `group_queue` joined; the group is empty for the default one."""
    base, _, group = queue.partition("@")
    return base, group


def event_of(queue: str) -> str:
    """Return the name of the event whose default group has this queue."""
    return queue.removeprefix(EVENT_QUEUES)


def check_key(key: object) -> str:
    """Return `key` if it can be an idempotency key: text of 1 to 512 characters.

    The text must not contain the NUL character or lone surrogates, which UTF-8 cannot hold.
    Raises DefinitionError otherwise.
    """
    if isinstance(key, str) and 0 < len(key) <= _KEY_LENGTH and "\0" not in key and _is_utf8(key):
        return key
    raise DefinitionError(
        f"expected an idempotency key to be text of 1 to {_KEY_LENGTH} characters "
        f"without NUL and lone surrogates, got: {shown(key)}"
    )


def check_correlation_id(given: object) -> str:
    """Return `given` if it can be a correlation id: text of 1 to 512 printable characters.

    Line breaks are not printable, so the id fits into one line of a log. Raises DefinitionError otherwise.
    """
    if isinstance(given, str) and 0 < len(given) <= _KEY_LENGTH and given.isprintable():
        return given
    raise DefinitionError(
        f"expected correlation_id to be text of 1 to {_KEY_LENGTH} printable characters, got: {shown(given)}"
    )


def check_job_id(job_id: object) -> str:
    """Return `job_id` if it can be the id of a job.

    Raises UnknownJob for other text, because ids may come from outside the program, and DefinitionError for a
    value that is not text.
    """
    hint = 'a job id, such as "0-4f1c2a9be07d-00000001" from emission.job_id'
    if not isinstance(job_id, str):
        raise DefinitionError(f"expected {hint}, got: {shown(job_id)}")
    if 0 < len(job_id) <= JOB_ID_LENGTH and _is_utf8(job_id):
        return job_id
    raise UnknownJob(job_id, f"{shown(job_id)} is no id of a job; expected {hint}")


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
