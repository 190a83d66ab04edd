"""The decision after a failed try of a call: send it again, send the whole script, or raise an error.

A pure function: nothing here sends, waits, logs or asks for the time, so that every case has a test
without a server. Not here: the effects of a failed try on others (the server is away, its primary
moved). `retrying` takes care of these, and carries the decision out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from eventbus.errors import StoreError, StoreRefused, StoreUnavailable
from eventbus.store.connection.connector import TRANSIENT

__all__ = ["Command", "Decision", "GiveUp", "OpenShard", "SendWhole", "Wait", "decide", "is_transient"]

Command: TypeAlias = tuple[str | bytes | float, ...]


@dataclass(frozen=True, slots=True)
class Wait:
    """Send the same command again after a pause."""

    seconds: float


@dataclass(frozen=True, slots=True)
class SendWhole:
    """Send `command` at once; it has the script's source in place of its digest."""

    command: Command


@dataclass(frozen=True, slots=True)
class OpenShard:
    """Open the shard and send the same command again, after a pause."""

    seconds: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Raise the error; there is no further try."""


Decision: TypeAlias = Wait | SendWhole | OpenShard | GiveUp


def decide(
    error: StoreError,
    *,
    deadline: float | None,
    now: float,
    pause: float,
    whole: Command | None,
    is_closed: bool,
) -> Decision:
    """Return the next step for a call whose last try ended with `error`.

    `deadline` and `now` are monotonic seconds, `pause` the seconds that a Wait would take; `whole`
    is the command that may still replace one that names its script by digest; `is_closed` tells
    whether this side closed the channel.
    """
    if whole is not None and isinstance(error, StoreRefused) and error.code == "NOSCRIPT":
        # A script cache is empty after a restart or a failover. Nothing was carried out.
        return SendWhole(whole)
    if isinstance(error, StoreRefused) and error.code == "NOSHARD" and not is_closed:
        # The shard is not open: somebody emptied the server, or it is another one. Nothing was carried out.
        is_late = deadline is not None and deadline - now <= pause
        return GiveUp() if is_late else OpenShard(pause)
    if not is_transient(error):
        # The server would refuse the same command again.
        return GiveUp()
    if is_closed:
        # The channel opens no further connection.
        return GiveUp()
    if deadline is not None and deadline - now <= pause:
        # The next try could not be answered in time: it would only make the outcome unknown.
        return GiveUp()
    # The connection was lost, or the server cannot serve now; both may pass.
    return Wait(pause)


def is_transient(error: StoreError) -> bool:
    """Return whether the same command may be answered later."""
    if isinstance(error, StoreUnavailable):
        return True
    return isinstance(error, StoreRefused) and error.code in TRANSIENT
