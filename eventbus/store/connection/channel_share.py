"""One provider's share of a channel: it calls over the connection that others use too, and ends alone.

    open -> closed (its calls under way get StoreUnavailable; the connection and the other shares go on)

Not here: who has a share and when the connection itself is closed (`emit.uplink`).

What must always hold:
- a share calls as a channel does: each call ends once, and an error says whether the command may have been
  carried out;
- the end of a share ends its own calls at once, also those that wait for the connection, and no others;
- an answer that comes after the end of its share reaches nobody, and the answers behind it reach their calls.

`drop` gives up the connection for all shares. Callers drop a connection whose server became read-only, which
is true for all of them; each repeats its calls as after any loss.

Rejected: a connection that one provider owns and others borrow. The others would lose it with its owner.
"""

from __future__ import annotations

import asyncio
from typing import Any

from eventbus.errors import StoreError, StoreUnavailable
from eventbus.store.connection.channel import Channel
from eventbus.store.connection.translation import translate
from eventbus.store.connection.wire import ReplySink


class ChannelShare(Channel):
    """A channel over the connection of another channel."""

    def __init__(self, channel: Channel) -> None:
        # Only for what errors say: a share opens no connection of its own.
        super().__init__(channel.connector, name="", answer_timeout=0)
        self._channel = channel
        self._sinks: set[_OwnSink] = set()
        self._end: asyncio.Future[None] | None = None
        """Done when the share is closed; made for the first call that waits for a connection."""

    @property
    def is_connected(self) -> bool:
        """Whether the connection is open now, and this share of it too."""
        return self._channel.is_connected and not self._closed

    def send(self, command: tuple[str | bytes | float, ...], sink: ReplySink) -> bool:
        """Send one command at once; see `Channel.send`."""
        if self._closed:
            return False
        own = self.own(sink)
        if self._channel.send(command, own):
            return True
        self._sinks.discard(own)
        return False

    def own(self, sink: ReplySink) -> _OwnSink:
        """Return a receiver for `sink` that gets an error when this share is closed first."""
        own = _OwnSink(sink, self._sinks)
        self._sinks.add(own)
        return own

    def drop(self, why: str) -> None:
        """Give the connection up, for all shares; the next call opens a new one."""
        if not self._closed:
            self._channel.drop(why)

    async def aclose(self) -> None:
        """Close this share; its calls under way get StoreUnavailable. Idempotent."""
        self._closed = True
        if self._end is not None and not self._end.done():
            self._end.set_result(None)
        sinks = list(self._sinks)
        self._sinks.clear()
        for sink in sinks:
            if not sink.done():
                closed = ConnectionResetError("closed by this side")
                sink.set_exception(translate(closed, address=self.address, sent=True))

    async def _open(self) -> None:
        """Open the connection, once for all shares; stop waiting for it when this share is closed."""
        if self._closed:
            raise self._refusal()
        opening = self._channel.begin_opening()
        self._end = self._end or asyncio.get_running_loop().create_future()
        await asyncio.wait([opening, self._end], return_when=asyncio.FIRST_COMPLETED)
        if self._closed or opening.cancelled():
            raise self._refusal()
        opening.result()

    def _refusal(self) -> StoreUnavailable:
        return StoreUnavailable("this connection is closed", address=self.address)


class _OwnSink:
    """The receiver of one answer, as long as its share is open."""

    __slots__ = ("_sink", "_sinks")

    def __init__(self, sink: ReplySink, sinks: set[_OwnSink]) -> None:
        self._sink = sink
        self._sinks = sinks

    def done(self) -> bool:
        """Return whether the answer is no longer wanted."""
        if not self._sink.done():
            return False
        self._sinks.discard(self)
        return True

    def set_result(self, result: Any, /) -> None:
        """Take the answer."""
        self._sinks.discard(self)
        self._sink.set_result(result)

    def set_exception(self, exception: StoreError, /) -> None:
        """Take the error: the server refused, the connection ended, or the share did."""
        self._sinks.discard(self)
        self._sink.set_exception(exception)
