"""One connection that many callers share: commands go out as they come, answers return in order.

Not a pool: Redis answers one connection in the order of its commands, so a second one
would buy nothing but more sockets. What must hold:
- each call is answered exactly once: with the reply, or with an error;
- an error says whether the command may have been carried out (`sent`);
- a connection that owes an answer for longer than `answer_timeout` is given up, so a
  half-open one is noticed; callers hear `StoreUnavailable` and decide about repeating;
- the channel itself never repeats anything.

Crash windows: `lost-before-send` (connecting fails: sent is False), `lost-after-send` (the
connection ends while answers are owed: sent is True for all of them), `mute` (no answer
and no end: the watch gives up).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, cast

import hiredis

from eventbus.errors import StoreUnavailable
from eventbus.store.connection import Connector, translate
from eventbus.store.wire import Hearer, Wire

__all__ = ["Channel"]

_pack = cast("Callable[[tuple[str | bytes | float, ...]], bytes]", cast("Any", hiredis).pack_command)


class Channel:
    """Calls over one connection, opened at the first call and again after a loss."""

    def __init__(self, connector: Connector, *, name: str, answer_timeout: float, raw: bool = False) -> None:
        """`answer_timeout` in seconds; `raw` returns bytes instead of text."""
        self._connector = connector
        self._name = name
        self._answer_timeout = answer_timeout
        self._raw = raw
        self._wire: Wire | None = None
        self._opening: asyncio.Task[None] | None = None
        self._stay: asyncio.Task[None] | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def address(self) -> str:
        """Where the server is, without a password."""
        return self._connector.address

    @property
    def is_closed(self) -> bool:
        """Closed for good, by this side."""
        return self._closed

    @property
    def is_connected(self) -> bool:
        """Whether a connection is open now."""
        return self._wire is not None

    async def call(self, *command: str | bytes | float, deadline: float | None = None) -> Any:
        """Send one command and return its reply.

        Raises StoreUnavailable (its `sent` tells whether it may have been carried out), also
        at `deadline` (monotonic seconds), or StoreRefused. Neither that nor cancelling the
        caller takes a command back that was sent.
        """
        if self._wire is None:
            await self._within(deadline, self._open(), sent=False)
        future = self._send(command)
        if deadline is None:
            return await future
        return await self._within(deadline, future, sent=True)

    async def call_in_row(
        self, *commands: tuple[str | bytes | float, ...], deadline: float | None = None
    ) -> list[Any]:
        """Send commands over one connection with nothing between them; return a reply or StoreError for each.

        Raises as `call`. Once the connection is lost the rest is not sent and has no place in the list.
        """
        if self._wire is None:
            await self._within(deadline, self._open(), sent=False)
        futures: list[asyncio.Future[Any]] = []
        for command in commands:  # without an await in between, so it is one connection or none
            if not futures or self._wire is not None:
                futures.append(self._send(command))
        return await self._within(deadline, asyncio.gather(*futures, return_exceptions=True), sent=True)

    async def _within(self, deadline: float | None, waited: Awaitable[Any], *, sent: bool) -> Any:
        if deadline is None:
            return await waited
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                return await waited
        except TimeoutError as error:
            silence = "no answer in time" if sent else self._connector.silence
            raise translate(TimeoutError(silence), address=self._connector.address, sent=sent) from error

    def send(self, command: tuple[str | bytes | float, ...], hearer: Hearer) -> bool:
        """Send one command at once, and have `hearer` told its answer, or that the connection ended.

        False while no connection is open: then nothing was sent, and nothing will be told.
        """
        wire = self._wire
        if wire is None:
            return False
        wire.send(_pack(command), hearer)
        if self._watch is None and self._wire is wire:
            loop = asyncio.get_running_loop()
            self._watch = loop.call_later(self._answer_timeout, self._check_answers)
        return True

    def _send(self, command: tuple[str | bytes | float, ...]) -> asyncio.Future[Any]:
        """Send one command on the open connection; returns the future of its answer."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if not self.send(command, future):
            raise StoreUnavailable("the connection was lost before sending", address=self._connector.address)
        return future

    def drop(self, why: str) -> None:
        """Give the connection up; the next call opens a new one. Calls under way hear StoreUnavailable."""
        if self._wire is not None:
            self._wire.end(ConnectionResetError(why))

    async def aclose(self) -> None:
        """Close the connection; calls under way hear StoreUnavailable. Idempotent."""
        self._closed = True
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
        self.drop("closed by this side")
        if self._stay is not None:
            await asyncio.wait([self._stay])

    async def _open(self) -> None:
        """Open the connection once for all callers that wait for it."""
        if self._closed:
            raise StoreUnavailable("this connection is closed", address=self._connector.address)
        if self._opening is None:
            self._opening = asyncio.create_task(self._connect(), name=f"{self._name}-connect")
            self._opening.add_done_callback(_hear)  # all who wait for it may have gone
        try:
            await asyncio.shield(self._opening)
        except asyncio.CancelledError:
            if self._closed:
                raise StoreUnavailable("this connection is closed", address=self._connector.address) from None
            raise

    async def _connect(self) -> None:
        try:
            connection = await self._connector.open(name=self._name)
            wire = Wire(connection, address=self.address, raw=self._raw, on_end=self._on_end)
            self._wire = wire
            self._stay = asyncio.create_task(wire.stay(), name=f"{self._name}-connection")
            await wire.take_over()
        finally:
            self._opening = None

    def _on_end(self, wire: Wire) -> None:
        if wire is self._wire:
            self._wire = None
            if self._watch is not None:
                self._watch.cancel()
                self._watch = None

    def _check_answers(self) -> None:
        """The watch: one timer for the whole connection, alive while answers are owed."""
        self._watch = None
        wire = self._wire
        if wire is None or not wire.owed:
            return
        loop = asyncio.get_running_loop()
        left = wire.heard + self._answer_timeout - loop.time()
        if left > 0:
            self._watch = loop.call_later(left, self._check_answers)
            return
        wire.end(TimeoutError(f"no answer for {self._answer_timeout:g} s"))


def _hear(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()
