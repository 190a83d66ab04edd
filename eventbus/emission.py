"""The handle on one emission: what the emitter awaits.

Not a future: it has any number of waiters, none of whom can cancel it, and an outcome that
nobody asked for is logged once instead of becoming a warning of the event loop.

    sending -> enqueued -> settled (outcome | error)
    sending -> settled (EmitError: refused, or no answer within the deadline)

What must hold: it settles once, the first settlement wins; each waiter hears it; a result
is decoded when it is first asked for.
"""

from __future__ import annotations

import asyncio
import sys
import types
from collections.abc import Generator
from typing import Any, Generic, Protocol, TypeVar

from eventbus.errors import EmitError, JobCancelled
from eventbus.logs import get_logger

__all__ = ["Emission", "Reading"]

R = TypeVar("R")

_log = get_logger("eventbus.emission")


class Reading(Protocol):
    """What an outcome stands for: how the results and errors of one kind of job are read."""

    @property
    def name(self) -> str:
        """The kind's name, for messages."""
        ...

    @property
    def queue(self) -> str:
        """The queue of its jobs."""
        ...

    def decode_result(self, text: str) -> Any:
        """Make the result of its JSON text."""
        ...

    def revive(self, state: str, text: str, job_id: str) -> Exception:
        """Make the error of a job that ended in `state` with `text`."""
        ...


class _Owner(Protocol):
    def overdue(self, emission: Emission[Any]) -> None: ...
    async def cancel(self, job_id: str, reason: str, *, queue: str = "") -> bool: ...


class Emission(Generic[R]):
    """One emission. Awaiting it gives the handler's result, or raises its error.

    `job_id` is final once `enqueued()` returned: an emission that met a job with its key
    takes that job's id. `correlation_id` names the chain of emissions it belongs to.
    Awaiting a fire-and-forget emission waits for the enqueue and gives None.

    Belongs to the event loop that made it. Raises, when awaited: EmitError, ResponseTimeout,
    HandlerError or a declared exception, EmissionExpired, JobCancelled, StalledError,
    ProviderStopped, PayloadError (a result that does not fit).
    """

    __slots__ = (
        "__weakref__",
        "_enqueue_waiters",
        "_error",
        "_is_done",
        "_is_enqueued",
        "_is_retrieved",
        "_owner",
        "_route",
        "_text",
        "_value",
        "_waiters",
        "bucket",
        "correlation_id",
        "job_id",
        "reply",
        "reply_timeout",
    )

    def __init__(
        self,
        route: Reading,
        owner: _Owner,
        job_id: str,
        correlation_id: str,
        reply_timeout: float | None,
        *,
        reply: bool,
    ) -> None:
        self.job_id = job_id
        self.correlation_id = correlation_id
        self.reply = reply
        self.reply_timeout = reply_timeout
        self.bucket = 0
        self._route = route
        self._owner = owner
        self._is_enqueued = False
        self._is_done = False
        self._is_retrieved = False
        self._text: str | None = None
        self._value: Any = None
        self._error: Exception | None = None
        self._waiters: list[asyncio.Future[None]] | None = None
        self._enqueue_waiters: list[asyncio.Future[None]] | None = None

    @property
    def event(self) -> str:
        """The event's name."""
        return self._route.name

    def done(self) -> bool:
        """Whether it has an outcome (or, fire-and-forget, is enqueued)."""
        return self._is_done

    def cancelled(self) -> bool:
        """Whether its job ended cancelled."""
        return isinstance(self._error, JobCancelled)

    async def enqueued(self) -> None:
        """Wait until the job is in the server. Raises EmitError, QueueFull or ProviderStopped."""
        if not self._is_enqueued and not self._is_done:
            self._enqueue_waiters = self._enqueue_waiters or []
            await _until(self._enqueue_waiters)
        if not self._is_enqueued and self._error is not None:
            self._is_retrieved = True
            raise self._error.with_traceback(None)

    async def cancel(self, reason: str = "") -> bool:
        """Cancel the job of this emission, and those of its groups; returns when that is recorded.

        What waits ends at once; what runs is cancelled within a second, wherever it runs, and ends
        as cancelled even if it completes meanwhile. Whoever awaits it hears JobCancelled with
        `reason`. False if all had ended. A job met by its key is cancelled for all its emissions.

        Raises StoreError when the server cannot be asked, UnknownJob when its retention is over.
        """
        try:
            await self.enqueued()
        except EmitError as error:
            if error.enqueued is False:
                return False
        return await self._owner.cancel(self.job_id, reason, queue=self._route.queue)

    def __await__(self) -> Generator[Any, None, R]:
        if not self._is_done:
            if self._waiters is None:
                self._waiters = []
            yield from _wait(self._waiters)
        self._is_retrieved = True
        if self._error is not None:
            raise self._error.with_traceback(None)
        if self._text is not None:
            self._value, self._text = self._route.decode_result(self._text), None
        return self._value

    def __repr__(self) -> str:
        state = "done" if self._is_done else "enqueued" if self._is_enqueued else "sending"
        return f"<Emission {self._route.name} {self.job_id} {state}>"

    def __del__(self) -> None:
        error = getattr(self, "_error", None)
        is_news = error is not None and not isinstance(error, JobCancelled)  # that was somebody's wish
        if is_news and not self._is_retrieved and not sys.is_finalizing():
            _log.error(
                "emission failed and nobody awaited it",
                event_name=self._route.name,
                job_id=self.job_id,
                error=f"{type(error).__name__}: {error}",
            )

    # What follows is for the completion tracker and the outbox.

    @property
    def is_enqueued(self) -> bool:
        """Whether the server has the job."""
        return self._is_enqueued

    def keep_quiet(self) -> None:
        """Its outcome can be asked for elsewhere: nobody need be told that nobody awaited it here."""
        self._is_retrieved = True

    def mark_enqueued(self) -> None:
        """The server has the job."""
        self._is_enqueued = True
        if self._enqueue_waiters:
            _release(self._enqueue_waiters)
        if not self.reply:
            self._finish()

    def settle(self, state: str, text: str) -> None:
        """The job ended in `state`; `text` is its result or error."""
        if self._is_done:
            return
        if state == "completed":
            self._text = text
            self._finish()
        else:
            self.fail(self._route.revive(state, text, self.job_id))

    def fail(self, error: Exception) -> None:
        """It ended without a result."""
        if not self._is_done:
            self._error = error
            self._finish()

    def on_deadline(self) -> None:
        """Its reply timeout is over."""
        self._owner.overdue(self)

    def _finish(self) -> None:
        self._is_done = True
        if self._waiters:
            _release(self._waiters)
        if self._enqueue_waiters:
            _release(self._enqueue_waiters)


def _wait(waiters: list[asyncio.Future[None]]) -> Generator[Any, None, None]:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiters.append(future)
    try:
        yield from future
    finally:
        # Not there any more if the release came between the cancellation and this step.
        if future.cancelled() and future in waiters:
            waiters.remove(future)


_until = types.coroutine(_wait)
"""The same, to be awaited."""


def _release(waiters: list[asyncio.Future[None]]) -> None:
    for future in waiters:
        if not future.done():
            future.set_result(None)
    waiters.clear()
