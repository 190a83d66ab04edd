"""Handlers that tell their progress from the process pool."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

from eventbus import ProcessContext

__all__ = ["count_up", "leave_a_teller", "tell_too_much"]


def count_up(folder: str, ctx: ProcessContext) -> str:
    """Tell two values, and go on only when the test has seen the first."""
    ctx.progress(1)
    end = time.monotonic() + 240
    while not (Path(folder) / "seen").exists() and time.monotonic() < end:
        time.sleep(0.01)
    for percent in range(2, 101):
        ctx.progress({"percent": percent})
    return ctx.job_id


def leave_a_teller(folder: str, ctx: ProcessContext) -> str:
    """Leave a thread behind that tells another value once the test asks for it."""

    def tell_late() -> None:
        end = time.monotonic() + 240
        while not (Path(folder) / "ended").exists() and time.monotonic() < end:
            time.sleep(0.01)
        ctx.progress("late")
        (Path(folder) / "told").touch()

    ctx.progress("in time")
    threading.Thread(target=tell_late, daemon=True).start()
    return ctx.job_id


def tell_too_much(_: Any, ctx: ProcessContext) -> None:
    ctx.progress("x" * 20_000)
