"""Calls that count only once a replica has what they wrote: `durability="replicated"`.

A replica takes the primary's writes as one stream, in their order, and acknowledges a place in
it. `WAIT 1 <ms>` answers how many replicas acknowledged the last write *of its own connection*.
So a call is three commands in a row over one connection, and none of them counts without the
others:

    the call            an add, which may be repeated: it then writes nothing
    SET touch           always a write, and later in the stream than all that the call relies on
    WAIT 1 <ms>         0: not acknowledged; the caller repeats all three until its deadline

What must hold: a reply is handed on only after a replica acknowledged a place in the stream at
or behind the write that it speaks of, on the server that carried it out.

Crash windows:
    primary-dies-early      before a replica has the add: nobody was told that it is enqueued. The
                            repeat meets the new primary, which does not know the ids: it adds them
    primary-dies-late       after the acknowledgement, before it is heard: the new primary knows the
                            ids, the repeat changes nothing
    repeat-writes-nothing   the connection was lost after the add, and the repeat finds its ids. A
                            WAIT alone would look at a connection without a write, and answer at
                            once, though the first add may be nowhere else: hence the touch
    other-server            the connection is lost between add and WAIT, and the name leads to another
                            server by now: its WAIT would say nothing about the add. All three go
                            over one connection or fail as one
    replica-behind          paused, far away, or busy with its first copy: WAIT ends with 0, the next
                            one is given longer
    replica-gone            the same without end: past the deadline the emission's `enqueued` is None,
                            for the primary has it
    replica-not-chosen      several replicas, and one that lags is made primary: not covered. Who
                            fails over must choose the one that is furthest, as Sentinel does
    two-primaries           a primary cut off together with a replica goes on acknowledging what is
                            thrown away when it returns: not covered here (`min-replicas-to-write`)

Settles do not wait: an outcome may be told and lost with the primary. Its job is then open on the
new one and runs again, as it may after any crash; waiting would put a replica's round trip into
every job, to spare a repeat that handlers must bear anyway.

A WAIT holds up what is behind it on its connection, which workers share. So there is one at a
time, no longer than a replica lately took (at most 1 s), and after one in vain the connection is
free for as long as that took. Not taken: a connection of its own, which would be a fifth.
"""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any

from eventbus.errors import StoreError, StoreUnavailable
from eventbus.logs import get_logger
from eventbus.store.channel import Channel

__all__ = ["ReplicatedChannel", "warn_without_replica"]

_log = get_logger("eventbus.store")

_FIRST_WAIT, _LAST_WAIT = 0.05, 1.0
_TOUCH_SECONDS = 600


class ReplicatedChannel:
    """A channel, as callers use it, whose replies wait for a replica."""

    def __init__(self, channel: Channel, *, touch: str) -> None:
        """`touch` is the key that is written after each call."""
        self._channel = channel
        self._touch = ("SET", touch, "", "EX", _TOUCH_SECONDS)
        self._turn = asyncio.Lock()
        self._wait = _FIRST_WAIT
        self._rest_until = 0.0

    @property
    def address(self) -> str:
        """Where the server is, without a password."""
        return self._channel.address

    @property
    def is_closed(self) -> bool:
        """Closed for good, by this side."""
        return self._channel.is_closed

    def drop(self, why: str) -> None:
        """Give the connection up; the next call opens a new one."""
        self._channel.drop(why)

    async def check_rights(self, *, deadline: float | None) -> None:
        """Raise StoreRefused if this user may not do what waiting for a replica takes."""
        for answer in await self._channel.call_in_row(self._touch, ("WAIT", 0, 1), deadline=deadline):
            if isinstance(answer, BaseException):
                raise answer

    async def call(self, *command: str | bytes | float, deadline: float | None = None) -> Any:
        """Send one command; return its reply once a replica has what it wrote.

        One try. Raises StoreUnavailable (with `sent`) when none acknowledged it; else as the channel.
        """
        try:
            async with asyncio.timeout(None if deadline is None else deadline - time.monotonic()):
                await self._turn.acquire()
        except TimeoutError as error:
            raise self._unheard("what was sent before") from error
        try:
            await asyncio.sleep(min(_left(deadline), self._rest_until - time.monotonic()))
            return await self._call(command, deadline)
        finally:
            self._turn.release()

    async def _call(self, command: tuple[str | bytes | float, ...], deadline: float | None) -> Any:
        # It ends before the deadline does: that no replica answered says more than a late answer.
        wait = max(0.001, min(self._wait, 0.8 * _left(deadline)))
        began = time.monotonic()
        reply, *others = await self._channel.call_in_row(
            command, self._touch, ("WAIT", 1, math.ceil(wait * 1000)), deadline=deadline
        )
        if isinstance(reply, BaseException):
            raise reply  # nothing was done, or it is not known: the caller repeats or gives up
        took = time.monotonic() - began
        refused = next((each for each in others if isinstance(each, StoreError)), None)
        if refused is None and others[-1] >= 1:
            self._wait = min(max(_FIRST_WAIT, 4 * took), _LAST_WAIT)
            return reply
        self._wait = min(2 * self._wait, _LAST_WAIT)
        self._rest_until = time.monotonic() + took
        raise self._unheard("this", sent=True) from refused

    def _unheard(self, what: str, *, sent: bool = False) -> StoreUnavailable:
        return StoreUnavailable(
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
    return math.inf if deadline is None else max(0.0, deadline - time.monotonic())
