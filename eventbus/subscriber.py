"""From a claimed job to a handler's call and back: decoded -> run -> encoded, or decided.

The hot path of a worker: what is not needed is not made (context objects, loggers and spans
only on use). What must hold: whatever a handler does, the job gets one decision.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from eventbus.ambient import Ambient, enter
from eventbus.config import Keep, Settings
from eventbus.context import EventContext, SyncContext, SyncTools, Tools
from eventbus.durations import LONGEST
from eventbus.engine.consumer import Retention
from eventbus.engine.job import Job, Settle, complete, fail, retry
from eventbus.engine.processes import Processes, available_processors
from eventbus.engine.threads import Threads
from eventbus.envelope import EventMessage, decode_message
from eventbus.errors import DefinitionError, EmissionExpired, StoreCorrupt
from eventbus.failure import describe, describe_expired, is_final
from eventbus.middleware import Middleware, chain
from eventbus.names import DEFAULT_GROUP
from eventbus.registry import Subscription
from eventbus.remote.assignment import check_found
from eventbus.remote.handler import RemoteHandler, recorded
from eventbus.retry import Retry
from eventbus.telemetry import receive_span, tracer

__all__ = ["Subscriber", "retention_of"]


class Subscriber:
    """Runs the jobs of one subscription; the engine's consumer of its queue."""

    def __init__(
        self,
        subscription: Subscription,
        settings: Settings,
        tools: Tools,
        sync: SyncTools,
        *,
        threads: Threads,
        processes: Processes,
        middleware: Sequence[Middleware] = (),
    ) -> None:
        """Raises DefinitionError if a process could not find the handler."""
        route, handler = subscription.route, subscription.handler
        self.queue = subscription.queue
        self.base = route.queue
        self.group = "" if handler.group == DEFAULT_GROUP else handler.group
        self.concurrency = handler.concurrency or settings.concurrency
        self.retention = retention_of(settings)
        self._name = route.name
        self._function = handler.function
        self._context = handler.context
        self._group_name = handler.group
        self.follows: Sequence[str] = ()
        self._timeout = handler.timeout
        self._retry = handler.retry or route.event.retry or settings.retry
        self._ttl_ms = None if route.event.ttl is None else round(route.event.ttl * 1000)
        self._errors = route.event.errors
        self._decode = route.payload.decode
        # Nobody awaits what other groups return.
        self._encode = route.result.encode if handler.group == DEFAULT_GROUP else _encode_nothing
        self._tools = tools
        self._sync = sync
        self._threads = threads
        self._middleware = middleware
        self._call = self._choose_call(subscription, processes)

    def _choose_call(
        self, subscription: Subscription, processes: Processes
    ) -> Callable[[Job, EventMessage, Any], Awaitable[Any]]:
        """How the handler is called, decided once: what is not used costs a job nothing."""
        route, handler, task = subscription.route, subscription.handler, subscription.task
        call = self._call_async if handler.is_async else self._call_thread
        if task is not None:
            check_found(task, handler)
            self.concurrency = handler.concurrency or min(self.concurrency, available_processors())
            self._remote = RemoteHandler(task, route, processes)
            call = self._call_process
            if not self._middleware:  # then values are of no use here
                self._decode, self._encode = _as_it_is, _as_it_is
                call = self._pass_to_process
        if not self._middleware:
            return call
        self._inner = call
        return self._call_through_middleware

    def settled(self, job_id: str, state: str, text: str) -> None:
        """Nobody follows events."""

    def timeout_of(self, job: Job) -> float | None:
        """The same for each job of the queue."""
        del job
        return self._timeout

    async def run(self, job: Job) -> Settle:
        """Decode the job's message, call the handler, encode its result."""
        message = _read(job)
        if self._ttl_ms is not None:
            self._check_ttl(job)
        payload = self._decode(memoryview(message.payload))
        correlation_id = message.correlation_id or job.id
        enter(Ambient(message.meta, correlation_id, job.id, message.traceparent, message.tracestate))
        active = tracer()
        if active is None:
            result = await self._call(job, message, payload)
        else:
            with receive_span(
                active,
                self._name,
                self.queue,
                job.id,
                attempt=job.attempts + 1,
                traceparent=message.traceparent,
                tracestate=message.tracestate,
            ):
                result = await self._call(job, message, payload)
        return complete(self._encode(result).decode())

    async def _call_async(self, job: Job, message: EventMessage, payload: Any) -> Any:
        if self._context is None:
            return await self._function(payload)
        context = EventContext(self._tools, job.token, **self._facts(job, message))
        return await self._function(payload, **{self._context: context})

    async def _call_thread(self, job: Job, message: EventMessage, payload: Any) -> Any:
        if self._context is None:
            return await self._threads.run(lambda: self._function(payload))
        context = SyncContext(self._tools, self._sync, job.token, **self._facts(job, message))
        keywords = {self._context: context}
        return await self._threads.run(lambda: self._function(payload, **keywords))

    async def _call_process(self, job: Job, message: EventMessage, payload: Any) -> Any:
        return await self._remote.call(payload, self._facts(job, message))

    async def _pass_to_process(self, job: Job, message: EventMessage, payload: Any) -> Any:
        return await self._remote.run(payload, self._facts(job, message))

    async def _call_through_middleware(self, job: Job, message: EventMessage, payload: Any) -> Any:
        context = EventContext(self._tools, job.token, **self._facts(job, message))
        return await chain(self._middleware, context, partial(self._inner, job, message))(payload)

    def _facts(self, job: Job, message: EventMessage) -> dict[str, Any]:
        return {
            "event": self._name,
            "group": self._group_name,
            "job_id": job.id,
            "attempt": job.attempts + 1,
            "correlation_id": message.correlation_id or job.id,
            "causation_id": message.causation_id or None,
            "meta": message.meta or {},
            "traceparent": message.traceparent,
        }

    def decide(self, job: Job, error: BaseException) -> Settle:
        """Retry, while attempts are left and the error may pass; else fail."""
        attempts = job.attempts + 1
        if isinstance(error, EmissionExpired) and error.job_id == job.id:  # not one that the handler awaited
            return fail(describe_expired(error, attempts=job.attempts), counts=False)
        known = recorded(error)
        text = known.text if known else describe(error, attempts=attempts, declared=self._errors)
        rule = self._rule_for(job)
        if is_final(error) or (known is not None and known.is_final) or attempts >= rule.attempts:
            return fail(text)
        try:
            delay = rule.delay_after(attempts, error)
        except Exception as own:  # noqa: BLE001  (a custom strategy of the user's)
            return fail(describe(own, attempts=attempts))
        return retry(text, min(round(delay * 1000), round(LONGEST * 1000)))

    def _rule_for(self, job: Job) -> Retry:
        """Emission over handler over event over provider."""
        try:
            wire = decode_message(job.body).retry
            return Retry.from_wire(wire) if wire is not None else self._retry
        except (msgspec.MsgspecError, UnicodeError, DefinitionError):
            return self._retry

    def _check_ttl(self, job: Job) -> None:
        age = job.claimed_ms - job.due_ms
        if job.attempts or job.stalls or self._ttl_ms is None or age <= self._ttl_ms:
            return
        raise EmissionExpired(
            f"{self._name} was not started within its ttl of {self._ttl_ms / 1000:g} s; it waited {age / 1000:g} s",
            event=self._name,
            job_id=job.id,
        )


def _read(job: Job) -> EventMessage:
    try:
        return decode_message(job.body)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise StoreCorrupt(f"the message of job {job.id} cannot be read: {error}") from None


def _encode_nothing(_: Any) -> bytes:
    return b"null"


def _as_it_is(data: Any) -> Any:
    return data


def retention_of(settings: Settings) -> Retention:
    """What the engine keeps, in its own units."""
    completed, failed = _kept(settings.keep_completed), _kept(settings.keep_failed)
    return Retention(*completed, *failed, key_ttl=round(settings.key_ttl * 1000))


def _kept(keep: Keep) -> tuple[int, int]:
    count = 2**31 if keep.count is None else keep.count
    age = LONGEST if keep.age is None else keep.age
    return count, round(float(age) * 1000)  # type: ignore[arg-type]  (a Keep holds float seconds)
