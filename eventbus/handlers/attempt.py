"""An attempt: one run of a handler, a step or a task, and what the place where it runs does for it.

    begun -> saves, keeps log lines, tells its progress, hears that it should end -> ended: saves nothing more

A worker makes an attempt for each function that asks for a context, and hands it on. Every context is made of
one. An async context awaits its calls. Other contexts wait for them: in a thread for the worker's event loop
(`worker_host`), in a process for the worker (`process.child_calls`).

What must always hold:
- a save counts only under the lease of its job, and only until its attempt has ended: an attempt that goes
  on after its end, in a thread or because it ignores its cancellation, overwrites nothing of the next one.

Not here: what a worker does for its attempts (`worker_host`).
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Literal, Protocol, TypeAlias

from eventbus.engine.job import Job
from eventbus.errors import StoreRefused, UsageError
from eventbus.handlers.saved import SAVED

Stopping: TypeAlias = Literal["stop", "cancel", "timeout", "lease lost"]
"""Why a job should end early: its worker stops, it was cancelled, its time is over, or another worker may
have it.
"""


class AttemptHost(Protocol):
    """The place where attempts run: a worker, a process of one, or the memory of an inline flow.
    All texts are JSON.
    """

    @property
    def max_saved(self) -> int:
        """The most bytes of a saved value."""
        ...

    def note_line(self, job: Job, line: str) -> None:
        """Keep a log line with a job; return at once. In any thread."""
        ...

    def note_progress(self, job: Job, progress: str) -> Coroutine[Any, Any, None]:
        """Record the progress of a job, under its lease."""
        ...

    def save(self, job: Job, text: str, name: str) -> Coroutine[Any, Any, None]:
        """Keep a text for the next run of a job, under its lease; `name` is that of the live text."""
        ...

    def read_saved(self, job: Job, name: str) -> Coroutine[Any, Any, str | None]:
        """Return the text that was saved last under this name, None if there is none."""
        ...

    def stopping(self, job: Job) -> Stopping | None:
        """Return why a job should end early, None if it should go on. In any thread."""
        ...


class Attempt:
    """What one attempt can have the place where it runs do for it. All texts are JSON."""

    __slots__ = ("_name", "_where", "has_ended", "has_saved", "host", "job")

    def __init__(self, host: AttemptHost, job: Job, name: str = SAVED, *, where: str = "") -> None:
        """Save in the live text `name` of the job that the attempt runs in; without a name it saves nothing.

        `where` says in errors what runs, by default the job.
        """
        self.host: AttemptHost = host
        self.job: Job = job
        self._name = name
        self._where = where
        self.has_ended: bool = False
        """Whether the attempt is over, so that it saves nothing more."""
        self.has_saved: bool = False
        """Whether a text may be there, because this attempt saved or read one."""

    def keep_line(self, line: str) -> None:
        """Keep a log line with the job that the attempt runs in; return at once. In any thread."""
        self.host.note_line(self.job, line)

    def tell(self, progress: str) -> Coroutine[Any, Any, None]:
        """Record the progress. Raises StoreRefused."""
        return self.host.note_progress(self.job, progress)

    def save(self, text: str) -> Coroutine[Any, Any, None]:
        """Keep a text for the next attempt, in place of what was saved before.

        Raises UsageError at once for an attempt that saves nothing; the coroutine raises StoreRefused if this
        attempt has ended or its lease is lost, and ProviderStopped.
        """
        return self._save(text, self._check_saves("save"))

    async def _save(self, text: str, name: str) -> None:
        if self.has_ended:
            raise StoreRefused(
                f"nothing was saved for {self._where or f'job {self.job.id}'}: its attempt has ended, and "
                "another one may have begun"
            )
        self.has_saved = True
        await self.host.save(self.job, text, name)

    async def read_saved(self) -> str | None:
        """Return the text that was saved last, None if there is none.

        Raises StoreError, ProviderStopped, and UsageError as `save`.
        """
        found = await self.host.read_saved(self.job, self._check_saves("saved"))
        self.has_saved = self.has_saved or found is not None
        return found

    @property
    def saves(self) -> bool:
        """Whether it may save; those of rollbacks and hooks may not."""
        return bool(self._name)

    @property
    def stopping(self) -> Stopping | None:
        """Why the attempt should end early, None if it should go on; what saves nothing always goes on. In
        any thread.
        """
        return self.host.stopping(self.job) if self._name else None

    @property
    def max_saved(self) -> int:
        """The most bytes of a saved value."""
        return self.host.max_saved

    def _check_saves(self, what: str) -> str:
        if not self._name:
            raise UsageError(f"{what} is for tasks: {self._where} has nothing saved")
        return self._name
