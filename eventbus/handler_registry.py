"""The handler registry: the part of a provider with which a program defines its handlers and what is around
them.

Not here: how a handler is checked (`handlers.handler`), and how a worker runs its jobs (`handlers.worker`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

from eventbus.admin.groups import remove_group
from eventbus.admin.queue_name import queue_of
from eventbus.emit.route import Routes
from eventbus.errors import UsageError
from eventbus.handlers.batch_types import BatchRegistrar
from eventbus.handlers.collection import Handlers, collected_handlers
from eventbus.handlers.failures.hook import FailureFunction, make_failure_hook
from eventbus.handlers.handler import check_event, make_handler
from eventbus.handlers.lifespan import Lifespan, check_lifespan
from eventbus.handlers.middleware import Middleware, check_middleware
from eventbus.handlers.pools import BUILT_IN, make_pool
from eventbus.handlers.subscriptions import Subscription, Subscriptions
from eventbus.lifecycle import Lifecycle
from eventbus.model.batch import Batch
from eventbus.model.durations import Duration
from eventbus.model.event import Event
from eventbus.model.names import DEFAULT_GROUP, check_group, queue_name
from eventbus.model.retry import Retry, check_answers, check_default
from eventbus.settings.settings import Settings
from eventbus.telemetry.change import ChangeKind
from eventbus.telemetry.listeners import Listener, check_listened, check_listener

__all__ = ["HandlerRegistry"]

F = TypeVar("F", bound=Callable[..., Any])
P = TypeVar("P")
R = TypeVar("R")
M = TypeVar("M", bound=Middleware)
L = TypeVar("L", bound=Lifespan)
Heard = TypeVar("Heard", bound=Listener)
H = TypeVar("H", bound=FailureFunction)

_NOTHING: Any = None  # `@provider.use()` passes no function; the check then raises a DefinitionError


class HandlerRegistry:
    """The handlers of a provider, their groups, their middleware and their lifespans."""

    settings: Settings

    def __init__(self, settings: Settings, routes: Routes, life: Lifecycle) -> None:
        """Make an empty registry, for the provider that inherits from it."""
        self.settings = settings
        self._routes = routes
        self._life = life
        self._registry = Subscriptions()
        self._running = life.running

    @overload
    def on(
        self,
        event: Event[Any, Any] | str,
        *,
        group: str = ...,
        concurrency: int | None = ...,
        retry: Retry | None = ...,
        timeout: Duration | None = ...,
        pool: str | None = ...,
        batch: None = ...,
    ) -> Callable[[F], F]: ...
    @overload
    def on(  # pyright: ignore[reportOverlappingOverload]  (the result None has a wider return type)
        self,
        event: Event[P, None],
        *,
        batch: Batch,
        group: str = ...,
        concurrency: int | None = ...,
        retry: Retry | None = ...,
        timeout: Duration | None = ...,
        pool: str | None = ...,
    ) -> BatchRegistrar[P, Sequence[Exception | None] | None]: ...
    @overload
    def on(
        self,
        event: Event[P, R],
        *,
        batch: Batch,
        concurrency: int | None = ...,
        retry: Retry | None = ...,
        timeout: Duration | None = ...,
        pool: str | None = ...,
    ) -> BatchRegistrar[P, Sequence[R | Exception]]: ...
    @overload
    def on(  # the results of a group of its own reach nobody
        self,
        event: Event[P, Any],
        *,
        batch: Batch,
        group: str,
        concurrency: int | None = ...,
        retry: Retry | None = ...,
        timeout: Duration | None = ...,
        pool: str | None = ...,
    ) -> BatchRegistrar[P, Sequence[Any] | None]: ...
    @overload
    def on(
        self,
        event: str,
        *,
        batch: Batch,
        group: str = ...,
        concurrency: int | None = ...,
        retry: Retry | None = ...,
        timeout: Duration | None = ...,
        pool: str | None = ...,
    ) -> Callable[[F], F]: ...
    def on(
        self,
        event: Event[Any, Any] | str,
        *,
        group: str = DEFAULT_GROUP,
        concurrency: int | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        pool: str | None = None,
        batch: Batch | None = None,
    ) -> Any:
        """Register the decorated function as the handler of an event for a group.

            @provider.on(OrderPlaced, concurrency=5, timeout="30s")
            async def charge(order: Order) -> Receipt: ...

        `concurrency` is the most jobs of the handler that one worker runs at a time, by default the
        provider's setting. `timeout` limits one attempt; by default nothing does. `retry` goes before
        the rules of the event and the provider. Async functions run in the event loop, other functions
        in threads. With `pool="process"` each job runs in a process of its own. That process is killed
        when the job times out, is cancelled or loses its lease. `pool` may also be the name of a pool
        that `provider.pool` has declared.

        With `batch=Batch(size=100)` the function takes a list of up to so many payloads, and returns a list
        of as many results, in their order; an exception in it is the error of that job alone. What it raises
        is the error of each of them. `concurrency` and `timeout` are then of its calls.

        Raises DefinitionError for a function that does not fit the event, for a function that another
        process could not find by its name, and for a second handler of one event and group.
        """
        check_event(event)

        def register(function: F) -> F:
            self._register(
                event,
                function,
                group=group,
                concurrency=concurrency,
                retry=retry,
                timeout=timeout,
                pool=pool,
                batch=batch,
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
        pool: str | None = None,
        batch: Batch | None = None,
    ) -> None:
        """Register a handler at run time; return when a worker of this process serves it.

        Starts a worker if none runs in this process. Options and errors are those of `on`; raises
        ProviderStopped too when the provider is not started. A call that is cancelled may still
        have taken effect in the running worker. It is safe to call it again.
        """
        self._running(f"subscribe to {event}")
        subscription = self._register(
            event,
            handler,
            group=group,
            concurrency=concurrency,
            retry=retry,
            timeout=timeout,
            pool=pool,
            batch=batch,
        )
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
        subscription = self._registry.find(queue_name(route.name, check_group(group)))
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

    def listen(
        self, *kinds: ChangeKind, event: Event[Any, Any] | str | None = None
    ) -> Callable[[Heard], Heard]:
        """Register the decorated function as a listener: it hears what the workers of this process do.

            @provider.listen("failed", "error")
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

    def failed(self, hook: H = _NOTHING) -> H:
        """Have a function called for each job, and each flow, that a worker of this process ends as failed.

            @provider.failed
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

    def _register(
        self, event: Event[Any, Any] | str, function: Callable[..., Any], **options: Any
    ) -> Subscription:
        route = self._routes.find(event)
        handler = make_handler(
            function,
            event=route.name,
            payload=route.event.payload,
            result=route.event.result,
            pools=self._life.pools,
            **options,
        )
        where = f"the handler of event {route.name!r}"
        check_answers(handler.retry, where, errors=route.event.errors, retry_on=route.event.retry_on)
        if handler.retry is None and route.event.retry is None:
            check_default(self.settings.retry, route.name, retry_on=route.event.retry_on)
        subscription = Subscription(route, handler)
        self._registry.add(subscription)
        return subscription
