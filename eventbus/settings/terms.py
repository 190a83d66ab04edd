"""What an emission says for its own job, read from its options: when it is due, when it expires, and how long
it is kept.

Not here: options that merge emissions (`merging`), and what travels as it is given.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from eventbus.errors import DefinitionError
from eventbus.model import clock
from eventbus.model.durations import Duration, milliseconds
from eventbus.model.names import shown
from eventbus.settings.keywords import EmitOptions


def read_due(options: EmitOptions) -> tuple[int | str, int | str, float]:
    """Return the delay in ms, the absolute due time in Unix ms, and the seconds until the job is due.

    At most one of the first two is given; `''` stands for the other. Raises DefinitionError for both.
    """
    if options.delay is not None:
        if options.at is not None:
            raise DefinitionError("expected either delay or at, got both")
        delay = milliseconds(options.delay, setting="delay")
        return (delay or "", "", delay / 1000)
    if options.at is not None:
        due = clock.to_unix_ms(options.at)
        return ("", due, max(0.0, due / 1000 - clock.now()))
    return ("", "", 0.0)


def read_ttl(ttl: Duration) -> int:
    """Return the ttl of an emission in ms. Raises DefinitionError for 0, too: nobody could start the job in
    time.
    """
    ttl_ms = milliseconds(ttl, setting="ttl")
    if ttl_ms == 0:
        raise DefinitionError(f"expected ttl to be more than 0 s, got: {shown(ttl)}")
    return ttl_ms


def keep_text(completed: Any, failed: Any) -> str:
    """Return how long a job is kept once it has ended, as its record has it: `completed,failed` in ms, `""`
    for none.

    None is as the queue of the job says. Raises DefinitionError for what is no age: one job has no count.
    """
    if completed is None and failed is None:
        return ""
    return f"{_age('keep_completed', completed)},{_age('keep_failed', failed)}"


def _age(option: str, value: Any) -> int | str:
    if value is None:
        return ""
    if isinstance(value, (str, timedelta)) or (type(value) is int and value == 0):
        return milliseconds(value, setting=option)
    raise DefinitionError(
        f'expected {option} of one job or flow to be 0 or an age such as "1 hour", got: {shown(value)}; '
        "a count is for an event, a workflow or a provider"
    )
