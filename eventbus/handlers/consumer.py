"""The consumer of one subscription: decodes each claimed job, calls its handler, and encodes the result.

    claimed -> decoded -> run -> encoded: completed
                             -> an error: decided, retried or failed

This is the hot path of a worker, so context objects, loggers and spans are only made if they are used.

Not here: how a job is claimed, cancelled and settled (`engine.claimer`, `engine.executor`), and what follows
from an error (`failure_rules`).

What must always hold: whatever a handler does, its job gets one decision; log events inside a handler, also
in its threads and processes, carry the facts of its job and of no other.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from opentelemetry.trace import Tracer

from eventbus.engine.consumer import Retention
from eventbus.engine.job import Job, Settle, complete, give_back
from eventbus.errors import EmissionExpired
from eventbus.handlers.attempt import Attempt
from eventbus.handlers.context import EventContext, SyncContext
from eventbus.handlers.failure_rules import FailureRules, chain_of, read_message
from eventbus.handlers.failures.descriptions import describe_event
from eventbus.handlers.middleware import Middleware, chain, encode_passed_on
from eventbus.handlers.pools import BUILT_IN
from eventbus.handlers.process.handler import RemoteHandler
from eventbus.handlers.process.messages import check_found
from eventbus.handlers.subscriptions import Subscription
from eventbus.handlers.worker_host import WorkerHost
from eventbus.handlers.worker_pools import WorkerPool, WorkerPools
from eventbus.model.codec import Codec
from eventbus.model.durations import LONGEST
from eventbus.model.keep import Keep, keeps_to_wire
from eventbus.model.message import EventMessage
from eventbus.model.names import DEFAULT_GROUP
from eventbus.runtime.process_pool import ProcessPool, available_processors
from eventbus.runtime.thread_pool import ThreadPool
from eventbus.settings.settings import Settings
from eventbus.telemetry.job_failure import JobFailure
from eventbus.telemetry.log_context import ATTEMPT, CORRELATION_ID, EVENT_NAME, GROUP, JOB_ID, TRACE_ID
from eventbus.telemetry.propagation import Ambient, enter
from eventbus.telemetry.spans import (
    attach_baggage,
    begin_apart,
    creation_links,
    message_attributes,
    receive_span,
    trace_id_of,
    traceparent_of,
    tracer,
)


class _StopCame(Exception):
    """The worker stops, and a place that a job waited for is free only now."""


class HandlerConsumer:
    """Runs the jobs of one subscription. It is the engine's `Consumer` of the subscription's queue."""

    def __init__(
        self,
        subscription: Subscription,
        settings: Settings,
        host: WorkerHost,
        *,
        threads: ThreadPool,
        processes: ProcessPool,
        pools: WorkerPools,
        set_clock: Callable[[Job, float | None], None],
        middleware: Sequence[Middleware] = (),
        worker: str = "",
    ) -> None:
        """`worker` is the id that contexts and spans show. `set_clock` is that of the executor. Raises
        DefinitionError if another process could not find the handler.
        """
        route, handler = subscription.route, subscription.handler
        self.queue: str = subscription.queue
        self.base: str = route.queue
        self.group: str = "" if handler.group == DEFAULT_GROUP else handler.group
        self._concurrency = handler.concurrency or settings.concurrency
        self._pool = pools.get(handler.pool) if handler.pool not in (None, *BUILT_IN) else None
        self._counts_from_claim = self._pool is None
        """Whether the timeout of a job counts from its claim on, and not from a later moment."""
        self._held = 0
        event = route.event
        self.retention: Retention = retention_of(settings, event.keep_completed, event.keep_failed)
        self.limit: str = "" if route.event.limit is None else route.event.limit.to_wire()
        self._name = route.name
        self._function = handler.function
        self._context = handler.context
        self._group_name = handler.group
        self.follows: Sequence[str] = ()
        self._timeout = handler.timeout
        self._rules = FailureRules(
            route.event, self.group, handler.retry or route.event.retry or settings.retry
        )
        # As `Consumer` has them.
        self.decide: Callable[[Job, BaseException], Settle] = self._rules.decide
        self.facts: Callable[[Job], Mapping[str, Any]] = self._rules.facts
        self.failed: Callable[[Job, Settle], None] = self._rules.log
        self._ttl_ms = None if route.event.ttl is None else round(route.event.ttl * 1000)
        self._decode = route.payload.decode
        # Only the default group answers the emitter, so the results of other groups are not kept.
        self._encode = route.result.encode if handler.group == DEFAULT_GROUP else _encode_nothing
        self._host = host
        self._threads = threads if self._pool is None or self._pool.threads is None else self._pool.threads
        self._set_clock = set_clock
        self._middleware = middleware
        self._worker, self._provider = worker, settings.name
        self._attributes = message_attributes(
            "process",
            "process",
            destination=route.name,
            client=settings.name,
            url=settings.url,
            **{"messaging.consumer.group.name": handler.group, "eventbus.worker.id": worker},
        )
        self._call = self._choose_call(subscription, processes)
        if self._pool is not None:
            self._call_placed, self._call = self._call, partial(self._call_in_place, self._pool)

    def _choose_call(
        self, subscription: Subscription, processes: ProcessPool
    ) -> Callable[[Job, EventMessage, Any], Awaitable[Any]]:
        """Return the function that calls the handler. It is chosen once, so unused features cost a job
        nothing.
        """
        route, handler, task = subscription.route, subscription.handler, subscription.task
        call = self._call_async if handler.is_async else self._call_thread
        if task is not None:
            check_found(task, handler)
            if self._pool is None:
                self._concurrency = handler.concurrency or min(self._concurrency, available_processors())
            elif self._pool.processes is not None:
                processes = self._pool.processes
            self._remote = RemoteHandler(task, route, processes)
            call = self._call_process
            if not self._middleware:  # then no code here reads values: pass JSON through
                self._decode, self._encode = _as_it_is, _as_it_is
                call = self._pass_to_process
        # A handler in a process gets JSON, and making the JSON checks the payload.
        return self._within_middleware(call, None if task is not None else route.payload)

    def _within_middleware(
        self, call: Callable[[Job, EventMessage, Any], Awaitable[Any]], passed_on: Codec | None
    ) -> Callable[[Job, EventMessage, Any], Awaitable[Any]]:
        """Return `call` with the middleware around it; `passed_on` checks a payload that a middleware
        changed.
        """
        if not self._middleware:
            return call
        self._inner = call
        self._passed_on = passed_on
        return self._call_through_middleware

    @property
    def concurrency(self) -> int:
        """How many jobs may run here. With a named pool: those that hold a place of it, and as many as it has
        free.

        So a worker claims no more jobs of the handler than can begin at once. While others wait in line for a
        place, which so is never free, one job may stand there as well.
        """
        if self._pool is None:
            return self._concurrency
        places = self._pool.places
        return min(self._concurrency, self._held + (places.free or int(places.has_line)))

    def settled(self, job_id: str, state: str, text: str) -> None:
        """Do nothing: no queue follows that of an event."""

    def surround(self) -> None:
        """Set the context variables that are the same for each job of the queue; `run` sets the others."""
        begin_apart()
        EVENT_NAME.set(self._name)
        JOB_ID.set(...)  # no value yet; setting a variable that exists is cheaper in each job
        CORRELATION_ID.set(...)
        ATTEMPT.set(1)
        if self.group:
            GROUP.set(self.group)

    def timeout_of(self, job: Job) -> float | None:
        """Return the handler's timeout; with a named pool it counts from the place on. That of an emission
        follows (`run`).
        """
        del job
        return self._timeout if self._counts_from_claim else None

    async def run(self, job: Job) -> Settle:
        """Decode the job's message, call the handler and encode its result.

        Raises whatever the handler raises, PayloadError, StoreCorrupt for a message that cannot be read, and
        EmissionExpired for one that waited longer than its `ttl`.
        """
        message = read_message(job)
        ttl_ms = self._ttl_ms if message.ttl is None else message.ttl
        if ttl_ms is not None:
            self._check_ttl(job, ttl_ms)
        if message.timeout is not None and self._counts_from_claim:
            self._set_clock(job, message.timeout / 1000 or None)
        correlation_id = message.correlation_id or chain_of(job, self.group)
        enter(Ambient(message.meta, correlation_id, job.id, message.traceparent, message.tracestate))
        JOB_ID.set(job.id)
        CORRELATION_ID.set(correlation_id)
        if job.attempts:
            ATTEMPT.set(job.attempts + 1)
        if message.traceparent:
            TRACE_ID.set(trace_id_of(message.traceparent))
        if message.baggage:
            attach_baggage(message.baggage)
        payload = self._decode(memoryview(message.payload))
        active = tracer()
        try:
            if active is None:
                result = await self._call(job, message, payload)
            else:
                result = await self._call_traced(active, job, message, payload)
        except _StopCame:
            return give_back(has_begun=False)
        return complete(self._encode(result).decode())

    async def _call_traced(self, active: Tracer, job: Job, message: EventMessage, payload: Any) -> Any:
        attributes = {
            **self._attributes,
            "messaging.message.id": job.id,
            "messaging.message.conversation_id": message.correlation_id or chain_of(job, self.group),
            "eventbus.attempt": job.attempts + 1,
        }
        with receive_span(
            active,
            f"process {self._name}",
            attributes,
            traceparent=message.traceparent,
            tracestate=message.tracestate,
            links=creation_links(message.traceparent, message.tracestate),
            hides=partial(self._rules.hidden, job) if self._rules.hides(job) else None,
        ) as span:
            message.traceparent = traceparent_of(span)  # so that emissions of the handler belong to this span
            return await self._call(job, message, payload)

    async def _call_in_place(self, pool: WorkerPool, job: Job, message: EventMessage, payload: Any) -> Any:
        """Wait for a place of the pool, and call the handler there, with the middleware around it."""
        if not pool.places.enter():
            await pool.places.wait()
            if self._host.stopping(job) == "stop":  # another worker begins it
                pool.places.leave()
                raise _StopCame
        self._held += 1
        try:
            self._set_clock(job, self._timeout if message.timeout is None else message.timeout / 1000 or None)
            return await self._call_placed(job, message, payload)
        finally:
            self._held -= 1
            pool.places.leave()

    async def _call_async(self, job: Job, message: EventMessage, payload: Any) -> Any:
        if self._context is None:
            return await self._function(payload)
        context = EventContext(self._host, Attempt(self._host, job), **self._facts(job, message))
        return await self._function(payload, **{self._context: context})

    async def _call_thread(self, job: Job, message: EventMessage, payload: Any) -> Any:
        if self._context is None:
            return await self._threads.run(lambda: self._function(payload))
        context = SyncContext(self._host, Attempt(self._host, job), **self._facts(job, message))
        keywords = {self._context: context}
        return await self._threads.run(lambda: self._function(payload, **keywords))

    async def _call_process(self, job: Job, message: EventMessage, payload: Any) -> Any:
        own = Attempt(self._host, job)
        return await self._remote.call(payload, self._facts(job, message), message.baggage, own)

    async def _pass_to_process(self, job: Job, message: EventMessage, payload: Any) -> Any:
        own = Attempt(self._host, job)
        return await self._remote.run(payload, self._facts(job, message), message.baggage, own)

    async def _call_through_middleware(self, job: Job, message: EventMessage, payload: Any) -> Any:
        context = EventContext(self._host, Attempt(self._host, job), **self._facts(job, message))
        call = partial(self._call_innermost, job, message, payload)
        return await chain(self._middleware, context, call)(payload)

    async def _call_innermost(self, job: Job, message: EventMessage, given: Any, payload: Any, /) -> Any:
        """Call the handler; check the payload first if it is not the object that the job brought."""
        if payload is not given and self._passed_on is not None:
            encode_passed_on(self._passed_on, payload)
        return await self._inner(job, message, payload)

    def _facts(self, job: Job, message: EventMessage) -> dict[str, Any]:
        return {
            "event": self._name,
            "group": self._group_name,
            "job_id": job.id,
            "attempt": job.attempts + 1,
            "correlation_id": message.correlation_id or chain_of(job, self.group),
            "causation_id": message.causation_id or None,
            "meta": message.meta or {},
            "traceparent": message.traceparent,
            "worker": self._worker,
            "provider": self._provider,
        }

    def failure(self, job: Job, text: str) -> JobFailure:
        """Return what hooks are told of a failed job."""
        return describe_event(job, text, event=self._name, group=self.group)

    def _check_ttl(self, job: Job, ttl_ms: int) -> None:
        # The ttl only counts until the first run begins, so not after an attempt, a stall or `Later`.
        age = job.claimed_ms - job.due_ms
        if job.attempts or job.stalls or job.has_begun or age <= ttl_ms:
            return
        raise EmissionExpired(
            f"{self._name} was not started within its ttl of {ttl_ms / 1000:g} s; it waited {age / 1000:g} s",
            event=self._name,
            job_id=job.id,
        )


def _encode_nothing(_: Any) -> bytes:
    return b"null"


def _as_it_is(data: Any) -> Any:
    return data


def retention_of(
    settings: Settings, keep_completed: Keep | None = None, keep_failed: Keep | None = None
) -> Retention:
    """Return a retention in the units of the engine: counts, and ages in ms. What is None is that of the
    settings.
    """
    completed = _kept(settings.keep_completed if keep_completed is None else keep_completed)
    failed = _kept(settings.keep_failed if keep_failed is None else keep_failed)
    declared = keeps_to_wire(keep_completed, keep_failed)
    return Retention(*completed, *failed, key_ttl=round(settings.key_ttl * 1000), declared=declared)


def _kept(keep: Keep) -> tuple[int, int]:
    age = LONGEST if keep.age is None else keep.age
    count = 2**31 if keep.count is None else keep.count
    count = count if age else 0  # an age of 0 keeps nothing, as a count of 0 does
    return count, round(float(age) * 1000)  # type: ignore[arg-type]  (a Keep holds float seconds)
