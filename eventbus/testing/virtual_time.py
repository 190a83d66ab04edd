"""Virtual time: one number that an event loop, the clock of the packages and the server's scripts read.

Time stands while anything can run. It moves only inside the loop's `select`: nothing is ready, no thread is
at work (one that waits for this loop is not), nobody holds it, and no foreign socket brings anything. Then it
moves to the earliest of the loop's next timer, of what the server has to do next, and of the end of an
`advance`.

    runs -- nothing is ready --> still -- settle() waits --> its caller goes on
                                       -- something is due --> moved there
                                       -- only upkeep is ----> it goes on for `patience`, then `on_standstill`

Leaps: timers of upkeep (`runtime.upkeep`) are kept apart. They do not stop a leap; each that is overdue fires
once, a millisecond before the leap ends, and before the keys expire whose time has come.

Not here: what the server has to do (`server_due`), whose task is whose (`nodes`), and expiries (`network`).

What must always hold:
- time moves only when nothing is ready, and never goes back, also not when the loop gets its own time again;
- a leap changes nothing but how often upkeep ran;
- what is due at one moment runs in the order in which it was set, whatever the loop's time was at first;
- one loop of a process has it at a time, because the clock is that of all.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import threading
import time as real_time
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import Context
from functools import partial
from typing import Any

from eventbus.errors import UsageError
from eventbus.model import clock
from eventbus.runtime import blocking_call
from eventbus.runtime.upkeep import Upkeep, upkeep
from eventbus.testing.loop_parts import LoopParts, context_of, make_handle, make_timer
from eventbus.testing.nodes import NODE, Node

_PATIENCE = 0.05
"""Real seconds in which a foreign socket may bring something before time moves."""
_UPKEEP = 70.0
"""Seconds in which each upkeep comes at least once."""
_BEFORE = 0.001
"""Seconds before the end of a leap at which upkeep fires."""


class _Here(threading.local):
    """What a thread that works for a loop is counted as."""

    thread: object = None


_here = _Here()


def _run_as(thread: object, call: Callable[..., Any], *args: Any) -> Any:
    _here.thread = thread
    try:
        return call(*args)
    finally:
        _here.thread = None


class _Wait(blocking_call.ThreadWait):
    """A thread waits for the loop: time goes on, up to the end of its patience."""

    def __init__(self, time: VirtualTime, thread: object, end: float | None) -> None:
        self._time, self._thread, self._end = time, thread, end
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Hear that the coroutine begins."""
        if self._end is not None:
            # It looks at the clock by itself; until then time stands again.
            self._timer = self._time.loop.call_at(self._end, self._time.lent.discard, self._thread)
        self._time.lent.add(self._thread)

    def end(self) -> None:
        """Hear that the coroutine has ended, before the thread goes on."""
        self._time.lent.discard(self._thread)
        if self._timer is not None:
            self._timer.cancel()


_installed: VirtualTime | None = None


