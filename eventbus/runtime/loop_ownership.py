"""Which event loop a provider runs in: one of the program, or that of a thread of its own.

    nowhere -> in a loop      `start()` or `async with` there    -> nowhere; threads may no longer start it
            -> in a thread    the first call of `provider.sync`  -> nowhere, by `provider.sync.close()`

Not here: starting and stopping the parts of a provider (`lifecycle`).

What must always hold: one start or stop runs at a time, and all of them in one event loop; another loop gets
an error. In a forked process nothing of this exists: the parent's threads and loops do not run there, and
their connections belong to the parent. The provider starts anew there.
"""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType

from eventbus.errors import EventBusError, ProviderStopped, UsageError


class LoopOwnership:
    """Which loop owns one provider. Its thread lock is held for a few lines at a time, never across
    an await.
    """

    def __init__(self) -> None:
        self.thread_loop: asyncio.AbstractEventLoop | None = None
        """The loop of the thread in which `provider.sync` started the provider."""
        self.is_led: bool = False
        """An event loop of the program has started the provider; after that, threads may not start it."""
        self.is_forked: bool = False
        """The provider was started in the process from which this one was forked, and not here yet."""
        self._be_free()

    def _be_free(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = asyncio.Lock()
        self._holders = 0
        self._guard = threading.Lock()

    def make_lock(self, started: asyncio.AbstractEventLoop | None) -> LifecycleLock:
        """Return a place in the queue of starts and stops in this event loop. `started` is the loop in which
        the provider is started.

        Raises UsageError while the provider is started, starts or stops in another loop.
        """
        loop = asyncio.get_running_loop()
        with self._guard:
            if self._loop is not loop:
                # A loop that was closed without a stop holds nothing: its tasks and connections are gone.
                is_taken = self._holders and self._loop is not None and not self._loop.is_closed()
                if is_taken or started not in (None, loop):
                    raise UsageError(self._elsewhere())
                self._loop, self._lock, self._holders = loop, asyncio.Lock(), 0
            self._holders += 1
            return LifecycleLock(self, self._lock)

    def forget_lock(self, lock: asyncio.Lock) -> None:
        """Leave the queue: the start or stop is over, or its caller no longer waits."""
        with self._guard:
            if lock is self._lock:  # otherwise it is older than a fork, a closed loop or a killed worker
                self._holders -= 1

    def renew_lock(self) -> None:
        """Let nobody wait for those in the queue, because tasks among them run no more."""
        with self._guard:
            self._lock, self._holders = asyncio.Lock(), 0

    def not_started(self, verb: str) -> EventBusError:
        """Return the error for a call that needs a started provider. `verb` names the caller's action."""
        if self.is_forked:
            return UsageError(
                f"cannot {verb}: this process was forked from the one that started the provider; "
                "start it here too (`async with provider:`), or use provider.sync"
            )
        return ProviderStopped(f"cannot {verb}: the provider is not started; use `async with provider:`")

    def forget_parent(self) -> None:
        """Forget the parent's loops and threads, in a process that was just forked."""
        self.is_forked = self.is_forked or self.is_led or self.thread_loop is not None
        self.is_led = False
        self.thread_loop = None
        self._be_free()  # with new locks: the threads that may hold the old ones do not run in this process

    def _elsewhere(self) -> str:
        if self.thread_loop is not None:
            return (
                "provider.sync runs the provider in a thread of its own; "
                "call provider.sync.close() before it is started or stopped in an event loop"
            )
        return "the provider runs in another event loop; stop it there first"


class LifecycleLock:
    """A place in the queue of starts and stops: the right to do one after those before it are done."""

    def __init__(self, ownership: LoopOwnership, lock: asyncio.Lock) -> None:
        self._ownership = ownership
        self._lock = lock

    async def acquire(self) -> None:
        """Wait until those before are done. It may be called again after a cancellation."""
        await self._lock.acquire()

    def release(self) -> None:
        """Let the next in the queue begin."""
        self._lock.release()
        self._ownership.forget_lock(self._lock)

    async def __aenter__(self) -> None:
        try:
            await self.acquire()
        except BaseException:
            self._ownership.forget_lock(self._lock)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
