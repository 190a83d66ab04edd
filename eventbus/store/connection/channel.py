"""One connection that many callers share: commands are sent at once, answers return in their order.

Not a pool: Redis answers the commands of a connection in order, so that a second connection would
only cost another socket.

What must always hold:
- each call ends exactly once: with the reply, or with an error;
- an error says whether the command may have been carried out (`sent`);
- a connection that owes an answer for longer than `answer_timeout` is given up, so that a half-open
  connection is noticed; its callers get StoreUnavailable and decide whether to repeat;
- the channel itself never repeats a command.

Crash windows:
    lost-before-send    connecting fails: `sent` is False
    lost-after-send     the connection ends while answers are owed: `sent` is True for all of them
    mute                the server neither answers nor ends the connection: the watch gives it up
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

from eventbus.errors import StoreUnavailable
from eventbus.model import clock
from eventbus.runtime.clean_up import run_to_end
from eventbus.runtime.own_context import own_context
from eventbus.store.connection.connector import Connector
from eventbus.store.connection.translation import translate
from eventbus.store.connection.wire import ReplySink, Wire


class Channel:
    """Calls over one connection, opened at the first call and again after a loss."""

    def __init__(self, connector: Connector, *, name: str, answer_timeout: float, raw: bool = False) -> None:
        """`answer_timeout` is in seconds. With `raw`, replies are bytes instead of text."""
        self.connector = connector
        self._name = name
        self._answer_timeout = answer_timeout
        self._raw = raw
        self._wire: Wire | None = None
        self._opening: asyncio.Task[None] | None = None
        self._stay: asyncio.Task[None] | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._closed = False
        self._context = own_context()
        self.connections: int = 0
        """How many connections were opened so far. Another one may lead to another server."""

    @property
    def address(self) -> str:
        """The server's address, without a password."""
        return self.connector.address

    @property
    def is_closed(self) -> bool:
        """Whether this side closed the channel, which is final."""
        return self._closed

    @property
    def is_connected(self) -> bool:
        """Whether a connection is open now."""
        return self._wire is not None

    async def call(self, *command: str | bytes | float, deadline: float | None = None) -> Any:
        """Send one command and return its reply.

        Raises StoreRefused, or StoreUnavailable, also at `deadline` (monotonic seconds); its `sent` says
        whether the command may have been carried out. Neither the deadline nor a cancelled caller takes
        back a command that was sent.
        """
        if not self.is_connected:
            await self._within(deadline, self._open(), sent=False)
        future = self._send(command)
        if deadline is None:
            return await future
        return await self._within(deadline, future, sent=True)

    async def call_in_row(
        self, *commands: tuple[str | bytes | float, ...], deadline: float | None = None
    ) -> list[Any]:
        """Send commands over one connection, with no other command between them.

        Return a reply or a StoreError for each command. Raises as `call`. Once the connection is lost, the
        remaining commands are not sent and have no place in the list.
        """
        if not self.is_connected:
            await self._within(deadline, self._open(), sent=False)
        futures: list[asyncio.Future[Any]] = []
        for command in commands:  # no await in between: other callers' commands stay out
            if not futures or self.is_connected:
                futures.append(self._send(command))
        return await self._within(deadline, asyncio.gather(*futures, return_exceptions=True), sent=True)

    async def _within(self, deadline: float | None, waited: Awaitable[Any], *, sent: bool) -> Any:
        if deadline is None:
            return await waited
        try:
            async with asyncio.timeout(deadline - clock.monotonic()):
                return await waited
        except TimeoutError as error:
            silence = "no answer in time" if sent else self.connector.silence
            raise translate(TimeoutError(silence), address=self.connector.address, sent=sent) from error

    def send(self, command: tuple[str | bytes | float, ...], sink: ReplySink) -> bool:
        """Send one command at once; `sink` gets its answer, or the error with which the connection ended.

        Return False if no connection is open: then nothing was sent, and `sink` gets nothing.
        """
        wire = self._wire
        if wire is None:
            return False
        wire.send(command, sink)  # may end the connection: then `sink` has its error already
        if self._watch is None and wire.is_watched and self._wire is wire:
            loop = asyncio.get_running_loop()
            self._watch = loop.call_later(self._answer_timeout, self._check_answers, context=self._context)
        return True

    def _send(self, command: tuple[str | bytes | float, ...]) -> asyncio.Future[Any]:
        """Send one command on the open connection, and return the future of its answer."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if not self.send(command, future):
            raise StoreUnavailable("the connection was lost before sending", address=self.connector.address)
        return future

    def drop(self, why: str) -> None:
        """Give the connection up; calls under way get StoreUnavailable, and the next call opens a new one."""
        if self._wire is not None:
            self._wire.end(ConnectionResetError(why))

    async def aclose(self) -> None:
        """Close the connection; calls under way get StoreUnavailable. Idempotent."""
        self._closed = True
        await run_to_end(self._close(), self._name)

    async def _close(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
        self.drop("closed by this side")
        if self._stay is not None:
            await asyncio.wait([self._stay])

    def begin_opening(self) -> asyncio.Task[None]:
        """Return the task that opens the connection, one for all callers. Raises StoreUnavailable once
        closed.

        A caller that stops waiting must not cancel it.
        """
        if self._closed:
            raise StoreUnavailable("this connection is closed", address=self.connector.address)
        if self._opening is None:
            self._opening = asyncio.create_task(
                self._connect(), name=f"{self._name}-connect", context=self._context.copy()
            )
            # All callers may have given up meanwhile.
            self._opening.add_done_callback(_hear, context=self._context)
        return self._opening

    async def _open(self) -> None:
        """Open the connection, once for all callers that wait for it."""
        try:
            await asyncio.shield(self.begin_opening())  # a caller that is cancelled must not fail the others
        except asyncio.CancelledError:
            if self._closed:  # `aclose` cancelled the opening; its caller may live on
                raise StoreUnavailable("this connection is closed", address=self.connector.address) from None
            raise

    async def _connect(self) -> None:
        try:
            wire = await self.connector.open_wire(name=self._name, raw=self._raw, on_end=self._on_end)
            self._wire = wire
            self.connections += 1
            self._stay = asyncio.create_task(wire.stay(), name=f"{self._name}-connection")
            await wire.take_over()
        finally:
            self._opening = None

    def _on_end(self, wire: Wire) -> None:
        if wire is self._wire:  # an earlier connection may end only now
            self._wire = None
            if self._watch is not None:
                self._watch.cancel()
                self._watch = None

    def _check_answers(self) -> None:
        """Give up a connection that owes an answer for too long. One timer watches for all owed answers."""
        self._watch = None
        wire = self._wire
        if wire is None or not wire.owed:
            return
        loop = asyncio.get_running_loop()
        left = wire.heard + self._answer_timeout - loop.time()
        if left > 0:
            self._watch = loop.call_later(left, self._check_answers, context=self._context)
            return
        wire.end(TimeoutError(f"no answer for {self._answer_timeout:g} s"))


def _hear(task: asyncio.Task[None]) -> None:
    """Retrieve the task's exception, so that asyncio does not log it as never retrieved."""
    if not task.cancelled():
        task.exception()
