"""The provider: the object through which a program defines handlers, emits events and runs workers.

Not here: how handlers are registered (`handler_registry`), how it starts and stops (`lifecycle`), how an
emission travels (`emit.emitter`), how a worker runs its jobs (`handlers.worker`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any, Self, TypeVar, Unpack, overload

from eventbus.admin.controls import Controls
from eventbus.admin.inspector import Inspector
from eventbus.admin.watch import Watch
from eventbus.emit.emission import Emission
from eventbus.emit.route import Routes
from eventbus.errors import DefinitionError
from eventbus.handler_registry import HandlerRegistry
from eventbus.handlers.worker import EventWorker
from eventbus.job_client import JobClient
from eventbus.lifecycle import Lifecycle
from eventbus.model.durations import Duration, seconds
from eventbus.model.event import Event
from eventbus.model.limit import Limit
from eventbus.model.names import check_correlation_id, check_job_id
from eventbus.runtime.loop_ownership import LoopOwnership
from eventbus.schedule_client import ScheduleClient
from eventbus.settings.keywords import EmitKeywords, ProviderKeywords, emit_options
from eventbus.settings.settings import Settings
from eventbus.store.connection.connector import make_connector
from eventbus.sync import LoopThread, SyncProvider, ThreadTools
from eventbus.telemetry.propagation import with_meta
from eventbus.toolbox import Toolbox

__all__ = ["EventProvider", "known_event", "start_reading"]

P = TypeVar("P")
R = TypeVar("R")


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
        routes = Routes(self.settings)
        tools = Toolbox(self, lambda: self._life.worker)
        self._life = Lifecycle(ownership, thread, tools=tools, sync=ThreadTools(self.sync, thread, tools))
        super().__init__(self.settings, routes, self._life)
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
        self,
        event: Event[Any, Any] | str,
        *,
        group: str | None = None,
        call_timeout: Duration | None = None,
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
