"""The lifecycle of a provider: it starts and stops the emitter and the worker in one event loop.

    stopped -> starting -> started -> stopping -> stopped (may be started again)

Not here: events and handlers. `provider` is the public API of this module and documents it to users.

What must always hold:
- start and stop may be called in any order, twice and at the same time; the last call wins, and each
  call returns when its state is reached;
- a stop that has begun goes on to its end even if its callers stop waiting, and it waits for no server;
- each emission and each waiter from before a stop gets an outcome or ProviderStopped;
- in a process forked from this one the provider is not started: nothing that the parent started is
  used or ended there.
"""

from __future__ import annotations

import asyncio
import fnmatch
import os
import weakref
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any, Protocol

import anyio

from eventbus.emit.emitter import Emitter
from eventbus.emit.uplink import join_uplink
from eventbus.errors import ConfigError, DefinitionError, ProviderStopped, UsageError
from eventbus.handlers.extension import Extension
from eventbus.handlers.failures.hook import FailureHook
from eventbus.handlers.lifespan import Lifespan
from eventbus.handlers.middleware import Middleware
from eventbus.handlers.pools import PoolSpec
from eventbus.handlers.process.handler import log_note
from eventbus.handlers.subscriptions import Subscription, Subscriptions
from eventbus.handlers.worker import EventWorker
from eventbus.handlers.worker_host import Bus
from eventbus.model.names import DEFAULT_GROUP
from eventbus.runtime.blocking_call import running_loop
from eventbus.runtime.loop_ownership import LifecycleLock, LoopOwnership
from eventbus.runtime.process_pool import ProcessPool, is_child
from eventbus.settings.settings import Settings
from eventbus.store.store import Store
from eventbus.sync import LoopThread
from eventbus.telemetry.listeners import Listeners
from eventbus.telemetry.propagation import current


class Closing(Protocol):
    """What ends before the provider's connections do."""

    async def aclose(self) -> None:
        """End it. Idempotent."""
        ...


