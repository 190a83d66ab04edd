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
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import redis.exceptions as foreign

from eventbus.errors import StoreError, StoreUnavailable
from eventbus.store.connection import Connector, translate

__all__ = ["Channel"]


class Channel:
    """Calls over one connection, opened at the first call and again after a loss."""

    def __init__(self, connector: Connector, *, name: str, answer_timeout: float, raw: bool = False) -> None:
        """`answer_timeout` in seconds; `raw` returns bytes instead of text."""
        self._connector = connector
        self._name = name
        self._answer_timeout = answer_timeout
        self._raw = raw
        self._connection: Any = None
        self._opening: asyncio.Task[None] | None = None
        self._reader: asyncio.Task[None] | None = None
        self._owed: deque[asyncio.Future[Any]] = deque()
        self._watch: asyncio.TimerHandle | None = None
        self._last_answer = 0.0
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
        return self._connection is not None

    async def call(self, *command: str | bytes | float, deadline: float | None = None) -> Any:
        """Send one command and return its reply.

        Raises StoreUnavailable (its `sent` tells whether it may have been carried out), also
        at `deadline` (monotonic seconds), or StoreRefused. Neither that nor cancelling the
        caller takes a command back that was sent.
        """
        if self._connection is None:
            await self._within(deadline, self._open(), sent=False)
        future = self._send(command)
        if deadline is None:
            return await future
        return await self._within(deadline, future, sent=True)

    async def _within(self, deadline: float | None, waited: Awaitable[Any], *, sent: bool) -> Any:
        if deadline is None:
            return await waited
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                return await waited
        except TimeoutError as error:
            raise translate(
                TimeoutError("no answer in time"), address=self._connector.address, sent=sent
            ) from error

    def _send(self, command: tuple[str | bytes | float, ...]) -> asyncio.Future[Any]:
        """Send one command on the open connection; returns the future of its answer.

        Written to the transport directly: redis-py's own way would connect again by itself, and
        close the connection of all when one caller is cancelled. Nothing waits for the buffer
        to drain: callers have few calls under way, each bounded in bytes.
        """
        connection = self._connection
        if connection is None or connection._writer is None:
            raise StoreUnavailable("the connection was lost before sending", address=self._connector.address)
        writer = connection._writer
        packed = connection.pack_command(*command)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        if not self._owed:
            self._last_answer = loop.time()
        self._owed.append(future)
        if self._watch is None:
            self._watch = loop.call_later(self._answer_timeout, self._check_answers)
        try:
            writer.writelines(packed)
        except (OSError, RuntimeError) as error:
            self._lose(connection, error)
        return future

    def drop(self, why: str) -> None:
        """Give the connection up; the next call opens a new one. Calls under way hear StoreUnavailable."""
        self._lose(self._connection, ConnectionResetError(why))

    async def aclose(self) -> None:
        """Close the connection; calls under way hear StoreUnavailable. Idempotent."""
        self._closed = True
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
        connection, reader = self._connection, self._reader
        self._lose(connection, ConnectionResetError("closed by this side"))
        if reader is not None:
            await asyncio.wait([reader])
        if connection is not None:
            await connection.disconnect(nowait=True)

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
            self._connection = connection
            self._reader = asyncio.create_task(self._read(connection), name=f"{self._name}-read")
        finally:
            self._opening = None

    async def _read(self, connection: Any) -> None:
        loop = asyncio.get_running_loop()
        read: Callable[..., Awaitable[Any]] = connection.read_response
        while True:
            reply: Any = None
            refusal: StoreError | None = None
            try:
                reply = await read(disable_decoding=self._raw, disconnect_on_error=False)
            except foreign.ConnectionError as error:
                # redis-py files some refusals (LOADING) under its connection errors.
                self._lose(connection, error)
                return
            except foreign.ResponseError as error:
                refusal = translate(error, address=self._connector.address, sent=True)
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  (callers must hear of it)
                self._lose(connection, error)
                return
            self._last_answer = loop.time()
            if connection is not self._connection:
                return
            if not self._owed:
                self._lose(connection, foreign.InvalidResponse("an answer that nobody asked for"))
                return
            future = self._owed.popleft()
            if future.done():
                continue
            if refusal is not None:
                future.set_exception(refusal)
            else:
                future.set_result(reply)

    def _lose(self, connection: Any, error: BaseException) -> None:
        """Give the connection up and tell everybody who waits for it. Idempotent."""
        if connection is None or connection is not self._connection:
            return
        self._connection = None
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        if self._reader is not None and self._reader is not asyncio.current_task():
            self._reader.cancel()
        writer = connection._writer  # redis-py has no close that neither waits nor needs a task
        if writer is not None:
            writer.close()
            connection._writer = connection._reader = None
        owed, self._owed = self._owed, deque()
        for future in owed:
            if not future.done():
                future.set_exception(translate(error, address=self._connector.address, sent=True))

    def _check_answers(self) -> None:
        """The watch: one timer for the whole connection, alive while answers are owed."""
        self._watch = None
        if not self._owed or self._connection is None:
            return
        loop = asyncio.get_running_loop()
        left = self._last_answer + self._answer_timeout - loop.time()
        if left > 0:
            self._watch = loop.call_later(left, self._check_answers)
            return
        silence = TimeoutError(f"no answer for {self._answer_timeout:g} s")
        self._lose(self._connection, silence)


def _hear(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()
