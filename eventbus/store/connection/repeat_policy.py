"""The decision after a failed try of a call: send it again, send it in another form, or raise an error.

    FUNCTION -- not known --------------------> LoadLibrary, and then the same again: once between two pauses
             -- refused before it began ------> DIGEST; for good (`is_lasting`) where the server
                                                has no functions, or keeps this user from them
    DIGEST   -- not known --------------------> SOURCE

A server refuses a function before it begins for what a script would be refused for at its first write at the
earliest: it is full, a replica, cannot save, or has too few replicas. Then the script decides, which may find
nothing to write.

A pure function: nothing here sends, waits, logs or asks for the time, so that every case has a test
without a server. Not here: the effects of a failed try on others (the server is away, its primary
moved). `retrying` takes care of these, and carries the decision out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

from eventbus.errors import StoreError, StoreRefused, StoreUnavailable
from eventbus.store.connection.invocation import Form
from eventbus.store.connection.translation import TRANSIENT

TOO_LATE = 0.05
"""Seconds before the deadline in which no further try begins."""
_BEFORE_IT_BEGINS = frozenset({"ERR", "MISCONF", "NOPERM", "NOREPLICAS", "OOM", "READONLY"})
_LASTING = frozenset({"ERR", "NOPERM"})
_BEGUN = "user_function"  # what servers say of an error inside a function names the place so


@dataclass(frozen=True, slots=True)
class SendAgain:
    """Send the same command again after a pause."""

    seconds: float


@dataclass(frozen=True, slots=True)
class SendAs:
    """Send the call in another form at once."""

    form: Form
    is_lasting: bool = False
    """Whether later calls of this connection need not try the form that was refused."""


@dataclass(frozen=True, slots=True)
class LoadLibrary:
    """Load the library of functions, and send the same command again at once."""


@dataclass(frozen=True, slots=True)
class OpenShard:
    """Open the shard and send the same command again, after a pause."""

    seconds: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Raise the error; there is no further try."""


Decision: TypeAlias = SendAgain | SendAs | LoadLibrary | OpenShard | GiveUp


def decide(
    error: StoreError,
    *,
    deadline: float | None,
    now: float,
    pause: float,
    form: Form,
    may_load: bool,
    is_closed: bool,
) -> Decision:
    """Return the next step for a call whose last try ended with `error`.

    `deadline` and `now` are monotonic seconds, `pause` the seconds that a `SendAgain` would take; `form` is
    how the call was sent; `may_load` tells whether the library was not loaded for it since the last pause;
    `is_closed` tells whether this side closed the channel.
    """
    if may_load and form is Form.FUNCTION and isinstance(error, StoreRefused) and error.code == "NOFUNCTION":
        return LoadLibrary()
    other = next_form(error, form)
    if other is not None:
        return other
    left = math.inf if deadline is None else deadline - now
    # The last pauses are shorter: who has a second left would otherwise be given up with that second unused.
    pause = pause if left > pause else left / 2
    if isinstance(error, StoreRefused) and error.code == "NOSHARD" and not is_closed:
        # The shard is not open: somebody emptied the server, or it is another one. Nothing was carried out.
        return GiveUp() if left <= TOO_LATE else OpenShard(pause)
    if not is_transient(error):
        # The server would refuse the same command again.
        return GiveUp()
    if is_closed:
        # The channel opens no further connection.
        return GiveUp()
    if left <= TOO_LATE:
        # The next try could not be answered in time: it would only make the outcome unknown.
        return GiveUp()
    # The connection was lost, or the server cannot serve now; both may pass.
    return SendAgain(pause)


def is_transient(error: StoreError) -> bool:
    """Return whether the same command may be answered later."""
    if isinstance(error, StoreUnavailable):
        return True
    return isinstance(error, StoreRefused) and error.code in TRANSIENT


def next_form(error: StoreError, form: Form) -> SendAs | None:
    """Return the form in which a refused call goes on, or None. Nothing of it was carried out then."""
    if not isinstance(error, StoreRefused):
        return None
    if form is Form.DIGEST and error.code == "NOSCRIPT":
        # A script cache is empty after a restart or a failover.
        return SendAs(Form.SOURCE)
    if form is not Form.FUNCTION:
        return None
    if error.code == "NOFUNCTION":
        return SendAs(Form.DIGEST)
    if error.code in _BEFORE_IT_BEGINS and _BEGUN not in str(error):
        return SendAs(Form.DIGEST, is_lasting=error.code in _LASTING)
    return None
