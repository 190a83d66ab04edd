"""What a step saves for its next attempt, and how it hears that it should end: for steps that run in the job
of their flow.

    saved (a live text of the flow's job, by the name of the step) -> replaced
                                                                   -> gone with the entry of the step's end

A spread step is a job of its own and saves there, as a handler does
(`eventbus.handlers.contexts.attempt_tools`).

What must always hold:
- a text is written under the lease of the flow's job, by an attempt that has not ended: one that outlives its end, in a thread
  or because it ignores its cancellation, overwrites nothing of the next one;
- the text goes in the same append as the entry of the step's end: while a step may run again, what it saved is there;
- a step reads what it saved itself, and nothing of another step, item or call.

Crash windows: `dies-before-save` (what was done since the last save is done again), `dies-after-save` (the
next attempt reads it), `dies-before-record` (the step runs again, and still has its text),
`save-not-answered` (the turn is sent again).

Alternatives: an entry of the journal for each save would never go; a hash of its own would need a key and a
flag of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn, Protocol

from eventbus import StoreRefused, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from eventbus.lowlevel import Job, Stopping, Tools
    from workflows.execution.attempt import Attempt
    from workflows.execution.progress_notes import AttemptProgress

__all__ = ["JobShelf", "MemoryShelf", "RollbackTools", "Shelf", "StepTools", "cleared"]

_SAVED = "saved/"


class Shelf(Protocol):
    """Where the steps of one flow keep what they save. `name` is that of the step or the call."""

    def keep_line(self, line: str) -> None:
        """Keep a log line with the job of the flow; called from any thread."""
        ...

    async def save(self, name: str, text: str) -> None:
        """Keep a text. Raises StoreRefused if the lease of the flow is lost, ProviderStopped."""
        ...

    async def read(self, name: str) -> str | None:
        """Return the text that was kept last, None if there is none. Raises StoreError."""
        ...

    @property
    def stopping(self) -> Stopping | None:
        """Why what runs in the flow should end early."""
        ...

    @property
    def max_saved(self) -> int:
        """The most bytes of a text."""
        ...


class JobShelf:
    """The shelf of a flow in a worker: live texts of its job."""

    def __init__(self, tools: Tools, job: Job) -> None:
        self._tools = tools
        self._job = job

    def keep_line(self, line: str) -> None:
        """Keep a log line with the job."""
        self._tools.keep_line(self._job.id, line)

    async def save(self, name: str, text: str) -> None:
        """Keep a text under the lease of the job."""
        await self._tools.save(self._job, text, _SAVED + name)

    async def read(self, name: str) -> str | None:
        """Ask the server for a text."""
        return await self._tools.read_saved(self._job, _SAVED + name)

    @property
    def stopping(self) -> Stopping | None:
        """Why the job should end early."""
        return self._tools.stopping(self._job)

    @property
    def max_saved(self) -> int:
        """The most bytes of a text: `max_result`."""
        return self._tools.max_saved


class MemoryShelf:
    """The shelf of an inline flow."""

    stopping: Stopping | None = None
    max_saved: int = 1 << 20

    def __init__(self, live: dict[str, str] | None = None) -> None:
        """Keep the texts among the live texts of the flow, by name."""
        self.live: dict[str, str] = {} if live is None else live

    def keep_line(self, line: str) -> None:
        """Do nothing: an inline flow has no record that could keep it."""

    async def save(self, name: str, text: str) -> None:
        """Keep a text."""
        self.live[_SAVED + name] = text

    async def read(self, name: str) -> str | None:
        """Return a text."""
        return self.live.get(_SAVED + name)

    def clear(self, name: str) -> None:
        """Forget a text."""
        self.live.pop(_SAVED + name, None)


class StepTools:
    """The tools of one attempt in the job of its flow; an `AttemptTools`. Call `end` after the attempt."""

    __slots__ = ("_attempt", "_has_ended", "_name", "_progress", "_shelf", "_where", "has_saved")

    def __init__(
        self,
        shelf: Shelf,
        name: str,
        *,
        where: str,
        attempt: Attempt | None,
        progress: AttemptProgress | None = None,
    ) -> None:
        """Save under `name`; `where` stands in errors. `progress` is that of a graph's step."""
        self._shelf = shelf
        self._name = name
        self._where = where
        self._attempt = attempt
        self._progress = progress
        self._has_ended = False
        self.has_saved: bool = False
        """Whether a text may be there, because this attempt saved or read one."""

    def end(self) -> None:
        """Let the attempt save nothing more."""
        self._has_ended = True

    def keep_line(self, line: str, /) -> None:
        """Keep a log line with the job of the flow."""
        self._shelf.keep_line(line)

    async def tell(self, progress: str, /) -> None:
        """Record the progress of a graph's step."""
        if self._progress is not None:
            await self._progress(progress)

    async def save(self, text: str, /) -> None:
        """Keep a text for the next attempt. Raises StoreRefused if this one has ended."""
        if self._has_ended:
            raise StoreRefused(
                f"nothing was saved for {self._where}: its attempt has ended, and another one may have begun"
            )
        self.has_saved = True
        await self._shelf.save(self._name, text)

    async def read_saved(self) -> str | None:
        """Return the text that an attempt of the step saved last."""
        found = await self._shelf.read(self._name)
        self.has_saved = self.has_saved or found is not None
        return found

    @property
    def stopping(self) -> Stopping | None:
        """Why the attempt should end early: its own timeout, what stops the job, or what cut the attempt."""
        ending = "" if self._attempt is None else self._attempt.ending
        if ending == "timeout":
            return "timeout"
        return self._shelf.stopping or ("cancel" if ending else None)

    @property
    def max_saved(self) -> int:
        """The most bytes of a saved value."""
        return self._shelf.max_saved


class RollbackTools:
    """The tools of one attempt of a rollback, an `AttemptTools`: it keeps log lines, and has nothing
    saved.
    """

    stopping: Stopping | None = None
    max_saved: int = 1 << 20

    def __init__(self, keep: Callable[[str], None], *, where: str) -> None:
        """`keep` keeps a line with the job that runs here; `where` stands in errors."""
        self._keep = keep
        self._where = where

    def keep_line(self, line: str, /) -> None:
        """Keep a log line."""
        self._keep(line)

    async def tell(self, progress: str, /) -> None:  # noqa: ARG002
        """Refuse."""
        self._refuse("progress")

    def save(self, text: str, /) -> NoReturn:  # noqa: ARG002
        """Refuse."""
        self._refuse("save")

    def read_saved(self) -> NoReturn:
        """Refuse."""
        self._refuse("saved")

    def _refuse(self, what: str) -> NoReturn:
        raise UsageError(f"{what} is for tasks: {self._where} has nothing saved")


def cleared(name: str) -> Mapping[str, str]:
    """Return the live texts to append with the entry of a step's end: an empty one takes the name away."""
    return {_SAVED + name: ""}
