"""The provider: routes each event to its queue, emits, subscribes, runs workers.

    stopped -> starting -> started -> stopping -> stopped (may be started again)

What must hold: start and stop may be called in any order, twice and at the same time; the
last word wins and each returns when its state is reached. What was emitted or awaited
before a stop hears an outcome or ProviderStopped.
"""

from __future__ import annotations

import asyncio
import fnmatch
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any, Self, TypeVar, Unpack, overload

from eventbus.ambient import with_meta
from eventbus.config import Settings
from eventbus.durations import Duration, seconds
from eventbus.emission import Emission
from eventbus.emitter import EmitOptions, Emitter
from eventbus.errors import ConfigError, DefinitionError, ProviderStopped, UsageError
from eventbus.event import Event
from eventbus.handler import make_handler
from eventbus.names import DEFAULT_GROUP, check_group, check_job_id, shown
from eventbus.options import EmitKeywords, ProviderKeywords
from eventbus.registry import Registry, Subscription
from eventbus.retry import Retry
from eventbus.route import Routes
from eventbus.runner import Runner
from eventbus.store.connection import Connector
from eventbus.store.store import Store
from eventbus.sync import SyncProvider, running_loop

__all__ = ["EventProvider"]

P = TypeVar("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

_NO_OPTIONS = EmitOptions()

#: Options that are checked here; the others are where they are converted.
_OPTION_KINDS: dict[str, tuple[type, ...]] = {
    "lifo": (bool,),
    "meta": (dict, type(None)),
    "reply": (bool, type(None)),
    "retry": (Retry, type(None)),
    "reuse_failure": (bool,),
}


class EventProvider:
    """An event bus on one Redis or Valkey server.

    Making one connects to nothing. `async with provider:` starts and stops it; it may be
    started again.
    """

    def __init__(self, url: str | None = None, **settings: Unpack[ProviderKeywords]) -> None:
        """`url` or `EVENTBUS_URL`, else an embedded server with its data in `./.eventbus`.

        Each setting may also come from `EVENTBUS_<NAME>`; see `Settings` for all of them.
        Raises ConfigError for a setting or URL that cannot be used.
        """
        self.settings = Settings.resolve(url=url, **settings)
        Connector(self.settings.url)  # refuses a URL now, not at the first use
        self.sync = SyncProvider(self)
        self._routes = Routes(self.settings)
        self._registry = Registry()
        self._emitter: Emitter | None = None
        self._store: Store | None = None
        self._runner: Runner | None = None
        self._lock: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        """The event loop it is started in, or None."""

    # Defining handlers.

    def on(
        self,
        event: Event[Any, Any] | str,
        *,
        group: str = DEFAULT_GROUP,
        concurrency: int | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
    ) -> Callable[[F], F]:
        """Register the decorated function as the handler of an event for a group.

        `concurrency` bounds its jobs in one process, `timeout` one attempt. Async functions
        run in the event loop, others in threads. Raises DefinitionError for a function that
        does not fit the event, and for a second handler of one event and group.
        """

        def register(function: F) -> F:
            self._register(
                event, function, group=group, concurrency=concurrency, retry=retry, timeout=timeout
            )
            return function

        return register

    async def subscribe(
        self,
        event: Event[Any, Any] | str,
        handler: Callable[..., Any],
        *,
        group: str = DEFAULT_GROUP,
        concurrency: int | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,  # noqa: ASYNC109  (of the handler, not of this call)
    ) -> None:
        """Register a handler at run time; returns when a worker of this process serves it.

        Starts a worker if none runs here. Raises as `on`, and ProviderStopped when the
        provider is not started.
        """
        self._running(f"subscribe to {event}")
        subscription = self._register(
            event, handler, group=group, concurrency=concurrency, retry=retry, timeout=timeout
        )
        try:
            async with self._turn():
                await self._serve(subscription)
        except BaseException:
            self._registry.discard(subscription)
            raise

    def find_event(self, name: str) -> Event[Any, Any] | None:
        """Return the event of a name that this provider has handled or emitted, if there is one."""
        return self._routes.known(name)

    async def add_group(self, event: Event[Any, Any] | str, group: str) -> None:
        """Make a group exist before its first worker starts: it gets every emission from now on."""
        emitter = self._running("add a group")
        await emitter.store.add_group(self._routes.find(event).queue, check_group(group))

    # Emitting.

    @overload
    def emit(self, event: Event[P, R], payload: P, **options: Unpack[EmitKeywords]) -> Emission[R]: ...
    @overload
    def emit(self, event: str, payload: Any = ..., **options: Unpack[EmitKeywords]) -> Emission[Any]: ...
    def emit(
        self, event: Event[Any, Any] | str, payload: Any = None, **options: Unpack[EmitKeywords]
    ) -> Emission[Any]:
        """Emit an event; returns at once, the emission is on its way whether awaited or not.

        Options: `reply_timeout` (from when the job is due; 0 or None: none), `delay` or `at`
        (an aware datetime), `priority` (-4000..4000, lower first), `lifo`,
        `idempotency_key`, `reuse_failure` (a key whose job failed answers with that failure
        instead of running again), `meta`, `retry`, `reply=False` (fire-and-forget).

        Raises PayloadError, DefinitionError for an option, ProviderStopped, and EmitError
        when too much is unsent. What happens later is raised when the emission is awaited.
        """
        emitter = self._running("emit")
        return emitter.emit(self._routes.find(event), payload, _options(options))

    @overload
    def emit_many(
        self, event: Event[P, R], payloads: Iterable[P], **options: Unpack[EmitKeywords]
    ) -> list[Emission[R]]: ...
    @overload
    def emit_many(
        self, event: str, payloads: Iterable[Any], **options: Unpack[EmitKeywords]
    ) -> list[Emission[Any]]: ...
    def emit_many(
        self, event: Event[Any, Any] | str, payloads: Iterable[Any], **options: Unpack[EmitKeywords]
    ) -> list[Emission[Any]]:
        """Emit one event for each payload, in order, in batches on the wire.

        Waits in the outbox instead of refusing when much is unsent. Raises as `emit`, at the
        first payload that is refused; those before it are on their way. An
        `idempotency_key` would be the same for all and is refused; use `Event(key=...)`.
        """
        emitter = self._running("emit")
        route, chosen = self._routes.find(event), _options(options)
        if chosen.idempotency_key is not None:
            raise DefinitionError("emit_many takes no idempotency_key; give the event a key function")
        return [emitter.emit(route, payload, chosen, is_bounded=False) for payload in payloads]

    async def flush(self) -> None:
        """Wait until everything emitted so far is in the server, or was given up at its deadline."""
        await self._running("flush").flush()

    @overload
    async def result(
        self, job_id: str, *, event: Event[Any, R], reply_timeout: Duration | None = ...
    ) -> R: ...
    @overload
    async def result(
        self, job_id: str, *, event: str | None = ..., reply_timeout: Duration | None = ...
    ) -> Any: ...
    async def result(
        self,
        job_id: str,
        *,
        event: Event[Any, Any] | str | None = None,
        reply_timeout: Duration | None = None,
    ) -> Any:
        """Wait for the outcome of a job by its id, from any process, also after its emitter died.

        With `event` the result has its type, and declared errors are raised as themselves.
        Waits as long as it takes unless `reply_timeout` says otherwise. Raises as awaiting
        the emission does, and UnknownJob.
        """
        emitter = self._running("wait for a result")
        timeout = None if reply_timeout is None else seconds(reply_timeout, setting="reply_timeout") or None
        return await emitter.result(self._routes.find(event or "unknown"), check_job_id(job_id), timeout)

    def context(self, **meta: Any) -> AbstractContextManager[None]:
        """Add `meta` to every emission inside the block; handlers see it and pass it on."""
        return with_meta(meta)

    # Running.

    async def start(self) -> None:
        """Connect; consumes nothing. Does nothing when started.

        Raises StoreRefused when the server cannot be used (password, version, read-only
        replica, eviction). A server that is not there is waited for in the background.
        """
        async with self._turn():
            if self._emitter is not None:
                return
            store = Store(Connector(self.settings.url), prefix=self.settings.prefix, name=self.settings.name)
            emitter = Emitter(store, self.settings)
            try:
                await emitter.start()
            except BaseException:
                await store.aclose()
                raise
            self._store, self._emitter = store, emitter
            self.loop = asyncio.get_running_loop()

    async def stop(self) -> None:
        """Stop workers, flush emissions, settle every waiter, disconnect. Does nothing when stopped."""
        async with self._turn():
            runner, self._runner = self._runner, None
            if runner is not None:
                await runner.stop()
            emitter, store = self._emitter, self._store
            if emitter is not None and store is not None:
                await emitter.stop()
                await store.aclose()
            self._emitter = self._store = self.loop = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.shield(self.stop())

    @asynccontextmanager
    async def worker(self, *, queues: Iterable[str] = ("*",)) -> AsyncGenerator[Runner]:
        """Run a worker in this process for the block; starts the provider if need be.

        `queues` are globs over event names and `name@group`. The block begins when the
        worker is ready. Raises ConfigError when no handler matches.
        """
        subscriptions = self._matching(list(queues))
        was_started = self.loop is asyncio.get_running_loop()
        await self.start()
        runner: Runner | None = None
        try:
            async with self._turn():
                if self._runner is not None:
                    raise DefinitionError("a worker of this provider runs in this process already")
                self._runner = runner = self._new_runner()
                await runner.start(subscriptions)
            yield runner
        finally:
            await asyncio.shield(self._end_worker(runner, stop_provider=not was_started))

    async def _end_worker(self, runner: Runner | None, *, stop_provider: bool) -> None:
        async with self._turn():
            if runner is not None and self._runner is runner:
                self._runner = None
                await runner.stop()
        if stop_provider:
            await self.stop()

    def _turn(self) -> asyncio.Lock:
        """One start or stop at a time, in one event loop.

        Raises UsageError while the provider runs in another loop. A loop that was closed
        without a stop has taken everything with it.
        """
        loop = asyncio.get_running_loop()
        if self.loop is not None and self.loop.is_closed():
            self._emitter = self._store = self._runner = self.loop = None
        if self.loop not in (None, loop):
            raise UsageError("the provider runs in another event loop; stop it there first")
        if self._lock is None or self._lock[0] is not loop:
            self._lock = (loop, asyncio.Lock())
        return self._lock[1]

    async def _serve(self, subscription: Subscription) -> None:
        """Serve one more subscription here, by the worker that runs or a new one."""
        if self._runner is not None:
            await self._runner.add(subscription)
            return
        self._runner = runner = self._new_runner()
        try:
            await runner.start([subscription])
        except BaseException:
            self._runner = None
            await runner.stop()
            raise

    def _new_runner(self) -> Runner:
        return Runner(self._running("run a worker").store, self.settings, tools=self, sync=self.sync)

    def _matching(self, globs: list[str]) -> list[Subscription]:
        if not len(self._registry):
            raise ConfigError("this provider has no handlers; register them with @provider.on(...)")
        chosen = [each for each in self._registry if _matches(each, globs)]
        if not chosen:
            known = ", ".join(_label(each) for each in self._registry)
            raise ConfigError(
                f"no handler matches queues {', '.join(globs)}; there are: {known}", setting="queues"
            )
        return chosen

    def _register(
        self, event: Event[Any, Any] | str, function: Callable[..., Any], **options: Any
    ) -> Subscription:
        route = self._routes.find(event)
        handler = make_handler(
            function, event=route.name, payload=route.event.payload, result=route.event.result, **options
        )
        subscription = Subscription(route, handler)
        self._registry.add(subscription)
        return subscription

    def _running(self, verb: str) -> Emitter:
        if self._emitter is None:
            raise ProviderStopped(f"cannot {verb}: the provider is not started; use `async with provider:`")
        if running_loop() is not self.loop:
            raise UsageError(f"cannot {verb}: the provider runs in another thread; use provider.sync there")
        return self._emitter

    # What contexts of handlers use.

    async def note_progress(self, job_id: str, token: str, progress: str) -> None:
        """Record a job's progress under its lease."""
        if self._runner is not None:
            await self._runner.note_progress(job_id, token, progress)


def _options(given: Mapping[str, Any]) -> EmitOptions:
    if not given:
        return _NO_OPTIONS
    for name, value in given.items():
        kinds = _OPTION_KINDS.get(name)
        if kinds is not None and not isinstance(value, kinds):
            raise DefinitionError(f"expected {name} to be {_kinds_shown(kinds)}, got: {shown(value)}")
    try:
        return EmitOptions(**given)
    except TypeError:
        known = EmitOptions.__struct_fields__
        wrong = ", ".join(repr(name) for name in given if name not in known)
        raise DefinitionError(f"unknown emit option {wrong}; there are: {', '.join(known)}") from None


def _kinds_shown(kinds: tuple[type, ...]) -> str:
    return " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)


def _label(subscription: Subscription) -> str:
    group = subscription.handler.group
    return subscription.route.name + ("" if group == DEFAULT_GROUP else f"@{group}")


def _matches(subscription: Subscription, globs: list[str]) -> bool:
    return any(fnmatch.fnmatchcase(_label(subscription), glob) for glob in globs)
