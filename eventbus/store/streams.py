"""The reply stream of one emitter: created, read, trimmed and kept alive by it alone.

The emitter creates the stream; workers add to it only while it exists. Reading goes on
from a remembered position. What must hold: after a reconnect `read` has raised, and the
caller calls `open`, which makes a missing stream anew, and looks up whatever it still
waits for; so no outcome depends on the stream alone.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec

from eventbus.errors import StoreCorrupt
from eventbus.store.channel import Channel
from eventbus.store.rows import Outcome
from eventbus.store.store import Store

__all__ = ["ReplyStream"]

_BLOCK_MS = 4000
_LIFE = 600
_unpack = msgspec.msgpack.Decoder(list[Any]).decode


class ReplyStream:
    """One emitter's stream of outcomes, read over a connection of its own."""

    def __init__(self, store: Store, emitter: str) -> None:
        self._caller = store._caller  # pyright: ignore[reportPrivateUsage]  (one package)
        self._key = store.keys.replies(emitter)
        self._channel = Channel(
            store.connector, name=f"{store.name}-replies", answer_timeout=_BLOCK_MS / 1000 + 2, raw=True
        )
        self._position = "0"
        self._trimmed = "0"
        self._corrupt = ""

    async def open(self, *, deadline: float | None = None) -> None:
        """Make sure the stream exists and lives 10 minutes more; reading starts over if it was gone."""
        exists = await self._caller.command("EXPIRE", self._key, _LIFE, deadline=deadline)
        if not exists:
            self._position = self._trimmed = "0"
            await asyncio.gather(  # together: one without the other would leave a key for ever
                self._caller.command("XADD", self._key, "*", "open", "", deadline=deadline),
                self._caller.command("EXPIRE", self._key, _LIFE, deadline=deadline),
            )

    async def read(self) -> list[Outcome]:
        """Wait up to 4 s for outcomes and return them in order; one try.

        Raises StoreUnavailable; the position is kept, so nothing read later is missed. An entry
        that cannot be read is passed over, and the next call raises StoreCorrupt, once.
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
        """Drop what was read from the server."""
        if self._position != self._trimmed:
            self._trimmed = self._position
            await self._caller.command("XTRIM", self._key, "MINID", self._position)

    async def nudge(self, *, deadline: float) -> None:
        """End a blocked `read` at once with an entry that carries nothing."""
        await self._caller.command("XADD", self._key, "NOMKSTREAM", "*", "nudge", "", deadline=deadline)

    async def aclose(self, *, delete: bool) -> None:
        """Close the connection; the stream goes too if `delete`."""
        await self._channel.aclose()
        if delete:
            await self._caller.command("DEL", self._key, deadline=time.monotonic() + 1)


def _outcomes(packed: bytes) -> list[Outcome]:
    """Raises MsgspecError or ValueError for what the scripts did not write."""
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
