"""The progress of a flow's active steps, told by their functions.

What must always hold: a call counts only while its attempt runs, so that a function that outlives its
attempt, in a thread or because it ignores its cancellation, tells nothing about the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import msgspec


class ProgressNotes:
    """The newest progress of each active step of one flow."""

    def __init__(self, write: Callable[[str], Coroutine[Any, Any, None]] | None = None) -> None:
        """`write` records the progress of all active steps, a JSON object by name of step; None records
        nothing.
        """
        self.write = write
        self.attempts: dict[str, AttemptProgress] = {}
        self.texts: dict[str, msgspec.Raw] = {}

    def begin(self, step: str) -> AttemptProgress:
        """Begin an attempt of a step; what is returned tells its progress until `end`."""
        attempt = self.attempts[step] = AttemptProgress(self, step)
        self.texts.pop(step, None)
        return attempt

    def end(self, attempt: AttemptProgress) -> None:
        """End an attempt."""
        if self.attempts.get(attempt.step) is attempt:
            del self.attempts[attempt.step]
            self.texts.pop(attempt.step, None)

    def read(self, step: str) -> Any:
        """Return the progress of an active step; None if it has told none."""
        text = self.texts.get(step)
        return None if text is None else msgspec.json.decode(text)


class AttemptProgress:
    """Tells the progress of one attempt."""

    __slots__ = ("_notes", "step")

    def __init__(self, notes: ProgressNotes, step: str) -> None:
        self._notes = notes
        self.step: str = step

    async def tell(self, text: str) -> None:
        """Note the progress, JSON text, and record it; do nothing if the attempt has ended."""
        notes = self._notes
        if notes.attempts.get(self.step) is not self:
            return
        notes.texts[self.step] = msgspec.Raw(text.encode())
        if notes.write is not None:
            await notes.write(msgspec.json.encode(notes.texts).decode())