class VirtualTime:
    """The time of one event loop, from `install` to `remove`."""

    def __init__(self, *, start: float, leaps: bool = True) -> None:
        """`start` is the wall clock's time at first, in Unix seconds. Without `leaps` upkeep runs on
        time.
        """
        self.start = start
        self.outside: set[object] = set()
        """The threads and holds that are at work outside of the loop: time stands."""
        self.lent: set[object] = set()
        """The threads that wait for the loop: because of them time does not stand."""
        self.is_busy: Callable[[], bool] = lambda: False
        """Whether upkeep of the kind `idle` has to run on time."""
        self.server_due: Callable[[], float | None] = lambda: None
        """When the server has something to do next, in the loop's time."""
        self.on_due: Callable[[], None] = lambda: None
        """Called when time has come there."""
        self.on_standstill: Callable[[], None] = lambda: None
        """Called if everything waits and nothing is due."""
        self.patience: float = 2.9 * _UPKEEP
        """Seconds for which upkeep alone may go on, three times by default: it may be what somebody waits
        for."""
        self.is_before_expiry: float | None = None
        """The loop's time up to which keys have expired, if upkeep comes before those of now."""
        self.skew: float = 0.0
        """Seconds by which the server's clock is ahead."""
        self._leaps = leaps
        self._ends: list[tuple[float, asyncio.Future[None]]] = []
        """When each `advance` ends."""
        self._holders: list[asyncio.Task[Any] | None] = []
        self._settling: list[asyncio.Future[None]] = []
        self._upkeep: list[tuple[float, int, asyncio.TimerHandle, Upkeep]] = []
        self._count = 0
        self._alone_since: float | None = None
        """Since when there was nothing but upkeep."""

    # Taking a loop over

    def install(self) -> None:
        """Take over the running loop. Raises UsageError for a loop that cannot be taken over, and while
        another one is.
        """
        global _installed
        other = _installed
        if other is not None and other.loop is not asyncio.get_running_loop() and not other.loop.is_closed():
            raise UsageError(
                "virtual time runs in another event loop of this process; one TestBus at a time, because "
                "they share the clock: leave the other one first, or use another process"
            )
        self.parts: LoopParts = LoopParts()
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        loop = self.loop
        self.began: float = float(math.ceil(loop.time()))  # whole, because some timers have a grid
        self.now: float = self.began
        self._call_soon = loop.call_soon
        self._create_task, self._run_in_executor = loop.create_task, loop.run_in_executor
        self._clock = clock.now, clock.monotonic
        self._make_wait = blocking_call.make_wait
        self.parts.replace(
            select=self._wait,
            time=lambda: self.now,
            call_soon=self.call_soon,
            call_at=self.call_at,
            create_task=self.create_task,
            run_in_executor=self._run_outside,
        )
        self._run_sync = self.parts.replace_anyio_threads(self._run_sync_outside)
        clock.now, clock.monotonic = self.read_wall, lambda: self.now
        blocking_call.make_wait = self._make_wait_of_thread
        _installed = self

    def remove(self) -> None:
        """Give the loop back; its time goes on from here."""
        global _installed
        _installed = None
        self.parts.give_back()
        clock.now, clock.monotonic = self._clock
        blocking_call.make_wait = self._make_wait
        ahead = self.now - real_time.monotonic()
        own: Any = self.loop
        own.time = lambda: real_time.monotonic() + ahead
        for _, _, handle, _ in self._upkeep:
            if not handle.cancelled():
                self.parts.put_timer(handle)

    def read_wall(self) -> float:
        """Return the wall clock's time, in Unix seconds, as the running node sees it."""
        node = NODE.get()
        return self.start + (self.now - self.began) + (node.skew if node is not None else 0.0)

    def server_us(self, at: float | None = None) -> int:
        """Return the server's time, in Unix microseconds, now or at a time of the loop."""
        now = self.now if at is None else at
        return round((self.start + (now - self.began) + self.skew) * 1_000_000)

    def at_server_ms(self, ms: float) -> float:
        """Return the loop's time at which the server's clock says `ms`."""
        return ms / 1000 - self.skew - self.start + self.began

    # What a test asks for

    async def settle(self) -> None:
        """Return when nothing is due now. Raises UsageError inside of a hold of this task."""
        if asyncio.current_task() in self._holders:
            raise UsageError("time stands inside of `with bus.hold():`; let it pass outside")
        waiter = self.loop.create_future()
        self._settling.append(waiter)
        await waiter

    async def advance(self, seconds: float) -> None:
        """Let time pass, and run what falls due on the way. Raises UsageError as `settle`."""
        await self.settle()
        own = (self._whole(self.now + seconds), self.loop.create_future())
        self._ends.append(own)
        try:
            await own[1]
        finally:
            self._ends.remove(own)
        await self.settle()

    @contextmanager
    def hold(self) -> Generator[None]:
        """Let time stand while the caller waits for something real; a node that is killed holds nothing
        more.
        """
        task = asyncio.current_task()
        self._holders.append(task)
        try:
            with self._hold_by(object()):
                yield
        finally:
            self._holders.remove(task)

    @contextmanager
    def _hold_by(self, holder: object) -> Generator[None]:
        node = NODE.get()
        self.outside.add(holder)
        if node is not None:
            node.holds.add(holder)
        try:
            yield
        finally:
            self.outside.discard(holder)
            if node is not None:
                node.holds.discard(holder)

    # What the loop schedules

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Stand for the loop's `call_soon`."""
        node = NODE.get() if context is None else context.get(NODE)
        if node is None or node.is_live:
            return self._call_soon(callback, *args, context=context)
        handle = make_handle(callback, args, context)
        node.keep(handle)
        return handle

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Stand for the loop's `call_at`."""
        node = NODE.get() if context is None else context.get(NODE)
        kind: Upkeep = upkeep.get() if self._leaps else ""
        handle = make_timer(self._whole(when), callback, args, context)
        if node is not None and not node.is_live:
            node.keep_timer(handle, kind)
        elif kind:
            self.put_upkeep(handle, kind)
        else:
            self.parts.put_timer(handle)
        return handle

    def create_task(
        self, coro: Coroutine[Any, Any, Any], *, context: Context | None = None, **options: Any
    ) -> asyncio.Task[Any]:
        """Stand for the loop's `create_task`."""
        node = NODE.get()
        if context is not None:
            if NODE not in context:  # an empty one belongs where it was made
                context.run(NODE.set, node)
            node = context[NODE]
        if node is not None and node.is_dead:
            # Not by a factory, which may begin it at once.
            return node.bury(asyncio.Task(coro, loop=self.loop, context=context))
        task: asyncio.Task[Any] = self._create_task(coro, context=context, **options)
        if node is not None:
            node.tasks.add(task)
        return task

    def _whole(self, when: float) -> float:
        """Return a time in whole microseconds, so that what is due at one moment has one time, however it was
        added up: what `now` becomes, and what it is compared with. A time that would be over by that stays as
        it is, and whoever waits for it asks no more.

        Tenths are rounded away first: sums of floats differ by 0.01 microseconds once the loop's time is 100
        days.
        """
        if math.isinf(when):
            return when
        whole = math.ceil(round(when * 1e6, 1)) / 1e6
        return whole if whole > self.now else when

    def passed_since(self, at: float) -> float:
        """Return the seconds since a time, in whole microseconds, to be compared."""
        return round(self.now - at, 6)

    def put_upkeep(self, handle: asyncio.TimerHandle, kind: Upkeep) -> None:
        """Take a timer that does not stop a leap."""
        self._count += 1
        heapq.heappush(self._upkeep, (handle.when(), self._count, handle, kind))

    def take_upkeep(self, node: Node) -> list[tuple[asyncio.TimerHandle, Upkeep]]:
        """Take the timers of a node out."""
        mine = [each for each in self._upkeep if context_of(each[2]).get(NODE) is node]
        self._upkeep = [each for each in self._upkeep if context_of(each[2]).get(NODE) is not node]
        heapq.heapify(self._upkeep)
        return [(handle, kind) for _, _, handle, kind in mine]

    def _run_outside(
        self, executor: Executor | None, call: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        thread = object()
        if executor is None or isinstance(executor, ThreadPoolExecutor):
            call = partial(_run_as, thread, call)
        future = self._run_in_executor(executor, call, *args)
        self.outside.add(thread)
        # In no node's name: its end counts even if the node was killed meanwhile.
        outside = Context()
        outside.run(NODE.set, None)
        future.add_done_callback(lambda _: self.outside.discard(thread), context=outside)
        return future

    async def _run_sync_outside(self, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        thread = object()
        with self._hold_by(thread):
            return await self._run_sync(partial(_run_as, thread, call), *args, **options)

    def _make_wait_of_thread(
        self, loop: asyncio.AbstractEventLoop, end: float | None
    ) -> blocking_call.ThreadWait:
        if loop is not self.loop or _here.thread is None:
            return blocking_call.ThreadWait()
        return _Wait(self, _here.thread, end)

    # When nothing is ready

    def _wait(self, timeout: float | None = None) -> list[Any]:
        """Stand for the selector's `select`."""
        found = self.parts.select(0)
        if found or (timeout is not None and timeout <= 0):
            return found
        while self.outside - self.lent:
            if found := self.parts.select(1.0):
                return found
        if self.parts.has_foreign_sockets and (found := self.parts.select(_PATIENCE)):
            return found
        self._go_on()
        return []

    def _go_on(self) -> None:
        """Serve who waits for a standstill, or move time to what is due next."""
        if self._settling:
            settling, self._settling = self._settling, []
            for waiter in settling:
                if not waiter.done():
                    waiter.set_result(None)
            return
        timer, due = self.parts.next_timer(), self.server_due()
        if due is not None:
            due = self._whole(due) if due > self.now else None  # told already: nobody takes it
        limit = min((when for when, end in self._ends if not end.done()), default=None)
        times = [each for each in (timer, due, limit) if each is not None]
        upkeep_due = self._next_upkeep()
        if times:
            self._alone_since = None
        elif self._is_patient():
            times = [self._whole(self.now + _UPKEEP)]
        else:
            self._alone_since = None
            self.on_standstill()
            return
        if upkeep_due is not None:
            times.append(upkeep_due)
        target = max(min(times), self.now)
        early = self._whole(target - _BEFORE)
        if self._upkeep and self._upkeep[0][0] <= early and early > self.now:
            # As if it had come in time: what it renews has not expired meanwhile.
            if self.is_before_expiry is None:
                self.is_before_expiry = self.now
            self._move(early)
            return
        self.is_before_expiry = None
        self._move(target)
        if due is not None and due <= target:
            self.on_due()
        elif timer is None or timer > target:
            for when, end in self._ends:
                if when <= target and not end.done():
                    end.set_result(None)

    def _is_patient(self) -> bool:
        """Whether upkeep, which is all that is left, may still bring something."""
        if not self._upkeep:
            return False
        if self._alone_since is None:
            self._alone_since = self.now
        return self.passed_since(self._alone_since) < self.patience

    def next_due(self) -> float | None:
        """Return the loop's time at which something is due next here or in the server, or None. Upkeep
        does not count.
        """
        times = (self.parts.next_timer(), self.server_due())
        return min((time for time in times if time is not None), default=None)

    def _next_upkeep(self) -> float | None:
        """Return the time of the next upkeep that has to run on time."""
        while self._upkeep and self._upkeep[0][2].cancelled():
            heapq.heappop(self._upkeep)
        if not self._upkeep or not self.is_busy():
            return None
        times = (when for when, _, handle, kind in self._upkeep if kind == "idle" and not handle.cancelled())
        return min(times, default=None)

    def _move(self, to: float) -> None:
        self.now = max(self.now, to)
        while self._upkeep and self._upkeep[0][0] <= self.now:
            handle = heapq.heappop(self._upkeep)[2]
            if not handle.cancelled():
                self.parts.run_soon([handle])
