"""The stream of changes of one shard, read by one watcher from a position on (`changes.lua`).

Reading goes on from a remembered number, over a connection of its own, because a blocked read would hold up
other calls.

What must always hold:
- the numbers of changes rise by one. An entry that begins later than expected means that changes
  went before this watcher read them; so does the mark of a scope that nobody watched for a while
  (`opened`). Both become `missed`;
- a change is returned once: the position moves with what is returned, and what stands before it is left out;
- after a lost connection the watch is renewed before anything is read, and the last entry that was read must
  still stand there as it was. If it does not, a failover has forgotten it, and perhaps what came before it.

Crash windows:
    lost-while-reading   a read takes nothing away: it is made again from the same number
    server-restarted     the stream is there, or begins anew with a higher number, which shows the gap
    failover-forgets     see above
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from eventbus.model.redaction.places import blank
from eventbus.store.connection.channel import Channel
from eventbus.store.store import Store
from eventbus.telemetry.change import CHANGE_KINDS, Change

ALL = "*"
"""The scope of all queues."""

_BLOCK_MS = 4000
_ENTRIES = 50  # of one read; an entry has up to 200 changes, or some more
_unpack = msgspec.msgpack.Decoder(list[Any]).decode


class ChangeStream:
    """The changes of some queues, or of all."""

    def __init__(self, store: Store, scopes: Sequence[str], *, since: int | None = None) -> None:
        """`scopes` are queues without their groups, or ALL. Without `since` it begins with what happens from
        `renew` on.
        """
        self._caller = store.caller
        self._key = store.keys.shard_key("changes")
        self._channel = Channel(
            store.connector, name=f"{store.name}-changes", answer_timeout=_BLOCK_MS / 1000 + 2, raw=True
        )
        self._scopes = tuple(scopes)
        self._position = since
        self._last: tuple[int, bytes] | None = None
        """The number of the last entry that was read, and what it says."""
        self._has_lost = False
        self._is_checking = False

    @property
    def position(self) -> int:
        """The number of the last change that was read or left out."""
        return self._position or 0

    async def renew(self, *, deadline: float | None = None) -> None:
        """Watch for 30 s from now on. Raises StoreRefused, and StoreUnavailable past the deadline."""
        before = self._position
        last = int(await self._caller.script("watch", [len(self._scopes), *self._scopes], deadline=deadline))
        if before is None:
            self._position = last
        elif before > last:
            self._lose(last)

    def doubt(self) -> None:
        """Check at the next read that the server still has what was read last: the connection was lost."""
        self._is_checking = self._last is not None

    async def read(self) -> list[Change]:
        """Wait up to 4 s for changes, and return them in their order. Tries once; `renew` comes first.

        Raises StoreUnavailable and StoreRefused. The position is kept then, so that the next read misses
        nothing.
        """
        first = self._last[0] - 1 if self._is_checking and self._last else self.position
        reply = await self._channel.call(
            "XREAD", "COUNT", _ENTRIES, "BLOCK", _BLOCK_MS, "STREAMS", self._key, f"{first}-0"
        )
        entries: list[Any] = reply[0][1] if reply else []
        if self._is_checking:
            entries = self._check(entries)
        changes: list[Change] = []
        for name, fields in entries:
            self._take(int(name.partition(b"-")[0]), bytes(fields[1]), changes)
        if self._has_lost and not changes:
            changes.append(self._tell_missed())
        return changes

    async def read_newest(self, most: int) -> list[Change]:
        """Return those of the newest `most` changes that are kept and of our scopes, oldest first; go on
        behind them.

        `renew` comes first. Raises StoreUnavailable and StoreRefused.
        """
        newest = self.position
        self._position = max(newest - most, 0)  # an entry has one number or more
        reply = await self._channel.call("XREAD", "COUNT", most, "STREAMS", self._key, f"{self._position}-0")
        entries: list[Any] = reply[0][1] if reply else []
        changes: list[Change] = []
        for name, fields in entries:
            self._take(int(name.partition(b"-")[0]), bytes(fields[1]), changes)
        self._position = max(self.position, newest)
        self._has_lost = False
        # That there was something before the first of them is no loss.
        return changes[1:] if changes and changes[0].what == "missed" else changes

    async def aclose(self) -> None:
        """Close the connection. Idempotent. The watch ends by itself."""
        await self._channel.aclose()

    def _check(self, entries: list[Any]) -> list[Any]:
        """Leave out the first entry if it is the one that was read last; else note that some were lost."""
        self._is_checking = False
        if entries and self._last == (int(entries[0][0].partition(b"-")[0]), bytes(entries[0][1][1])):
            return entries[1:]
        self._has_lost = True
        self._last = None
        return entries

    def _lose(self, last: int) -> None:
        self._position = last
        self._last = None
        self._is_checking = False
        self._has_lost = True

    def _take(self, last: int, packed: bytes, changes: list[Change]) -> None:
        """Add the changes of an entry behind the position. What cannot be read is missed."""
        before, self._last = self.position, (last, packed)
        self._position = max(before, last)
        try:
            at_ms, what, queue, state, worker, names, attempts, dues, texts = _unpack(packed)
            first = last + 1 - max(1, len(names))
            self._has_lost = self._has_lost or first > before + 1
            if what == "opened":
                self._has_lost = self._has_lost or (last > before and self._is_reopened(queue, names))
                return
            if what not in CHANGE_KINDS or not self._has_scope(queue):
                return
            if self._has_lost:
                changes.append(self._tell_missed(first - 1))
            for i, name in enumerate(names or [""]):
                if first + i > before:
                    changes.append(
                        Change(
                            what=what,
                            queue=queue,
                            job_id=name,
                            at_ms=at_ms,
                            state=state or None,
                            worker=worker,
                            attempt=attempts[i] if attempts else 0,
                            due_ms=int(dues[i]) if dues else 0,
                            note=blank(texts[i]) if texts else "",
                            position=str(first + i),
                        )
                    )
        except (msgspec.MsgspecError, ValueError, TypeError, IndexError):
            self._has_lost = True

    def _has_scope(self, queue: str) -> bool:
        return ALL in self._scopes or queue.partition("@")[0] in self._scopes

    def _is_reopened(self, scope: str, others: list[str]) -> bool:
        """Whether a mark says that changes of this watcher's scopes were not told until then."""
        if ALL in self._scopes:
            return scope == ALL
        return scope in self._scopes or (scope == ALL and not set(self._scopes) <= set(others))

    def _tell_missed(self, number: int | None = None) -> Change:
        self._has_lost = False
        return Change(
            what="missed",
            position=str(self.position if number is None else number),
            note="changes before this one are not known: nobody watched, or the server kept no more of them",
        )
