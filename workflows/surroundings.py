"""What an inline flow stands on: threads, a way to wait, and a provider if there is one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NoReturn

import anyio.to_thread
import msgspec

from eventbus import UsageError
from workflows.attempt import StillRuns
from workflows.records import StepRecord

__all__ = ["InlineTools", "Surroundings", "in_thread", "is_in_loop"]


def is_in_loop() -> bool:
    """Say whether this runs in an event loop; plain functions of users run in threads."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def in_thread(call: Callable[[], Any]) -> Any:
    """Run a plain function in a thread, in a copy of the caller's context.

    A thread cannot be cancelled, and what it does counts: the first cancellation waits for its end, a
    second one leaves it alone and raises StillRuns.
    """
    running = asyncio.ensure_future(anyio.to_thread.run_sync(call, abandon_on_cancel=True))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        if running.done():
            raise
        running.add_done_callback(_ignore)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        if running.done():
            raise
        raise StillRuns from None


def _ignore(running: asyncio.Future[Any]) -> None:
    if not running.cancelled():
        running.exception()  # nobody may be left to hear it


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """What an inline flow and the flows inside it share.

    `provider` is an EventProvider that was started, or whatever emits as it does; None for none.
    """

    provider: Any = None
    sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep
    call_sync: Callable[[Callable[[], Any]], Awaitable[Any]] = in_thread
    traceparent: str = ""


class InlineTools:
    """What contexts of an inline flow need: the provider's words, and records that are all here."""

    def __init__(self, provider: Any, records: Mapping[str, StepRecord]) -> None:
        """`provider` may be None: then using it is an error of the step."""
        self._provider = provider
        self._records = records

    def emit(self, event: Any, payload: Any = None, **options: Any) -> Any:
        """Emit with the provider."""
        return self._voice("emit").emit(event, payload, **options)

    def emit_many(self, event: Any, payloads: Iterable[Any], **options: Any) -> Any:
        """Emit many with the provider."""
        voice = self._voice("emit_many")
        if voice is self._provider:
            return voice.emit_many(event, payloads, **options)
        return [voice.emit(event, each, **options) for each in payloads]

    def shared(self, lifespan: Callable[..., Any]) -> Any:
        """Return what a lifespan of the provider's worker yielded."""
        return (self._provider or _refuse("shared")).shared(lifespan)

    async def load_record(self, step: str) -> StepRecord | None:
        """Return the record of a step, None if it did not complete."""
        return self._records.get(step)

    def _voice(self, what: str) -> Any:
        """What emits here: the provider itself, in a thread the part of it that is for threads, if it has one."""
        provider = self._provider or _refuse(what)
        return provider if is_in_loop() else getattr(provider, "sync", provider)


def _refuse(what: str) -> NoReturn:
    raise UsageError(
        f"ctx.{what} needs a provider; run the flow with one: run_inline(..., provider=provider)"
    )
