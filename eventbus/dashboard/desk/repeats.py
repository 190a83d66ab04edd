"""Repeats: an action that is sent twice with one key happens once, and is answered twice.

Forms have such a key in a hidden field, so that two clicks are one action; programs send `Idempotency-Key`.
The keys are kept in this process, the newest 1,000 of them for ten minutes: what must happen once in spite of
a restart needs a key that the server keeps, as that of an emission or the number of a flow's run.

What must always hold: a key belongs to the order that came with it first. Another order with that key is
refused, because its
answer would be that of the first one. Not here: the rights to an answer, which are asked each time
(`Desk.once`).
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple

import msgspec

from eventbus.dashboard.entry.actor import Actor
from eventbus.dashboard.problem import Problem
from eventbus.model import clock

_MOST = 1000
_SECONDS = 600.0
LONGEST_KEY = 128


def check_length(key: str) -> None:
    """Raise Problem, 422, for an idempotency key that is too long."""
    if len(key) > LONGEST_KEY:
        raise Problem(422, f"expected an idempotency key of at most {LONGEST_KEY} characters, got {len(key)}")


class Ordered(NamedTuple):
    """An order as it came: `place` is whose it is and what it is sent to, `key` is the caller's.

    Empty for none.
    """

    place: tuple[str, ...]
    key: str
    digest: bytes

    @classmethod
    def of(cls, actor: Actor, place: Iterable[str], key: str, order: msgspec.Struct) -> Ordered:
        """Return what tells an order from another one: `place` is what the actor sends it to. Raises Problem,
        422, for a key that is too long.
        """
        check_length(key)
        told = msgspec.json.encode(order, enc_hook=str, order="deterministic") if key else b""
        whose = (actor.name, *sorted(actor.roles), *place)
        return cls(whose, key, hashlib.sha256(told).digest())


class _Known:
    """A key that came: with which order, since when, and what its action answers.

    None if that is not kept.
    """

    def __init__(self, digest: bytes) -> None:
        self.digest = digest
        self.since = clock.monotonic()
        self.task: asyncio.Task[Any] | None = None


class Repeats:
    """Remembers the orders of keys, and the answers of their actions."""

    def __init__(self) -> None:
        self._known: dict[tuple[tuple[str, ...], str], _Known] = {}

    def check(self, ordered: Ordered) -> None:
        """Remember the order of a key whose answer is not kept.

        Raises Problem, 422, if another one came with that key.
        """
        if ordered.key:
            self._find(ordered)

    async def once(self, ordered: Ordered, do: Callable[[], Awaitable[Any]]) -> tuple[Any, bool]:
        """Return what `do` returns, or what it returned for this key before, and whether it is a repeat. An
        error is forgotten.

        Without a key the action is done each time. Raises Problem, 422, if another order came with the key.
        """
        if not ordered.key:
            return await do(), False
        known = self._find(ordered)
        is_repeat = known.task is not None
        if known.task is None:
            known.task = asyncio.ensure_future(_run(do))
        try:
            # Shielded: whoever asks second must not lose the answer because the first one went away.
            return await asyncio.shield(known.task), is_repeat
        except BaseException:
            if known.task.done():
                self._forget(ordered, known)
            raise

    def _find(self, ordered: Ordered) -> _Known:
        name = (ordered.place, ordered.key)
        known = self._known.get(name)
        if known is None or known.since < clock.monotonic() - _SECONDS:
            while len(self._known) >= _MOST:
                self._known.pop(next(iter(self._known)))
            known = self._known[name] = _Known(ordered.digest)
        if known.digest != ordered.digest:
            raise Problem(
                422,
                f"another order came with the key {ordered.key!r} before, so nothing was done; "
                "give each order a key of its own",
            )
        return known

    def _forget(self, ordered: Ordered, known: _Known) -> None:
        """Let the key be free again, unless it is another order's by now."""
        name = (ordered.place, ordered.key)
        if self._known.get(name) is known:
            del self._known[name]


async def _run(do: Callable[[], Awaitable[Any]]) -> Any:
    return await do()
