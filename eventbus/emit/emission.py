"""The handle on one emission, which the emitter may await.

It is not a future: any number of waiters may await it, a cancelled waiter does not cancel it, and an
error that nobody asked for is logged once instead of causing a warning of the event loop.

    sending -> enqueued -> settled (outcome | error)
    sending -> settled (EmitError: refused, or no answer within the deadline)

What must always hold:
- an emission settles once, and the first settlement wins;
- each waiter is woken when it settles;
- a result is decoded when it is first asked for.
"""

from __future__ import annotations

import asyncio
import sys
import types
from collections.abc import Generator
from typing import Any, Generic, Protocol, TypeVar

from eventbus.errors import EmitError, JobCancelled, ProviderStopped, StoreCorrupt, UsageError
from eventbus.model.containment import as_exception
from eventbus.model.durations import Duration
from eventbus.telemetry.failure import mark_awaited
from eventbus.telemetry.log_context import with_facts
from eventbus.telemetry.logging import get_logger

R = TypeVar("R")

_log = get_logger("eventbus.emission")


class OutcomeDecoder(Protocol):
    """The reader of outcomes: makes values and exceptions of the results and errors of one kind of job."""

    @property
    def name(self) -> str:
        """The name of this kind of job, for messages."""
        ...

    @property
    def queue(self) -> str:
        """The queue of its jobs."""
        ...

    def decode_result(self, text: str) -> Any:
        """Return the result that a JSON text stands for."""
        ...

    def revive(self, state: str, text: str, job_id: str) -> Exception:
        """Return the error of a job that ended in `state` with `text`."""
        ...


