"""The wire: one open connection, from bytes to answers, in the order of the commands.

redis-py connects (TCP, socket or TLS, password, database, name); from then on the
transport's bytes come here, without its reader's tasks and timeouts for each answer.
What must hold:
- each answer goes to the one who waited longest, at once, inside the loop's read callback;
- who hears an answer may send, drop or close right there; what he raises harms nobody else;
- a wire ends once, and then tells all whom it owes an answer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import hiredis

from eventbus.errors import StoreError
from eventbus.logs import get_logger
from eventbus.store.connection import refusal, translate

__all__ = ["Hearer", "Wire"]

_log = get_logger("eventbus.store")

_NOTHING = object()


class _Refusal:
    """An error that the server answered, as it came."""

    __slots__ = ("line",)

    def __init__(self, line: str) -> None:
        self.line = line


class Hearer(Protocol):
    """Who waits for one answer; a future is one."""

    def done(self) -> bool:
        """Whether nobody waits any more."""
        ...

    def set_result(self, result: Any, /) -> None:
        """The answer came."""
        ...

    def set_exception(self, exception: StoreError, /) -> None:
        """The server refused, or the connection ended first."""
        ...


class Wire(asyncio.Protocol):
    """One connection that redis-py opened and this took over."""

    def __init__(self, connection: Any, *, address: str, raw: bool, on_end: Callable[[Wire], None]) -> None:
        """`raw` answers bytes instead of text; `on_end` is called once, when it ends."""
        self.owed: deque[Hearer] = deque()
        self.heard = 0.0
        """When the server last said something, or was first asked; the loop's time."""
        self._gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._connection = connection  # while it lives it keeps the transport open
        self._transport: asyncio.Transport = connection._writer.transport  # noqa: SLF001  (no public way)
        self._address = address
        self._on_end = on_end
        self._has_ended = False
        self._now = asyncio.get_running_loop().time
        text = {} if raw else {"encoding": "utf-8", "errors": "surrogateescape"}
        self._reader = hiredis.Reader(replyError=_Refusal, notEnoughData=_NOTHING, **text)  # pyright: ignore[reportArgumentType]  (any value will do)

    async def take_over(self) -> None:
        """Receive from here on what the transport receives. May end at once."""
        before: asyncio.StreamReader = self._connection._reader  # noqa: SLF001
        is_over = before.at_eof()
        self._transport.set_protocol(self)
        before.feed_eof()
        rest = await before.read()  # what came since the last answer of the handshake
        if rest:
            self.data_received(rest)
        if is_over:
            self.eof_received()

    async def stay(self) -> None:
        """Wait until the transport is closed. Cancelling this ends the connection.

        So it does not outlive a loop that ends without us: its end cancels tasks, not transports.
        """
        try:
            await self._gone
        finally:
            self.end(ConnectionResetError("the event loop ended"))

    def send(self, packed: bytes, hearer: Hearer) -> None:
        """Send one packed command; `hearer` is told its answer, once.

        Nothing waits for the buffer to drain: callers have few calls under way, each
        bounded in bytes.
        """
        if not self.owed:
            self.heard = self._now()
        self.owed.append(hearer)
        try:
            self._transport.write(packed)
        except (OSError, RuntimeError) as error:
            self.end(error)

    def end(self, error: BaseException) -> None:
        """Give the connection up and tell everybody who waits for it. Idempotent."""
        if self._has_ended:
            return
        self._has_ended = True
        # Not close(): that waits for bytes which a dead server never takes.
        self._transport.abort()
        self._connection._writer = self._connection._reader = None  # noqa: SLF001
        owed, self.owed = self.owed, deque()
        self._on_end(self)
        told = translate(error, address=self._address, sent=True)
        told.sent = True
        for hearer in owed:
            self._tell(hearer, told)

    # What the event loop calls.

    def data_received(self, data: bytes) -> None:
        """Bytes came: hand out the answers in them."""
        if self._has_ended:
            return
        self.heard = self._now()
        gets = self._reader.gets
        try:
            self._reader.feed(data)
            while (reply := gets()) is not _NOTHING:
                if not self.owed:
                    raise hiredis.ProtocolError("an answer that nobody asked for")
                self._tell(self.owed.popleft(), reply)
                if self._has_ended:
                    return
        except Exception as error:  # noqa: BLE001  (callers must hear of it)
            self.end(error)

    def eof_received(self) -> None:
        """The server will say nothing more."""
        self.end(ConnectionResetError("the server closed the connection"))

    def connection_lost(self, exc: Exception | None) -> None:
        """The transport is closed."""
        self.end(exc or ConnectionResetError("the server closed the connection"))
        if not self._gone.done():
            self._gone.set_result(None)

    def _tell(self, hearer: Hearer, reply: Any) -> None:
        if hearer.done():
            return
        try:
            if type(reply) is _Refusal:
                hearer.set_exception(refusal(reply.line, address=self._address))
            elif isinstance(reply, StoreError):
                hearer.set_exception(reply)
            else:
                hearer.set_result(reply)
        except Exception:  # noqa: BLE001  (the next answer is somebody else's)
            _log.exception("an answer of the server was not taken")
