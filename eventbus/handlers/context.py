"""Contexts: the facts about its job that a handler gets beside the payload, and what it can do there.

An async handler gets an `EventContext`, one in a thread a `SyncContext`, and one in a process a
`ProcessContext`. All are made of the facts and of the attempt (`handlers.attempt`), which does the work.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from eventbus.handlers.attempt import Attempt, Stopping
from eventbus.handlers.lifespan_values import HasLifespans, LifespanValues
from eventbus.handlers.saved import read_saved, saved_text
from eventbus.model.codec import Codec
from eventbus.model.names import DEFAULT_GROUP
from eventbus.runtime.blocking_call import run_at_once
from eventbus.settings.keywords import EmitKeywords
from eventbus.telemetry.log_context import trace_facts
from eventbus.telemetry.logging import Logger, get_logger
from eventbus.telemetry.spans import trace_id_of

if TYPE_CHECKING:
    from eventbus.emit.emission import Emission
    from eventbus.emit.sync_emission import SyncEmission
    from eventbus.handlers.worker_host import WorkerHost
    from eventbus.model.event import Event

P = TypeVar("P")
R = TypeVar("R")
S = TypeVar("S")

D = TypeVar("D")

_MAX_PROGRESS = 16 * 1024
_progress = Codec(role="progress", owner="progress", max_bytes=_MAX_PROGRESS)


def progress_text(value: Any) -> str:
    """Return a progress value as JSON text. Raises PayloadError if it is no JSON value or over 16 KiB."""
    return _progress.encode(value).decode()


class JobFacts:
    """The facts about one running job, and what every context of it can do. Do not change them.

    `event` is the name of the event, `group` the group of the handler, and `job_id` the id of the job.
    `attempt` counts from 1, and does not count stalls. `correlation_id` is the same for all jobs of a chain
    of emissions. `causation_id` is the id of the job whose handler emitted this one, or None. `meta` is the
    JSON object that the emitter added, empty if there was none. `worker` is the id of the worker that runs
    the job, as in its log events and in reports of jobs, and `provider` the name of the provider that the
    worker belongs to (its setting `name`).
    """

    __slots__ = (
        "_log",
        "_own",
        "_trace",
        "attempt",
        "causation_id",
        "correlation_id",
        "event",
        "group",
        "job_id",
        "meta",
        "provider",
        "worker",
    )

    def __init__(
        self,
        own: Attempt,
        *,
        event: str,
        group: str,
        job_id: str,
        attempt: int,
        correlation_id: str,
        causation_id: str | None,
        meta: Mapping[str, Any],
        traceparent: str,
        worker: str = "",
        provider: str = "",
    ) -> None:
        self._own = own
        self.event: str = event
        self.group: str = group
        self.job_id: str = job_id
        self.attempt: int = attempt
        self.correlation_id: str = correlation_id
        self.causation_id: str | None = causation_id
        self.meta: Mapping[str, Any] = meta
        self.worker: str = worker
        self.provider: str = provider
        self._trace = traceparent
        self._log: Logger | None = None

    @property
    def log(self) -> Logger:
        """A structlog logger that adds the facts of this job to each log event.

        These are `event_name`, `job_id`, `attempt`, `correlation_id`, `worker`, `provider`, the `group`
        unless it is the default one, the `meta` of the emission if it has any, and `trace_id` and `span_id`
        where there is a trace.
        """
        if self._log is None:
            facts: dict[str, Any] = {
                "event_name": self.event,
                "job_id": self.job_id,
                "attempt": self.attempt,
                "correlation_id": self.correlation_id,
            }
            if self.worker:
                facts |= {"worker": self.worker, "provider": self.provider}
            if self.group != DEFAULT_GROUP:
                facts["group"] = self.group
            if self.meta:
                facts["meta"] = dict(self.meta)
            facts |= trace_facts(trace_id_of(self._trace), job_id=self.job_id)
            self._log = get_logger("eventbus.handler").bind(**facts)
        return self._log

    @property
    def stopping(self) -> Stopping | None:
        """Why the job should end early: `"stop"`, `"cancel"`, `"timeout"` or `"lease lost"`; None while it
        should go on.

        `"stop"` is the stop of the worker, after which the job still has the grace. The others come with a
        cancellation, of which a thread or a process hears only here: a handler that runs long there asks now
        and then.

        In a process the first question asks the worker, and later ones cost nothing. A handler there that has
        asked gets half a second after a cancel, a timeout or a lost lease, to save and to end; then its
        process is killed. Without a question that happens at once.
        """
        return self._own.stopping

    def keep_line(self, line: str) -> None:
        """Keep a log line with this job, where `inspector.jobs.get` and `eventbus jobs show` show it; return
        at once.

        The newest 100 lines of a job stay, 64 KiB together, for as long as the job is kept. A line over 4 KiB
        is cut. Lines of many jobs travel in one call, and reach the server before the end of the attempt
        does; those of the last moment before a worker dies are lost. A line never fails a handler. The worker
        has the lines of a process before the end of the attempt, also if the process dies afterwards; in a
        thread that a handler left behind in a process, and in a fork, the call does nothing.
        """
        self._own.keep_line(line)


class EventContext(JobFacts, LifespanValues):
    """The context of an async handler: the facts about its job, and what the handler can do there."""

    __slots__ = ("_host",)

    def __init__(self, host: WorkerHost, own: Attempt, **facts: Any) -> None:
        super().__init__(own, **facts)
        self._host = host

    @property
    def _lifespans(self) -> HasLifespans:
        return self._host

    async def save(self, value: Any) -> None:
        """Keep a JSON value for the next run of this job, in place of what was saved before.

        It stays over retries, `Later`, stalls and stops of the worker, and goes with the job. Returns when
        the server has recorded it; while the server is away, the call waits. Raises PayloadError for a value
        that would not come back as it is, or over `max_result`. If the lease is lost, nothing is saved:
        raises StoreRefused, and the handler is cancelled. Raises ProviderStopped if the worker ends before
        the answer.
        """
        await self._own.save(saved_text(value, owner=self.event, max_bytes=self._own.max_saved))

    @overload
    async def saved(self, kind: type[S], /) -> S | None: ...
    @overload
    async def saved(self, kind: type[S], /, *, default: D) -> S | D: ...
    async def saved(self, kind: Any, /, *, default: Any = None) -> Any:
        """Return what this job saved last, in this run or in an earlier one, as a value of the type `kind`;
        otherwise `default`.

        Raises PayloadError if the value does not fit the type, StoreError, and ProviderStopped.
        """
        return read_saved(await self._own.read_saved(), kind, default, owner=self.event)

    async def progress(self, value: Any) -> None:
        """Record the job's progress, any JSON value of at most 16 KiB; a number from 0 to 100 is a
        percentage.

        A newer value replaces an older one. Returns when the server has recorded it; while the server is
        away, the call waits. If the lease is lost, nothing is recorded and the handler is cancelled. Raises
        PayloadError for any other value, and StoreRefused if the server refuses the call.
        """
        await self._own.tell(progress_text(value))

    @overload
    def emit(self, event: Event[P, R], payload: P, **options: Unpack[EmitKeywords]) -> Emission[R]: ...
    @overload
    def emit(self, event: str, payload: Any = ..., **options: Unpack[EmitKeywords]) -> Emission[Any]: ...
    def emit(self, event: Any, payload: Any = None, **options: Any) -> Emission[Any]:
        """Emit an event as `EventProvider.emit` does, as part of this job's chain and trace.

        Returns at once; await the emission for its result. Takes the same options and raises the same errors.
        """
        return self._host.emit(event, payload, **options)

    @overload
    def emit_many(
        self, event: Event[P, R], payloads: Iterable[P], **options: Unpack[EmitKeywords]
    ) -> list[Emission[R]]: ...
    @overload
    def emit_many(
        self, event: str, payloads: Iterable[Any], **options: Unpack[EmitKeywords]
    ) -> list[Emission[Any]]: ...
    def emit_many(self, event: Any, payloads: Iterable[Any], **options: Any) -> list[Emission[Any]]:
        """Emit one event for each payload as `EventProvider.emit_many` does, as part of this job's chain and
        trace.

        Returns the emissions at once, in the order of the payloads.
        """
        return self._host.emit_many(event, payloads, **options)


class SyncContext(JobFacts, LifespanValues):
    """The context of a sync handler, which runs in a thread: as `EventContext`, with blocking calls."""

    __slots__ = ("_host",)

    def __init__(self, host: WorkerHost, own: Attempt, **facts: Any) -> None:
        super().__init__(own, **facts)
        self._host = host

    @property
    def _lifespans(self) -> HasLifespans:
        return self._host

    def save(self, value: Any) -> None:
        """Keep a JSON value for the next run of this job as `EventContext.save` does, and block until it is
        recorded.

        Raises the errors of that.
        """
        text = saved_text(value, owner=self.event, max_bytes=self._own.max_saved)
        self._host.wait("save a value", self._own.save, text)

    @overload
    def saved(self, kind: type[S], /) -> S | None: ...
    @overload
    def saved(self, kind: type[S], /, *, default: D) -> S | D: ...
    def saved(self, kind: Any, /, *, default: Any = None) -> Any:
        """Return what this job saved last as `EventContext.saved` does, and block until the server has
        answered.

        Raises the errors of that.
        """
        text = self._host.wait("read a saved value", self._own.read_saved)
        return read_saved(text, kind, default, owner=self.event)

    def progress(self, value: Any) -> None:
        """Record the job's progress as `EventContext.progress` does, and block until the server has recorded
        it.

        Raises PayloadError and StoreRefused as that does, and ProviderStopped if the provider has stopped.
        """
        self._host.wait("record progress", self._own.tell, progress_text(value))

    @overload
    def emit(self, event: Event[P, R], payload: P, **options: Unpack[EmitKeywords]) -> SyncEmission[R]: ...
    @overload
    def emit(self, event: str, payload: Any = ..., **options: Unpack[EmitKeywords]) -> SyncEmission[Any]: ...
    def emit(self, event: Any, payload: Any = None, **options: Any) -> SyncEmission[Any]:
        """Emit an event from this thread, as part of this job's chain and trace.

        Waits for the event loop to take it, but not for the server. Call `.enqueued()` of the emission to
        wait for the server, and `.result()` to wait for the result. Takes the same options and raises the
        same errors as `EventProvider.emit`.
        """
        return self._host.in_threads.emit(event, payload, **options)

    @overload
    def emit_many(
        self, event: Event[P, R], payloads: Iterable[P], **options: Unpack[EmitKeywords]
    ) -> list[SyncEmission[R]]: ...
    @overload
    def emit_many(
        self, event: str, payloads: Iterable[Any], **options: Unpack[EmitKeywords]
    ) -> list[SyncEmission[Any]]: ...
    def emit_many(self, event: Any, payloads: Iterable[Any], **options: Any) -> list[SyncEmission[Any]]:
        """Emit one event for each payload from this thread, as part of this job's chain and trace.

        Returns the emissions in the order of the payloads.
        """
        return self._host.in_threads.emit_many(event, payloads, **options)


class ProcessContext(JobFacts):
    """The context of a handler with `pool="process"`: the facts about its job, and what its worker does for
    it.

    Its calls may be made in any thread of the process, but not in a fork of it.
    """

    __slots__ = ()

    def save(self, value: Any) -> None:
        """Keep a JSON value for the next run of this job as `EventContext.save` does, and block until it is
        recorded.

        The worker records it under its lease. Raises the errors of that; StoreRefused also after the end of
        the attempt, as in a thread that the handler left behind.
        """
        run_at_once(self._own.save(saved_text(value, owner=self.event, max_bytes=self._own.max_saved)))

    @overload
    def saved(self, kind: type[S], /) -> S | None: ...
    @overload
    def saved(self, kind: type[S], /, *, default: D) -> S | D: ...
    def saved(self, kind: Any, /, *, default: Any = None) -> Any:
        """Return what this job saved last as `EventContext.saved` does, and block until the worker has
        answered.

        Raises the errors of that, and StoreRefused after the end of the attempt.
        """
        return read_saved(run_at_once(self._own.read_saved()), kind, default, owner=self.event)

    def progress(self, value: Any) -> None:
        """Send the job's progress to the worker, which records it as `EventContext.progress` does; return at
        once.

        The worker records the newest value that it has, one after the other. After the end of the attempt, as
        in a thread that the handler left behind, the call does nothing. Raises PayloadError for a value that
        is no JSON value or over 16 KiB.
        """
        run_at_once(self._own.tell(progress_text(value)))


def attempt_in(context: JobFacts) -> Attempt:
    """Return the attempt that a context is made of, for systems on top of the event bus that have contexts of
    their own.
    """
    return context._own  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
