"""What a step saves for its next attempt, and how it hears that it should end: for steps that run in the job
of their flow.

    saved (a live text of the flow's job, by the name of the step) -> replaced
                                                                   -> gone with the entry of the step's end

A spread step is a job of its own and saves there, as a handler does.

What must always hold:
- a text is written under the lease of the flow's job, by an attempt that has not ended (`lowlevel.Attempt`);
- the text goes in the same append as the entry of the step's end: while a step may run again, what it saved
  is there;
- a step reads what it saved itself, and nothing of another step, item or call.

Crash windows: `dies-before-save` (what was done since the last save is done again), `dies-after-save` (the
next attempt reads it), `dies-before-record` (the step runs again, and still has its text),
`save-not-answered` (the turn is sent again).

Alternatives: an entry of the journal for each save would never go; a hash of its own would need a key and a
flag of its own.
"""

from __future__ import annotations

from collections.abc import Mapping

from eventbus.lowlevel import Attempt, AttemptHost, Job, Stopping
from workflows.execution.attempt import AttemptRun
from workflows.execution.progress_notes import AttemptProgress

_SAVED = "saved/"


class StepAttempt(Attempt):
    """An attempt in the job of its flow. Set `has_ended` after it."""

    __slots__ = ("_progress", "_run")

    def __init__(
        self,
        host: AttemptHost,
        job: Job,
        name: str,
        *,
        where: str,
        run: AttemptRun | None,
        progress: AttemptProgress | None = None,
    ) -> None:
        """Save under `name`, that of the step or the call; `where` stands in errors. `progress` is that of a
        graph's step.
        """
        super().__init__(host, job, _SAVED + name, where=where)
        self._run = run
        self._progress = progress

    async def tell(self, progress: str) -> None:
        """Record the progress of a graph's step."""
        if self._progress is not None:
            await self._progress.tell(progress)

    @property
    def stopping(self) -> Stopping | None:
        """Why the attempt should end early: its own timeout, what stops the job, or what cut the attempt."""
        ending = "" if self._run is None else self._run.ending
        if ending == "timeout":
            return "timeout"
        return super().stopping or ("cancel" if ending else None)


class MemoryHost:
    """The host of the attempts of an inline flow: it keeps what they save, and no lines."""

    max_saved: int = 1 << 20

    def __init__(self, live: dict[str, str] | None = None) -> None:
        """Keep the texts among the live texts of the flow, by name."""
        self.live: dict[str, str] = {} if live is None else live

    def note_line(self, job: Job, line: str) -> None:
        """Do nothing: an inline flow has no record that could keep it."""

    async def note_progress(self, job: Job, progress: str) -> None:
        """Do nothing: the report of the flow asks its steps."""

    async def save(self, job: Job, text: str, name: str) -> None:  # noqa: ARG002
        """Keep a text."""
        self.live[name] = text

    async def read_saved(self, job: Job, name: str) -> str | None:  # noqa: ARG002
        """Return a text."""
        return self.live.get(name)

    def stopping(self, job: Job) -> Stopping | None:
        """Return None: no worker stops."""


def cleared(name: str) -> Mapping[str, str]:
    """Return the live texts to append with the entry of a step's end: an empty one takes the name away."""
    return {_SAVED + name: ""}
