"""Processes of handlers in a test: threads by default, or real processes for which time stands.

A call in a thread is that of a process in all but the process: its payload and result travel as JSON, and it
finds its function by the import path. What must always hold: time stands while it runs.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from eventbus.handlers.process.child_calls import AttemptCalls
from eventbus.handlers.process.child_run import run_request
from eventbus.handlers.process.handler import log_note
from eventbus.handlers.process.messages import Request
from eventbus.runtime.process_channel import CALL, REPLY, Attending
from eventbus.runtime.process_pool import ProcessPool
from eventbus.testing.virtual_time import VirtualTime

_encode = msgspec.json.Encoder(enc_hook=repr).encode
_decode = msgspec.json.Decoder(Request).decode


class ThreadProcesses(ProcessPool):
    """Runs the calls of processes in threads of this one."""

    def __init__(self) -> None:
        super().__init__(log_note)

    async def run(
        self,
        request: bytes,
        read: Callable[[bytes], Any],
        on_progress: Callable[[bytes], None] | None = None,
        attending: Attending | None = None,
    ) -> Any:
        """Run a request in a thread and return its answer, converted by `read`. A cancellation ends only the
        waiting.
        """
        loop, around = asyncio.get_running_loop(), contextvars.copy_context()
        given = _decode(request)

        def hear(kind: bytes, message: bytes) -> None:
            if kind == CALL and attending is not None:
                attending.called(message)
            elif kind != CALL and on_progress is not None:
                on_progress(message)

        def send(kind: bytes, _: int, message: bytes) -> bool:
            loop.call_soon_threadsafe(partial(hear, kind, message), context=around)
            return True

        calls = AttemptCalls(1, max_saved=given.max_saved, send=send)
        if attending is not None:
            attending.attend(
                lambda kind, message: calls.reply(message) if kind == REPLY else calls.stop(message.decode())
            )
        try:
            report, _ = await loop.run_in_executor(None, run_request, given, calls)
        except asyncio.CancelledError:
            if attending is not None:
                attending.part()
            raise
        finally:
            calls.end()
        return read(_encode(report))

    async def aclose(self) -> None:
        """Do nothing: there is no process."""


class HeldProcesses(ProcessPool):
    """Runs the calls in real processes, while time stands."""

    def __init__(self, time: VirtualTime) -> None:
        super().__init__(log_note)
        self._time = time

    async def run(
        self,
        request: bytes,
        read: Callable[[bytes], Any],
        on_progress: Callable[[bytes], None] | None = None,
        attending: Attending | None = None,
    ) -> Any:
        """Run a request as `ProcessPool.run` does, while time stands."""
        with self._time.hold():
            return await super().run(request, read, on_progress, attending)

    async def aclose(self) -> None:
        """End the processes, while time stands."""
        with self._time.hold():
            await super().aclose()
