"""The parts of asyncio's own event loop that virtual time and nodes use: the only module that touches its
private attributes (`_selector`, `_ready`, `_scheduled`, `_timer_cancelled_count`, `_clock_resolution`,
`_unregister_task`), and the method of anyio's backend that runs functions in threads.

A loop class of ours would need none of them, but a policy or a runner in each test instead. uvloop has none
of these attributes and is refused. CI runs the tests of this package on each Python that the project names.
"""

# ruff: noqa: SLF001
# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
import heapq
from asyncio import events
from collections.abc import Callable, Iterable
from contextvars import Context
from itertools import count
from typing import Any

from anyio._core._eventloop import get_async_backend

from eventbus.errors import UsageError

_RUN_SYNC = "run_sync_in_worker_thread"
_RESOLUTION = 1e-6
"""Seconds. The loop fires a timer if its moment is less than this ahead. Its own 1e-9 is lost in the digits
of a time of 100 days and more: a timer whose moment has come would never fire, for time stands meanwhile.
"""


class LoopParts:
    """One loop that was taken over; `give_back` undoes what `replace` did."""

    def __init__(self) -> None:
        """Take the running loop. Raises UsageError for one of another kind, and for one that is taken."""
        loop: Any = asyncio.get_running_loop()
        if not isinstance(loop, asyncio.SelectorEventLoop):
            kind = f"{type(loop).__module__}.{type(loop).__qualname__}"
            raise UsageError(
                f"virtual time needs asyncio's own event loop, got: {kind}; run the test without uvloop, and "
                "on Windows with asyncio.WindowsSelectorEventLoopPolicy"
            )
        if "call_soon" in vars(loop):
            raise UsageError("a TestBus is open in this event loop already; leave it first")
        self._loop: Any = loop
        self._replaced: list[tuple[Any, str]] = []
        self.select: Callable[[float | None], list[Any]] = self._loop._selector.select
        """The selector's own."""
        self._base_sockets = self._count_sockets()
        self._anyio: tuple[Any, Any] | None = None
        self._resolution: float = self._loop._clock_resolution
        self._loop._clock_resolution = _RESOLUTION

    def replace(self, **methods: Callable[..., Any]) -> None:
        """Put these in the place of the loop's methods; `select` is the selector's."""
        for name, method in methods.items():
            owner = self._loop._selector if name == "select" else self._loop
            setattr(owner, name, method)
            self._replaced.append((owner, name))

    def replace_anyio_threads(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Put this into the place of what anyio runs a function in a thread with; return that. So it holds
        for whoever imported `anyio.to_thread.run_sync` itself, too.
        """
        backend: Any = get_async_backend()
        own, self._anyio = backend.run_sync_in_worker_thread, (backend, vars(backend)[_RUN_SYNC])
        setattr(backend, _RUN_SYNC, staticmethod(run))
        return own

    def give_back(self) -> None:
        """Let the loop have its own methods again, and anyio its own."""
        if self._anyio is not None:
            backend, own = self._anyio
            setattr(backend, _RUN_SYNC, own)
        for owner, name in self._replaced:
            delattr(owner, name)
        self._loop._clock_resolution = self._resolution

    @property
    def has_foreign_sockets(self) -> bool:
        """Whether somebody waits for sockets that the loop did not have at first."""
        return self._count_sockets() > self._base_sockets

    def _count_sockets(self) -> int:
        return len(self._loop._selector.get_map())

    def next_timer(self) -> float | None:
        """Return the time of the loop's next timer."""
        scheduled = self._loop._scheduled
        while scheduled and scheduled[0]._cancelled:
            heapq.heappop(scheduled)._scheduled = False
            self._loop._timer_cancelled_count -= 1
        return scheduled[0]._when if scheduled else None

    def run_soon(self, handles: Iterable[asyncio.Handle]) -> None:
        """Have the loop run these in its next round."""
        self._loop._ready.extend(handles)

    def put_timer(self, timer: asyncio.TimerHandle) -> None:
        """Have the loop run a timer at its time."""
        scheduled: Any = timer
        scheduled._scheduled = True
        heapq.heappush(self._loop._scheduled, timer)

    def take(
        self, is_taken: Callable[[Context], bool]
    ) -> tuple[list[asyncio.Handle], list[asyncio.TimerHandle]]:
        """Take out what the loop would run in contexts of some kind: now, and at a time."""
        ready: list[asyncio.Handle] = []
        for place, each in enumerate(self._loop._ready):
            if is_taken(each._context):
                ready.append(each)
                # The running round has counted them: it passes over a cancelled one.
                self._loop._ready[place] = _make_cancelled()
        timers = [each for each in self._loop._scheduled if is_taken(each._context)]
        self._loop._scheduled[:] = [each for each in self._loop._scheduled if not is_taken(each._context)]
        heapq.heapify(self._loop._scheduled)
        for each in timers:
            each._scheduled = False
            self._loop._timer_cancelled_count -= each.cancelled()
        return ready, [each for each in timers if not each.cancelled()]

    def strike(self, task: asyncio.Task[Any]) -> None:
        """Strike a task from the list of those that the end of the loop cancels."""
        asyncio.tasks._unregister_task(task)
        struck: Any = task
        struck._log_destroy_pending = False


def _make_cancelled() -> asyncio.Handle:
    handle = events.Handle(int, (), asyncio.get_running_loop(), None)
    handle.cancel()
    return handle


def make_handle(
    callback: Callable[..., object], args: tuple[Any, ...], context: Context | None
) -> asyncio.Handle:
    """Make a call that no loop knows yet."""
    return events.Handle(callback, args, asyncio.get_running_loop(), context)


def make_timer(
    when: float, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None
) -> asyncio.TimerHandle:
    """Make a timer that no loop knows yet."""
    return _Timer(when, callback, args, asyncio.get_running_loop(), context)


_numbers = count()


class _Timer(events.TimerHandle):
    """A timer that comes behind those of the same moment that were made before it.

    The loop's heap leaves open which is first. In real time no two moments are the same.
    """

    __slots__ = ("number",)

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.number = next(_numbers)

    def __lt__(self, other: events.TimerHandle) -> bool:
        return (self.when(), self.number) < (other.when(), getattr(other, "number", -1))

    def __gt__(self, other: events.TimerHandle) -> bool:
        return (self.when(), self.number) > (other.when(), getattr(other, "number", -1))


def context_of(handle: asyncio.Handle) -> Context:
    """Return the context in which a call runs."""
    return handle._context  # pyright: ignore[reportAttributeAccessIssue]


def waits_for(task: asyncio.Task[Any]) -> asyncio.Future[Any] | None:
    """Return the future for which a task waits, through the tasks that it awaits; None if it waits
    for none.
    """
    waiter: asyncio.Future[Any] | None = task
    while isinstance(waiter, asyncio.Task):
        waited: Any = waiter
        waiter = waited._fut_waiter
    return None if waiter is None or waiter.done() else waiter
