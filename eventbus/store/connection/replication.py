"""Calls whose replies wait until a replica has their writes: `durability="replicated"`.

A replica receives the primary's writes as one stream, in order, and acknowledges its position in the
stream. `WAIT 1 <ms>` returns how many replicas acknowledged the last write *of its own connection*.
So a call is three commands in a row over one connection, and none of them counts without the others:

    the call            an add; a repeated add writes nothing
    SET touch           always a write, and later in the stream than every write that the call relies on
    WAIT 1 <ms>         0: no replica acknowledged; the caller repeats all three until its deadline

What must always hold: a reply is handed on only after a replica acknowledged a position in the stream at or
behind the write that the reply reports, on the server that carried out this write.

Crash windows:
    primary-dies-early      before a replica has the add: no caller was told that it is enqueued. The
                            repeat reaches the new primary, which does not know the ids and adds them
    primary-dies-late       after the acknowledgement, before the caller gets it: the new primary knows
                            the ids, and the repeat changes nothing
    repeat-writes-nothing   the connection was lost after the add, and the repeat finds the ids. A WAIT
                            alone would look at a connection without a write and answer at once,
                            although no replica may have the first add: hence the touch
    other-server            the connection is lost between add and WAIT, and the host name now leads to
                            another server, whose WAIT would say nothing about the add. All three
                            commands go over one connection, or fail together
    replica-behind          the replica is paused, far away, or busy with its first copy: WAIT returns
                            0, and the next WAIT gets more time
    replica-gone            the replica stays away: past the deadline the emission's `enqueued` is None,
                            because the primary has the emission
    replica-not-chosen      of several replicas, one that lags becomes the primary: not covered. The
                            failover must choose the most advanced replica, as Sentinel does
    two-primaries           a primary that is cut off together with a replica goes on acknowledging
                            writes that are discarded when it returns: not covered here, but by
                            `min-replicas-to-write`

Settles do not wait. A job's outcome may be reported and then lost with the primary: the job is open on
the new primary and runs again, as it may after any crash. To wait would add a round trip to the replica
to every job, only to spare a repeat that handlers must tolerate anyway.

A WAIT holds up the commands behind it on its connection, which workers share. So there is one WAIT at a
time, with a limit that follows how long replicas took lately (0.05 to 1 s). After a WAIT in vain the
next call pauses for as long as this WAIT took, so that other commands can pass. Rejected: a separate
connection, which would be the fifth of a provider.
"""

from __future__ import annotations

import asyncio
import math
from typing import Any

from eventbus.errors import StoreError, StoreRefused, StoreUnavailable
from eventbus.model import clock
from eventbus.store.connection.channel import Channel
from eventbus.telemetry.logging import get_logger

_log = get_logger("eventbus.store")

_FIRST_WAIT, _LAST_WAIT = 0.05, 1.0  # seconds
_TOUCH_SECONDS = 600  # the key goes by itself once nobody writes it any more


class NoReplica(StoreUnavailable):
    """No replica acknowledged in time: of this call, which the server answered (`sent`), or of one
    before it.
    """


class ReplicatedChannel:
    """A channel whose replies wait for a replica. It has the methods of `Channel` that callers use."""

    def __init__(self, channel: Channel, *, touch: str) -> None:
        """Write the key `touch` after each call."""
        self._channel = channel
        self._touch = ("SET", touch, "", "EX", _TOUCH_SECONDS)
        self._lock = asyncio.Lock()  # one WAIT at a time
        self._wait = _FIRST_WAIT
        self._rest_until = 0.0

    @property
    def address(self) -> str:
        """The server's address, without a password."""
        return self._channel.address

    @property
    def is_closed(self) -> bool:
        """Whether this side closed the channel, which is final."""
        return self._channel.is_closed

    def drop(self, why: str) -> None:
        """Give the connection up; the next call opens a new one."""
        self._channel.drop(why)

    async def check_rights(self, *, deadline: float | None) -> None:
        """Raise StoreRefused if this user lacks a right that waiting for a replica needs."""
        for answer in await self._channel.call_in_row(self._touch, ("WAIT", 0, 1), deadline=deadline):
            # A full server refuses the write, as it refuses each emission; no right is missing.
            is_full = isinstance(answer, StoreRefused) and answer.code == "OOM"
            if isinstance(answer, BaseException) and not is_full:
                raise answer

    @property
    def is_connected(self) -> bool:
        """Whether a connection is open now."""
        return self._channel.is_connected

    async def call(self, *command: str | bytes | float, deadline: float | None = None) -> Any:
        """Send one command, and return its reply once a replica has its writes. Tries once.

        Raises StoreUnavailable (with `sent`) if no replica acknowledged them; otherwise as `Channel.call`.
        """
        try:
            async with asyncio.timeout(None if deadline is None else deadline - clock.monotonic()):
                await self._lock.acquire()
        except TimeoutError as error:
            raise self._unheard("what was sent before") from error
        try:
            await asyncio.sleep(min(_left(deadline), self._rest_until - clock.monotonic()))
            return await self._call(command, deadline)
        finally:
            self._lock.release()

    async def _call(self, command: tuple[str | bytes | float, ...], deadline: float | None) -> Any:
        # WAIT ends before the deadline, because "no replica" tells the user more than "no answer in time".
        wait = max(0.001, min(self._wait, 0.8 * _left(deadline)))
        began = clock.monotonic()
        reply, *others = await self._channel.call_in_row(
            command, self._touch, ("WAIT", 1, math.ceil(wait * 1000)), deadline=deadline
        )
        if isinstance(reply, BaseException):
            raise reply  # the call was refused, or its answer was lost: the caller repeats or gives up
        took = clock.monotonic() - began
        refused = next((answer for answer in others if isinstance(answer, StoreError)), None)
        if isinstance(refused, StoreUnavailable):
            # The connection was lost behind the call: nothing is known of replicas, and the call may have
            # been carried out.
            raise StoreUnavailable(str(refused), address=self.address, sent=True) from refused
        if refused is None and others[-1] >= 1:
            self._wait = min(max(_FIRST_WAIT, 4 * took), _LAST_WAIT)
            return reply
        self._wait = min(2 * self._wait, _LAST_WAIT)
        self._rest_until = clock.monotonic() + took
        raise self._unheard("this", sent=True) from refused

    def _unheard(self, what: str, *, sent: bool = False) -> NoReplica:
        return NoReplica(
            f"no replica of the server at {self.address} acknowledged {what} in time; look whether one is "
            "connected (INFO replication)",
            address=self.address,
            sent=sent,
        )


def warn_without_replica(facts: dict[str, str], address: str) -> None:
    """Log a warning if the primary, by its INFO, has no replica now."""
    if facts.get("connected_slaves", "0") == "0":
        _log.warning(
            "no replica is connected, emissions wait for one",
            address=address,
            remedy='start one with `replicaof`, or use durability="default"',
        )


def _left(deadline: float | None) -> float:
    return math.inf if deadline is None else max(0.0, deadline - clock.monotonic())
