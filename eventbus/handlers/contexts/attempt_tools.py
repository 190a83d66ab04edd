"""The tools of one attempt, whatever runs there: a handler, a step or a task. It saves, keeps log lines,
tells its progress, and hears that it should end.

Not here: the contexts that users see. What must always hold: a save counts only under the lease of the job.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Protocol

from eventbus.engine.job import Job
from eventbus.handlers.context import Stopping, Tools

__all__ = ["AttemptTools", "JobAttempt"]


class AttemptTools(Protocol):
    """What an attempt can do. All texts are JSON."""

    def tell(self, progress: str, /) -> Coroutine[Any, Any, None]:
        """Record the progress; do nothing after the end of the attempt."""
        ...

    def keep_line(self, line: str, /) -> None:
        """Keep a log line with the job that the attempt runs in; return at once. May be called in any
        thread.
        """
        ...

    def save(self, text: str, /) -> Coroutine[Any, Any, None]:
        """Keep a text for the next attempt. Raises StoreRefused if this one has ended or its lease is lost,
        ProviderStopped.
        """
        ...

    def read_saved(self) -> Coroutine[Any, Any, str | None]:
        """Return the text that was saved last, None if there is none. Raises StoreError, ProviderStopped."""
        ...

    @property
    def stopping(self) -> Stopping | None:
        """Why the attempt should end early, None if it should go on. May be read in any thread."""
        ...

    @property
    def max_saved(self) -> int:
        """The most bytes of a saved value."""
        ...


class JobAttempt:
    """The tools of an attempt that is a job of its own."""

    __slots__ = ("_job", "_tools")

    def __init__(self, tools: Tools, job: Job) -> None:
        self._tools = tools
        self._job = job

    def tell(self, progress: str, /) -> Coroutine[Any, Any, None]:
        """Record the progress under the lease."""
        return self._tools.note_progress(self._job.id, self._job.token, progress)

    def keep_line(self, line: str, /) -> None:
        """Keep a log line with the job."""
        self._tools.keep_line(self._job.id, line)

    def save(self, text: str, /) -> Coroutine[Any, Any, None]:
        """Keep a text with the job."""
        return self._tools.save(self._job, text)

    def read_saved(self) -> Coroutine[Any, Any, str | None]:
        """Return the text that the job saved last."""
        return self._tools.read_saved(self._job)

    @property
    def stopping(self) -> Stopping | None:
        """Why the job should end early."""
        return self._tools.stopping(self._job)

    @property
    def max_saved(self) -> int:
        """The most bytes of a saved value: `max_result`."""
        return self._tools.max_saved
