"""Listeners: functions of a program that hear what happens in the workers of its own process.

Not here: what happens in other processes (`admin.watch`), and where a worker tells what it does.

What must always hold:
- who has no listeners pays for one look at a flag;
- a listener holds up no job: changes wait for it in a bounded buffer, and what is too much is left out and
  said so;
- a listener that raises keeps neither the others nor the worker from going on;
- listeners hear one change after the other, in the order in which the worker told them. A settle is told once
  the server has recorded it.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import msgspec

from eventbus.errors import DefinitionError
from eventbus.model import clock
from eventbus.model.containment import Contained, contained, contained_await
from eventbus.model.names import shown
from eventbus.telemetry.change import Change, ChangeKind
from eventbus.telemetry.logging import get_logger

Listener: TypeAlias = Callable[[Change], object]
"""A function, or an async function, of one change."""

_LISTENED: tuple[ChangeKind, ...] = (
    "claimed", "progress", "retried", "delayed", "suspended", "returned", "parked", "stalled", "completed",
    "failed", "cancelled", "missed", "error",
)  # fmt: skip
"""What a worker knows of the jobs that it runs, and of itself."""

_OF_NO_QUEUE = frozenset({"stalled", "missed", "error"})

_MOST = 10_000
"""Changes that wait for the listeners."""
_REST_WITHIN = 1.0
"""Seconds that listeners have for the last changes of a worker that ends."""

_log = get_logger("eventbus.worker")


def check_listened(kinds: Sequence[Any], *, has_event: bool) -> None:
    """Raise DefinitionError unless these are kinds of changes that a worker tells, for listeners of an event
    or of all.
    """
    unknown = [kind for kind in kinds if kind not in _LISTENED]
    if not kinds or unknown:
        raise DefinitionError(
            f"expected kinds of changes that a worker knows of ({', '.join(_LISTENED)}), got: "
            f"{shown(unknown[0]) if unknown else 'none'}; provider.watch has all others"
        )
    if has_event and (loose := _OF_NO_QUEUE.intersection(kinds)):
        raise DefinitionError(
            f"{', '.join(sorted(loose))} cannot be told for one event; listen to it without event="
        )


def check_listener(function: Any) -> None:
    """Raise DefinitionError unless this is a function of one change."""
    try:
        inspect.signature(function).bind(None)
    except (TypeError, ValueError):
        raise DefinitionError(
            f"expected a listener to be a function of one Change, got: {shown(function)}; "
            'write @provider.watching("completed")'
        ) from None


class _Heard(msgspec.Struct, frozen=True):
    function: Listener
    scope: str | None
    """A queue without its group, or None for all."""


class Listeners:
    """The listeners of one provider."""

    def __init__(self) -> None:
        self._by_kind: dict[ChangeKind, tuple[_Heard, ...]] = {}

    def add(self, kinds: Iterable[ChangeKind], function: Listener, *, scope: str | None) -> None:
        """Have `function` called with each change of these kinds; with `scope` of one queue and its groups
        alone.
        """
        for kind in kinds:
            self._by_kind[kind] = (*self._by_kind.get(kind, ()), _Heard(function, scope))

    def discard(self, function: Listener) -> None:
        """Have a function called no more by later workers."""
        for kind, heard in list(self._by_kind.items()):
            left = tuple(one for one in heard if one.function != function)
            if left:
                self._by_kind[kind] = left
            else:
                del self._by_kind[kind]

    def list(self) -> Mapping[ChangeKind, tuple[_Heard, ...]]:
        """Return kind -> its listeners, as they are now."""
        return MappingProxyType(dict(self._by_kind))


class Teller:
    """Tells the listeners what one worker does."""

    def __init__(self, listeners: Listeners | None = None) -> None:
        """What is registered later is heard by later workers."""
        self._by_kind: Mapping[ChangeKind, tuple[_Heard, ...]] = listeners.list() if listeners else {}
        self.is_on: bool = bool(self._by_kind)
        self.worker = ""
        """The id of the worker."""
        self._waiting: deque[Change] = deque()
        self._noted = asyncio.Event()
        self._dropped = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    def tell(self, what: ChangeKind, queue: str = "", job_id: str = "", **given: Any) -> None:
        """Tell of one change; returns at once. In the worker's event loop only."""
        if what not in self._by_kind:
            return
        if len(self._waiting) >= _MOST and what != "missed":
            self._dropped += 1
            return
        given.setdefault("worker", self.worker)
        self._waiting.append(
            Change(what=what, queue=queue, job_id=job_id, at_ms=round(clock.now() * 1000), **given)
        )
        self._noted.set()

    def error(self, role: str, error: BaseException) -> None:
        """Tell of what went wrong outside of any job; `role` is the part of the worker that met it. In any
        thread.
        """
        if "error" not in self._by_kind:
            return
        note = f"{role}: {type(error).__name__}: {error}"
        if self._loop is None or self._loop is _running_loop():
            self.tell("error", note=note, error=error)
        else:
            self._loop.call_soon_threadsafe(lambda: self.tell("error", note=note, error=error))

    async def run(self) -> None:
        """Call the listeners until cancelled."""
        self._loop = asyncio.get_running_loop()
        while True:
            await self._noted.wait()
            self._noted.clear()
            await self._tell_waiting()

    async def tell_rest(self) -> None:
        """Call the listeners with what is left, for a second at most; then leave it out."""
        if not self._waiting:
            return
        try:
            async with asyncio.timeout(_REST_WITHIN):
                await self._tell_waiting()
        except TimeoutError:
            _log.warning("listeners too slow, last changes left out", count=len(self._waiting))

    async def _tell_waiting(self) -> None:
        while self._waiting:
            change = self._waiting.popleft()
            for heard in self._by_kind.get(change.what, ()):
                if heard.scope in (None, change.queue.partition("@")[0]):
                    await self._call(heard.function, change)
            if self._dropped:
                dropped, self._dropped = self._dropped, 0
                _log.warning("listeners too slow, changes left out", count=dropped)
                self.tell("missed", note=f"{dropped} changes, because the listeners are too slow")

    async def _call(self, function: Listener, change: Change) -> None:
        try:
            if inspect.iscoroutinefunction(function):
                await contained_await(function(change))
            else:
                await asyncio.to_thread(_call_plain, function, change)
        except (Exception, asyncio.CancelledError) as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise  # the worker stops; otherwise it is the listener's own
            _log.error("listener failed", listener=_name(function), change=change.what, exc_info=error)
            if change.what != "error":
                self.error("listener", error if isinstance(error, Exception) else Contained(error))


def _call_plain(function: Listener, change: Change) -> None:
    try:
        contained(function, change)
    except StopIteration as error:  # which no future takes
        raise RuntimeError("the listener raised StopIteration") from error


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", repr(function))
