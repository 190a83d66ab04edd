"""The functions of the flows under test: they write each effect into a journal, and wait or die on demand.

The journal is in the folder that EVENTBUS_TEST_FOLDER names. Files in the same folder say where to
wait (`hold <place>`, until the file is gone) and where to die (`die <place>`, once). A line of the
journal names the flow, and the step or hook.
"""

from __future__ import annotations

import os
import signal
from functools import cache
from pathlib import Path
from typing import Any

from harness.conditions import until
from harness.journal import Journal

from workflows import StepContext

__all__ = [
    "act",
    "act_item",
    "die_at",
    "fail_twice",
    "hold_at",
    "note",
    "tell_completed",
    "tell_failed",
    "undo",
    "undo_anyway",
    "undo_item",
    "write",
]


def note(what: str, ctx: StepContext[Any], done: str = "") -> None:
    """Write a line: `began` or `did` for a step, `undoing` or `undid` for its rollback, or a hook's name."""
    write(what, ctx.flow_id, ctx.attempt, done or ctx.step)


def write(what: str, flow_id: str, attempt: int, done: str) -> None:
    """Write a line about a flow, as `note` does."""
    _journal().write(what, flow_id, attempt, done)


async def hold_at(place: str) -> None:
    """Wait as long as the file for this place exists."""
    file = _folder() / f"hold {place}"
    await until(f"{place} is held no more", lambda: not file.exists(), within=3600)


def die_at(place: str) -> None:
    """Kill this process with SIGKILL, if the file for this place exists."""
    try:
        (_folder() / f"die {place}").unlink()
    except FileNotFoundError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


async def act(ctx: StepContext[Any]) -> str:
    """Act as a step; the input says which step fails for good, and which one kills its process."""
    note("began", ctx)
    die_at(f"in {ctx.step}")
    if ctx.input.poison == ctx.step:
        os.kill(os.getpid(), signal.SIGKILL)
    await hold_at(ctx.step)
    if ctx.input.fails == ctx.step:
        raise ValueError(f"no {ctx.step} for {ctx.input.number}")
    note("did", ctx)
    return f"{ctx.step} of {ctx.input.number}"


async def fail_twice(ctx: StepContext[Any]) -> str:
    """Act as a step whose first two attempts fail."""
    if ctx.attempt < 3:
        note("tried", ctx)
        die_at(f"in attempt {ctx.attempt} of {ctx.step}")
        raise ConnectionError(f"attempt {ctx.attempt} of {ctx.step}")
    return await act(ctx)


async def undo(ctx: StepContext[Any], result: Any) -> None:
    """Act as the rollback of a step."""
    note("undoing", ctx)
    die_at(f"in the rollback of {ctx.step}")
    assert result == f"{ctx.step} of {ctx.input.number}"
    note("undid", ctx)


async def undo_anyway(ctx: StepContext[Any], result: Any) -> None:
    """Act as the rollback of a step that may have failed, or of which nobody knows."""
    await undo(ctx, f"{ctx.step} of {ctx.input.number}" if result is None else result)


async def act_item(ctx: StepContext[Any], item: int) -> str:
    """Act as an item of a step that runs for each item of a list."""
    return await act(ctx)


async def undo_item(ctx: StepContext[Any], item: int, result: Any) -> None:
    """Act as the rollback of an item."""
    assert ctx.step == f"convert[{item}]"
    await undo(ctx, result)


async def tell_completed(ctx: StepContext[Any]) -> str:
    die_at("in completed")
    note("completed", ctx, "completed")
    return f"order {ctx.input.number}"


async def tell_failed(ctx: StepContext[Any], error: Exception) -> None:
    die_at("in failed")
    note("failed", ctx, "failed")


@cache
def _journal() -> Journal:
    return Journal(_folder() / "journal")


def _folder() -> Path:
    return Path(os.environ["EVENTBUS_TEST_FOLDER"])
