"""Load on a provider: emissions that never pause, and the outcome of each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from harness.conditions import until

from eventbus import EmitError, EventProvider
from eventbus.emit.emission import PendingEmission

__all__ = ["Answer", "Load"]

_LATE = 60.0
"""Seconds that an emission may report its timeout late on a busy machine."""


class Answer(NamedTuple):
    """The outcome of one emission."""

    job: str
    n: int
    was_enqueued: bool
    result: Any
    error: Exception | None


class Load:
    """Emits `{"n": n}` from a number of loops, each awaiting its result before the next."""

    def __init__(
        self, provider: EventProvider, event: str = "work", *, loops: int = 20, **options: Any
    ) -> None:
        self.answers: list[Answer] = []
        self._provider = provider
        self._event = event
        self._options = options
        self._count = 0
        self._is_ending = False
        self._tasks = [asyncio.create_task(self._loop()) for _ in range(loops)]

    async def wait_answered(self, more: int, *, story: Callable[[], str] | None = None) -> None:
        """Wait for `more` further results; errors do not count."""
        goal = len(self.results()) + more
        await until(
            f"{more} more answers",
            lambda: len(self.answers) >= goal and len(self.results()) >= goal,
            story=story,
        )

    async def end(self) -> None:
        """Stop emitting, and wait for the outcomes of open emissions."""
        self._is_ending = True
        await asyncio.gather(*self._tasks)

    def results(self) -> dict[str, Any]:
        """Return job -> result, for the jobs that have one."""
        return {each.job: each.result for each in self.answers if each.error is None}

    def errors(self) -> list[Exception]:
        return [each.error for each in self.answers if each.error is not None]

    def acknowledged(self) -> dict[str, Answer]:
        """Return job -> answer, for the jobs that the server acknowledged."""
        return {each.job: each for each in self.answers if each.was_enqueued}

    def unknown(self) -> set[str]:
        """Return the jobs for which the emitter could not learn whether they were enqueued."""
        errors = ((each.job, each.error) for each in self.answers)
        return {job for job, error in errors if isinstance(error, EmitError) and error.enqueued is None}

    async def _loop(self) -> None:
        while not self._is_ending:
            self._count += 1
            await self._emit(self._count)

    async def _emit(self, n: int) -> None:
        began = time.monotonic()
        emission = self._provider.emit(self._event, {"n": n}, **self._options)
        was_enqueued, result, error = False, None, None
        try:
            await emission.enqueued()
            was_enqueued = True
            result = await emission
            assert result["n"] == n
        except AssertionError:
            raise
        except Exception as caught:  # noqa: BLE001  (the test checks it)
            error = caught
        assert isinstance(emission, PendingEmission)
        if emission.reply_timeout is not None:
            late = time.monotonic() - began - emission.reply_timeout
            assert late < _LATE, "it waited past its timeout"
        self.answers.append(Answer(emission.job_id, n, was_enqueued, result, error))
