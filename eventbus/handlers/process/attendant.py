"""The attendant of one attempt in a process: the worker's side of its calls.

    call of the process -> served under the lease of the job -> reply
    log line of the process -> kept at once, before the next frame is read; no reply
    the process has asked whether it should end -> the attendant looks, and tells it the reason once

What must always hold: what a process saves counts as if the handler had saved it here, so a worker that lost
the lease saves nothing; the lines of an attempt are with the worker before its answer, because they come in
the same channel; a process that has not asked hears of nothing, and is killed at once when its attempt is
cancelled.

Crash windows: `process-dies-in-call` (the save may be recorded, and the next attempt reads it),
`worker-dies-in-call` (the process ends with it).

Alternatives: to be told by the worker that it stops would need a list of attempts there. The attendant of a
process that asked looks twenty times a second instead, which costs no call to the server; a cancellation it
is told of at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Self

import msgspec

from eventbus.errors import EventBusError
from eventbus.handlers.attempt import Attempt
from eventbus.handlers.process.messages import AttemptCall, Reply
from eventbus.runtime.process_channel import REPLY, STOPPING

_LOOK = 0.05
"""Seconds between two looks at whether the attempt should end."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(AttemptCall).decode


class Attendant:
    """Serves the calls of one attempt. Use it as an async context manager around the attempt."""

    def __init__(self, own: Attempt) -> None:
        self._own = own
        self._tasks: set[asyncio.Task[None]] = set()
        self._send: Callable[[bytes, bytes], None] | None = None
        self._is_asked = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()

    def attend(self, send: Callable[[bytes, bytes], None]) -> None:
        """Send replies with `send(kind, message)`, which does nothing after the answer of the process."""
        self._send = send

    def called(self, message: bytes) -> None:
        """Serve a call. Raises msgspec's errors."""
        call = _decode(message)
        if call.line is not None:
            self._own.keep_line(call.line)
            return
        work = self._watch(call) if call.watches else self._serve(call)
        task = asyncio.get_running_loop().create_task(work, name="eventbus-process-call")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def part(self) -> bool:
        """Tell the process that its attempt is cancelled; return whether it wants to hear of it."""
        if self._is_asked:
            self._tell(STOPPING, (self._own.stopping or "cancel").encode())
        return self._is_asked

    async def _serve(self, call: AttemptCall) -> None:
        try:
            text = None
            if call.text is None:
                text = await self._own.read_saved()
            else:
                await self._own.save(call.text)
            reply = Reply(call.place, text=text)
        except EventBusError as error:
            reply = Reply(call.place, error=str(error), kind=type(error).__name__)
        self._tell(REPLY, _encode(reply))

    async def _watch(self, call: AttemptCall) -> None:
        self._is_asked = True
        self._tell(REPLY, _encode(Reply(call.place, text=self._own.stopping)))
        while (reason := self._own.stopping) is None:  # noqa: ASYNC110  (see above)
            await asyncio.sleep(_LOOK)
        self._tell(STOPPING, reason.encode())

    def _tell(self, kind: bytes, message: bytes) -> None:
        if self._send is not None:
            self._send(kind, message)
