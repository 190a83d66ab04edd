"""A workflow under test whose last step fails, so that three others are undone; each rollback writes when it
begins and ends.

Run by `eventbus worker apps.pages.undo_app:provider` in `integration/`. The rollback of `second` waits for
the file `go-on`.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from eventbus import EventProvider, Retry
from workflows import StepContext, Workflow, WorkflowProvider

__all__ = ["provider", "trip"]

_FOLDER = Path(os.environ.get("EVENTBUS_TEST_FOLDER", "."))

provider: EventProvider = EventProvider()
flows: WorkflowProvider = WorkflowProvider(provider)
trip: Workflow[int, None] = Workflow("trip", input=int, output=None, retry=Retry(attempts=1))


def _write(line: str) -> None:
    with (_FOLDER / "undone").open("a") as file:
        file.write(f"{line}\n")


@trip.step()
async def first(ctx: StepContext[int]) -> int:
    return 1


@first.rollback
async def undo_first(ctx: StepContext[int], result: int) -> None:
    _write("begin first")
    _write("end first")


@trip.step()
async def second(ctx: StepContext[int]) -> int:
    return 2


@second.rollback(timeout=60)
async def undo_second(ctx: StepContext[int], result: int) -> None:
    _write("begin second")
    while not (_FOLDER / "go-on").exists():  # noqa: ASYNC110  (another process makes it)
        await asyncio.sleep(0.02)
    _write("end second")


@trip.step()
async def third(ctx: StepContext[int]) -> int:
    return 3


@third.rollback
async def undo_third(ctx: StepContext[int], result: int) -> None:
    _write("begin third")
    _write("end third")


@trip.step()
async def last(ctx: StepContext[int]) -> None:
    raise ValueError("no car")


@trip.completed
async def done(ctx: StepContext[int]) -> None: ...


flows.register(trip)
