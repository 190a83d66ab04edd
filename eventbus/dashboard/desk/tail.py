"""A tail: the changes of jobs and queues as they happen, without those that the caller may not see.

    asked for -> open (a place was free, and the watch has begun) -> over (five seconds, or the caller left)
    -> closed

A tail is told in slices: each ends after five seconds with the position from which the next one goes on. So a
server that ends waits five seconds at most, a right that was taken away holds at once, and a browser has its
connection free again.

What must always hold:
- between two slices nothing is lost, because the server tells changes for 30 seconds after a watch; what is
  lost is `missed`;
- a change is told only to who may see its queue and its jobs. The text of an error is never told, but its
  type: it may repeat a value that is hidden, and is cut, so that nothing could find that value in it;
- while nobody looks there is no watch, and nothing is written or read.

Crash windows: `caller-leaves` (the slice is closed with its answer), `process-dies` (the watch is over in 30
seconds).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator

import msgspec

from eventbus.admin.watch import Watch
from eventbus.dashboard import timeouts
from eventbus.dashboard.desk.desk import Desk
from eventbus.dashboard.desk.queues import find_queue, queue_target
from eventbus.dashboard.entry.gate import Caller
from eventbus.dashboard.problem import Problem
from eventbus.errors import ProviderStopped, StoreError, StoreRefused
from eventbus.model import clock
from eventbus.telemetry.change import Change

SLICE_SECONDS = 5.0
_NEWEST = 100
_AT_ONCE = 100
_TYPE = re.compile(r"([A-Za-z_][\w.]*): ")
_DAMAGED = ("FOREIGN", "WRONGTYPE")
_UNREADABLE = (
    "the changes cannot be read: one of the keys watched, changes and queues of the shard in the server has "
    "a value of another program; delete it, and look again"
)
_QUEUE_CHANGES = ("drained", "paused", "resumed", "missed")


class TailQuery(msgspec.Struct, frozen=True):
    """Whose changes are told: those of an event with its groups, of `name@group`, or of a queue; without
    both, of all.
    """

    event: str = ""
    queue: str = ""
    since: str = ""


class ChangeView(msgspec.Struct, frozen=True, kw_only=True):
    """One change. `note` is the type of an error, or why a queue was paused; `position` is from where to go
    on.
    """

    what: str
    position: str
    queue: str = ""
    job_id: str = ""
    state: str | None = None
    at_ms: int = 0
    worker: str = ""
    attempt: int = 0
    due_ms: int = 0
    note: str = ""


class TailPage(msgspec.Struct, frozen=True, kw_only=True):
    """The newest changes, the newest first, and the position behind them. `problem`: why none can be read."""

    changes: list[ChangeView]
    position: str
    problem: str = ""


class Slice:
    """Five seconds of changes, for one caller. It has a place among those of its dashboard until it is
    closed.
    """

    def __init__(self, desk: Desk, caller: Caller, watch: Watch) -> None:
        self._watch = watch
        self._sight = _Sight(desk, caller)
        self._leave = desk.tails.enter()

    async def open(self) -> None:
        """Begin the watch. Raises what a watch raises, and TimeoutError; then the slice is closed."""
        try:
            async with asyncio.timeout(timeouts.READ):
                await self._watch.__aenter__()
        except BaseException:
            await self.aclose()
            raise

    async def read(self) -> AsyncGenerator[list[ChangeView]]:
        """Return changes as they happen, until the slice is over or the server refuses."""
        end = clock.monotonic() + SLICE_SECONDS
        while (left := end - clock.monotonic()) > 0:
            try:
                async with asyncio.timeout(left):
                    found = [await self._watch.__anext__()]
            except (TimeoutError, ProviderStopped, StoreError):
                return
            while self._watch.pending and len(found) < _AT_ONCE:
                found.append(await self._watch.__anext__())
            yield [self._sight.view(change) for change in found if self._sight.may_see(change)]
            await asyncio.sleep(0)  # many changes at once must not hold up other requests

    @property
    def reached(self) -> str:
        """From where the next slice goes on."""
        return self._watch.reached

    async def aclose(self) -> None:
        """End the watch, and free the place. Idempotent."""
        self._leave()
        await self._watch.aclose()


class _Sight:
    """What one caller may see. The rights of a queue are asked once."""

    def __init__(self, desk: Desk, caller: Caller) -> None:
        self._desk = desk
        self._caller = caller
        self._known: dict[tuple[str, bool], bool] = {}

    def may_see(self, change: Change) -> bool:
        """Return whether the caller may see it. That something was missed, everybody may."""
        if change.what == "missed":
            return True
        key = (change.queue, change.what not in _QUEUE_CHANGES)
        if key not in self._known:
            self._known[key] = self._desk.sees(self._caller, queue_target(change.queue), jobs=key[1])
        return self._known[key]

    def view(self, change: Change) -> ChangeView:
        """Return a change without what may be hidden."""
        view = msgspec.convert(change, ChangeView, from_attributes=True)
        return msgspec.structs.replace(view, note=self._note_of(change))

    def _note_of(self, change: Change) -> str:
        if change.what in _QUEUE_CHANGES:
            return change.note
        is_open = self._desk.redact == "none"
        if is_open and self._desk.may(self._caller, "payload.read", queue_target(change.queue)):
            return change.note
        found = _TYPE.match(change.note) if change.what in ("retried", "failed") else None
        return found[1] if found else ""


async def open_slice(desk: Desk, caller: Caller, query: TailQuery) -> Slice:
    """Begin a slice. Raises Problem: 404 for an event that the caller may not see, 429 if there are
    too many, 409 if a key of the watch is damaged.
    """
    found = Slice(desk, caller, _watch(desk, caller, query))
    try:
        await found.open()
    except StoreRefused as error:
        if error.code not in _DAMAGED:
            raise
        raise Problem(409, _UNREADABLE) from error  # a browser that tries again finds the same
    return found


async def read_tail(desk: Desk, caller: Caller, query: TailQuery) -> TailPage:
    """Return the newest changes. From now on the server tells them for half a minute, so that a second look
    finds more.
    """
    sight, watch = _Sight(desk, caller), _watch(desk, caller, query)
    try:
        async with asyncio.timeout(timeouts.READ):
            found = await watch.newest(_NEWEST * 5)
    except StoreRefused as error:
        if error.code not in _DAMAGED:
            raise
        return TailPage(changes=[], position="", problem=_UNREADABLE)
    finally:
        await watch.aclose()
    seen = [sight.view(change) for change in reversed(found) if sight.may_see(change)]
    return TailPage(changes=seen[:_NEWEST], position=watch.reached)


def _watch(desk: Desk, caller: Caller, query: TailQuery) -> Watch:
    if query.event and query.queue:
        raise Problem(422, "expected event or queue, and not both")
    wanted = query.event or query.queue
    if not wanted:
        return desk.provider.watch(since=query.since or None)
    find_queue(desk, caller, wanted)
    return desk.provider.watch(wanted, since=query.since or None)
