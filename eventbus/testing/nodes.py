"""Nodes: what stands for one process in virtual time, so that it can be killed or stopped for a while.

A context variable says to which node a task, a callback or a timer belongs; whatever it starts belongs there,
too.

    live -- pause() --> paused (its handles are held) -- resume() --> live
    live, paused -- kill() --> dead

What must always hold: a dead node never runs again, not even a `finally`. A coroutine that is thrown away
runs its clean-up, and the end of a loop cancels all tasks that it knows. So the tasks of the dead are kept
for ever and struck from the loop's list.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextvars import Context, ContextVar, copy_context
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast
from weakref import WeakSet

from eventbus.runtime.own_context import PROCESS
from eventbus.runtime.upkeep import Upkeep
from eventbus.telemetry.gauge_board import boards

if TYPE_CHECKING:
    from eventbus.testing.loop_parts import LoopParts


class Connection(Protocol):
    """What ends with its node."""

    def vanish(self) -> None:
        """End without a word to this side."""
        ...


class NodeTime(Protocol):
    """The virtual time that nodes live in."""

    loop: asyncio.AbstractEventLoop
    parts: LoopParts
    outside: set[object]
    """What threads and other programs have at work."""

    def put_upkeep(self, handle: asyncio.TimerHandle, kind: Upkeep) -> None:
        """Take a timer that does not stop a leap."""
        ...

    def take_upkeep(self, node: Node) -> list[tuple[asyncio.TimerHandle, Upkeep]]:
        """Take the timers of a node out."""
        ...


T = TypeVar("T")

_graves: list[Any] = []


class Node:
    """One simulated process."""

    def __init__(self, time: NodeTime, name: str) -> None:
        self.name = name
        self.is_live: bool = True
        self.is_dead: bool = False
        self.holds: set[object] = set()
        """What it has at work outside of the loop."""
        self.skew: float = 0.0
        """Seconds by which its clock is ahead."""
        self.connections: list[Connection] = []
        self.tasks: WeakSet[asyncio.Task[Any]] = WeakSet()
        self._time = time
        self._held: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[asyncio.TimerHandle, Upkeep]] = []
        self.death: asyncio.Future[None] = time.loop.create_future()
        """Has its result once this is killed."""
        self.context: Context = copy_context()
        """A context in which things of this node start; copy it."""
        self.context.run(NODE.set, self)

    def keep(self, handle: asyncio.Handle) -> None:
        """Take a call of a node that is not live."""
        if not self.is_dead:
            self._held.append(handle)

    def keep_timer(self, handle: asyncio.TimerHandle, kind: Upkeep) -> None:
        """Take a timer of a node that is not live."""
        if not self.is_dead:
            self._timers.append((handle, kind))

    def bury(self, task: asyncio.Task[T]) -> asyncio.Task[T]:
        """Keep a task of the dead for ever, and return it."""
        self._time.parts.strike(task)
        _graves.append((self, task))
        return task

    def kill(self) -> None:
        """End it as `kill -9` does: nothing of it runs any more, and the server sees its connections end."""
        self.is_live, self.is_dead = False, True
        if not self.death.done():
            self.death.set_result(None)
        for task in [task for task in self.tasks if not task.done()]:
            self.bury(task)
        self._time.outside -= self.holds
        self.holds.clear()
        _graves.append(self._take_handles())
        for board in [board for board, keeper in boards.items() if keeper in self.tasks]:
            del boards[board]
        for each in list(self.connections):
            each.vanish()

    def pause(self) -> None:
        """Stop it as SIGSTOP does."""
        if self.is_live:
            self.is_live = False
            ready, self._timers = self._take_handles()
            self._held.extend(ready)

    def resume(self) -> None:
        """Let it go on. Does nothing for a dead one."""
        if self.is_live or self.is_dead:
            return
        self.is_live = True
        for handle, kind in self._timers:
            if handle.cancelled():
                continue
            if kind:
                self._time.put_upkeep(handle, kind)
            else:
                self._time.parts.put_timer(handle)
        self._time.parts.run_soon(self._held)
        self._timers = []
        self._held.clear()

    def _take_handles(self) -> tuple[list[asyncio.Handle], list[tuple[asyncio.TimerHandle, Upkeep]]]:
        """Take all that the loop would run of this node."""
        ready, timers = self._time.parts.take(lambda context: context.get(NODE) is self)
        marked: list[tuple[asyncio.TimerHandle, Upkeep]] = [(each, "") for each in timers]
        return ready, marked + self._time.take_upkeep(self)


NODE = cast("ContextVar[Node | None]", PROCESS)
"""To which node the running code belongs; None for the test itself."""


def is_dead() -> bool:
    """Return whether the running code is of a dead node: it has killed that, and has not awaited since."""
    node = NODE.get()
    return node is not None and node.is_dead
