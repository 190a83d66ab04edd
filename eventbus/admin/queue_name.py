"""The queue that somebody means who names an event or a queue."""

from __future__ import annotations

import re
from typing import Any

from eventbus.errors import DefinitionError
from eventbus.model.event import Event
from eventbus.model.names import DEFAULT_GROUP, EVENT_QUEUES, check_group, queue_name, shown, split_group

_QUEUES = (EVENT_QUEUES, "workflow.")
_QUEUE = re.compile(r"[A-Za-z0-9_./-]+(@[A-Za-z0-9_.-]+)?")
_QUEUE_LENGTH = 255


def queue_of(given: Event[Any, Any] | str, group: str | None = None) -> str:
    """Return the queue of an event, its name, `name@group`, or a queue; of `group`, unless the text names one
    itself.

    Raises DefinitionError, also for a name that no queue can have.
    """
    queue = _name_queue(given, group)
    if len(queue) > _QUEUE_LENGTH or not _QUEUE.fullmatch(queue):
        raise DefinitionError(f"expected an event, its name or a queue, got: {shown(given)}")
    return queue


def _name_queue(given: Event[Any, Any] | str, group: str | None) -> str:
    name = given.name if isinstance(given, Event) else given
    if not isinstance(name, str) or not name:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DefinitionError(f"expected an event, its name or a queue, got: {shown(given)}")
    is_queue = not isinstance(given, Event) and name.startswith(_QUEUES)
    event, own = ("", "") if is_queue else split_group(name)
    if not is_queue and name.partition("@")[1] and not (event and own):
        raise DefinitionError(f"expected NAME@GROUP, such as 'order.placed@billing', got: {shown(name)}")
    if group is not None and check_group(group) != DEFAULT_GROUP:
        if is_queue or own:
            raise DefinitionError(
                f"{shown(name)} is a queue of its own; group {group!r} needs the name of an event"
            )
        return queue_name(event, group)
    if is_queue:
        return name
    return queue_name(event, own) if own else queue_name(event)
