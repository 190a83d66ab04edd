"""The server functions of one connection: whether calls use them, and the loading of their library.

    used -- the server or the rights of the user refuse them --> unused (for the life of the connection)
         -- the library cannot be loaded now ----------------> resting (`_REST`) --> used

A call that is not `used` is sent by its digest. So nobody notices what is refused here: a server before Redis
7.0, one that forbids functions, a user without `fcall` or `function|load`, a server that is full or cannot
save. It is a line of debug in the log. With `scripting="functions"` a refusal is raised.

What must always hold: a caller that loads gets the library or an error of its own; several callers at once
load it once; and no call waits here longer than for its own deadline.

Crash windows:
    library-lost        the server came back empty, or somebody flushed or deleted the library. A call
                        is refused, and the library is loaded again. A server that restarts or fails
                        over keeps it, as it keeps keys
    loaded-by-another   the server says that it has the library: that is as good
    load-not-answered   the connection is lost: the call goes on as after any loss, and asks for its
                        function again

A library stays in the server when its release is gone. Whoever loads one and finds more than `_MOST` of them
removes all others, in whatever release they belong: a release that lives gets its own back by its next call.
So at most that many pile up; and as long as fewer releases live side by side none takes the library of
another one away. Rejected: a list of who uses which library, with a time for each. It would be right to the
day, and a write of each worker for ever. Without the rights `function|list` and `function|delete` nothing is
removed.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any, Literal, TypeAlias

from eventbus.errors import StoreError, StoreRefused, StoreUnavailable
from eventbus.model import clock
from eventbus.store.connection.channel import Channel
from eventbus.store.connection.invocation import Form
from eventbus.store.connection.repeat_policy import next_form
from eventbus.store.scripting.library import PREFIX, load_library
from eventbus.telemetry.logging import get_logger

Scripting: TypeAlias = Literal["auto", "functions", "eval"]
"""How scripts run: as functions where that is possible, as functions or not at all, or never as functions."""

_log = get_logger("eventbus.store")

_OURS = re.compile(rf"{PREFIX}[0-9a-f]{{16}}")
_MOST = 8
"""Libraries of this product in one server."""
_REST = 30.0
"""Seconds until a library that could not be loaded is tried again."""


class Functions:
    """Whether the calls over one channel use functions."""

    def __init__(self, channel: Channel, scripting: Scripting = "auto") -> None:
        self._channel = channel
        self._scripting = scripting
        self._unused_on = -1
        """The number of the connection that calls no functions."""
        self._rests_until = 0.0
        self._lock = asyncio.Lock()
        self.loads: int = 0
        """Libraries loaded since the start."""

    @property
    def is_forced(self) -> bool:
        """Whether a refusal of functions is an error."""
        return self._scripting == "functions"

    @property
    def form(self) -> Form:
        """The form in which a call of a script begins."""
        channel = self._channel
        if self._scripting == "eval" or (channel.connections == self._unused_on and channel.is_connected):
            return Form.DIGEST
        if self._rests_until and clock.monotonic() < self._rests_until:
            return Form.DIGEST
        return Form.FUNCTION

    def refuse(self, error: StoreError) -> None:
        """Call no functions over this connection any more."""
        if self._unused_on != self._channel.connections:
            self._unused_on = self._channel.connections
            _log.debug("scripts run without functions", address=self._channel.address, error=str(error))

    async def load(self, *, deadline: float | None) -> None:
        """Load the library, unless another call does so meanwhile. Raises StoreRefused or
        StoreUnavailable.
        """
        loads = self.loads
        left = None if deadline is None else deadline - clock.monotonic()
        try:
            async with asyncio.timeout(left), self._lock:
                if self.loads != loads:
                    return
                if self.form is not Form.FUNCTION:  # refused while this call waited
                    raise StoreRefused("the library of functions is not loaded", code="NOFUNCTION")
                await self._load(deadline)
        except TimeoutError as error:
            raise StoreUnavailable("no answer in time", address=self._channel.address) from error

    async def _load(self, deadline: float | None) -> None:
        try:
            await self._channel.call("FUNCTION", "LOAD", load_library().source, deadline=deadline)
        except StoreRefused as error:
            if "already exists" not in str(error):
                other = next_form(error, Form.FUNCTION)
                if not self.is_forced and not (other is not None and other.is_lasting):
                    self._rests_until = clock.monotonic() + _REST
                raise
        except StoreUnavailable as error:  # whatever became of it: the call itself was not carried out
            raise StoreUnavailable(str(error), address=self._channel.address) from error
        self.loads += 1
        self._rests_until = 0.0
        await self._remove_old(deadline)

    async def _remove_old(self, deadline: float | None) -> None:
        try:
            listed: list[list[Any]] = await self._channel.call(
                "FUNCTION", "LIST", "LIBRARYNAME", f"{PREFIX}*", deadline=deadline
            )
            names = [each[1] for each in listed if _OURS.fullmatch(each[1])]
            for name in names if len(names) > _MOST else ():
                if name != load_library().name:
                    await self._channel.call("FUNCTION", "DELETE", name, deadline=deadline)
        except StoreError as error:
            _log.debug("old libraries of functions are kept", address=self._channel.address, error=str(error))
