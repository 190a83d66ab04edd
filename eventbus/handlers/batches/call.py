"""One call of a batch handler: who stays in it, who has left, and the outcome of each.

Its states and what must always hold stand in `gathering`.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

from eventbus.engine.job import Job
from eventbus.handlers.failure_rules import BATCH
from eventbus.model.containment import Contained, contained_await, original
from eventbus.model.message import EventMessage


class Item:
    """One job of a batch, with its payload and the future of its outcome."""

    __slots__ = ("around", "call", "is_leaving", "job", "message", "outcome", "payload", "since")

    def __init__(self, job: Job, message: EventMessage, payload: Any, *, since: float) -> None:
        """`since` is the loop's time at which it began to wait for others."""
        self.job: Job = job
        self.message: EventMessage = message
        self.payload: Any = payload
        self.outcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.around: contextvars.Context = contextvars.copy_context()
        """The context of the job, for what is emitted in its name."""
        self.call: BatchCall | None = None
        self.since: float = since
        self.is_leaving: bool = False


class BatchCall:
    """One call, from its begin on. It runs in a task of its own, in the name of no job."""

    def __init__(self, items: Sequence[Item], on_end: Callable[[BatchCall], None]) -> None:
        self._items = list(items)
        """Those that have not left, in the order of their payloads."""
        self._all = items
        self._on_end = on_end
        self._task: asyncio.Task[Sequence[Any] | BaseException] | None = None
        self._is_cancelled = False

    @property
    def present(self) -> int:
        """How many jobs have not left."""
        return len(self._items)

    @property
    def keeper(self) -> Item | None:
        """The job that waits for the end of a call that ignores its cancellation; None if all have left."""
        return self._items[0] if self._items else None

    def begin(self, run: Coroutine[Any, Any, Sequence[Any]], context: contextvars.Context) -> None:
        """Start the call in this context."""
        for item in self._all:
            item.call = self
        self._task = asyncio.get_running_loop().create_task(_shielding_the_loop(run), context=context)
        self._task.add_done_callback(self._end)

    async def leave(self, item: Item) -> Any:
        """Take out a job whose task was cancelled. Return or raise its outcome if it has to wait for the end
        of the call.

        Raises CancelledError if it need not.
        """
        if not item.outcome.cancelled():
            return item.outcome.result()  # it came in the same moment
        item.is_leaving = True
        loop = asyncio.get_running_loop()
        loop.call_soon(self._look)  # not at once, because the other jobs may be leaving in this moment, too
        try:
            while item in self._items:
                item.outcome = loop.create_future()
                try:
                    return await item.outcome
                except asyncio.CancelledError:
                    is_second = item.outcome.cancelled() and self._is_cancelled
                    if not (is_second and item is self.keeper):
                        raise
                    self._cancel()  # the handler ignored the first one
        finally:
            if item in self._items:
                self._items.remove(item)
        raise asyncio.CancelledError

    def _look(self) -> None:
        """Let those go that leave while others stay; cancel the call if nobody stays.

        A job that is given back waits with the others, because a handler that finishes in time completes it
        nevertheless.
        """
        if self._is_cancelled:
            return
        leaving = [item for item in self._items if item.is_leaving]
        if len(leaving) == len(self._items):
            self._is_cancelled = True
            self._cancel()
            return
        for item in leaving:
            if item.job.ending != "shutdown" and not item.outcome.done():
                self._items.remove(item)
                item.outcome.cancel()

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _end(self, task: asyncio.Task[Sequence[Any] | BaseException]) -> None:
        """Give each job that has not left its outcome."""
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        ended = task.result() if error is None else error
        outcomes: Sequence[Any] = [ended] * len(self._all) if isinstance(ended, BaseException) else ended
        staying = set(map(id, self._items))
        jobs = [item.job for item in self._all]
        self._items.clear()
        for item, outcome in zip(self._all, outcomes, strict=True):
            if id(item) not in staying or item.outcome.done():
                continue
            if isinstance(outcome, BaseException):
                with suppress(AttributeError):  # of an error without a dict
                    setattr(outcome, BATCH, jobs)  # it may quote the payloads of all
                item.outcome.set_exception(outcome)
            else:
                item.outcome.set_result(outcome)
        self._on_end(self)


async def _shielding_the_loop(run: Coroutine[Any, Any, Sequence[Any]]) -> Sequence[Any] | BaseException:
    """Return what the handler returns, or an error of it that would end the loop if a task ended with it: a
    SystemExit.
    """
    try:
        return await contained_await(run)
    except Contained as error:
        return original(error)
