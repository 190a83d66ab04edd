"""The blocking API of a provider (`provider.sync`), for threads, sync frameworks and scripts.

Which event loop runs the calls:
- If the provider is started, its event loop runs them.
- If no event loop of the program has started it, the first call starts it in a thread with an event loop of
  its own. That runs until `close` or the end of the process.
- If an event loop of the program started the provider and stops or stopped it, calls raise ProviderStopped.
  The program has ended its work with that stop, and a thread that lags behind must not start it again.

Not here: how a call waits (`runtime.blocking_call`), and its emission (`emit.sync_emission`).

What must always hold: a forked process takes no thread from its parent. The first call there starts a new
one, with connections of its own.
"""

from __future__ import annotations

import asyncio
import atexit
import sys
import threading
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, Unpack, overload

from eventbus.emit.sync_emission import SyncEmission
from eventbus.errors import ProviderStopped, UsageError
from eventbus.model.event import Event
from eventbus.model.limit import Limit
from eventbus.runtime.blocking_call import forget_parents_loop, run_blocking, running_loop
from eventbus.runtime.loop_ownership import LoopOwnership
from eventbus.settings.keywords import EmitKeywords

if TYPE_CHECKING:
    from eventbus.emit.emission import Emission
    from eventbus.model.durations import Duration

__all__ = ["LoopThread", "SyncProvider"]

P = TypeVar("P")
R = TypeVar("R")
T = TypeVar("T")

_LAST_STEPS = 2.0
"""Seconds that `close` waits for the thread of the loop that it stopped; more than `_TASKS_END_WITHIN`."""
_TASKS_END_WITHIN = 1.0
"""Seconds that the cancelled tasks of a stopped loop have to end."""


class Blocked(Protocol):
    """The calls of a provider that threads make and wait for."""

    @property
    def start(self) -> Callable[[], Coroutine[Any, Any, None]]: ...
    @property
    def stop(self) -> Callable[[], Coroutine[Any, Any, None]]: ...
    @property
    def emit(self) -> Callable[..., Emission[Any]]: ...
    @property
    def emit_many(self) -> Callable[..., list[Emission[Any]]]: ...
    @property
    def result(self) -> Callable[..., Coroutine[Any, Any, Any]]: ...
    @property
    def cancel(self) -> Callable[..., Coroutine[Any, Any, bool]]: ...
    @property
    def pause(self) -> Callable[..., Coroutine[Any, Any, None]]: ...
    @property
    def resume(self) -> Callable[..., Coroutine[Any, Any, None]]: ...
    @property
    def set_limit(self) -> Callable[..., Coroutine[Any, Any, None]]: ...


