"""The reply stream of one emitter: the emitter alone creates, reads and trims it and keeps it alive.

Workers add outcomes only while the stream exists. Reading goes on from a remembered position.

What must always hold:
- no outcome depends on the stream alone. When a connection is lost, `read` raises; the caller then
  calls `open`, which creates a missing stream again, and looks up the jobs that it still waits for;
- a full server refuses none of these calls, because each worker has an emitter, and only workers
  empty a full server.
"""

from __future__ import annotations

from typing import Any

import msgspec

from eventbus.errors import StoreCorrupt
from eventbus.model import clock
from eventbus.store.connection.channel import Channel
from eventbus.store.script_rows import Outcome
from eventbus.store.store import Store

__all__ = ["ReplyStream"]

_BLOCK_MS = 4000
_LIFE = 600  # seconds; the stream of an emitter that died goes by itself
_unpack = msgspec.msgpack.Decoder(list[Any]).decode


class ReplyStream:
    """One emitter's stream of outcomes, read over its own connection."""

    def __init__(self, store: Store, emitter: str) -> None:
        self._caller = store._caller  # pyright: ignore[reportPrivateUsage]  (one package)
        self._emitter = emitter
        self._key = store.keys.replies(emitter)
        self._channel = Channel(
            store.connector, name=f"{store.name}-replies", answer_timeout=_BLOCK_MS / 1000 + 2, raw=True
        )
        self._position = "0"
        self._trimmed = "0"
        self._corrupt = ""

    async def open(self, *, deadline: float | None = None) -> bool:
        """Make sure that the stream exists and lives 10 more minutes. Return whether it was gone.

        Reading starts over then.
        """
        exists = await self._caller.command("EXPIRE", self._key, _LIFE, deadline=deadline)
        if not exists:
            self._position = self._trimmed = "0"  # before the call, because its answer may be lost
            await self._caller.script("listen", [self._emitter, _LIFE], deadline=deadline)
        return not exists

    async def read(self) -> list[Outcome]:
        """Wait up to 4 s for outcomes, and return them in their order. Tries once.

        Raises StoreUnavailable; the position is kept, so that the next read misses nothing. An entry
        that cannot be decoded is skipped, and the next call raises StoreCorrupt once.
        """
        if self._corrupt:
            corrupt, self._corrupt = self._corrupt, ""
            raise StoreCorrupt(corrupt)
        reply = await self._channel.call(
            "XREAD", "COUNT", 500, "BLOCK", _BLOCK_MS, "STREAMS", self._key, self._position
        )
        if not reply:
            return []
        entries = reply[0][1]
        self._position = entries[-1][0].decode()
        outcomes: list[Outcome] = []
        for _, fields in entries:
            if fields and fields[0] == b"d":
                try:
                    outcomes.extend(_outcomes(fields[1]))
                except (msgspec.MsgspecError, ValueError) as error:
                    self._corrupt = f"an entry of the reply stream {self._key} cannot be read: {error}"
        return outcomes

    async def trim(self) -> None:
        """Remove the entries that were read from the server."""
        if self._position != self._trimmed:
            self._trimmed = self._position
            await self._caller.command("XTRIM", self._key, "MINID", self._position)

    async def nudge(self, *, deadline: float) -> None:
        """End a blocked `read` at once with an entry that carries nothing."""
        await self._caller.script("nudge", [self._emitter], deadline=deadline)

    async def aclose(self, *, delete: bool, deadline: float | None = None) -> None:
        """Close the connection, and delete the stream if `delete`; by default within a second."""
        await self._channel.aclose()
        if delete:
            deadline = clock.monotonic() + 1 if deadline is None else deadline
            await self._caller.command("DEL", self._key, deadline=deadline)


def _outcomes(packed: bytes) -> list[Outcome]:
    """Decode one entry. Raises MsgspecError or ValueError for an entry that no script of ours wrote."""
    flat = _unpack(packed)
    if len(flat) % 4:
        raise ValueError(f"{len(flat)} values are no rows of four")
    outcomes: list[Outcome] = []
    for i in range(0, len(flat), 4):
        job, state, carried, text = flat[i : i + 4]
        if not (isinstance(job, str) and isinstance(state, str) and isinstance(text, str)):
            raise ValueError("a job, a state or an outcome is not text")  # noqa: TRY004
        outcomes.append(Outcome(job, state, text if carried else None))
    return outcomes
