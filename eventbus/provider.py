"""The provider: the object through which a program defines handlers, emits events and runs workers.

Not here: how it starts and stops (`lifecycle`), how an emission travels (`emit.emitter`), how a worker
runs its jobs (`handlers.worker`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any, Self, TypeVar, Unpack, overload

from eventbus.admin.groups import remove_group
from eventbus.admin.inspector import Inspector
from eventbus.emit.emission import Emission
from eventbus.emit.route import Routes
from eventbus.errors import DefinitionError
from eventbus.handlers.handler import Pool, check_event, make_handler
from eventbus.handlers.lifespan import Lifespan, check_lifespan
from eventbus.handlers.middleware import Middleware, check_middleware
from eventbus.handlers.subscriptions import Subscription, Subscriptions
from eventbus.handlers.worker import EventWorker
from eventbus.job_client import JobClient
from eventbus.lifecycle import Lifecycle
from eventbus.model.durations import Duration, seconds
from eventbus.model.event import Event
from eventbus.model.names import DEFAULT_GROUP, check_correlation_id, check_group, check_job_id
from eventbus.model.retry import Retry
from eventbus.runtime.loop_ownership import LoopOwnership
from eventbus.settings.keywords import EmitKeywords, ProviderKeywords, emit_options
from eventbus.settings.settings import Settings
from eventbus.store.connection.connector import Connector
from eventbus.sync import LoopThread, SyncProvider, ThreadTools
from eventbus.telemetry.propagation import with_meta
from eventbus.toolbox import Toolbox

__all__ = ["EventProvider", "known_event"]

P = TypeVar("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])
M = TypeVar("M", bound=Middleware)
L = TypeVar("L", bound=Lifespan)

_NOTHING: Any = None  # `@provider.use()` passes no function; the check then raises a DefinitionError


class EventProvider:
    """An event bus on one Redis or Valkey server.

        provider = EventProvider("redis://localhost:6379")
        async with provider:
            receipt = await provider.emit(OrderPlaced, Order(id=7))

    The constructor does not connect. `async with provider:` starts and stops the provider, as often as
    needed.
    """

    def __init__(self, url: str | None = None, **settings: Unpack[ProviderKeywords]) -> None:
        """Make a provider for the server at `url`.

        Without `url`, the variable `EVENTBUS_URL` names the server. Without both, an embedded server
        keeps its data in `./.eventbus`. Each setting may also come from `EVENTBUS_<NAME>`; see `Settings`.
        Raises ConfigError for a setting or URL that cannot be used.
        """
        self.settings: Settings = Settings.resolve(url=url, **settings)
        Connector(self.settings.url)  # raises for a bad URL here, not at the first use
        ownership = LoopOwnership()
        thread = LoopThread(self, ownership, self._find_loop)
        self.sync: SyncProvider = SyncProvider(self, thread)
        """The same calls for threads and scripts; they block until they are done."""
        self._routes = Routes(self.settings)
        self._registry = Subscriptions()
        tools = Toolbox(self, lambda: self._life.worker)
        self._life = Lifecycle(ownership, thread, tools=tools, sync=ThreadTools(self.sync, thread, tools))
        self._running = self._life.running
        self.jobs: JobClient = JobClient(self._life, self.settings)
        """The low-level API, for systems built on top; see `eventbus.lowlevel`."""
        self.inspector: Inspector = Inspector(self._life, self.settings)
        """Reads the jobs in the server, and cancels them."""

    @property
    def queues(self) -> list[str]:
        """The queues that the workers serve: one for each event and group, and those of the extensions."""
        return [
            *(subscription.queue for subscription in self._registry),
            *(queue for extension in self._life.extensions for queue in extension.queues),
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

            @provider.on(OrderPlaced, concurrency=5, timeout="30s")
            async def charge(order: Order) -> Receipt: ...

        `concurrency` is the most jobs of the handler that one worker runs at a time, by default the
        provider's setting. `timeout` limits one attempt; by default nothing does. `retry` goes before
        the rules of the event and the provider. Async functions run in the event loop, other functions
        in threads. With `pool="process"` each job runs in a process of its own. That process is killed
        when the job times out, is cancelled or loses its lease.

        Raises DefinitionError for a function that does not fit the event, for a function that another
        process could not find by its name, and for a second handler of one event and group.
        """
        check_event(event)

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
        """Register a handler at run time; return when a worker of this process serves it.

        Starts a worker if none runs in this process. Options and errors are those of `on`; raises
        ProviderStopped too when the provider is not started. A call that is cancelled may still
        have taken effect in the running worker. It is safe to call it again.
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

    def use(self, middleware: M = _NOTHING) -> M:
        """Put an async function around every handler of the workers that start from now on.

            @provider.use
            async def timed(payload, ctx, call):
                return await call(payload)

        The middleware runs in the event loop, also for handlers in threads and processes. It may change
        the payload and the result, raise, or return without `call`. Both values are checked against the
        event. Handlers see the context variables that it sets, but not in another process. The first
        middleware registered is the outermost. Returns the function. Raises DefinitionError for another kind
        of function.
        """
        check_middleware(middleware)
        self._life.middleware.append(middleware)
        return middleware

    def lifespan(self, function: L = _NOTHING) -> L:
        """Register an async generator function that yields once: an object for all handlers of a worker.

            @provider.lifespan
            async def database():
                async with connect(DSN) as pool:
                    yield pool

        The code before the `yield` runs in each worker that starts from now on, before its first claim.
        The code after it runs when the last job is settled, within the grace. Handlers get the yielded
        object from `ctx.shared(database)`. The function may take the provider as its one argument.
        Lifespans nest in the order of registration. An error before the `yield` is raised by the start of
        the worker. Raises DefinitionError for another kind of function.
        """
        check_lifespan(function)
        self._life.lifespans.append(function)
        return function

    async def add_group(
        self, event: Event[Any, Any] | str, group: str, *, call_timeout: Duration | None = None
    ) -> None:
        """Create a group before its first worker starts. The group gets every emission from now on.

        `call_timeout` is how long the server may take to answer, by default the setting `reply_timeout`.
        Raises StoreUnavailable after that. The call is idempotent.
        """
        emitter, deadline = self._running("add a group"), self.settings.deadline(call_timeout)
        if check_group(group) != DEFAULT_GROUP:  # the default group exists with its event
            await emitter.store.groups.add(self._routes.find(event).queue, group, deadline=deadline)

    async def remove_group(
        self,
        event: Event[Any, Any] | str,
        group: str,
        *,
        force: bool = False,
        call_timeout: Duration | None = None,
    ) -> int:
        """Remove a group that nobody serves any more; return how many of its jobs this call cancelled.

        From now on no emission makes a job for the group. Its waiting, delayed and parked jobs end as
        cancelled, with a reason. Running jobs go on to their own end; a job that is given back or retried
        after that stays until the group is removed again. Ended jobs are no longer listed, but their ids work
        for their retention, a week at most. Returns 0 if the group does not exist. An interrupted call may be
        repeated; it then does the rest.

        Raises UsageError while live workers serve the group, because they would create it again; `force=True`
        removes the group all the same. `call_timeout` limits each call to the server. Raises StoreError,
        ProviderStopped.
        """
        store, queue = self._running("remove a group").store, self._routes.find(event).queue
        return await remove_group(store, self.settings, queue, group, force=force, call_timeout=call_timeout)

    # Emitting.

    @overload
    def emit(self, event: Event[P, R], payload: P, **options: Unpack[EmitKeywords]) -> Emission[R]: ...
    @overload
    def emit(self, event: str, payload: Any = ..., **options: Unpack[EmitKeywords]) -> Emission[Any]: ...
    def emit(
        self, event: Event[Any, Any] | str, payload: Any = None, **options: Unpack[EmitKeywords]
    ) -> Emission[Any]:
        """Emit an event and return its emission at once; the event is sent whether or not you await it.

            receipt = await provider.emit(OrderPlaced, order, reply_timeout="5s")

        Options: `reply_timeout` (counts from when the job is due; 0 or None: no limit), `delay` or `at` (an
        aware datetime), `priority` (-4000..4000, lower first), `lifo` (before others of its priority),
        `idempotency_key` (emissions with one key are one job), `reuse_failure` (if that job failed, answer
        with its failure instead of running it again), `supersede` (cancel the key's open job and take its
        place, also the place of a completed job), `correlation_id` (1 to 512 printable characters; by
        default that of the surrounding handler or `context`, otherwise the job's own id), `meta` (a dict of
        JSON values that handlers see), `retry` (the rule for this job), `reply=False` (fire and forget).

        Raises PayloadError, DefinitionError for a bad option, ProviderStopped, and EmitError when too many
        emissions are unsent. Later errors are raised where the emission is awaited.
        """
        emitter = self._running("emit")
        return emitter.emit(self._routes.find(event), payload, emit_options(options))

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

        Never refuses because of unsent emissions; they wait in the send buffer. Raises as `emit`, at the
        first payload that is refused; the payloads before it are on their way. Takes no `idempotency_key`,
        because all emissions would share it; use `Event(key=...)` instead.
        """
        emitter = self._running("emit")
        route, chosen = self._routes.find(event), emit_options(options)
        if chosen.idempotency_key is not None:
            raise DefinitionError("emit_many takes no idempotency_key; give the event a key function")
        return [emitter.emit(route, payload, chosen, is_bounded=False) for payload in payloads]

    async def flush(self) -> None:
        """Wait until each emission so far is in the server, or was given up at its deadline."""
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

        With `event` the result has the event's result type, and declared errors are raised as themselves.
        Waits without limit unless `reply_timeout` is given. The server's first answer must come within that,
        or within the setting `reply_timeout`; otherwise raises StoreUnavailable. Raises the errors of
        awaiting the emission, and UnknownJob, also for text that is not a job id.
        """
        emitter = self._running("wait for a result")
        timeout = None if reply_timeout is None else seconds(reply_timeout, setting="reply_timeout") or None
        return await emitter.result(self._routes.find(event or "unknown"), check_job_id(job_id), timeout)

    async def cancel(
        self,
        job_id: str,
        reason: str = "",
        *,
        event: Event[Any, Any] | str | None = None,
        call_timeout: Duration | None = None,
    ) -> bool:
        """Cancel a job by its id, with those of its groups, from any process; `<id>@<group>` is one of them.

        Returns as `Emission.cancel`. An event with `default=False` has no job of the plain id: name the
        event with `event` then. Raises UnknownJob, StoreError, ProviderStopped.
        """
        emitter = self._running("cancel a job")
        queue = "" if event is None else self._routes.find(event).queue
        return await emitter.cancel(check_job_id(job_id), reason, queue=queue, call_timeout=call_timeout)

    def context(self, *, correlation_id: str | None = None, **meta: Any) -> AbstractContextManager[None]:
        """Add `meta` to every emission and flow inside the block; handlers see it and pass it on.

        All of them have the given `correlation_id` instead of one of their own. Raises DefinitionError
        for one that is not 1 to 512 printable characters.
        """
        return with_meta(
            meta, correlation_id="" if correlation_id is None else check_correlation_id(correlation_id)
        )

    # Running.

    async def start(self) -> None:
        """Connect to the server, without claiming jobs. Does nothing when started.

        Raises StoreRefused when the server cannot be used (password, version, read-only
        replica, eviction). If the server is not reachable, `start` returns and keeps trying in the
        background.
        """
        await self._life.start(self.settings)

    async def stop(self) -> None:
        """End the worker, notify every waiter, flush emissions, disconnect. Does nothing when stopped.

        The worker stops claiming, lets handlers finish within the grace, and gives the other jobs back
        without counting an attempt. Handlers that finish may emit and await. A stop takes at most the grace
        and 11 s (6 s when no worker runs), also without a server. Lifespans may add the grace and 4 s.
        When its caller is cancelled the stop goes on; the next start or stop waits for its end.
        """
        await self._life.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._life.stop(is_patient=True)

    @asynccontextmanager
    async def worker(self, *, queues: Iterable[str] = ("*",)) -> AsyncGenerator[EventWorker]:
        """Run a worker in this process for the length of the block; start the provider if it is not started.

        `queues` are globs over event names and `name@group`, such as `["order.*"]`. The block begins when the
        worker is ready. Raises ConfigError when no handler matches.
        """
        subscriptions, extensions = self._life.choose(self._registry, list(queues))
        was_started = self._life.loop is asyncio.get_running_loop()
        await self.start()
        try:
            worker = await self._life.start_worker(self.settings, subscriptions, extensions)
            try:
                yield worker
            finally:
                await self._life.end_worker(worker)
        finally:
            if not was_started:  # the block stops only what it started itself
                await self._life.stop(is_patient=True)

    def _find_loop(self) -> asyncio.AbstractEventLoop | None:
        return self._life.loop

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


def known_event(provider: EventProvider, name: str) -> Event[Any, Any] | None:
    """Return the event of this name, if the provider has handled or emitted it; for the command line."""
    return provider._routes.known(name)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
