"""The contexts of batch handlers: one of the call, which has those of its jobs, one for each payload.

Not here: what can be done in the name of a job (`context`), and who makes these (`batches.consumer`).

What must always hold: what is emitted by the context of an item belongs to the chain and the trace of this
item's job, though the handler runs in the name of no job.
"""

from __future__ import annotations

import contextvars
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from eventbus.handlers.attempt import Attempt, Stopping
from eventbus.handlers.context import EventContext, SyncContext
from eventbus.handlers.lifespan_values import HasLifespans, LifespanValues
from eventbus.model.names import DEFAULT_GROUP
from eventbus.telemetry.logging import Logger, get_logger

if TYPE_CHECKING:
    from eventbus.emit.emission import Emission
    from eventbus.emit.sync_emission import SyncEmission
    from eventbus.handlers.worker_host import WorkerHost

C = TypeVar("C", EventContext, SyncContext)
S = TypeVar("S")


class _CallContext(LifespanValues, Generic[C]):
    """What both contexts of a call have."""

    __slots__ = ("_log", "event", "group", "items")

    def __init__(self, *, event: str, group: str, items: Sequence[C]) -> None:
        self._log: Logger | None = None
        self.event: str = event
        self.group: str = group
        self.items: Sequence[C] = items

    @property
    def _lifespans(self) -> HasLifespans:
        return self.items[0]

    @property
    def stopping(self) -> Stopping | None:
        """Why the whole call should end early, as `EventContext.stopping` has it; None while it should go on
        for some job.

        `items[n].stopping` tells whether one job is still wanted.
        """
        found: Stopping | None = None
        for item in self.items:
            reason = item.stopping
            if reason is None:
                return None
            if found != "stop":  # what only stops may still end well, within the grace
                found = reason
        return found

    @property
    def worker(self) -> str:
        """The id of the worker that runs the jobs."""
        return self.items[0].worker

    @property
    def provider(self) -> str:
        """The name of the provider that the worker belongs to."""
        return self.items[0].provider

    @property
    def log(self) -> Logger:
        """A structlog logger that adds `event_name`, `batch_size`, `worker`, `provider`, and the `group`
        unless it is the default one.
        """
        if self._log is None:
            facts: dict[str, Any] = {"event_name": self.event, "batch_size": len(self.items)}
            facts |= {"worker": self.worker, "provider": self.provider}
            if self.group != DEFAULT_GROUP:
                facts["group"] = self.group
            self._log = get_logger("eventbus.handler").bind(**facts)
        return self._log


class BatchContext(_CallContext[EventContext]):
    """The context of an async batch handler.

    `items` has an `EventContext` for each payload, in their order: the facts about its job, and its `emit`,
    `save`, `progress`, `stopping` and `log`. `event` and `group` are those of all of them.
    """

    __slots__ = ()


class SyncBatchContext(_CallContext[SyncContext]):
    """The context of a batch handler in a thread: as `BatchContext`, with a `SyncContext` for each
    payload.
    """

    __slots__ = ()


class BatchItem(EventContext):
    """The context of one job of a batch. It emits in the job's own context, which `around` holds."""

    __slots__ = ("_around",)

    def __init__(self, host: WorkerHost, own: Attempt, *, around: contextvars.Context, **facts: Any) -> None:
        super().__init__(host, own, **facts)
        self._around = around

    def emit(self, event: Any, payload: Any = None, **options: Any) -> Emission[Any]:
        """Emit as part of the chain of this item's job, as `EventContext.emit` does."""
        return self._around.copy().run(self._host.emit, event, payload, **options)

    def emit_many(self, event: Any, payloads: Iterable[Any], **options: Any) -> list[Emission[Any]]:
        """Emit as part of the chain of this item's job, as `EventContext.emit_many` does."""
        return self._around.copy().run(self._host.emit_many, event, payloads, **options)


class SyncBatchItem(SyncContext):
    """The context of one job of a batch in a thread. It emits in the job's own context, which
    `around` holds.
    """

    __slots__ = ("_around",)

    def __init__(self, host: WorkerHost, own: Attempt, *, around: contextvars.Context, **facts: Any) -> None:
        super().__init__(host, own, **facts)
        self._around = around

    def emit(self, event: Any, payload: Any = None, **options: Any) -> SyncEmission[Any]:
        """Emit as part of the chain of this item's job, as `SyncContext.emit` does."""
        return self._around.copy().run(self._host.in_threads.emit, event, payload, **options)

    def emit_many(self, event: Any, payloads: Iterable[Any], **options: Any) -> list[SyncEmission[Any]]:
        """Emit as part of the chain of this item's job, as `SyncContext.emit_many` does."""
        return self._around.copy().run(self._host.in_threads.emit_many, event, payloads, **options)
