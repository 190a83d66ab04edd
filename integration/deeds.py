"""What the functions of flows do under test: a line in the journal for each effect, and where they wait or die.

The journal lies in the folder that EVENTBUS_TEST_FOLDER names, as do the files that say where to
wait (`hold <place>`, until it is gone) and where to die (`die <place>`, once). A line names the
flow, and what was done in it: a step, or a hook.
"""

from __future__ import annotations

import os
import signal
from functools import cache
from pathlib import Path
from typing import Any

from conditions import until
from journal import Journal

from workflows import StepContext

__all__ = ["act", "die_at", "hold_at", "note", "tell_completed", "tell_failed", "undo"]


def note(what: str, ctx: StepContext[Any], done: str = "") -> None:
    """One line: `began` and `did` of a step, `undoing` and `undid` of its rollback, `completed` and `failed`."""
    _journal().write(what, ctx.flow_id, ctx.attempt, done or ctx.step)


async def hold_at(place: str) -> None:
    """Wait while somebody holds this place."""
    file = _folder() / f"hold {place}"
    await until(f"{place} is held no more", lambda: not file.exists(), within=3600)


def die_at(place: str) -> None:
    """Die as by `kill -9`, if that is asked for here."""
    try:
        (_folder() / f"die {place}").unlink()
    except FileNotFoundError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


async def act(ctx: StepContext[Any]) -> str:
    """Be a step: its input says in `fails` which one fails for good."""
    note("began", ctx)
    die_at(f"in {ctx.step}")
    await hold_at(ctx.step)
    if ctx.input.fails == ctx.step:
        raise ValueError(f"no {ctx.step} for {ctx.input.number}")
    note("did", ctx)
    return f"{ctx.step} of {ctx.input.number}"


async def undo(ctx: StepContext[Any], result: Any) -> None:
    """Be the rollback of a step."""
    note("undoing", ctx)
    die_at(f"in the rollback of {ctx.step}")
    assert result == f"{ctx.step} of {ctx.input.number}"
    note("undid", ctx)


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
