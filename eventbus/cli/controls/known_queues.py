"""Names that nobody knows: a command that found nothing asks whether the server has such a queue at all.

What must hold: a queue that is known, and empty, is no mistake. A reading command asks only where there was
nothing to show.
"""

from __future__ import annotations

from contextlib import suppress

from eventbus.cli.failures import CommandError, tell
from eventbus.cli.texts import close_names, printable
from eventbus.errors import StoreError
from eventbus.model.names import EVENT_QUEUES, split_group
from eventbus.model.url_redaction import redact
from eventbus.provider import EventProvider

_LISTING = "eventbus queues"


async def check_known(provider: EventProvider, queue: str, *, with_groups: bool = False) -> None:
    """Raise CommandError with the server and the names that are close, if the server does not know the queue.

    `with_groups`: a group of the event is enough.
    """
    if said := await _find_unknown(provider, queue, with_groups=with_groups):
        raise CommandError(said, exit_code=1)


async def note_unknown_queue(provider: EventProvider, queue: str) -> None:
    """Say on standard error that the server does not know a queue, for a command that goes on: it may
    come.
    """
    if said := await _find_unknown(provider, queue, with_groups=True):
        tell(f"note: {said}")


async def doubt_event(provider: EventProvider, event: str) -> str:
    """Return that nobody serves or has emitted an event; empty if somebody does, or the server does not say.
    Asked before it is emitted.
    """
    with suppress(StoreError):
        names = {split_group(name)[0] for name in await provider.inspector.queues.names()}
        if f"{EVENT_QUEUES}{event}" not in names:
            known = (name.removeprefix(EVENT_QUEUES) for name in names if name.startswith(EVENT_QUEUES))
            return (
                f"event {event} was not known on the server {redact(provider.settings.url)}: "
                f"no worker serves it, and it had no job; {close_names(event, known, listing=_LISTING)}"
            )
    return ""


async def _find_unknown(provider: EventProvider, queue: str, *, with_groups: bool) -> str:
    """Return that the server does not know the queue; empty if it does."""
    names = await provider.inspector.queues.names()
    if queue in names or (with_groups and any(split_group(name)[0] == queue for name in names)):
        return ""
    # People write, and mistype, the name without the prefix of all events.
    known = (name.removeprefix(EVENT_QUEUES) for name in names)
    close = close_names(queue.removeprefix(EVENT_QUEUES), known, listing=_LISTING)
    return f"there is no queue {printable(queue)} on the server {redact(provider.settings.url)}; {close}"
