"""The calls of a handler in a process to its worker, and the worker's word that it should end.

    process   call 1 (save) ->          call 2 (read) ->        call 3 (watches) ->
    worker                    reply 1 <-             reply 2 <-                reply 3 <-, ... stopping <-

A call waits in the thread that made it; a log line alone is sent without a reply. Not here: the channel
(`child`), and who serves the calls (`attendant`).

What must always hold: a call counts only while its attempt runs; it never blocks longer than that. A fork of
the process calls nothing.

Alternatives: to send each change of the reason to each process would cost frames for handlers that never ask.
So the first question says that this handler wants to hear of it; what comes later is there when it asks
again.
"""

from __future__ import annotations

import itertools
import queue
from collections.abc import Callable
from typing import cast

import msgspec

from eventbus import errors
from eventbus.engine.job import Job
from eventbus.engine.kept_lines import cut_line
from eventbus.errors import EventBusError, StoreError, StoreRefused
from eventbus.handlers.attempt import Stopping
from eventbus.handlers.process.messages import AttemptCall, Reply
from eventbus.runtime.process_channel import CALL, PROGRESS

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Reply).decode
_ENDED = Reply(0, error="its attempt has ended", kind="StoreRefused")


class AttemptCalls:
    """The calls of one attempt: its `AttemptHost`. They may be made in any thread; its coroutines never wait
    for an event loop.
    """

    def __init__(self, number: int, *, max_saved: int, send: Callable[[bytes, int, bytes], bool]) -> None:
        """`number` is that of the request. `send` returns False in a fork, and if the channel is closed."""
        self.number: int = number
        self.max_saved: int = max_saved
        self._send = send
        self._places = itertools.count(1)
        self._waiting: dict[int, queue.SimpleQueue[Reply]] = {}
        self._watches = False
        self._reason: Stopping | None = None
        self._has_ended = False

    def note_line(self, job: Job, line: str) -> None:  # noqa: ARG002  (the worker knows the job)
        """Send a log line, cut here, so that a long one costs the worker little; do nothing after the end of
        the attempt.
        """
        if not self._has_ended:
            self._send(CALL, self.number, _encode(AttemptCall(next(self._places), line=cut_line(line))))

    async def note_progress(self, job: Job, progress: str) -> None:  # noqa: ARG002
        """Send the progress; do nothing after the end of the attempt."""
        if not self._has_ended:
            self._send(PROGRESS, self.number, progress.encode())

    async def save(self, job: Job, text: str, name: str) -> None:  # noqa: ARG002
        """Have the worker keep a text for the next attempt, and return when the server has it. Raises
        StoreRefused, StoreError.
        """
        self._ask(AttemptCall(next(self._places), text=text), "nothing was saved")

    async def read_saved(self, job: Job, name: str) -> str | None:  # noqa: ARG002
        """Ask the worker for the text that was saved last. Raises StoreRefused, StoreError."""
        return self._ask(AttemptCall(next(self._places)), "nothing was read")

    def stopping(self, job: Job) -> Stopping | None:  # noqa: ARG002
        """Return why the attempt should end early. The first question asks the worker; later ones cost
        nothing.
        """
        if not self._watches and not self._has_ended:
            self._watches = True
            try:
                told = self._ask(AttemptCall(next(self._places), watches=True), "nothing is known")
            except EventBusError:  # it has ended meanwhile
                return self._reason
            self._reason = self._reason or cast("Stopping | None", told)
        return self._reason

    def reply(self, message: bytes) -> None:
        """Take the reply to a call. Raises msgspec's errors."""
        found = _decode(message)
        waiting = self._waiting.pop(found.place, None)
        if waiting is not None:
            waiting.put(found)

    def stop(self, reason: str) -> None:
        """Note why the attempt should end."""
        self._reason = cast("Stopping", reason)

    def end(self) -> None:
        """End the attempt: calls that still wait fail, and so do later ones."""
        self._has_ended = True
        for place in list(self._waiting):
            waiting = self._waiting.pop(place, None)
            if waiting is not None:
                waiting.put(_ENDED)

    def _ask(self, call: AttemptCall, what: str) -> str | None:
        answer: queue.SimpleQueue[Reply] = queue.SimpleQueue()
        self._waiting[call.place] = answer
        if self._has_ended:  # looked at behind that entry, so that `end` has seen it otherwise
            self._waiting.pop(call.place, None)
            raise StoreRefused(f"{what}: the attempt has ended, and another one may have begun")
        if not self._send(CALL, self.number, _encode(call)):
            self._waiting.pop(call.place, None)
            raise StoreRefused(
                f"{what}: this process cannot reach its worker; it is a fork, or its channel was closed"
            )
        found = answer.get()
        if found.error:
            kind = getattr(errors, found.kind, StoreError)
            raise cast("type[EventBusError]", kind)(
                f"{what}: {found.error}" if found is _ENDED else found.error
            )
        return found.text
