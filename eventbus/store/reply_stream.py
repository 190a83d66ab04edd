"""The reply stream of one emitter: the emitter alone creates, reads and trims it and keeps it alive.

Workers add outcomes only while the stream exists. Reading goes on from a remembered position. Besides
outcomes the stream has marks of the emitter's own: who has read a mark has read all outcomes of calls before
the one that made it.

What must always hold:
- no outcome depends on the stream alone. When a connection is lost, `read` raises; the caller then
  calls `attend`, which creates a missing stream again, and looks up the jobs that it still waits for;
- a mark that `read` returns stands behind no outcome that was lost. So a read that meets an entry
  which cannot be decoded returns none, and `on_gone` is called before a stream is made anew;
- a full server refuses none of these calls, because each worker has an emitter, and only workers
  empty a full server.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from eventbus.errors import StoreCorrupt
from eventbus.model import clock
from eventbus.store.bounds import REPLIES_MS
from eventbus.store.connection.channel import Channel
from eventbus.store.scripting.script_rows import Outcome
from eventbus.store.store import Store

_BLOCK_MS = 4000
_LIFE = REPLIES_MS // 1000  # seconds; the stream of an emitter that died goes by itself
_unpack = msgspec.msgpack.Decoder(list[Any]).decode


def _ignore() -> None: ...


class ReplyStream:
    """One emitter's stream of outcomes, read over its own connection."""

    def __init__(self, store: Store, emitter: str, *, on_gone: Callable[[], None] = _ignore) -> None:
        """`on_gone` is called when the stream was not there, before it is made."""
        self._caller = store.caller
        self._on_gone = on_gone
        self._emitter = emitter
        self._key = store.keys.replies(emitter)
        self._channel = Channel(
            store.connector, name=f"{store.name}-replies", answer_timeout=_BLOCK_MS / 1000 + 2, raw=True
        )
        self._position = "0"
        self._trimmed = "0"
        self._corrupt = ""
        self.mark: int = 0
        """The highest mark that the last read met, 0 for none."""
        self.is_at_end: bool = False
        """Whether the last read met nothing."""

    async def attend(
        self,
        attendance: str = "",
        floor: int | str = "",
        *,
        mark: int | str = "",
        deadline: float | None = None,
        now: int | str = "",
    ) -> tuple[int, bool]:
        """Make sure that the stream exists and lives 10 more minutes. Return the server's time, and whether
        it was gone.

        Reading starts over then. `attendance`, `floor` and `mark`: see `attend.lua`. The time is 0 without
        them, because a plain command is enough then.
        """
        time, exists = 0, 1
        head = [now, self._emitter, _LIFE, 0, attendance, floor, mark]
        if attendance:
            time, exists = await self._caller.script("attend", head, deadline=deadline)
        else:
            exists = await self._caller.command("EXPIRE", self._key, _LIFE, deadline=deadline)
        if not exists:
            self._on_gone()
            self._position = self._trimmed = "0"  # before the call, because its answer may be lost
            head[3] = 1
            time, _ = await self._caller.script("attend", head, deadline=deadline)
        return time, not exists

    async def read(self) -> list[Outcome]:
        """Wait up to 4 s for outcomes, and return them in their order. Tries once. Sets `mark`.

        Raises StoreUnavailable; the position is kept, so that the next read misses nothing. An entry
        that cannot be decoded is skipped, and the next call raises StoreCorrupt once.
        """
        if self._corrupt:
            corrupt, self._corrupt = self._corrupt, ""
            raise StoreCorrupt(corrupt)
        self.mark = 0
        reply = await self._channel.call(
            "XREAD", "COUNT", 500, "BLOCK", _BLOCK_MS, "STREAMS", self._key, self._position
        )
        self.is_at_end = not reply
        if not reply:
            return []
        entries = reply[0][1]
        self._position = entries[-1][0].decode()
        outcomes: list[Outcome] = []
        for _, fields in entries:
            try:
                self.mark = max(self.mark, _decode_entry(fields, outcomes))
            except (msgspec.MsgspecError, ValueError) as error:
                self._corrupt = f"an entry of the reply stream {self._key} cannot be read: {error}"
        if self._corrupt:
            self.mark = 0
        return outcomes

    async def read_ahead(self, *, deadline: float) -> list[Outcome]:
        """Return the outcomes that `read` will bring, without waiting for more, and without moving its
        position.

        Raises StoreError. An entry that cannot be decoded is left to `read`.
        """
        outcomes: list[Outcome] = []
        position = self._position
        while True:
            reply = await self._caller.command(
                "XREAD", "COUNT", 500, "STREAMS", self._key, position, deadline=deadline
            )
            if not reply:
                return outcomes
            entries = reply[0][1]
            position = entries[-1][0]
            for _, fields in entries:
                with suppress(msgspec.MsgspecError, ValueError):
                    _decode_entry([_as_bytes(field) for field in fields], outcomes)

    async def trim(self) -> None:
        """Remove the entries that were read from the server."""
        if self._position != self._trimmed:
            self._trimmed = self._position
            await self._caller.command("XTRIM", self._key, "MINID", self._position)

    async def nudge(self, *, deadline: float) -> None:
        """End a blocked `read` at once with an entry that carries nothing."""
        await self._caller.script("nudge", [self._emitter], deadline=deadline)

    async def aclose(self, *, delete: bool, attendance: str = "", deadline: float | None = None) -> None:
        """Close the connection, and delete the stream if `delete`; by default within a second.

        `attendance` ends with that, if there is one.
        """
        await self._channel.aclose()
        if delete:
            deadline = clock.monotonic() + 1 if deadline is None else deadline
            if attendance:
                await self.attend(attendance, "left", deadline=deadline)
            await self._caller.command("DEL", self._key, deadline=deadline)


def _as_bytes(text: str) -> bytes:
    return text.encode(errors="surrogateescape")  # as the connections of calls decode


def _decode_entry(fields: list[bytes], outcomes: list[Outcome]) -> int:
    """Add the outcomes of an entry to `outcomes`; return its mark, 0 for none. Raises as `_outcomes`."""
    kind = fields[0] if fields else b""
    if kind == b"d":
        outcomes.extend(_outcomes(fields[1]))
    return int(fields[1]) if kind == b"mark" else 0


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
