"""The environment of an inline flow: how it runs threads, how it sleeps, and its provider, if any."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn, TypeVar

import anyio
import anyio.to_thread
import msgspec

from eventbus import UsageError
from eventbus.lowlevel import Emits, contained, run_blocking, running_loop
from workflows.definition.middleware import FlowMiddleware
from workflows.execution.attempt import StillRuns
from workflows.records.records import StepRecord

T = TypeVar("T")


def is_in_loop() -> bool:
    """Tell whether the caller runs in an event loop; the plain functions of users run in threads."""
    return running_loop() is not None


async def in_thread(call: Callable[[], Any]) -> Any:
    """Run a plain function in a thread, in a copy of the caller's context.

    A thread cannot be cancelled, and its effect counts. So after the first cancellation this waits for the
    function and returns its value; a second cancellation leaves the thread running and raises StillRuns.
    """
    running = asyncio.ensure_future(
        anyio.to_thread.run_sync(partial(contained, call), abandon_on_cancel=True)
    )
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        if running.done():  # nothing is left to wait for
            raise
        running.add_done_callback(_ignore)
    try:
        with anyio.CancelScope(shield=True):  # the repeats of anyio are no second cancellation
            return await asyncio.shield(running)
    except asyncio.CancelledError:
        if running.done():
            raise
        raise StillRuns from None


def _ignore(running: asyncio.Future[Any]) -> None:
    if not running.cancelled():
        running.exception()  # marks it as retrieved, so that asyncio does not log it


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """The environment that an inline flow shares with the flows inside it.

    `provider` is a started EventProvider, or an object with the same methods to emit; None if there is none.
    `sleep(seconds)` waits between attempts; `call_sync` runs a plain function outside of the event loop.
    `middleware` is around each attempt.
    """

    provider: Any = None
    sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep
    call_sync: Callable[[Callable[[], Any]], Awaitable[Any]] = in_thread
    traceparent: str = ""
    middleware: Sequence[FlowMiddleware] = ()


class InlineTools:
    """The FlowTools of an inline flow: it emits with the provider, and reads records from memory."""

    def __init__(
        self, provider: Any, records: Mapping[str, StepRecord], middleware: Sequence[FlowMiddleware] = ()
    ) -> None:
        """Use `provider`; if it is None, a step that needs it fails with UsageError."""
        self._provider = provider
        self._records = records
        self.middleware: Sequence[FlowMiddleware] = middleware
        self._loop = running_loop()

    @property
    def emits(self) -> Emits[Any]:
        """The provider, or in a thread its `sync` part if it has one. Raises UsageError without one."""
        provider = self._provider or _refuse("emit")
        return provider if is_in_loop() else getattr(provider, "sync", provider)

    def shared(self, lifespan: Callable[..., Any]) -> Any:
        """Return the value that a lifespan of the provider's worker yielded."""
        provider = self._provider or _refuse("shared")
        return getattr(provider, "jobs", provider).shared(lifespan)

    async def load_record(self, step: str) -> StepRecord | None:
        """Return the record of a step; None if the step did not complete."""
        return self._records.get(step)

    @property
    def remote(self) -> None:
        """None: inline flows run all plain functions in threads."""

    def wait(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run `work` in the event loop of the flow and wait for it in the caller's thread."""
        if self._loop is None:
            work.close()
            raise UsageError("this context was made outside of an event loop, so nothing can run its calls")
        return run_blocking(self._loop, work, timeout)


def _refuse(what: str) -> NoReturn:
    raise UsageError(
        f"ctx.{what} needs a provider; run the flow with one: run_inline(..., provider=provider)"
    )
