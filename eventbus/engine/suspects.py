"""The suspects of a worker: jobs that stalled twice may kill whatever process runs them.

A worker runs one suspect at a time. So the stalls of those beside it do not add up to their failure, and who dies
with it is known (`candidate.lua`). Both lanes of a worker claim, so only one of them at a time may be given a suspect:
both answers could bring one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["Suspects"]

_STALLS = 2  # that make a job a suspect; the same number as in `candidate.lua`


class Suspects:
    """Says which turns of one worker may claim a suspect."""

    def __init__(self, running: Mapping[str, Any]) -> None:
        """`running` has the jobs that the worker runs, by their ids."""
        self._running = running
        self._last = ""
        self._is_asked = False
        self._passed: set[str] = set()
        """Queues whose suspects a call had to leave, because the other lane's call might claim a suspect."""

    def ask(self, queues: Iterable[str]) -> bool:
        """Return whether the call that asks these queues now may claim a suspect. `answered` follows it."""
        may_claim = self._last not in self._running and not self._is_asked
        if self._is_asked:
            self._passed.update(queues)
        self._is_asked = self._is_asked or may_claim
        return may_claim

    def answered(self, *, may_claim: bool) -> None:
        """Note that a call ended, or is given up."""
        self._is_asked = self._is_asked and not may_claim

    def note_claim(self, job_id: str, stalls: int) -> None:
        """Note a claimed job; call it before the job runs."""
        if stalls >= _STALLS:
            self._last = job_id

    def is_last(self, job_id: str) -> bool:
        """Return whether this is the suspect that was claimed last: once it ends, any queue may have another."""
        return job_id == self._last

    def take_passed(self) -> set[str]:
        """Return the queues whose suspects were left, unless a suspect runs now: its end looks at every queue."""
        passed, self._passed = self._passed, set()
        return set() if self._last in self._running else passed
