"""The wire: one open connection, which turns bytes into answers in the order of the commands.

redis-py connects (TCP, socket or TLS, password, database, name). From then on the transport's bytes
come here, because redis-py's reader would cost a task and a timeout for each answer.

What must always hold:
- each answer goes to the sink that has waited longest, at once, inside the loop's read callback;
- a sink that gets an answer may send, drop or close right there; its exceptions affect no other sink;
- a wire ends once, and then each sink that still waits gets an error.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, cast

import hiredis

from eventbus.errors import StoreError
from eventbus.store.connection.translation import refusal, translate
from eventbus.telemetry.logging import get_logger

_log = get_logger("eventbus.store")

_NOTHING = object()
_pack = cast("Callable[[tuple[str | bytes | float, ...]], bytes]", cast("Any", hiredis).pack_command)


class Refusal:
    """An error that the server answered: its line, unchanged."""

    __slots__ = ("line",)

    def __init__(self, line: str) -> None:
        self.line: str = line


class ReplySink(Protocol):
    """The receiver of one answer; a future is one."""

    def done(self) -> bool:
        """Return whether the answer is no longer wanted."""
        ...

    def set_result(self, result: Any, /) -> None:
        """Take the answer."""
        ...

    def set_exception(self, exception: StoreError, /) -> None:
        """Take the error: the server refused, or the connection ended first."""
        ...


class Wire(asyncio.Protocol):
    """One connection that redis-py opened and that this object took over."""

    is_watched: bool = True
    """Whether an answer may be missing for ever, so that somebody has to watch for it."""

    def __init__(self, connection: Any, *, address: str, raw: bool, on_end: Callable[[Wire], None]) -> None:
        """With `raw`, answers are bytes instead of text. `on_end` is called once, when the wire ends."""
        self.owed: deque[ReplySink] = deque()
        self.heard: float = 0.0
        """When the server last sent bytes, or was asked while it owed nothing; the loop's time."""
        self._gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._connection = connection  # its destructor would close the transport
        self._transport: asyncio.Transport = connection._writer.transport  # noqa: SLF001  (no public way)
        self._address = address
        self._on_end = on_end
        self._has_ended = False
        self._now = asyncio.get_running_loop().time
        text = {} if raw else {"encoding": "utf-8", "errors": "surrogateescape"}
        make_reader: Any = hiredis.Reader  # its types allow no other value for `notEnoughData`
        self._reader = make_reader(replyError=Refusal, notEnoughData=_NOTHING, **text)

    async def take_over(self) -> None:
        """Receive the transport's bytes from here on. May end the wire at once."""
        before: asyncio.StreamReader = self._connection._reader  # noqa: SLF001
        is_over = before.at_eof()  # asked first, because feed_eof below sets it
        self._transport.set_protocol(self)
        before.feed_eof()
        rest = await before.read()  # the bytes that came after the last answer of the handshake
        if rest:
            self.data_received(rest)
        if is_over:
            self.eof_received()

    async def stay(self) -> None:
        """Wait until the transport is closed. Cancelling this call ends the connection.

        So the connection does not outlive its event loop: a loop that ends cancels tasks, but closes no
        transports.
        """
        try:
            await self._gone
        finally:
            self.end(ConnectionResetError("the event loop ended"))

    def send(self, command: tuple[str | bytes | float, ...], sink: ReplySink) -> None:
        """Send one command; `sink` gets its answer, once.

        Nothing waits for the buffer to drain, because callers have few calls under way, each bounded in
        bytes.
        """
        packed = _pack(command)  # first: what cannot be packed is owed no answer
        if not self.owed:
            self.heard = self._now()
        self.owed.append(sink)
        try:
            self._transport.write(packed)
        except (OSError, RuntimeError) as error:
            self.end(error)

    def end(self, error: BaseException) -> None:
        """Give the connection up, and hand `error` to every sink that waits. Idempotent."""
        if self._has_ended:
            return
        self._has_ended = True
        # Not close(), which waits until a server that may be dead has taken all bytes.
        self._transport.abort()
        self._connection._writer = self._connection._reader = None  # noqa: SLF001
        owed, self.owed = self.owed, deque()
        self._on_end(self)  # before the sinks, because a sink may call again and needs a new connection
        lost = translate(error, address=self._address, sent=True)
        lost.sent = True  # also where it was an error of ours already
        for sink in owed:
            self._tell(sink, lost)

    # The event loop calls the three methods that follow.

    def data_received(self, data: bytes) -> None:
        """Hand the answers in `data` to their sinks."""
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
                if self._has_ended:  # a sink dropped the connection: the rest is owed to nobody
                    return
        except Exception as error:  # noqa: BLE001  (it ends the calls)
            self.end(error)

    def eof_received(self) -> None:
        """End the wire: the server sends nothing more."""
        self.end(ConnectionResetError("the server closed the connection"))

    def connection_lost(self, exc: Exception | None) -> None:
        """End the wire: the transport is closed."""
        self.end(exc or ConnectionResetError("the server closed the connection"))
        if not self._gone.done():
            self._gone.set_result(None)

    def _tell(self, sink: ReplySink, reply: Any) -> None:
        if sink.done():
            return
        try:
            if type(reply) is Refusal:
                sink.set_exception(refusal(reply.line, address=self._address))
            elif isinstance(reply, StoreError):
                sink.set_exception(reply)
            else:
                sink.set_result(reply)
        except Exception:  # noqa: BLE001  (the next answer belongs to another sink)
            _log.exception("an answer of the server was not taken")
