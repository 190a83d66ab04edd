"""The life of a provider: what is started, by whom, and in which event loop.

    stopped -> starting -> started -> stopping -> stopped (may be started again)

Not here: events and handlers; `provider` is the front of this and documents it to users.
What must hold: start and stop may be called in any order, twice and at the same time; the
last word wins and each returns when its state is reached. A stop that has begun goes on to its
end, whoever stops waiting for it, and waits for no server. What was emitted or awaited before
a stop hears an outcome or ProviderStopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any

import anyio

from eventbus.config import Settings
from eventbus.context import SyncTools, Tools
from eventbus.emitter import Emitter
from eventbus.engine.processes import is_child
from eventbus.errors import DefinitionError, ProviderStopped, UsageError
from eventbus.guest import Guest
from eventbus.lifespan import Lifespan
from eventbus.middleware import Middleware
from eventbus.registry import Subscription
from eventbus.runner import Runner
from eventbus.store.connection import Connector
from eventbus.store.store import Store
from eventbus.sync import running_loop

__all__ = ["Lifecycle"]


class Lifecycle:
    """Starts and stops the store, the emitter and the one worker of a provider."""

    def __init__(self, *, tools: Tools, sync: SyncTools) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        """The event loop it is started in, or None."""
        self.store: Store | None = None
        self.emitter: Emitter | None = None
        self.runner: Runner | None = None
        self.middleware: list[Middleware] = []
        self.lifespans: list[Lifespan] = []
        """What the next worker has around its handlers, and around itself."""
        self.guests: list[Guest] = []
        """Who else has jobs for the workers."""
        self._tools = tools
        self._sync = sync
        self._stops = 0
        """Stops that wait for their turn: no worker starts before them."""
        self._endings: set[asyncio.Task[None]] = set()
        """Stops under way; the loop alone would not keep them."""
        self._lock: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None

    def running(self, verb: str) -> Emitter:
        """Return the emitter, for a call in the loop of a started provider; `verb` is what was asked.

        Raises ProviderStopped when it is not started, UsageError in another thread.
        """
        if self.emitter is None:
            raise ProviderStopped(f"cannot {verb}: the provider is not started; use `async with provider:`")
        if running_loop() is not self.loop:
            raise UsageError(f"cannot {verb}: the provider runs in another thread; use provider.sync there")
        return self.emitter

    async def start(self, settings: Settings) -> None:
        """Connect. Does nothing when started. Raises StoreRefused."""
        async with self._turn():
            if self.emitter is not None:
                return
            store = Store(
                Connector(settings.url),
                prefix=settings.prefix,
                name=settings.name,
                replicated=settings.durability == "replicated",
            )
            emitter = Emitter(store, settings)
            try:
                await emitter.start()
            except BaseException:
                await asyncio.shield(self._keep(store.aclose()))
                raise
            self.store, self.emitter = store, emitter
            self.loop = asyncio.get_running_loop()

    async def stop(self, *, is_patient: bool = False) -> None:
        """End the worker, then the emitter, then the connections. Does nothing when stopped.

        At most the grace and 5 s for a worker, and 6 s for the rest, without a server. When the
        caller is cancelled the stop goes on, and the next start or stop waits for its end; if
        `is_patient` a first cancellation does too.
        """
        turn = self._turn()  # raises in the caller's own loop
        self._stops += 1
        if self.runner is not None:
            self.runner.request_stop()  # one that is still starting holds the turn
        await self._to_its_end(turn, self._stop, is_patient=is_patient)

    async def _stop(self) -> None:
        self._stops -= 1
        if self.runner is not None:
            await self.runner.stop()
            self.runner = None  # not before: handlers that finish still use their contexts
        emitter, store = self.emitter, self.store
        if emitter is not None and store is not None:
            await emitter.stop()
            await store.aclose()
        self.emitter = self.store = self.loop = None

    async def start_worker(
        self,
        settings: Settings,
        subscriptions: Iterable[Subscription],
        guests: Iterable[tuple[Guest, str]] = (),
    ) -> Runner:
        """Start the worker of a started provider; returns when it is ready. `guests` are with the queue to serve.

        Raises DefinitionError if one runs already, and what its start raised.
        """
        async with self._turn():
            if self.runner is not None:
                raise DefinitionError("a worker of this provider runs in this process already")
            return await self._start_runner(settings, subscriptions, guests)

    async def end_worker(self, runner: Runner) -> None:
        """Stop a worker, unless a stop of the provider has; a patient stop."""
        runner.request_stop()
        await self._to_its_end(self._turn(), partial(self._end_worker, runner), is_patient=True)

    async def _end_worker(self, runner: Runner) -> None:
        if self.runner is runner:
            await runner.stop()
            self.runner = None

    async def serve(self, settings: Settings, subscription: Subscription) -> None:
        """Serve one more subscription here, by the worker that runs or a new one."""
        async with self._turn():
            if self.runner is not None:
                self._check_not_stopping()
                await self.runner.add(subscription)
            else:
                await self._start_runner(settings, [subscription])

    async def _start_runner(
        self,
        settings: Settings,
        subscriptions: Iterable[Subscription],
        guests: Iterable[tuple[Guest, str]] = (),
    ) -> Runner:
        self._check_not_stopping()
        self._check_not_child()
        self.runner = runner = Runner(
            self.running("run a worker").store,
            settings,
            tools=self._tools,
            sync=self._sync,
            middleware=tuple(self.middleware),
            lifespans=tuple(self.lifespans),
        )
        try:
            await runner.start(subscriptions, guests)
        except BaseException:
            self.runner = None
            await asyncio.shield(self._keep(runner.stop(at_once=True)))
            raise
        return runner

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
        self, turn: asyncio.Lock, end: Callable[[], Coroutine[Any, Any, None]], *, is_patient: bool
    ) -> None:
        """Do in its turn what must not be cut short; cancelling ends the waiting only.

        anyio cancels again and again until the scope is left, hence the shield of its own kind.
        """
        with anyio.CancelScope(shield=is_patient):
            task: asyncio.Task[None] | None = None
            try:
                await turn.acquire()  # here and not in the task: turns go in the order of the calls
                task = self._keep(_end_and_release(turn, end))
                await asyncio.shield(task)
            except asyncio.CancelledError:
                task = task or self._keep(_acquire_and_end(turn, end))
                if is_patient:
                    await asyncio.wait([task])
                raise

    def _keep(self, ending: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(ending, name="eventbus-stop")
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)
        return task

    def _turn(self) -> asyncio.Lock:
        """One start or stop at a time, in one event loop.

        Raises UsageError while the provider runs in another loop. A loop that was closed
        without a stop has taken everything with it.
        """
        loop = asyncio.get_running_loop()
        if self.loop is not None and self.loop.is_closed():
            self.emitter = self.store = self.runner = self.loop = None
            self._stops = 0
        if self.loop not in (None, loop):
            raise UsageError("the provider runs in another event loop; stop it there first")
        if self._lock is None or self._lock[0] is not loop:
            self._lock = (loop, asyncio.Lock())
        return self._lock[1]


async def _acquire_and_end(turn: asyncio.Lock, end: Callable[[], Coroutine[Any, Any, None]]) -> None:
    await turn.acquire()
    await _end_and_release(turn, end)


async def _end_and_release(turn: asyncio.Lock, end: Callable[[], Coroutine[Any, Any, None]]) -> None:
    try:
        await end()
    finally:
        turn.release()