class Lifecycle:
    """Starts and stops the store, the emitter and the one worker of a provider."""

    def __init__(self, ownership: LoopOwnership, thread: LoopThread, bus: Bus) -> None:
        """`bus` is the provider."""
        self.loop: asyncio.AbstractEventLoop | None = None
        """The event loop in which the provider is started, or None."""
        self.store: Store | None = None
        self.emitter: Emitter | None = None
        self.worker: EventWorker | None = None
        self.middleware: list[Middleware] = []
        self.lifespans: list[Lifespan] = []
        """The next worker puts these lifespans around its run, and the middleware around its handlers."""
        self.failure_hooks: list[FailureHook] = []
        """The next worker calls these for each job that it ends as failed."""
        self.pools: dict[str, PoolSpec] = {}
        """The declared pools of the workers, by name."""
        self.make_processes: Callable[[], ProcessPool] = partial(ProcessPool, log_note)
        """Makes the processes of the next worker's handlers."""
        self.on_worker: Callable[[], Coroutine[Any, Any, None]] | None = None
        """Called by each worker that starts, before it serves, and by one that the server has forgotten.

        It keeps declared schedules in the server.
        """
        self.on_serving: Callable[[], Coroutine[Any, Any, None]] | None = None
        """Called by each worker that has started: it looks for declared schedules that nobody handles."""
        self.extensions: list[Extension] = []
        """The systems whose consumers run in the workers, beside the handlers."""
        self.listeners: Listeners = Listeners()
        """The functions that hear what the next worker does."""
        self.watches: set[Closing] = set()
        """The open watches, which end before the connections do."""
        self._ownership = ownership
        self._thread = thread
        self._bus = bus
        self._stops = 0
        """How many stops wait for the lock. No worker starts before they are done."""
        self._endings: set[asyncio.Task[None]] = set()
        """The tasks of stops under way. An event loop holds tasks by weak references only."""
        _lives.add(self)

    def running(self, verb: str) -> Emitter:
        """Return the emitter. `verb` names the caller's action in error messages.

        Raises ProviderStopped when the provider is not started, UsageError in another thread, another event
        loop or a forked process.
        """
        if self.emitter is None:
            raise self._ownership.not_started(verb)
        here = running_loop()
        if here is not self.loop:
            place = "event loop; use it where it was started" if here else "thread; use provider.sync there"
            raise UsageError(f"cannot {verb}: the provider runs in another {place}")
        return self.emitter

    async def start(self, settings: Settings, *, reads_only: bool = False) -> None:
        """Connect; with `reads_only` without any write. Does nothing when started. Raises StoreRefused."""
        async with self._make_lock():
            if self.emitter is not None:
                return
            loop = asyncio.get_running_loop()
            self._ownership.is_led = loop is not self._ownership.thread_loop
            emitter = Emitter(join_uplink(settings), settings)
            try:
                await emitter.start(reads_only=reads_only)
            except BaseException:
                await self._to_the_end_of(
                    emitter.aclose()
                )  # a cancelled start leaves no open connections behind
                raise
            self.store, self.emitter, self.loop = emitter.store, emitter, loop
            self._ownership.is_forked = False

    async def stop(self, *, is_patient: bool = False) -> None:
        """End the worker, then the emitter, then the connections. Does nothing when stopped.

        Without a server it takes at most the grace and 5 s for a worker, and 6 s for the rest. When
        the caller is cancelled the stop goes on, and the next start or stop waits for its end. With
        `is_patient` the caller too waits for the end before it raises its first cancellation.
        """
        lock = self._make_lock()  # raises UsageError to the caller if its loop is another one
        self._stops += 1
        if self.worker is not None:
            self.worker.request_stop()  # now: a worker that is still starting holds the lock until it ends
        await self._to_its_end(lock, self._stop, is_patient=is_patient)

    async def _stop(self) -> None:
        self._stops -= 1
        if self.worker is not None:
            await self.worker.stop()
            # Only now, because handlers that were finishing used the worker through their contexts.
            self._drop_worker()
        for watch in list(self.watches):
            await watch.aclose()
        if self.emitter is not None:
            try:
                await self.emitter.stop()
            finally:
                await self.emitter.aclose()
        self.emitter = self.store = self.loop = None

    def choose(
        self, registry: Subscriptions, globs: list[str]
    ) -> tuple[list[Subscription], list[tuple[Extension, str]]]:
        """Return the subscriptions and the queues of extensions that match `globs`.

        Each queue of an extension comes with its extension. Raises ConfigError if nothing matches.
        """
        offered = [(extension, queue) for extension in self.extensions for queue in extension.queues]
        if not len(registry) and not offered:
            raise ConfigError("this provider has no handlers; register them with @provider.on(...)")
        chosen = [candidate for candidate in registry if _matches(_label(candidate), globs)]
        extensions = [candidate for candidate in offered if _matches(candidate[1], globs)]
        if not chosen and not extensions:
            known = ", ".join([*map(_label, registry), *(queue for _, queue in offered)])
            raise ConfigError(
                f"no handler matches queues {', '.join(globs)}; there are: {known}", setting="queues"
            )
        return chosen, extensions

    async def start_worker(
        self,
        settings: Settings,
        subscriptions: Iterable[Subscription],
        extensions: Iterable[tuple[Extension, str]] = (),
    ) -> EventWorker:
        """Start the worker of a started provider; return when it is ready.

        Each extension comes with the queue to serve. Raises DefinitionError if a worker runs already, and
        the errors of the worker's start.
        """
        async with self._make_lock():
            if self.worker is not None:
                raise DefinitionError("a worker of this provider runs in this process already")
            return await self._begin_worker(settings, subscriptions, extensions)

    async def end_worker(self, worker: EventWorker) -> None:
        """Stop a worker, unless a stop of the provider has stopped it. Waits as a patient `stop` does."""
        worker.request_stop()
        await self._to_its_end(self._make_lock(), partial(self._end_worker, worker), is_patient=True)

    def abandon_worker(self) -> None:
        """Forget the worker without ending it, as after the death of its process."""
        self._drop_worker()
        self._ownership.renew_lock()

    async def _end_worker(self, worker: EventWorker) -> None:
        if self.worker is worker:
            await worker.stop()
            self._drop_worker()

    async def serve(self, settings: Settings, subscription: Subscription) -> None:
        """Serve one more subscription in this process: add it to the running worker, or start one."""
        async with self._make_lock():
            if self.worker is not None:
                self._check_not_stopping()
                await self.worker.add(subscription)
            else:
                await self._begin_worker(settings, [subscription])

    async def withdraw(self, subscription: Subscription, on_begin: Callable[[], None]) -> None:
        """Serve a subscription no more in this process; return when none of its jobs runs here any more.

        `on_begin` is called once nothing speaks against it. Raises UsageError to a handler that waits for its
        own end.
        """
        worker = self.worker
        if worker is not None and worker.has_job_of(subscription.queue, current().job_id):
            raise UsageError(
                "a job cannot unsubscribe its own handler and wait for it, because it would wait for its own "
                "end; do it in a task of the program"
            )
        on_begin()
        if worker is not None:
            await worker.remove(subscription.queue)

    async def _begin_worker(
        self,
        settings: Settings,
        subscriptions: Iterable[Subscription],
        extensions: Iterable[tuple[Extension, str]] = (),
    ) -> EventWorker:
        self._check_not_stopping()
        self._check_not_child()
        emitter = self.running("run a worker")
        self.worker = worker = EventWorker(
            emitter.store,
            settings,
            bus=self._bus,
            find_loop=self._thread.find_running,
            middleware=tuple(self.middleware),
            lifespans=tuple(self.lifespans),
            pools=self.pools,
            make_processes=self.make_processes,
            failure_hooks=tuple(self.failure_hooks),
            find_waits=emitter.tracker.find_waits,
            listeners=self.listeners,
            declare=self.on_worker,
        )
        try:
            if self.on_worker is not None:
                await self.on_worker()
            await worker.start(subscriptions, extensions)
            if self.on_serving is not None:
                await self.on_serving()
        except BaseException:
            self._drop_worker()
            await self._to_the_end_of(
                worker.stop(at_once=True)
            )  # a cancelled start leaves no half a worker behind
            raise
        return worker

    def _drop_worker(self) -> None:
        """Forget the worker, whose attempts have nothing more done for them."""
        if self.worker is not None:
            self.worker.host.close()
        self.worker = None

    def _check_not_stopping(self) -> None:
        if self._stops:
            raise ProviderStopped("the provider is stopping; start it again before its workers")

    def _check_not_child(self) -> None:
        if is_child():
            raise UsageError(
                'a module with pool="process" handlers runs a worker when it is imported; '
                'put that under `if __name__ == "__main__":`'
            )

    async def _to_its_end(
        self, lock: LifecycleLock, end: Callable[[], Coroutine[Any, Any, None]], *, is_patient: bool
    ) -> None:
        """Run `end` under the lock to its end. A cancellation ends only the caller's waiting.

        anyio repeats a cancellation until its scope is left, so a patient wait needs anyio's own shield.
        """
        with anyio.CancelScope(shield=is_patient):
            task: asyncio.Task[None] | None = None
            try:
                # Acquired here, not in the task, so that callers get the lock in the order of their calls.
                await lock.acquire()
                task = self._keep(_end_and_release(lock, end))
                await asyncio.shield(task)
            except asyncio.CancelledError:
                # Cancelled while it waited for the lock: no task exists yet, but the stop must happen.
                task = task or self._keep(_acquire_and_end(lock, end))
                if is_patient:
                    await asyncio.wait([task])
                raise

    async def _to_the_end_of(self, ending: Coroutine[Any, Any, None]) -> None:
        """Wait for the end of a failed start; a second cancellation ends the wait, anyio's repeats do not."""
        with anyio.CancelScope(shield=True):
            await asyncio.shield(self._keep(ending))

    def _keep(self, ending: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(ending, name="eventbus-stop")
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)
        return task

    def _make_lock(self) -> LifecycleLock:
        """Return the lock that allows one start or stop at a time, in one event loop.

        Raises UsageError while the provider runs in another loop.
        """
        # Nothing can be stopped in a loop that was closed without a stop: its tasks and connections are gone.
        if self.loop is not None and self.loop.is_closed():
            self._forget()
        return self._ownership.make_lock(self.loop)

    def _forget(self) -> None:
        self._drop_worker()
        self.emitter = self.store = self.loop = None
        self._stops = 0

    def forget_parent(self) -> None:
        """Become a provider that is not started, in a process that was just forked.

        The parent's objects are kept, because an object that is thrown away may close itself. A closing
        transport would remove its socket from the epoll that both processes share, and the parent would
        receive nothing more on that socket.
        """
        if self.loop is not None or self.worker is not None or self._endings:
            _parents.append((self.emitter, self.store, self.worker, self.loop, self._endings, self.watches))
        self._thread.forget_parent(self.loop)
        self._forget()
        self._endings, self.watches = set(), set()
        self._ownership.forget_parent()


_lives: weakref.WeakSet[Lifecycle] = weakref.WeakSet()
_parents: list[Any] = []
"""The objects of the processes from which this one was forked; kept so that none of them closes itself."""


def _forget_parent() -> None:
    for lifecycle in list(_lives):
        lifecycle.forget_parent()


os.register_at_fork(after_in_child=_forget_parent)


def _label(subscription: Subscription) -> str:
    group = subscription.handler.group
    return subscription.route.name + ("" if group == DEFAULT_GROUP else f"@{group}")


def _matches(label: str, globs: list[str]) -> bool:
    return any(fnmatch.fnmatchcase(label, glob) for glob in globs)


async def _acquire_and_end(lock: LifecycleLock, end: Callable[[], Coroutine[Any, Any, None]]) -> None:
    await lock.acquire()
    await _end_and_release(lock, end)


async def _end_and_release(lock: LifecycleLock, end: Callable[[], Coroutine[Any, Any, None]]) -> None:
    try:
        await end()
    finally:
        lock.release()