class _Owner(Protocol):
    """The completion tracker, as its emissions use it."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...
    def note_failed(self, emission: PendingEmission[Any], error: Exception) -> None: ...
    def count_lost(self, event: str) -> int: ...
    def overdue(self, emission: PendingEmission[Any]) -> None: ...
    async def cancel(
        self, job_id: str, reason: str, *, queue: str = "", call_timeout: Duration | None = None
    ) -> bool: ...


class Emission(Generic[R]):
    """One emission. Awaiting it returns the handler's result, or raises the handler's error.

    Awaiting a fire-and-forget emission waits only until its job is in the server, and returns None.

    `job_id` is final once `enqueued()` has returned, because an emission joins an earlier job that has its
    key, and then takes the id of that job. `joined` says from then on whether it did. `correlation_id` names
    the chain of emissions to which this emission belongs. An emission that joined a job keeps its own
    correlation id, but the log events of the job carry the one of the first emission. `groups` is how many
    jobs the emission has made, one for each group and the default handler, known from then on too; None
    before that, and for one that joined. It is 0 for an event with `default=False` that has no group yet:
    then nothing was enqueued, and no job has this id.

    An emission belongs to the event loop that made it. In another loop you can read an outcome that is
    already there. To wait or to cancel there raises UsageError, or ProviderStopped if its own loop is closed.

    Raises when awaited: EmitError, ResponseTimeout, HandlerError or a declared error, EmissionExpired,
    JobCancelled, StalledError, ProviderStopped, PayloadError (the result does not fit its type) or
    UnknownJob (the server lost the job).
    """

    __slots__ = (
        "__weakref__",
        "_causation_id",
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
        "correlation_id",
        "groups",
        "job_id",
        "joined",
    )

    # `PendingEmission` sets these attributes. The emitter makes only objects of that class.
    job_id: str
    correlation_id: str
    joined: bool
    groups: int | None
    _causation_id: str
    _route: OutcomeDecoder
    _owner: _Owner
    _is_enqueued: bool
    _is_done: bool
    _is_retrieved: bool
    _text: str | None
    _value: Any
    _error: Exception | None
    _waiters: list[asyncio.Future[None]] | None
    _enqueue_waiters: list[asyncio.Future[None]] | None

    @property
    def event(self) -> str:
        """The name of the event."""
        return self._route.name

    def done(self) -> bool:
        """Return whether the emission has an outcome (fire-and-forget: whether it is enqueued)."""
        return self._is_done

    def cancelled(self) -> bool:
        """Return whether the job ended as cancelled."""
        return isinstance(self._error, JobCancelled)

    async def enqueued(self) -> None:
        """Wait until the job is in the server. Raises EmitError, QueueFull or ProviderStopped."""
        if not self._is_enqueued and not self._is_done:
            self._enqueue_waiters = self._enqueue_waiters or []
            await _until(self._enqueue_waiters, self._owner.loop, self)
        if not self._is_enqueued and self._error is not None:
            self._is_retrieved = True
            # Each waiter raises the same object, whose traceback would grow otherwise.
            raise self._error.with_traceback(None)

    async def cancel(self, reason: str = "", *, call_timeout: Duration | None = None) -> bool:
        """Cancel the job of this emission and the jobs of its groups. Return once this is recorded.

        A waiting job ends at once. A running job is cancelled within a second, on any worker, and ends as
        cancelled even if it completes meanwhile. Waiters of the job get JobCancelled with `reason`. A job
        that several emissions share through a key is cancelled for all of them.

        The result is True if one of these jobs ends as cancelled. It is False if all of them had ended
        before, or if the emission never became a job.

        `call_timeout` is how long the server may take to answer once the job is in the server; the default
        is the provider's `reply_timeout`. After that time StoreUnavailable is raised: the server may have
        recorded the request, and you may repeat it. Raises StoreError if the server cannot be asked, and
        UnknownJob if the retention of the job is over.
        """
        _check_loop(asyncio.get_running_loop(), self._owner.loop, self)
        try:
            await self.enqueued()
        except EmitError as error:
            if error.enqueued is False:
                return False
            # Otherwise the job may be in the server, so it is cancelled there.
        if self.groups == 0:
            return False
        return await self._owner.cancel(
            self.job_id, reason, queue=self._route.queue, call_timeout=call_timeout
        )

    def __await__(self) -> Generator[Any, None, R]:
        if not self._is_done:
            if self._waiters is None:
                self._waiters = []
            yield from _wait(self._waiters, self._owner.loop, self)
        self._is_retrieved = True  # only now: a waiter that was cancelled has not seen the error
        if self._error is not None:
            raise self._error.with_traceback(None)
        if self._text is not None:
            self._value, self._text = self._route.decode_result(self._text), None
        return self._value

    def __repr__(self) -> str:
        state = "done" if self._is_done else "enqueued" if self._is_enqueued else "sending"
        return f"<Emission {self._route.name} {self.job_id} {state}>"


class PendingEmission(Emission[R]):
    """An emission as the emitter makes it, with the methods that the tracker and the senders call.

    It is one object with the handle, because a second object for each emission would cost time. It is a class
    of its own, so that the public class does not offer methods that its users must not call.
    """

    __slots__ = ("bucket", "reply", "reply_timeout")

    def __init__(
        self,
        route: OutcomeDecoder,
        owner: _Owner,
        job_id: str,
        correlation_id: str,
        reply_timeout: float | None,
        *,
        reply: bool,
        causation_id: str = "",
    ) -> None:
        """`causation_id` is the job whose handler emitted this, or `""`. `reply_timeout` is in seconds."""
        self.job_id: str = job_id
        self.joined: bool = False
        self.groups: int | None = None
        self.correlation_id = correlation_id
        self.reply: bool = reply
        self.reply_timeout: float | None = reply_timeout
        self.bucket: int = 0
        self._causation_id = causation_id
        self._route = route
        self._owner = owner
        self._is_enqueued = False
        self._is_done = False
        self._is_retrieved = False
        self._text = None
        self._value = None
        self._error = None
        self._waiters = None
        self._enqueue_waiters = None

    @property
    def is_enqueued(self) -> bool:
        """Whether the server has the job."""
        return self._is_enqueued

    @property
    def send_error(self) -> Exception | None:
        """The error with which it ended before the server had the job; None if it has not."""
        return None if self._is_enqueued else self._error

    def belongs_to(self, owner: object) -> bool:
        """Return whether `owner` is the tracker of this emission."""
        return self._owner is owner

    def find_wait(self) -> tuple[str, str, str] | None:
        """Return the id of the job whose handler awaits this emission, and this emission's job id and queue.

        Returns None if no handler awaits it.
        """
        if not self._causation_id or not self._waiters or self._is_done:
            return None
        return self._causation_id, self.job_id, self._route.queue

    def keep_quiet(self) -> None:
        """Do not log an unawaited failure, because the outcome can be read elsewhere."""
        self._is_retrieved = True

    def __del__(self) -> None:
        # An object whose `__init__` failed has no `_error`; at the interpreter's exit, logging may be gone.
        if getattr(self, "_error", None) is not None and not sys.is_finalizing():
            self.tell_unheard()

    def tell_unheard(self) -> None:
        """Log the failure once if nobody asked for it, unless it is a cancellation, which was intended.

        An outage fails thousands at once before they are jobs. One log event then stands for `count` of them.
        """
        error = self._error
        if error is None or self._is_retrieved or isinstance(error, JobCancelled):
            return
        if self._is_enqueued and isinstance(error, ProviderStopped):
            return  # the job goes on in the server, and nobody waits for it here
        self._is_retrieved = True
        facts: dict[str, Any] = {}
        if isinstance(error, EmitError) and not self._is_enqueued:
            count = self._owner.count_lost(self._route.name)
            if not count:
                return
            facts["count"] = count
        facts |= {
            "event_name": self._route.name,
            "job_id": self.job_id,
            "correlation_id": self.correlation_id,
        }
        with with_facts(facts):  # another job may drop the last reference; its facts do not belong here
            _log.error(
                "emission failed and nobody awaited it", **facts, error=f"{type(error).__name__}: {error}"
            )

    def mark_enqueued(self) -> None:
        """Note that the server has the job, and wake those who wait for that."""
        self._is_enqueued = True
        if self._enqueue_waiters:
            _release(self._enqueue_waiters)
        if not self.reply:
            self._finish()

    def settle(self, state: str, text: str) -> None:
        """End the emission with the job's final state; `text` is the job's result or error.

        So the job is in the server, or was, also if the answer to its add has not come.
        """
        if self._is_done:
            return
        self._is_enqueued = True
        if state == "completed":
            self._text = text  # decoded when a waiter first asks for it
            self._finish()
        else:
            try:
                error = self._route.revive(state, text, self.job_id)
                mark_awaited(error)
            except BaseException as own:  # noqa: BLE001  (a class of the user's; others wait, too)
                as_exception(own)
                error = StoreCorrupt(f"the error of job {self.job_id} cannot be made again: {own!r}")
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """End the emission with an error. Does nothing if it has ended already."""
        if not self._is_done:
            self._error = error
            if not self._is_retrieved:
                self._owner.note_failed(self, error)
            self._finish()

    def on_deadline(self) -> None:
        """Hand an emission whose reply timeout is over to the tracker, which looks its job up first."""
        self._owner.overdue(self)

    def _finish(self) -> None:
        self._is_done = True
        if self._waiters:
            _release(self._waiters)
        if self._enqueue_waiters:
            _release(self._enqueue_waiters)


def _wait(
    waiters: list[asyncio.Future[None]], home: asyncio.AbstractEventLoop, emission: Emission[Any]
) -> Generator[Any, None, None]:
    """Wait until `_release` is called with `waiters`. Raises as `_check_loop`."""
    loop = asyncio.get_running_loop()
    if loop is not home:
        _check_loop(loop, home, emission)
    future: asyncio.Future[None] = loop.create_future()
    waiters.append(future)
    try:
        yield from future
    finally:
        # The future is no longer in the list if the release came between the cancellation and this step.
        if future.cancelled() and future in waiters:
            waiters.remove(future)


_until = types.coroutine(_wait)
"""`_wait` as an awaitable, for use in coroutines."""


def _check_loop(
    loop: asyncio.AbstractEventLoop, home: asyncio.AbstractEventLoop, emission: Emission[Any]
) -> None:
    """Raise UsageError or ProviderStopped in a foreign loop: a wait there would never end.

    Outcomes arrive only in the loop that made the emission.
    """
    if loop is home:
        return
    if home.is_closed():
        raise ProviderStopped(
            f"the event loop that emitted {emission.event} has ended; ask for the job by its id",
            job_id=emission.job_id,
        )
    raise UsageError(
        f"the emission of {emission.event} belongs to another event loop or process; await it where it was "
        f"emitted, or its job with provider.sync.result({emission.job_id!r}) in a thread"
    )


def _release(waiters: list[asyncio.Future[None]]) -> None:
    """Wake all waiters, and empty the list."""
    for future in waiters:
        if not future.done():
            future.set_result(None)
    waiters.clear()
