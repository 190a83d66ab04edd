"""Handlers, steps and tasks that save and hear that they should end in the process pool."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import msgspec

from eventbus import Later, PayloadError, ProcessContext, Retry, StoreRefused
from workflows import FlowContext, StepContext, Workflow, durable, task, task_context

__all__ = ["Cursor", "counting", "crawl", "grind", "leave_a_saver", "lose", "save_from_a_fork", "walking"]


class Cursor(msgspec.Struct):
    page: int
    seen: list[str] = []


def crawl(_: Any, ctx: ProcessContext) -> list[str]:
    """Go on behind what was saved, after `Later`, an error and the death of the process."""
    cursor = ctx.saved(Cursor, default=Cursor(0))
    ctx.save(Cursor(cursor.page + 1, [*cursor.seen, f"p{cursor.page}"]))
    if cursor.page == 0:
        raise Later(0)
    if cursor.page == 1:
        raise ValueError("an attempt that fails")
    if cursor.page == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    now = ctx.saved(Cursor)
    assert now is not None
    return now.seen


def grind(folder: str, ctx: ProcessContext) -> str:
    """Say what it hears, and save it."""
    _write(folder, "began", str(ctx.stopping))
    end = time.monotonic() + 240
    while not ctx.stopping and time.monotonic() < end:
        time.sleep(0.005)
    try:
        ctx.save(ctx.stopping)
    except StoreRefused as error:
        _write(folder, "refused", str(error))
    _write(folder, "heard", f"{ctx.stopping} {os.getpid()}")
    return "ended early"


def leave_a_saver(folder: str, ctx: ProcessContext) -> str:
    """Leave a thread behind that saves after the end of the attempt."""

    def save_late() -> None:
        end = time.monotonic() + 240
        while not Path(folder, "ended").exists() and time.monotonic() < end:
            time.sleep(0.005)
        try:
            ctx.save("late")
        except StoreRefused as error:
            _write(folder, "told", f"{error}, {ctx.stopping}")

    ctx.save("in time")
    threading.Thread(target=save_late, daemon=True).start()
    return "done"


def lose(folder: str, ctx: ProcessContext) -> str:
    """Save, and once more when the test has taken the lease away."""
    if ctx.saved(str) is not None:
        return "again"
    ctx.save("mine")
    _write(folder, "began", "")
    end = time.monotonic() + 240
    while not Path(folder, "go").exists() and time.monotonic() < end:
        time.sleep(0.005)
    try:
        ctx.save("stale")
    except StoreRefused as error:
        _write(folder, "refused", str(error))
    return "first"


def save_from_a_fork(_: Any, ctx: ProcessContext) -> list[str]:
    """Try what is refused: from a fork, and with values that are none."""
    told: list[str] = []
    for value in ("x" * 600, float("nan")):
        try:
            ctx.save(value)
        except PayloadError as error:
            told.append(str(error))
    pid = os.fork()
    if pid == 0:
        try:
            ctx.save("fork")
        except StoreRefused:
            os._exit(7)
        os._exit(0)
    told.append(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
    return told


def _write(folder: str, name: str, text: str) -> None:
    Path(folder, f"{name}.new").write_text(text)
    Path(folder, f"{name}.new").rename(Path(folder, name))


walking = Workflow("walking", input=str, output=list[Any], retry=Retry(4, delay=0))


@walking.step(pool="process")
def walk(ctx: StepContext[str]) -> list[Any]:
    """Do four parts in as many runs, the last but one in a process that dies."""
    done = ctx.saved(int, default=0).result() + 1
    ctx.save(done)
    if done == 1:
        raise Later(0)
    if done == 2:
        raise ValueError("an attempt that fails")
    if done == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return [done, ctx.attempt, ctx.stopping]


@walking.step(pool="process")
def after(ctx: StepContext[str]) -> list[Any]:
    return [*ctx.result(walk), ctx.saved(int).result()]


@walking.completed
def walked(ctx: StepContext[str]) -> list[Any]:
    return ctx.result(after)


@task(pool="process", retry=Retry(3, delay=0))
def count(to: int) -> int:
    """Count in as many attempts."""
    context = task_context()
    done = context.saved(int, default=0).result()
    if done < to:
        context.save(done + 1)
        raise ValueError("again")
    assert context.stopping is None
    return done


@durable("counting")
async def counting(ctx: FlowContext[int]) -> list[int]:
    """Count here, and in jobs."""
    return [await ctx.step(count, ctx.input), *await ctx.map(count, [1, 2])]
