"""The provider: the object through which a program defines handlers, emits events and runs workers.

Not here: how a handler is checked (`handlers.handler`), how a provider starts and stops (`lifecycle`), how an
emission travels (`emit.emitter`), how a worker runs its jobs (`handlers.worker`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any, Self, TypeVar, Unpack, overload

from eventbus.admin.controls import Controls
from eventbus.admin.groups import remove_group
from eventbus.admin.inspector import Inspector
from eventbus.admin.queue_name import queue_of
from eventbus.admin.watch import Watch
from eventbus.emit.emission import Emission
from eventbus.emit.route import Routes
from eventbus.errors import DefinitionError, UsageError
from eventbus.handlers.collection import Handlers, collected_handlers
from eventbus.handlers.failures.hook import FailureFunction, make_failure_hook
from eventbus.handlers.handler import make_handler
from eventbus.handlers.lifespan import Lifespan, check_lifespan
from eventbus.handlers.middleware import Middleware, check_middleware
from eventbus.handlers.pools import BUILT_IN, make_pool
from eventbus.handlers.registry import HandlerRegistry
from eventbus.handlers.subscriptions import Subscription, Subscriptions
from eventbus.handlers.worker import EventWorker
from eventbus.job_client import JobClient
from eventbus.lifecycle import Lifecycle
from eventbus.model.batch import Batch
from eventbus.model.durations import Duration, seconds
from eventbus.model.event import Event
from eventbus.model.limit import Limit
from eventbus.model.names import DEFAULT_GROUP, check_correlation_id, check_group, check_job_id, queue_name
from eventbus.model.old_name import warn_of_old_name
from eventbus.model.retry import check_default
from eventbus.runtime.loop_ownership import LoopOwnership
from eventbus.schedule_client import ScheduleClient
from eventbus.settings.keywords import (
    EmitKeywords,
    HandlerKeywords,
    ProviderKeywords,
    RegistrationKeywords,
    check_options,
    emit_options,
)
from eventbus.settings.settings import Settings
from eventbus.store.connection.connector import make_connector
from eventbus.sync import LoopThread, SyncProvider
from eventbus.telemetry.change import ChangeKind
from eventbus.telemetry.listeners import Listener, check_listened, check_listener
from eventbus.telemetry.propagation import with_meta

P = TypeVar("P")
R = TypeVar("R")
M = TypeVar("M", bound=Middleware)
L = TypeVar("L", bound=Lifespan)
Heard = TypeVar("Heard", bound=Listener)
H = TypeVar("H", bound=FailureFunction)

_NOTHING: Any = None  # `@provider.use()` passes no function; the check then raises a DefinitionError


class EventProvider(HandlerRegistry):
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
        make_connector(self.settings.url)  # raises for a bad URL here, not at the first use
        ownership = LoopOwnership()
        thread = LoopThread(self, ownership, self._find_loop)
        self.sync: SyncProvider = SyncProvider(self, thread)
        """The same calls for threads and scripts; they block until they are done."""
        self._routes = Routes(self.settings)
        self._registry = Subscriptions()
        self._life = Lifecycle(ownership, thread, self)
        self._running = self._life.running
        self.schedules: ScheduleClient = ScheduleClient(self._life, self.settings, self._routes)
        """Emits events at times: makes, finds and changes schedules."""
        self.jobs: JobClient = JobClient(self._life, self.settings)
        """The low-level API, for systems built on top; see `eventbus.lowlevel`."""
        self.inspector: Inspector = Inspector(self._life, self.settings, self._routes)
        """Reads the jobs in the server, and cancels them."""

    @property
    def queues(self) -> list[str]:
        """The queues that the workers serve: one for each event and group, and those of the extensions."""
        return [
            *(subscription.queue for subscription in self._registry),
            *(queue for extension in self._life.extensions for queue in extension.queues),
        ]

    # Handlers, their groups, and what is around them. `on`, as of a collection, is in HandlerRegistry.

    async def subscribe(
        self,
        event: Event[Any, Any] | str,
        handler: Callable[..., Any],
        *,
        group: str = DEFAULT_GROUP,
        batch: Batch | None = None,
        **options: Unpack[HandlerKeywords],
    ) -> None:
        """Register a handler at run time; return when a worker of this process serves it.

        Starts a worker if none runs in this process. Options and errors are those of `on`; raises
        ProviderStopped too when the provider is not started. A call that is cancelled may still
        have taken effect in the running worker. It is safe to call it again.
        """
        self._running(f"subscribe to {event}")
        check_options(options, RegistrationKeywords, f"a handler of {event!r}")
        subscription = self._register(event, handler, group=group, batch=batch, **options)
        try:
            await self._life.serve(self.settings, subscription)
        except BaseException:
            self._registry.discard(subscription)
            raise

    async def unsubscribe(self, event: Event[Any, Any] | str, *, group: str = DEFAULT_GROUP) -> None:
        """Take back the handler of an event for a group at run time; return when none of its jobs runs here
        any more.

        The worker of this process claims no more of these jobs at once. Jobs that run go on to their own end,
        for which the call waits. Jobs that wait stay in the server, for other processes or a later
        `subscribe`. A call that is cancelled has taken the handler back all the same.

        Raises UsageError if this process has no such handler, and where a job of the handler makes the call,
        which would wait for itself. Raises ProviderStopped when the provider is not started, and StoreError.
        """
        self._running(f"unsubscribe from {event}")
        route = self._routes.find(event)
        subscription = self._registry.by_queue.get(queue_name(route.name, check_group(group)))
        if subscription is None:
            raise UsageError(
                f"event {route.name!r} has no handler for group {group!r} in this process; "
                "unsubscribe with the event and the group of provider.on or provider.subscribe"
            )
        await self._life.withdraw(subscription, lambda: self._registry.discard(subscription))

    def include(self, handlers: Handlers) -> None:
        """Register every handler of a collection, as `on` does: all of them, or none if one is refused.

            provider.include(billing.handlers)

        Workers that start from now on serve them. Raises DefinitionError as `on` does, for anything that is
        no collection, and for a second `include` of one collection.
        """
        added: list[Subscription] = []
        try:
            for each in collected_handlers(handlers):
                added.append(self._register(each.event, each.function, **each.options))  # noqa: PERF401
        except BaseException:
            for subscription in added:
                self._registry.discard(subscription)
            raise

    def pool(self, name: str, *, processes: int | None = None, threads: int | None = None) -> None:
        """Declare a pool: `on(..., pool=name)` and steps of workflows run plain functions in its processes or
        threads.

            provider.pool("render", processes=4)

            @provider.on(Render, pool="render")
            def render(wanted: Wanted) -> Picture: ...

        Exactly one of `processes` and `threads` says how many functions run in the pool at a time, in each
        worker. All that name the pool share these places. What waits for one holds up nothing outside of the
        pool, and its timeout counts from when it has one. A pool of processes follows the rules of
        `pool="process"`. Each worker starts its pools when they are needed, and ends them with itself.

        Raises DefinitionError for a value that cannot be used, and for a name that is taken.
        """
        self._life.pools[name] = make_pool(name, processes=processes, threads=threads, known=self._life.pools)

    @property
    def pools(self) -> list[str]:
        """The names that `pool=...` may have: `"thread"`, `"process"` and the declared pools."""
        return [*BUILT_IN, *self._life.pools]

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

    def watching(
        self, *kinds: ChangeKind, event: Event[Any, Any] | str | None = None
    ) -> Callable[[Heard], Heard]:
        """Register the decorated function as a listener: it hears what the workers of this process do.

            @provider.watching("failed", "error")
            async def warn(change: Change) -> None: ...

        `kinds` are of `claimed`, `progress`, `retried`, `delayed`, `suspended`, `returned`, `parked`,
        `stalled`, `completed`, `failed`, `cancelled`: of the jobs that the worker runs, and of stalls that it
        rescues; once the server has recorded it. `error` is what goes wrong in a worker outside of any job,
        and `missed` says that the listeners were too slow for some changes. `event` (also a queue) leaves out
        those of other queues; it does not go with `error`, `missed` and `stalled`, which know of none.
        `provider.watch` sees all workers, and what no worker does.

        A worker calls its listeners one after the other, and waits for each; no job waits for them. Async
        functions run in the event loop, other functions in a thread. What one raises is logged. Workers that
        start from now on have it. Raises DefinitionError.
        """
        scope = None if event is None else queue_of(event).partition("@")[0]
        check_listened(kinds, has_event=event is not None)

        def register(function: Heard) -> Heard:
            check_listener(function)
            self._life.listeners.add(kinds, function, scope=scope)
            return function

        return register

    def listen(
        self, *kinds: ChangeKind, event: Event[Any, Any] | str | None = None
    ) -> Callable[[Heard], Heard]:
        """Do what `watching` does; the old name, for one release."""
        warn_of_old_name("provider.listen", "provider.watching")
        return self.watching(*kinds, event=event)

    def on_failure(self, hook: H = _NOTHING) -> H:
        """Have a function called for each job, and each flow, that a worker of this process ends as failed.

            @provider.on_failure
            async def alert(failure: JobFailure) -> None:
                await page(f"{failure.name} failed: {failure.error}")

        It is called once, after the server has recorded the failure, also for groups, for `reply=False`, for
        emissions that expired and for jobs that stalled too often. It is not called for an attempt that is
        followed by another one, and for what was cancelled. A flow is told once, with its `step`. Async
        functions run in the event loop, others in threads, at most 16 calls at a time, for 30 s at most. Jobs
        do not wait for them. An error is logged. A stop waits for them within the grace. If the process dies
        in between, it is not called again.

        Holds for workers that start from now on. Returns the function. Raises DefinitionError for another
        kind of function.
        """
        self._life.failure_hooks.append(make_failure_hook(hook))
        return hook

    def failed(self, hook: H = _NOTHING) -> H:
        """Do what `on_failure` does; the old name, for one release."""
        warn_of_old_name("provider.failed", "provider.on_failure")
        return self.on_failure(hook)

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
        place, also the place of a completed job), `throttle` (one job of the key in this time; the first
        emission wins), `debounce` with `longest` (the last emission wins, this time after it, at most
        `longest` after the first), `keep_last` (while a job of the key runs, the last emission alone makes
        the next one), `correlation_id` (1 to 512 printable characters; by
        default that of the surrounding handler or `context`, otherwise the job's own id), `meta` (a dict of
        JSON values that handlers see), `retry` (the rule for this job), `timeout` (for an attempt of it,
        over that of the handler; 0: none), `ttl` (over that of the event), `require_worker` (over that of the
        event: refused with NoWorker while nobody serves it), `keep_completed` and `keep_failed` (an age or 0,
        over those of the event and the settings), `reply=False` (fire and forget).

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
        await self._running("flush").buffer.flush()

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
        return await emitter.tracker.cancel(
            check_job_id(job_id), reason, queue=queue, call_timeout=call_timeout
        )

    # Controls of queues, kept in the server.

    async def pause(
        self,
        event: Event[Any, Any] | str,
        *,
        group: str | None = None,
        reason: str = "",
        by: str | None = None,
        call_timeout: Duration | None = None,
    ) -> None:
        """Pause an event for one group, by default `default`: no worker claims its jobs until `resume`.

        Running jobs end. Emissions are taken, jobs can be cancelled and retried, and schedules fire; all
        wait. `event` may also be a queue. `reason`, `by` (default: the provider's name) and the time are kept
        and shown. Whoever pauses it again replaces these two. Raises DefinitionError, StoreError,
        ProviderStopped.
        """
        controls = Controls(self._life, self.settings)
        await controls.pause(event, group, reason=reason, by=by, call_timeout=call_timeout)

    async def resume(
        self, event: Event[Any, Any] | str, *, group: str | None = None, call_timeout: Duration | None = None
    ) -> None:
        """Let workers claim jobs of a paused event again, and wake them. Does nothing if it is not paused.

        Raises as `pause`.
        """
        await Controls(self._life, self.settings).resume(event, group, call_timeout=call_timeout)

    async def set_limit(
        self,
        event: Event[Any, Any] | str,
        limit: Limit | None,
        *,
        group: str | None = None,
        call_timeout: Duration | None = None,
    ) -> None:
        """Set the limit of an event for one group, by default `default`; with None take back what was set so.

        It holds at once in the whole fleet, and over what programs declare with `Event(limit=...)`, until it
        is taken back. Jobs that run meanwhile count. `event` may also be a queue. Raises as `pause`.
        """
        controls = Controls(self._life, self.settings)
        await controls.set_limit(event, limit, group, call_timeout=call_timeout)

    def context(self, *, correlation_id: str | None = None, **meta: Any) -> AbstractContextManager[None]:
        """Add `meta` to every emission and flow inside the block; handlers see it and pass it on.

        All of them have the given `correlation_id` instead of one of their own. Raises DefinitionError
        for one that is not 1 to 512 printable characters.
        """
        return with_meta(
            meta, correlation_id="" if correlation_id is None else check_correlation_id(correlation_id)
        )

    def watch(
        self,
        event: Event[Any, Any] | str | None = None,
        *,
        group: str | None = None,
        since: str | None = None,
    ) -> Watch:
        """Watch what happens to the jobs of an event and to its queues, in any process; without `event`, to
        all.

            async for change in provider.watch(OrderPlaced):
                print(change.what, change.job_id)

        Without `group`, all groups of the event are watched. `event` may also be a queue. It begins with what
        happens from now on, or behind the change of which `since` is the position; nothing comes twice then.
        A change of kind `missed` says that some are lost: nobody watched for a while, or this watch lags
        behind the 50,000 changes that the server keeps. A lost connection is waited for. While nobody
        watches, the server writes nothing.

        Raises DefinitionError for a bad argument; its iteration raises ProviderStopped and StoreRefused.
        """
        return Watch(self._life, event, group, since)

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

    def _register(
        self,
        event: Event[Any, Any] | str,
        function: Callable[..., Any],
        **options: Unpack[RegistrationKeywords],
    ) -> Subscription:
        route = self._routes.find(event)
        handler = make_handler(function, route.event, pools=self._life.pools, **options)
        if handler.retry is None and route.event.retry is None:
            check_default(self.settings.retry, route.name, retry_on=route.event.retry_on)
        subscription = Subscription(route, handler)
        self._registry.add(subscription)
        return subscription

    def _find_loop(self) -> asyncio.AbstractEventLoop | None:
        return self._life.loop


async def start_reading(provider: EventProvider) -> None:
    """Start a provider that writes nothing to the server by itself, and takes no emission; for commands that
    only read.

    So a user of the server without the right to write can look. Raises as `EventProvider.start`.
    """
    life = provider._life  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    await life.start(provider.settings, reads_only=True)


def known_event(provider: EventProvider, name: str) -> Event[Any, Any] | None:
    """Return the event of this name, if the provider has handled or emitted it; for the command line."""
    return provider._routes.known(name)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
