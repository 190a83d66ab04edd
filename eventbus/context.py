"""What a handler may know and do about its job, beside its payload."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, overload

from eventbus.codec import Codec
from eventbus.logs import Logger, get_logger
from eventbus.telemetry import trace_id_of

if TYPE_CHECKING:
    from eventbus.emission import Emission
    from eventbus.event import Event

__all__ = ["EventContext", "JobFacts", "SyncContext", "SyncEmission", "Tools"]


P = TypeVar("P")
R = TypeVar("R")
S = TypeVar("S")

_MAX_PROGRESS = 16 * 1024
_progress = Codec(role="progress", owner="progress", max_bytes=_MAX_PROGRESS)


class Tools(Protocol):
    """What contexts need of their provider."""

    def emit(self, event: Any, payload: Any = ..., **options: Any) -> Emission[Any]:
        """As `EventProvider.emit`."""
        ...

    def emit_many(self, event: Any, payloads: Iterable[Any], **options: Any) -> list[Emission[Any]]:
        """As `EventProvider.emit_many`."""
        ...

    def note_progress(self, job_id: str, token: str, progress: str) -> Awaitable[None]:
        """Record a job's progress, JSON text, under its lease."""
        ...

    def shared(self, lifespan: Callable[..., Any]) -> Any:
        """Return what a lifespan of the worker that runs here yielded."""
        ...


class JobFacts:
    """One running job, as a handler sees it; not to be changed.

    The context of a handler with `pool="process"`, and what the other contexts have too.
    `attempt` counts from 1 and does not count stalls. `causation_id` is the job whose
    handler emitted this one, or None. `correlation_id` is the same along a chain of
    emissions.
    """

    __slots__ = (
        "_log",
        "_trace",
        "attempt",
        "causation_id",
        "correlation_id",
        "event",
        "group",
        "job_id",
        "meta",
    )

    def __init__(
        self,
        *,
        event: str,
        group: str,
        job_id: str,
        attempt: int,
        correlation_id: str,
        causation_id: str | None,
        meta: Mapping[str, Any],
        traceparent: str,
    ) -> None:
        self.event = event
        self.group = group
        self.job_id = job_id
        self.attempt = attempt
        self.correlation_id = correlation_id
        self.causation_id = causation_id
        self.meta = meta
        self._trace = traceparent
        self._log: Logger | None = None

    @property
    def log(self) -> Logger:
        """A structlog logger that knows event, job, attempt, correlation and trace."""
        if self._log is None:
            facts: dict[str, Any] = {
                "event_name": self.event,
                "job_id": self.job_id,
                "attempt": self.attempt,
                "correlation_id": self.correlation_id,
            }
            if self._trace:
                facts["trace_id"] = trace_id_of(self._trace)
            self._log = get_logger("eventbus.handler").bind(**facts)
        return self._log


class EventContext(JobFacts):
    """The context of an async handler."""

    __slots__ = ("_token", "_tools")

    def __init__(self, tools: Tools, token: str, **facts: Any) -> None:
        super().__init__(**facts)
        self._tools = tools
        self._token = token

    async def progress(self, value: Any) -> None:
        """Record progress, any JSON value up to 16 KiB; 0..100 is a percentage.

        Raises PayloadError for another value. If the lease is lost nothing is recorded and
        the handler is cancelled.
        """
        await self._tools.note_progress(self.job_id, self._token, _progress.encode(value).decode())

    @overload
    def emit(self, event: Event[P, R], payload: P, **options: Any) -> Emission[R]: ...
    @overload
    def emit(self, event: str, payload: Any = ..., **options: Any) -> Emission[Any]: ...
    def emit(self, event: Any, payload: Any = None, **options: Any) -> Emission[Any]:
        """Emit as `EventProvider.emit` does, as part of this job's chain and trace."""
        return self._tools.emit(event, payload, **options)

    def emit_many(self, event: Any, payloads: Iterable[Any], **options: Any) -> list[Emission[Any]]:
        """Emit many as `EventProvider.emit_many` does, as part of this job's chain and trace."""
        return self._tools.emit_many(event, payloads, **options)

    @overload
    def shared(self, lifespan: Callable[..., AsyncIterator[S]]) -> S: ...
    @overload
    def shared(self, lifespan: Callable[..., AbstractAsyncContextManager[S]]) -> S: ...
    def shared(self, lifespan: Callable[..., Any]) -> Any:
        """Return what a function under `@provider.lifespan` yielded in this worker.

        Raises UsageError for a function that is none of this worker's lifespans.
        """
        return self._tools.shared(lifespan)


class SyncEmission(Protocol):
    """An emission as seen from a thread."""

    @property
    def job_id(self) -> str:
        """The job's id."""
        ...

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the outcome; as awaiting the emission, or TimeoutError after `timeout` seconds."""
        ...


class SyncTools(Protocol):
    """What contexts in threads need of their provider."""

    def emit(self, event: Any, payload: Any = ..., **options: Any) -> SyncEmission:
        """As `SyncProvider.emit`."""
        ...

    def note_progress(self, job_id: str, token: str, progress: str) -> None:
        """Record a job's progress, JSON text, under its lease."""
        ...


class SyncContext(JobFacts):
    """The context of a sync handler, which runs in a thread: the same, blocking."""

    __slots__ = ("_sync", "_token", "_tools")

    def __init__(self, tools: Tools, sync: SyncTools, token: str, **facts: Any) -> None:
        super().__init__(**facts)
        self._tools = tools
        self._sync = sync
        self._token = token

    def progress(self, value: Any) -> None:
        """Record progress, as `EventContext.progress` does."""
        self._sync.note_progress(self.job_id, self._token, _progress.encode(value).decode())

    def emit(self, event: Any, payload: Any = None, **options: Any) -> SyncEmission:
        """Emit from this thread; `.result()` of what it returns waits."""
        return self._sync.emit(event, payload, **options)

    @overload
    def shared(self, lifespan: Callable[..., AsyncIterator[S]]) -> S: ...
    @overload
    def shared(self, lifespan: Callable[..., AbstractAsyncContextManager[S]]) -> S: ...
    def shared(self, lifespan: Callable[..., Any]) -> Any:
        """Return what a lifespan yielded, as `EventContext.shared`; it must be fit for threads."""
        return self._tools.shared(lifespan)
