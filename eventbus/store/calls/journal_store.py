"""Journals in the store: their pages, live texts, and signals. `Store.journals` is one of these.

Appending is a part of a worker's turn (`Store.turn`). What must always hold: nothing here changes a journal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from eventbus.store.connection.retrying import RetryingCaller
from eventbus.store.keys import Keys


class SentSignal(NamedTuple):
    """A signal that a job was sent; `order` counts all that it was ever sent, from 1."""

    id: str
    order: int
    name: str
    payload: str


class JournalStore:
    """The journals of one shard."""

    def __init__(self, caller: RetryingCaller, adder: RetryingCaller, keys: Keys) -> None:
        """Send signals through `adder`, because they may have to wait for a replica."""
        self._caller = caller
        self._adder = adder
        self._keys = keys

    async def signal(
        self, job: str, *, signal: str, name: str, payload: str, deadline: float, now: int | str = ""
    ) -> str:
        """Send a signal to a job. `signal` is its id, the same when it is sent again.

        Return `sent`, `unknown` (no record of the job), `ended`, `stopping` (its tree stops), `full` (too
        many signals are not taken yet), `foreign` (another program's value stands in the place of the inbox)
        or `unwanted` (a trigger, whose name begins with `!`, that the live text `accepts` does not name).
        """
        return await self._adder.script("signal", [now, job, signal, name, payload], deadline=deadline)

    async def listen(self, job: str, token: str, *, deadline: float | None = None) -> int:
        """Have the worker told of each signal that a job, which it runs under this token, is sent from now
        on.

        Return how many signals the job was ever sent; -1 if the lease is lost.
        """
        return await self._caller.script("listen", [job, token], deadline=deadline)

    async def entries(
        self, job: str, *, first: int, limit: int, deadline: float | None = None
    ) -> Sequence[str]:
        """Return a page of a journal: at most `limit` entries from the place `first` on, counted from 0."""
        name = self._keys.of("journal", job)
        return await self._caller.command("LRANGE", name, first, first + limit - 1, deadline=deadline)

    async def inbox(self, job: str, *, deadline: float | None = None) -> tuple[int, list[SentSignal]]:
        """Return how many signals a job was ever sent, and those that no entry has taken, in the order in
        which they came.
        """
        flat: Sequence[str] = await self._caller.command(
            "HGETALL", self._keys.of("inbox", job), deadline=deadline
        )
        fields = dict(zip(flat[::2], flat[1::2], strict=True))
        sent = [part for name, text in fields.items() if not name.startswith("#") for part in (name, text)]
        return int(fields.get("#", 0)), read_signals(sent)

    async def live(self, job: str, name: str, *, deadline: float | None = None) -> str | None:
        """Return a live text of a job, None if there is none of this name."""
        return await self._caller.command("HGET", self._keys.of("live", job), name, deadline=deadline)

    async def lives(self, job: str, names: Sequence[str], *, deadline: float | None = None) -> dict[str, str]:
        """Return live texts of a job by name: those of these names that it has, or all if there are
        no names.
        """
        key = self._keys.of("live", job)
        if names:
            texts: Sequence[str | None] = await self._caller.command("HMGET", key, *names, deadline=deadline)
            return {name: text for name, text in zip(names, texts, strict=True) if text is not None}
        flat: Sequence[str] = await self._caller.command("HGETALL", key, deadline=deadline)
        return dict(zip(flat[::2], flat[1::2], strict=True))


def read_signals(flat: Sequence[str]) -> list[SentSignal]:
    """Return the signals of an inbox in the order in which they came; `flat` has by turns an id and a
    text.
    """
    signals: list[SentSignal] = []
    for place in range(0, len(flat), 2):
        order, name, payload = flat[place + 1].split(" ", 2)
        signals.append(SentSignal(flat[place], int(order), name, payload))
    return sorted(signals, key=lambda each: each.order)
