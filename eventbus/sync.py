"""The provider for code that cannot await: threads, sync frameworks, scripts.

In a process whose provider is started, calls go to its event loop. Elsewhere the first call
starts the provider in a thread with an event loop of its own, until the process ends.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextvars
import threading
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack, overload

from eventbus.errors import ProviderStopped, UsageError
from eventbus.event import Event
from eventbus.options import EmitKeywords

if TYPE_CHECKING:
    from eventbus.durations import Duration
    from eventbus.emission import Emission
    from eventbus.provider import EventProvider

__all__ = ["SyncEmission", "SyncProvider", "running_loop"]

P = TypeVar("P")
R = TypeVar("R")
T = TypeVar("T")

_LAST_STEPS = 2.0
"""Seconds for the thread of an ended loop to end too."""


class SyncEmission(Generic[R]):
    """An emission as a thread sees it."""

    def __init__(self, emission: Emission[R], loop: asyncio.AbstractEventLoop) -> None:
        self._emission = emission
        self._loop = loop

    @property
    def job_id(self) -> str:
        """The job's id; final once `enqueued()` returned."""
        return self._emission.job_id

    @property
    def correlation_id(self) -> str:
        """The id of the chain of emissions it belongs to."""
        return self._emission.correlation_id

    def done(self) -> bool:
        """Whether it has an outcome."""
        return self._emission.done()

    def enqueued(self) -> None:
        """Wait until the job is in the server; raises as `Emission.enqueued`."""
        _run(self._loop, self._emission.enqueued())

    def cancel(self, reason: str = "") -> bool:
        """Cancel its job; as `Emission.cancel`."""
        return _run(self._loop, self._emission.cancel(reason))

    def result(self, timeout: float | None = None) -> R:
        """Wait for the outcome; raises as awaiting the emission does.

        Raises TimeoutError after `timeout` seconds; the emission goes on and may be asked again.
        """

        async def wait() -> R:
            return await self._emission

        return _run(self._loop, wait(), timeout)


class SyncProvider:
    """`provider.sync`: the provider's calls, blocking."""

    def __init__(self, provider: EventProvider) -> None:
        self._provider = provider
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @overload
    def emit(self, event: Event[P, R], payload: P, **options: Unpack[EmitKeywords]) -> SyncEmission[R]: ...
    @overload
    def emit(self, event: str, payload: Any = ..., **options: Unpack[EmitKeywords]) -> SyncEmission[Any]: ...
    def emit(self, event: Any, payload: Any = None, **options: Any) -> SyncEmission[Any]:
        """Emit from a thread; `.result()` of what it returns waits. Options and errors as `EventProvider.emit`."""
        loop = self._find_loop()

        async def emit() -> Emission[Any]:
            return self._provider.emit(event, payload, **options)

        return SyncEmission(_run(loop, emit()), loop)

    def result(self, job_id: str, *, event: Any = None, reply_timeout: Duration | None = None) -> Any:
        """Wait for the outcome of a job by its id; as `EventProvider.result`."""
        return _run(
            self._find_loop(), self._provider.result(job_id, event=event, reply_timeout=reply_timeout)
        )

    def cancel(self, job_id: str, reason: str = "", *, event: Any = None) -> bool:
        """Cancel a job by its id; as `EventProvider.cancel`."""
        return _run(self._find_loop(), self._provider.cancel(job_id, reason, event=event))

    def note_progress(self, job_id: str, token: str, progress: str) -> None:
        """For handlers in threads: record progress under the lease."""
        _run(self._find_loop(), self._provider.note_progress(job_id, token, progress))

    def close(self) -> None:
        """Stop a provider that the first call here started. Idempotent; called at exit."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            atexit.unregister(self.close)
            try:
                _run(loop, self._provider.stop())
            finally:
                self._end(loop)

    def _find_loop(self) -> asyncio.AbstractEventLoop:
        loop = self._provider.loop or self._start_loop()
        if loop is running_loop():
            raise UsageError(
                "provider.sync would block the event loop it needs; await provider.emit(...) here"
            )
        return loop

    def _start_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                if running_loop() is not None:
                    raise ProviderStopped("the provider is not started; use `async with provider:`")
                loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_serve, args=(loop,), name="eventbus-sync", daemon=True
                )
                self._thread.start()
                try:
                    _run(loop, self._provider.start())
                except BaseException:
                    self._end(loop)
                    raise
                self._loop = loop
                atexit.register(self.close)
            return self._loop

    def _end(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.call_soon_threadsafe(loop.stop)
        if self._thread is not None:
            self._thread.join(_LAST_STEPS)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.close()


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs in this thread, if any."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _run(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
    """Run a coroutine in the loop's thread and wait for it; it is cancelled after `timeout` seconds."""
    call = _Call(loop, work)
    try:
        loop.call_soon_threadsafe(call.start)
    except RuntimeError as error:  # the loop was closed without a stop
        work.close()
        raise ProviderStopped("the provider's event loop has ended") from error
    try:
        return call.future.result(timeout)
    except BaseException:  # too late, or interrupted: nobody waits any more
        if not call.future.done():
            loop.call_soon_threadsafe(call.cancel)
        raise


class _Call(Generic[T]):
    """One coroutine that runs in the loop's thread, in a copy of the caller's context."""

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> None:
        self.future: concurrent.futures.Future[T] = concurrent.futures.Future()
        self._loop = loop
        self._work = work
        self._context = contextvars.copy_context()
        self._task: asyncio.Task[T] | None = None

    def start(self) -> None:
        self._task = self._loop.create_task(self._work, context=self._context)
        self._task.add_done_callback(self._end)

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _end(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self.future.set_exception(ProviderStopped("the provider's event loop ended"))
        elif (error := task.exception()) is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(task.result())
