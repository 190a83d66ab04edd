"""The calls by which a run of a graph makes attempts, waits and records, as inline flows and workers answer
them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, Protocol

from workflows.definition.step import Step
from workflows.execution.step_run import StepRun
from workflows.records.records import StepRecord

__all__ = ["StepDriver", "wait_slot"]


class StepDriver(Protocol):
    """The calls by which a run makes attempts and records them."""

    async def attempt(self, run: StepRun) -> StepRecord:
        """Make one attempt of a step that runs here; return its record."""
        ...

    def runs_apart(self, step: Step[Any, Any]) -> bool:
        """Tell whether another job or flow runs this step."""
        ...

    def ask_paused(self, step: Step[Any, Any]) -> Awaitable[bool] | None:
        """Return None if no step is paused; else whether this one is, so that no attempt of it may begin
        here.
        """
        ...

    async def run_apart(self, run: StepRun) -> None:
        """Let that job or flow run to its end, and take over the end. The run is `waiting` if that comes
        later.
        """
        ...

    async def record(self, run: StepRun) -> None:
        """Record the end of a step, or a beginning.

        With the state `delayed` it is a failed attempt that another one follows, with `sleeping` the
        beginning of a wait, and with `active` the list of the items of a step.
        """
        ...

    async def sleep(self, delay: float) -> None:
        """Wait `delay` seconds for the next attempt of a step."""
        ...

    def holds(self, delay: float) -> bool:
        """Tell whether a step waits here for that many seconds even if no other step runs."""
        ...

    def enter(self, run: StepRun) -> bool:
        """Take a slot for one attempt of a step; return False if none is free."""
        ...

    async def wait_slot(self, run: StepRun) -> None:
        """Wait for a slot and take it. A cancelled call takes none."""
        ...

    def leave(self, run: StepRun) -> None:
        """Give a slot back."""
        ...

    def may_start(self) -> bool:
        """Tell whether further steps may start here."""
        ...


async def wait_slot(driver: StepDriver, run: StepRun, halted: asyncio.Future[None]) -> bool:
    """Wait for a slot and take it; return False, without one, if `halted` is done first."""
    waiting = asyncio.ensure_future(driver.wait_slot(run))
    is_taken = False
    try:
        await asyncio.wait({waiting, halted}, return_when=asyncio.FIRST_COMPLETED)
        is_taken = waiting.done() and not halted.done()
    finally:
        if not waiting.done():
            waiting.cancel()
        elif not is_taken:
            driver.leave(run)
    return is_taken
