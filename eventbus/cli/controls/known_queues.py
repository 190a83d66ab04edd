"""Names that nobody knows: a reading command that found nothing asks whether the server has such a queue at all.

What must hold: a queue that is known, and empty, is no mistake. The question is asked only where there was nothing to show.
"""

from __future__ import annotations

from difflib import get_close_matches

from eventbus.cli.failures import CommandError
from eventbus.model.names import EVENT_QUEUES, split_group
from eventbus.model.url_redaction import redact
from eventbus.provider import EventProvider

__all__ = ["check_known"]


async def check_known(provider: EventProvider, queue: str, *, with_groups: bool = False) -> None:
    """Raise CommandError with the server and the names that are close, if the server does not know the queue.

    `with_groups`: a group of the event is enough.
    """
    names = [each.name for each in await provider.inspector.queues()]
    if queue in names or (with_groups and any(split_group(name)[0] == queue for name in names)):
        return
    close = [name.removeprefix(EVENT_QUEUES) for name in get_close_matches(queue, names)]
    hint = f"; did you mean {' or '.join(close)}?" if close else "; `eventbus queues` lists all"
    raise CommandError(
        f"there is no queue {queue} on the server {redact(provider.settings.url)}{hint}", exit_code=1
    )
