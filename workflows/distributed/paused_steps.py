"""The paused steps that a worker knows of: it begins none of their attempts.

A pause of a step is one of its queue, `workflow.<name>.steps/<step>`. A step with a limit has that queue
anyway, and the server passes a paused queue over. The attempts of other steps run in the worker of their
flow, or are jobs among those of other steps; so a worker asks before it begins one. While the step is paused,
    a step of a local flow becomes a job, and the flow waits for it without a slot; if it was paused between
    two attempts, it stays in the flow, which has their number and what they saved, and asks each 5 s, the job
    of a step waits on the step's shelf, which is that queue, until a resume brings it back.

What must hold: a step begins no attempt later than `FRESH` after its pause was answered; a job that a worker
holds back although the step was just resumed is given back by the server (`store/lua/lib/shelves.lua`).

The worker asks when an attempt is about to begin, and not more often than each `FRESH`, or each `_HELD` while
that step is paused: without work it asks nothing. A job that comes back from its shelf tells of a resume, so
the worker asks at once. A server that cannot be asked changes nothing of what is known: the attempt begins,
and its record needs the server anyway.

Crash windows: `dies-before-shelved` (the job is rescued, and the next worker asks again),
`dies-before-child-recorded` and the others of `children` for the step of a local flow.
"""

from __future__ import annotations

import asyncio
from typing import Any

from eventbus import ProviderStopped, StoreError
from eventbus.lowlevel import JobClient, clock
from workflows.definition.step import Step
from workflows.records.ids import is_shelf, split_item, split_queue

FRESH = 1.0
"""Seconds for which a worker relies on an answer."""

_HELD = 0.05
"""Seconds for which it holds attempts back by one: a resume brings them back at once, and it would claim them
over and over.
"""


def may_pause(step: Step[Any, Any]) -> bool:
    """Tell whether the attempts of a step can be held back: it runs a function of its own."""
    return step.workflow is None and step.pause is None


class PausedSteps:
    """Which steps are paused, as one worker last heard."""

    def __init__(self, jobs: JobClient) -> None:
        self._jobs = jobs
        self._shelves: dict[tuple[str, str | None], str] = {}
        """Workflow and step -> the queue by which the step is paused."""
        self._shelved: set[str] = set()
        """The jobs that this answer has put on a shelf."""
        self._asked = -FRESH
        self._asking: asyncio.Future[None] | None = None

    @property
    def is_silent(self) -> bool:
        """Whether no step is paused, by an answer that is fresh."""
        return not self._shelves and clock.monotonic() < self._asked + FRESH

    async def holds(self, workflow: str, step: str) -> bool:
        """Tell whether a step, or the step of an item, is paused."""
        return await self.find_shelf(workflow, step) != ""

    async def find_shelf(self, workflow: str, step: str, job: str = "") -> str:
        """Return the shelf of a step, or of the step of an item, if it is paused; else an empty text.

        With `job`, that job goes there.
        """
        place = (workflow, split_item(step)[0])
        is_old = clock.monotonic() >= self._asked + (_HELD if place in self._shelves else FRESH)
        if is_old or job in self._shelved:
            await self._ask()
        shelf = self._shelves.get(place, "")
        if shelf and job:
            self._shelved.add(job)
        return shelf

    async def _ask(self) -> None:
        """Ask the server, or wait for the answer that somebody else asked for."""
        if self._asking is None:
            self._asking = asyncio.ensure_future(self._read())
        # Shielded: others wait for the same answer.
        await asyncio.shield(self._asking)

    async def _read(self) -> None:
        try:
            began = clock.monotonic()
            self._shelves = {split_queue(queue): queue for queue in await self._jobs.paused(is_shelf)}
            self._shelved.clear()
            self._asked = began
        except (StoreError, ProviderStopped):
            self._asked = clock.monotonic()
        finally:
            self._asking = None
