"""Whether an emission can be sent: for those who must refuse it where it is asked for, and send it later.

Not here: whether the payload fits, which is for its codec to say.
"""

from __future__ import annotations

from typing import Any

import msgspec

from eventbus.errors import DefinitionError
from eventbus.model.durations import milliseconds, seconds
from eventbus.model.event import Event
from eventbus.model.names import check_key
from eventbus.settings.keywords import EmitOptions, check_priority
from eventbus.settings.merging import option_of_key
from eventbus.settings.terms import keep_text, read_due, read_ttl


def check_emission(event: Event[Any, Any] | str, payload: Any, options: EmitOptions) -> None:
    """Raise DefinitionError for options that are wrong, contradict each other, or need a key that is missing.

    Of an event that is given by its name nobody knows here whether it has a key.
    """
    read_due(options)
    check_priority(options.priority)
    keep_text(options.keep_completed, options.keep_failed)
    if options.ttl is not None:
        read_ttl(options.ttl)
    if options.timeout is not None:
        milliseconds(options.timeout, setting="timeout")
    if options.reply_timeout is not None and options.reply_timeout is not msgspec.UNSET:
        seconds(options.reply_timeout, setting="reply_timeout")
    option = option_of_key(options)
    if options.idempotency_key is not None:
        check_key(options.idempotency_key)
    elif option and isinstance(event, Event) and event.key is None:
        check_keyless(option, event.name, payload)


def check_keyless(option: str, name: str, payload: Any) -> None:
    """Raise DefinitionError if an option needs a key; emissions without a payload share one."""
    if option == "supersede" or payload is not None:
        raise DefinitionError(
            f"{option} needs a key: give idempotency_key, or the event {name} a key function that returns one"
        )
