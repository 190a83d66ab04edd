"""A watch: what happens to jobs and queues, as it happens, in any process, and from a position on.

Not here: what is told and when (`store/lua/lib/changes.lua`), and how the stream is read
(`store.change_stream`).

    made -> watching (its first renewal was answered) -> closed (left, garbage, or the provider stopped)

What must always hold:
- while a watch is open it is renewed every 8 s, also while its user is slow: the server tells changes 30 s
  longer;
- whatever is lost is said by a `missed` change. So after a lost connection the watch is renewed before it is
  read;
- the end of a watch needs no server, and neither does the end of a provider with one.

Crash windows: `watcher-dies` (30 s later nothing is written for it any more), and those of the stream.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Self

from eventbus.admin.queue_name import queue_of
from eventbus.errors import DefinitionError, ProviderStopped, StoreError, StoreRefused, StoreUnavailable
from eventbus.lifecycle import Lifecycle
from eventbus.model.event import Event
from eventbus.model.names import shown
from eventbus.runtime.clean_up import run_to_end
from eventbus.store.change_stream import ALL, ChangeStream
from eventbus.store.connection.translation import TRANSIENT
from eventbus.telemetry.change import Change

_BEAT = 8.0  # seconds between renewals; a watch lives for 30 s without one
_PAUSE = 0.25  # seconds until a lost connection is tried again
_MOST_DIGITS = 16
_ENDED = "the watch has ended: it was closed, or its provider was stopped"


class Watch:
    """The changes of one event, or of all queues, in the order in which they happen. `EventProvider.watch`
    makes one.

        async with provider.watch(OrderPlaced) as changes:
            async for change in changes:
                print(change.what, change.job_id)

    `async for change in provider.watch(...)` is enough; inside `async with` the watch has begun once the
    block begins.
    """

    def __init__(
        self, life: Lifecycle, event: Event[Any, Any] | str | None, group: str | None, since: str | None
    ) -> None:
        self._life = life
        self._queue = None if event is None else queue_of(event, group)
        if event is None and group is not None:
            raise DefinitionError(f"group {group!r} needs an event; a watch of all queues has every group")
        # An event that is named without a group is watched with all its groups.
        self._is_one = self._queue is not None and (group is not None or "@" in self._queue)
        self._since = None if since is None else _read_position(since)
        self._stream: ChangeStream | None = None
        self._renewals: asyncio.Task[None] | None = None
        self._ready: deque[Change] = deque()
        self._is_closed = False
        self._refusal: StoreError | None = None
        """Why the server did not renew the watch."""
        self._position = since or ""

    @property
    def position(self) -> str:
        """The position of the last change that was given out; before that, where the watch begins. `""`
        before it began.
        """
        return self._position

    @property
    def pending(self) -> int:
        """How many changes were read, and not given out yet: so many come without waiting for the server."""
        return len(self._ready)

    @property
    def reached(self) -> str:
        """From where another watch goes on without a gap. It is ahead of `position` where changes of others
        were left out.
        """
        return self._position if self._ready or self._stream is None else str(self._stream.position)

    async def newest(self, most: int = 100) -> list[Change]:
        """Return the newest changes that the server still keeps, oldest first; the watch goes on behind them.

        It looks at the last `most` changes of all queues; so there may be fewer of the event, or none. Raises
        as the iteration.
        """
        stream = await self._open()
        found = [change for change in await stream.read_newest(most) if self._is_wanted(change)]
        self._ready.clear()
        self._position = str(stream.position)
        return found[-most:]

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def __aiter__(self) -> AsyncGenerator[Change]:
        """Return the changes. Raises ProviderStopped when the provider stops, and StoreRefused."""
        async with aclosing(self):
            while True:
                yield await self.__anext__()

    async def __anext__(self) -> Change:
        stream = await self._open()
        while not self._ready:
            self._ready.extend(change for change in await self._read(stream) if self._is_wanted(change))
        change = self._ready.popleft()
        self._position = change.position
        return change

    async def aclose(self) -> None:
        """End the watch, also if the caller is cancelled. Idempotent. It is told for 30 s more."""
        self._is_closed = True
        self._life.watches.discard(self)
        await run_to_end(self._close(), "watch")

    async def _close(self) -> None:
        if self._renewals is not None:
            self._renewals.cancel()
            await asyncio.wait([self._renewals])
        if self._stream is not None:
            await self._stream.aclose()

    async def _open(self) -> ChangeStream:
        """Begin the watch, once. Waits for the server."""
        if self._is_closed:
            raise ProviderStopped(_ENDED)
        if self._stream is None:
            store = self._life.running("watch").store
            scope = ALL if self._queue is None else self._queue.partition("@")[0]
            self._stream = ChangeStream(store, [scope], since=self._since)
            self._life.watches.add(self)
            await self._answer(self._stream)
            self._position = self._position or str(self._stream.position)
            self._renewals = asyncio.create_task(self._renew(self._stream), name="eventbus-watch")
        elif self._renewals is None:
            raise DefinitionError("a watch is read by one task at a time; make one for each")
        return self._stream

    async def _answer(self, stream: ChangeStream) -> None:
        try:
            await stream.renew()
        except BaseException:
            await self.aclose()
            raise

    async def _renew(self, stream: ChangeStream) -> None:
        while True:
            await asyncio.sleep(_BEAT)
            try:
                await stream.renew()
            except StoreUnavailable:
                return  # the provider stopped
            except StoreError as error:
                self._refusal = error
                await stream.aclose()  # ends the read under way, which raises this error
                return

    async def _read(self, stream: ChangeStream) -> list[Change]:
        """Read once. A server that is away is waited for; what a position cannot say any more is `missed`."""
        try:
            return await stream.read()
        except StoreError as error:
            if self._refusal is not None:
                await self.aclose()
                raise self._refusal from error
            if self._is_closed:
                raise ProviderStopped(_ENDED) from error
            if isinstance(error, StoreRefused) and error.code not in TRANSIENT:
                await self.aclose()
                raise
        stream.doubt()
        await asyncio.sleep(_PAUSE)
        try:
            await stream.renew()
        except StoreUnavailable as error:  # only the end of the provider ends these repeats
            raise ProviderStopped(_ENDED) from error
        return []

    def _is_wanted(self, change: Change) -> bool:
        return change.what == "missed" or not self._is_one or change.queue == self._queue


def _read_position(since: object) -> int:
    """Return the number in a position. Raises DefinitionError for anything that is none."""
    if isinstance(since, str) and since.isascii() and since.isdecimal() and len(since) <= _MOST_DIGITS:
        return int(since)
    raise DefinitionError(f"expected since to be the position of a change, got: {shown(since)}")