class LoopThread:
    """Finds the event loop for blocking calls: the started provider's, otherwise one in a new thread."""

    def __init__(
        self,
        provider: Blocked,
        ownership: LoopOwnership,
        running: Callable[[], asyncio.AbstractEventLoop | None],
    ) -> None:
        """`running` returns the event loop in which the provider is started, or None."""
        self._provider = provider
        self._ownership = ownership
        self._running = running
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        """The thread's loop, once the provider is started there."""
        self._thread: threading.Thread | None = None

    def close(self) -> None:
        """Stop a provider that the first call here started. Idempotent; called at exit.

        A later call starts it again.
        """
        with self._lock:
            loop, self._loop = self._loop, None
            if loop is None:
                return
            atexit.unregister(self.close)
            try:
                run_blocking(loop, self._provider.stop())
            finally:
                self._end(loop)

    def forget_parent(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Forget the parent's thread in a forked process. The parent's provider runs in `loop`."""
        for known in (loop, self._loop):
            if known is not None:
                forget_parents_loop(known)
        self._lock = threading.Lock()  # new: the thread that may hold the old lock is not in this process
        self._loop = self._thread = None

    def find(self) -> asyncio.AbstractEventLoop:
        """Return the loop for a call, and start it if necessary.

        Raises UsageError if the caller runs in that loop, ProviderStopped if the provider may not be started
        here.
        """
        loop = self._running() or self._start_loop()
        if loop is running_loop():
            raise UsageError(
                "provider.sync would block the event loop it needs; await provider.emit(...) here"
            )
        return loop

    def _start_loop(self) -> asyncio.AbstractEventLoop:
        if running_loop() is not None:
            raise ProviderStopped("the provider is not started; use `async with provider:`")
        with self._lock:
            if self._ownership.is_led:
                raise ProviderStopped(
                    "the event loop that had the provider has stopped it, or has not started it yet; "
                    "`async with provider:` there makes provider.sync work in threads"
                )
            if self._loop is None:
                loop = self._start_thread()
                try:
                    run_blocking(loop, self._provider.start())
                except BaseException:
                    self._end(loop)
                    raise
                self._loop = loop
                _call_at_exit(self.close)
            return self._loop

    def _start_thread(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=_serve, args=(loop,), name="eventbus-sync", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            loop.close()
            raise ProviderStopped(f"no thread can be started for the provider: {error}") from error
        self._ownership.thread_loop = loop
        return loop

    def _end(self, loop: asyncio.AbstractEventLoop) -> None:
        self._ownership.thread_loop = None
        loop.call_soon_threadsafe(loop.stop)
        if self._thread is not None:
            self._thread.join(_LAST_STEPS)

    def find_running(self, verb: str) -> asyncio.AbstractEventLoop:
        """Return the loop of a started provider; `verb` names the caller's action. As
        `LoopOwnership.not_started`.
        """
        loop = self._running()
        if loop is None:  # the worker has ended, or it runs in the parent of this process
            raise self._ownership.not_started(verb)
        return loop


class SyncProvider:
    """The calls of `provider.sync`: those of the provider, but blocking. Not for code in an event loop."""

    def __init__(self, provider: Blocked, thread: LoopThread) -> None:
        """Not for users: take `provider.sync`."""
        self._provider = provider
        self._thread = thread

    @overload
    def emit(self, event: Event[P, R], payload: P, **options: Unpack[EmitKeywords]) -> SyncEmission[R]: ...
    @overload
    def emit(self, event: str, payload: Any = ..., **options: Unpack[EmitKeywords]) -> SyncEmission[Any]: ...
    def emit(self, event: Any, payload: Any = None, **options: Any) -> SyncEmission[Any]:
        """Emit an event from a thread. `result()` of the returned emission waits for the outcome.

        Options and errors are those of `EventProvider.emit`.
        """
        loop = self._thread.find()

        async def emit() -> Emission[Any]:
            return self._provider.emit(event, payload, **options)

        return SyncEmission(run_blocking(loop, emit()), loop)

    @overload
    def emit_many(
        self, event: Event[P, R], payloads: Iterable[P], **options: Unpack[EmitKeywords]
    ) -> list[SyncEmission[R]]: ...
    @overload
    def emit_many(
        self, event: str, payloads: Iterable[Any], **options: Unpack[EmitKeywords]
    ) -> list[SyncEmission[Any]]: ...
    def emit_many(self, event: Any, payloads: Iterable[Any], **options: Any) -> list[SyncEmission[Any]]:
        """Emit one event for each payload from a thread, as `EventProvider.emit_many`."""
        loop = self._thread.find()
        given = list(payloads)  # in this thread: an iterator that blocks must not block the event loop

        async def emit_many() -> list[Emission[Any]]:
            return self._provider.emit_many(event, given, **options)

        return [SyncEmission(emission, loop) for emission in run_blocking(loop, emit_many())]

    @overload
    def result(self, job_id: str, *, event: Event[Any, R], reply_timeout: Duration | None = ...) -> R: ...
    @overload
    def result(
        self, job_id: str, *, event: str | None = ..., reply_timeout: Duration | None = ...
    ) -> Any: ...
    def result(
        self,
        job_id: str,
        *,
        event: Event[Any, Any] | str | None = None,
        reply_timeout: Duration | None = None,
    ) -> Any:
        """Wait for the outcome of a job by its id, as `EventProvider.result`."""
        return run_blocking(
            self._thread.find(), self._provider.result(job_id, event=event, reply_timeout=reply_timeout)
        )

    def cancel(
        self,
        job_id: str,
        reason: str = "",
        *,
        event: Event[Any, Any] | str | None = None,
        call_timeout: Duration | None = None,
    ) -> bool:
        """Cancel a job by its id, as `EventProvider.cancel`."""
        loop = self._thread.find()
        return run_blocking(
            loop, self._provider.cancel(job_id, reason, event=event, call_timeout=call_timeout)
        )

    def pause(
        self,
        event: Event[Any, Any] | str,
        *,
        group: str | None = None,
        reason: str = "",
        by: str | None = None,
        call_timeout: Duration | None = None,
    ) -> None:
        """Pause an event for one group, as `EventProvider.pause`."""
        options: dict[str, Any] = {"group": group, "reason": reason, "by": by, "call_timeout": call_timeout}
        run_blocking(self._thread.find(), self._provider.pause(event, **options))

    def resume(
        self, event: Event[Any, Any] | str, *, group: str | None = None, call_timeout: Duration | None = None
    ) -> None:
        """Let workers claim jobs of a paused event again, as `EventProvider.resume`."""
        loop = self._thread.find()
        run_blocking(loop, self._provider.resume(event, group=group, call_timeout=call_timeout))

    def set_limit(
        self,
        event: Event[Any, Any] | str,
        limit: Limit | None,
        *,
        group: str | None = None,
        call_timeout: Duration | None = None,
    ) -> None:
        """Set the limit of an event for one group, or take it back with None, as
        `EventProvider.set_limit`.
        """
        loop = self._thread.find()
        run_blocking(loop, self._provider.set_limit(event, limit, group=group, call_timeout=call_timeout))

    def close(self) -> None:
        """Stop a provider that the first call here started. Idempotent; called at exit.

        A later call starts it again.
        """
        self._thread.close()


def _call_at_exit(close: Callable[[], None]) -> None:
    atexit.register(close)
    processes: Any = sys.modules.get("multiprocessing.process")
    if processes is not None and processes.parent_process() is not None:
        # A child process of multiprocessing does not run atexit's functions, but its own finalizers.
        util: Any = sys.modules["multiprocessing.util"]
        util.Finalize(None, close, exitpriority=0)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        tasks = asyncio.all_tasks(loop)  # calls that arrived while the loop stopped
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks, timeout=_TASKS_END_WITHIN))
    finally:
        loop.close()
