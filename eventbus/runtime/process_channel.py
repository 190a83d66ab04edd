"""The channel between a worker and one of its processes. Each frame has the number of its request.

Not here: the processes (`runtime.process_pool`), the content of messages, and the other end
(`handlers.process.child`).

    worker    request 1 ->                  request 2 ->
    process                note 1, answer 1              progress 2, call 2 ->           answer 2
    worker                                                                   reply 2 <-

What must always hold:
- an answer is accepted only for the request whose number it has, and only while that request is under way;
- a note may be late, because a thread that a handler left behind may log after its job has ended. Its number
  is that of the current request or of an earlier one;
- the same holds for progress and calls, but only those of the request under way count: those of an
  ended job are dropped;
- a reply and the word that the process should end are sent only while their request is under way;
- any other frame means that other code writes into the channel: a handler may run any code, and the channel
  is a descriptor of its process. Nothing after such a frame is trusted. The channel is broken for good, and
  the owner of the process kills it. This is noticed at once, also between two requests, so that the next job
  gets another process.

Weighed: a lock, or a secret in the frames. Neither keeps code of the same process out. The number and the
mark at the start of each frame detect bytes that are written by mistake, which is the case that happens.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, cast

REQUEST, NOTE, PROGRESS, ANSWER = b"Q", b"N", b"P", b"A"
"""The kinds of frames: the request of the worker; a note or the progress of the process before its answer;
the answer.
"""

CALL, REPLY, STOPPING = b"C", b"R", b"S"
"""Further kinds: a call of the process before its answer, the worker's reply to it, and its word why the
process should end.
"""

HEADER = struct.Struct("!4scQI")
"""The header of a frame: mark, kind, number of the request, length of the message in bytes."""

_MARK = b"\x93evb"


class BadFrame(Exception):
    """The received bytes are not a frame that may come now. The text describes them."""


class ChannelEnded(Exception):
    """No answer will come. The text describes the bytes that came instead; empty if the process hung up."""


def pack(kind: bytes, number: int, message: bytes) -> bytes:
    """Return a frame: the header and the message."""
    return HEADER.pack(_MARK, kind, number, len(message)) + message


def unpack(header: bytes) -> tuple[bytes, int, int] | None:
    """Return the kind, the number and the message length in a header; None if the header is not complete yet.

    Raises BadFrame as soon as the bytes cannot be a header.
    """
    if not header.startswith(_MARK[: len(header)]):
        raise BadFrame(f"bytes that are no frame: {header!r}")
    return None if len(header) < HEADER.size else HEADER.unpack(header)[1:]


class Attending(Protocol):
    """Serves the calls of the process during one request."""

    def attend(self, send: Callable[[bytes, bytes], None]) -> None:
        """Send frames with `send(kind, message)` from now on."""
        ...

    def called(self, message: bytes) -> None:
        """Serve a call. Raises if it cannot be read."""
        ...

    def part(self) -> bool:
        """Tell the process that its request is cancelled; return whether it wants to hear of that."""
        ...


class ProcessChannel(asyncio.Protocol):
    """The worker's end of a channel. At most one request is under way."""

    def __init__(self, on_note: Callable[[bytes], None]) -> None:
        """`on_note` is called with each note. It raises if it cannot read the note."""
        self.on_end: Callable[[str], None] | None = None
        """Called once when the channel ends, with the fault that broke it, unless an `ask` raises that."""
        self._on_note = on_note
        self._buffer = bytearray()
        self.is_over: bool = False  # then it answers nothing more
        self._number = 0
        self._read: Callable[[bytes], Any] = bytes
        self._on_progress: Callable[[bytes], None] | None = None
        self._attending: Attending | None = None
        self._answer: asyncio.Future[Any] | None = None  # while a request is under way
        self._late: asyncio.Future[None] | None = (
            None  # while somebody waits for the answer of a cancelled one
        )
        self._transport: asyncio.Transport | None = None

    @property
    def is_closing(self) -> bool:
        """Whether this end is closed, or will be closed when all is sent."""
        return self._transport is None or self._transport.is_closing()

    async def ask(
        self,
        request: bytes,
        read: Callable[[bytes], Any],
        on_progress: Callable[[bytes], None] | None = None,
        attending: Attending | None = None,
    ) -> Any:
        """Send a request and return its answer, converted by `read`. `on_progress` is called with each
        progress before it.

        `attending` serves its calls. Raises ChannelEnded, also if `read` raises. After a cancellation the
        channel must not be used again before `wait_late` has returned True, because the late answer would
        meet the next request.
        """
        if self.is_over or self._transport is None:
            raise ChannelEnded
        self._number += 1
        self._read, self._on_progress, self._attending = read, on_progress, attending
        if attending is not None:
            attending.attend(partial(self._send, self._number))
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(pack(REQUEST, self._number, request))
        return await self._answer

    async def wait_late(self, seconds: float) -> bool:
        """Wait for the answer of a cancelled request, and drop it; return whether it came."""
        if self._answer is not None and not self.is_over:
            self._late = asyncio.get_running_loop().create_future()
            try:
                await asyncio.wait({self._late}, timeout=seconds)
            finally:
                self._late = None
        return self._answer is None and not self.is_over

    def _send(self, number: int, kind: bytes, message: bytes) -> None:
        """Send a frame to the process while its request of that number is under way."""
        if number == self._number and self._answer is not None and not self.is_over and self._transport:
            self._transport.write(pack(kind, number, message))

    def close(self) -> None:
        """Hang up when all is sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Hang up at once."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport. asyncio calls this method and the next two."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the channel: the process hung up, or this side did."""
        del exc
        self._end("")

    def data_received(self, data: bytes) -> None:
        """Handle all complete frames."""
        if self.is_over:
            return
        self._buffer += data
        try:
            while self._buffer and (frame := self._take()) is not None:
                self._believe(*frame)
        except BadFrame as error:
            self._end(str(error))

    def _take(self) -> tuple[bytes, int, bytes] | None:
        """Take a frame off the buffer; return its kind, number and message, None if incomplete. Raises
        BadFrame.
        """
        header = unpack(bytes(self._buffer[: HEADER.size]))
        if header is None:
            return None
        kind, number, size = header
        is_note = kind in (NOTE, PROGRESS, CALL) and number <= self._number
        is_answer = kind == ANSWER and number == self._number and self._answer is not None
        if not is_note and not is_answer:  # before its length is read: that may be any number
            now = f"request {self._number} is under way" if self._answer else "none is under way"
            raise BadFrame(f"a frame of kind {kind!r} for request {number} while {now}")
        if len(self._buffer) < HEADER.size + size:
            return None
        message = bytes(self._buffer[HEADER.size : HEADER.size + size])
        del self._buffer[: HEADER.size + size]
        return kind, number, message

    def _believe(self, kind: bytes, number: int, message: bytes) -> None:
        """Pass a message to its receiver. Raises BadFrame if it cannot be read."""
        try:
            if kind == NOTE:
                self._on_note(message)
                return
            if kind == PROGRESS:
                if number == self._number and self._answer is not None and self._on_progress is not None:
                    self._on_progress(message)
                return
            if kind == CALL:
                if number == self._number and self._answer is not None and self._attending is not None:
                    self._attending.called(message)
                return
            answer = self._read(message)
        except Exception as error:
            raise BadFrame(f"a message of kind {kind!r} that cannot be read: {error}") from error
        waiting, self._answer = self._answer, None
        if (
            waiting is not None and not waiting.done()
        ):  # done means cancelled: the process is being killed, or parts
            waiting.set_result(answer)
        self._end_wait()

    def _end(self, fault: str) -> None:
        if self.is_over:
            return
        self.is_over = True
        self._buffer.clear()
        self._end_wait()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ChannelEnded(fault))
        elif self.on_end is not None:
            self.on_end(fault)

    def _end_wait(self) -> None:
        if self._late is not None and not self._late.done():
            self._late.set_result(None)
