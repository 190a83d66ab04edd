"""The context of a handler in a process, which has no connection to the server: its worker does for it what
it asks.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar, overload

from eventbus.handlers.context import JobFacts, Stopping, progress_text
from eventbus.handlers.saved import read_saved, saved_text

__all__ = ["ProcessContext", "ProcessTools", "tools_of"]

S = TypeVar("S")
D = TypeVar("D")


class ProcessTools(Protocol):
    """What an attempt in a process can have its worker do. All texts are JSON."""

    def tell(self, progress: str) -> None:
        """Send the progress; return at once."""
        ...

    def keep_line(self, line: str) -> None:
        """Send a log line; return at once."""
        ...

    def save(self, text: str) -> None:
        """Keep a text for the next attempt. Raises StoreRefused, StoreError, ProviderStopped."""
        ...

    def read_saved(self) -> str | None:
        """Return the text that was saved last, None if there is none. Raises as `save`."""
        ...

    @property
    def stopping(self) -> Stopping | None:
        """Why the attempt should end early, None if it should go on."""
        ...

    @property
    def max_saved(self) -> int:
        """The most bytes of a saved value."""
        ...


class ProcessContext(JobFacts):
    """The context of a handler with `pool="process"`: the facts about its job, and what its worker does for
    it.

    Its calls may be made in any thread of the process, but not in a fork of it.
    """

    __slots__ = ("_tools",)

    def __init__(self, tools: ProcessTools, **facts: Any) -> None:
        super().__init__(**facts)
        self._tools = tools

    @property
    def stopping(self) -> Stopping | None:
        """Why the job should end early, as `EventContext.stopping` has it; None while it should go on.

        The first question asks the worker, and later ones cost nothing. A handler that has asked gets half a
        second after a cancel, a timeout or a lost lease, to save and to end; then its process is killed.
        Without a question that happens at once.
        """
        return self._tools.stopping

    def save(self, value: Any) -> None:
        """Keep a JSON value for the next run of this job as `EventContext.save` does, and block until it is
        recorded.

        The worker records it under its lease. Raises the errors of that; StoreRefused also after the end of
        the attempt, as in a thread that the handler left behind.
        """
        self._tools.save(saved_text(value, owner=self.event, max_bytes=self._tools.max_saved))

    @overload
    def saved(self, kind: type[S], /) -> S | None: ...
    @overload
    def saved(self, kind: type[S], /, *, default: D) -> S | D: ...
    def saved(self, kind: Any, /, *, default: Any = None) -> Any:
        """Return what this job saved last as `EventContext.saved` does, and block until the worker has
        answered.

        Raises the errors of that, and StoreRefused after the end of the attempt.
        """
        return read_saved(self._tools.read_saved(), kind, default, owner=self.event)

    def keep_line(self, line: str) -> None:
        """Send a log line to the worker, which keeps it with this job as `EventContext.keep_line` does;
        return at once.

        The worker has the lines of an attempt before its end. They are there also if the process dies
        afterwards. After the end of the attempt, as in a thread that the handler left behind, and in a fork,
        the call does nothing.
        """
        self._tools.keep_line(line)

    def progress(self, value: Any) -> None:
        """Send the job's progress to the worker, which records it as `EventContext.progress` does; return at
        once.

        The worker records the newest value that it has, one after the other. After the end of the attempt, as
        in a thread that the handler left behind, the call does nothing. Raises PayloadError for a value that
        is no JSON value or over 16 KiB.
        """
        self._tools.tell(progress_text(value))


def tools_of(context: ProcessContext) -> ProcessTools:
    """Return what the worker does for a context, for systems on top of the event bus that have contexts of
    their own.
    """
    return context._tools  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
