"""The provider: the front of everything that a program does with events.

Not here: how it is started and stopped (`lifecycle`), how an emission travels (`emitter`), how a
worker runs its jobs (`runner`).
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
from eventbus.emitter import EmitOptions
from eventbus.errors import ConfigError, DefinitionError, UsageError
from eventbus.event import Event
from eventbus.guest import Guest
from eventbus.handler import Pool, make_handler
from eventbus.inspector import Inspector
from eventbus.jobs import Jobs
from eventbus.lifecycle import Lifecycle
from eventbus.lifespan import Lifespan, check_lifespan
from eventbus.middleware import Middleware, check_middleware
from eventbus.names import DEFAULT_GROUP, check_group, check_job_id, shown
from eventbus.options import EmitKeywords, ProviderKeywords
from eventbus.registry import Registry, Subscription
from eventbus.retry import Retry
from eventbus.route import Routes
from eventbus.runner import Runner
from eventbus.store.connection import Connector
from eventbus.sync import SyncProvider

__all__ = ["EventProvider"]

P = TypeVar("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])
M = TypeVar("M", bound=Middleware)
L = TypeVar("L", bound=Lifespan)

_NO_OPTIONS, _NO_REPLY = EmitOptions(), EmitOptions(reply=False)

#: Options that are checked here; the others are where they are converted.
_OPTION_KINDS: dict[str, tuple[type, ...]] = {
    "lifo": (bool,),
    "meta": (dict, type(None)),
    "reply": (bool, type(None)),
    "retry": (Retry, type(None)),
    "reuse_failure": (bool,),
    "supersede": (bool,),
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
        self._life = Lifecycle(tools=self, sync=self.sync)
        self._running = self._life.running
        self.jobs = Jobs(self._life, self.settings)
        """The lower side, for systems built on top; see `eventbus.lowlevel`."""
        self.inspector = Inspector(self._life)
        """The jobs in the server, to look at and to cancel."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop it is started in, or None."""
        return self._life.loop

    @property
    def queues(self) -> list[str]:
        """The queues that its workers serve: one for each event and group, and those of its guests."""
        return [
            *(each.queue for each in self._registry),
            *(queue for guest in self._life.guests for queue in guest.queues),
        ]

    # Defining handlers.

    def on(
        self,
        event: Event[Any, Any] | str,
        *,
        group: str = DEFAULT_GROUP,
        concurrency: int | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        pool: Pool | None = None,
    ) -> Callable[[F], F]:
        """Register the decorated function as the handler of an event for a group.

        `concurrency` bounds its jobs in one worker, `timeout` one attempt. Async functions run in
        the event loop, others in threads, or with `pool="process"` each job in a process of its
        own, which is killed when the job times out, is cancelled or loses its lease. Raises
        DefinitionError for a function that does not fit the event or that another process could
        not find by name, and for a second handler of one event and group.
        """

        def register(function: F) -> F:
            self._register(
                event, function, group=group, concurrency=concurrency, retry=retry, timeout=timeout, pool=pool
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
        pool: Pool | None = None,
    ) -> None:
        """Register a handler at run time; returns when a worker of this process serves it.

        Starts a worker if none runs here. Raises as `on`, and ProviderStopped when the
        provider is not started. A call that is cancelled may have taken effect for the worker
        that runs; it may be made again.
        """
        self._running(f"subscribe to {event}")
        subscription = self._register(
            event, handler, group=group, concurrency=concurrency, retry=retry, timeout=timeout, pool=pool
        )
        try:
            await self._life.serve(self.settings, subscription)
        except BaseException:
            self._registry.discard(subscription)
            raise

    def use(self, middleware: M) -> M:
        """Put an async function around every handler of the workers that start from now on.

        It is called as `await middleware(payload, ctx, call)` in the event loop, for handlers in
        threads and processes too, and goes on with `await call(payload)`. It may change what it
        passes on and what it returns, which is checked against the event, raise, or not call.
        Context variables that it sets are seen by the handler, but not in another process. The
        first one used is the outermost. Returns it, so that it may stand as a decorator. Raises
        DefinitionError for another kind of function.
        """
        check_middleware(middleware)
        self._life.middleware.append(middleware)
        return middleware

    def lifespan(self, function: L) -> L:
        """Register an async function that yields once what the handlers of a worker share.

        Its code before the `yield` runs in each worker that starts from now on, before its first
        claim; the code after it when the last job is settled, within the grace. Handlers get what
        it yields from `ctx.shared(function)`. It may take the provider. Several nest in order.
        What it raises at the start is raised by the start of the worker.
        Raises DefinitionError for another kind of function.
        """
        check_lifespan(function)
        self._life.lifespans.append(function)
        return function

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
        instead of running again), `supersede` (an open job of the key is cancelled, and this one
        takes its place; so it does after a completed one), `meta`, `retry`, `reply=False` (fire-and-forget).

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

    async def cancel(
        self, job_id: str, reason: str = "", *, event: Event[Any, Any] | str | None = None
    ) -> bool:
        """Cancel a job by its id, from any process, and those of its groups; `<id>@<group>` names one.

        As `Emission.cancel`. An event without a default group has no job of that id itself:
        name it with `event`. Raises UnknownJob, StoreError, ProviderStopped.
        """
        emitter = self._running("cancel a job")
        queue = "" if event is None else self._routes.find(event).queue
        return await emitter.cancel(check_job_id(job_id), reason, queue=queue)

    def context(self, **meta: Any) -> AbstractContextManager[None]:
        """Add `meta` to every emission inside the block; handlers see it and pass it on."""
        return with_meta(meta)

    # Running.

    async def start(self) -> None:
        """Connect; consumes nothing. Does nothing when started.

        Raises StoreRefused when the server cannot be used (password, version, read-only
        replica, eviction). A server that is not there is waited for in the background.
        """
        await self._life.start(self.settings)

    async def stop(self) -> None:
        """End the worker, tell every waiter, flush emissions, disconnect. Does nothing when stopped.

        The worker claims no more, lets handlers finish within the grace and gives the rest back
        without an attempt; handlers that finish may emit and await. In all it takes at most the
        grace and 11 s, also without a server (6 s when no worker runs), and what lifespans take to
        leave: the grace and 2 s at most. A stop goes on when its caller is cancelled; the next
        start or stop waits for its end.
        """
        await self._life.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._life.stop(is_patient=True)

    @asynccontextmanager
    async def worker(self, *, queues: Iterable[str] = ("*",)) -> AsyncGenerator[Runner]:
        """Run a worker in this process for the block; starts the provider if need be.

        `queues` are globs over event names and `name@group`. The block begins when the
        worker is ready. Raises ConfigError when no handler matches.
        """
        subscriptions, guests = self._matching(list(queues))
        was_started = self.loop is asyncio.get_running_loop()
        await self.start()
        try:
            runner = await self._life.start_worker(self.settings, subscriptions, guests)
            try:
                yield runner
            finally:
                await self._life.end_worker(runner)
        finally:
            if not was_started:
                await self._life.stop(is_patient=True)

    def _matching(self, globs: list[str]) -> tuple[list[Subscription], list[tuple[Guest, str]]]:
        offered = [(guest, queue) for guest in self._life.guests for queue in guest.queues]
        if not len(self._registry) and not offered:
            raise ConfigError("this provider has no handlers; register them with @provider.on(...)")
        chosen = [each for each in self._registry if _matches(_label(each), globs)]
        guests = [each for each in offered if _matches(each[1], globs)]
        if not chosen and not guests:
            known = ", ".join([*map(_label, self._registry), *(queue for _, queue in offered)])
            raise ConfigError(
                f"no handler matches queues {', '.join(globs)}; there are: {known}", setting="queues"
            )
        return chosen, guests

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

    # What contexts of handlers use.

    async def note_progress(self, job_id: str, token: str, progress: str) -> None:
        """Record a job's progress under its lease."""
        if self._life.runner is not None:
            await self._life.runner.note_progress(job_id, token, progress)

    def shared(self, lifespan: Callable[..., Any]) -> Any:
        """Return what a lifespan of the worker that runs here yielded. Raises UsageError."""
        if self._life.runner is None:
            raise UsageError("nothing is shared here: no worker of this provider runs in this process")
        return self._life.runner.shared.find(lifespan)


def _options(given: Mapping[str, Any]) -> EmitOptions:
    if not given:
        return _NO_OPTIONS
    if len(given) == 1 and given.get("reply") is False:
        return _NO_REPLY  # the emitter knows it again, and need not work it out each time
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


def _matches(label: str, globs: list[str]) -> bool:
    return any(fnmatch.fnmatchcase(label, glob) for glob in globs)
