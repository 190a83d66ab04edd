"""The consumer of a batch handler: its jobs run as those of any handler, until the call, which many of them
share.

Not here: when a call begins and who is in it (`gathering`).

What must always hold: what the handler returns is checked before any job has its outcome; a call runs in the
context of the queue, in the name of no job.
"""

from __future__ import annotations

import contextvars
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar, cast

from eventbus.engine.job import Job, Settle
from eventbus.errors import DefinitionError, PayloadError
from eventbus.handlers.attempt import Attempt
from eventbus.handlers.batch_context import BatchContext, BatchItem, SyncBatchContext, SyncBatchItem
from eventbus.handlers.batches.call import Item
from eventbus.handlers.batches.gathering import Gathering
from eventbus.handlers.consumer import HandlerConsumer
from eventbus.handlers.subscriptions import Subscription
from eventbus.model.message import EventMessage
from eventbus.model.names import DEFAULT_GROUP, shown
from eventbus.model.type_matching import is_untyped
from eventbus.runtime.process_pool import ProcessPool
from eventbus.telemetry.log_context import ATTEMPT

C = TypeVar("C")


class BatchConsumer(HandlerConsumer):
    """Runs the jobs of one subscription whose handler takes many of them at once."""

    def __init__(
        self, subscription: Subscription, *given: Any, on_room: Callable[[], None], **options: Any
    ) -> None:
        """`on_room` is called when further jobs may come. The rest as for `HandlerConsumer`."""
        handler, event = subscription.handler, subscription.route.event
        if handler.batch is None:
            raise DefinitionError(f"the handler of queue {subscription.queue!r} takes no batches")
        self._batch = handler.batch
        self._on_room = on_room
        self._is_async = handler.is_async
        self._may_return_none = (
            handler.group != DEFAULT_GROUP or event.result is None or is_untyped(event.result)
        )
        super().__init__(subscription, *given, **options)
        self._counts_from_claim = False  # it counts from the begin of the call

    def _choose_call(
        self, subscription: Subscription, processes: ProcessPool
    ) -> Callable[[Job, EventMessage, Any], Awaitable[Any]]:
        del processes
        self.gathering: Gathering = Gathering(
            self._batch, self._concurrency, self._run_call, on_begin=self._on_begin, on_room=self._on_room
        )
        return self._within_middleware(self.gathering.put, subscription.route.payload)

    @property
    def concurrency(self) -> int:
        """How many jobs may run here: those in calls, and as many as the calls that may begin can take."""
        return self.gathering.in_calls + self.gathering.room

    async def run(self, job: Job) -> Settle:
        """Run the job as `HandlerConsumer.run` does, with the errors of that."""
        if self.gathering.context is None:
            # No facts of the job are set yet, so this is what surrounds every job of the queue.
            self.gathering.context = contextvars.copy_context()
            self.gathering.context.run(ATTEMPT.set, ...)  # a call has jobs of any attempt
        return await super().run(job)

    def _on_begin(self, item: Item) -> None:
        timeout = self._timeout if item.message.timeout is None else item.message.timeout / 1000 or None
        self._set_clock(item.job, timeout)

    async def _run_call(self, items: Sequence[Item]) -> Sequence[Any]:
        """Call the handler, and return an outcome for each item: a result, or an exception that is
        its error.
        """
        payloads = [item.payload for item in items]
        keywords = {} if self._context is None else {self._context: self._make_context(items)}
        if self._is_async:
            returned = await self._function(payloads, **keywords)
        else:
            returned = await self._threads.run(lambda: self._function(payloads, **keywords))
        return self._outcomes(returned, len(items))

    def _make_context(self, items: Sequence[Item]) -> BatchContext | SyncBatchContext:
        facts: dict[str, Any] = {"event": self._name, "group": self._group_name}
        if self._is_async:
            return BatchContext(items=[self._make_item(BatchItem, item) for item in items], **facts)
        return SyncBatchContext(items=[self._make_item(SyncBatchItem, item) for item in items], **facts)

    def _make_item(self, kind: Callable[..., C], item: Item) -> C:
        own = Attempt(self._host, item.job)
        return kind(self._host, own, around=item.around, **self._facts(item.job, item.message))

    def _outcomes(self, returned: Any, count: int) -> Sequence[Any]:
        """Check what the handler returned. Raises PayloadError, which fails every job of the call."""
        if returned is None and self._may_return_none:
            return [None] * count
        if not isinstance(returned, (list, tuple)):
            raise PayloadError(
                f"expected the batch handler of {self._name} to return a list of {count} results or "
                f"exceptions, one for each payload, got: {shown(returned)}",
                event=self._name,
                role="result",
            )
        outcomes = cast("Sequence[Any]", returned)
        if len(outcomes) != count:
            raise PayloadError(
                f"the batch handler of {self._name} was given {count} payloads and returned {len(outcomes)} "
                "results; return one for each payload, in their order: a result, or an exception for a job "
                "that failed",
                event=self._name,
                role="result",
            )
        return [_raisable(outcome) for outcome in outcomes]


def _raisable(outcome: Any) -> Any:
    """Return the outcome; a StopIteration, which no coroutine can raise, as a RuntimeError."""
    if not isinstance(outcome, StopIteration):
        return outcome
    error = RuntimeError("the batch handler returned a StopIteration")
    error.__cause__ = outcome
    return error
