"""Handlers, steps and tasks that keep log lines from the process pool."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

from eventbus import ProcessContext, Retry
from workflows import FlowContext, StepContext, Workflow, durable, task, task_context

__all__ = ["die_after_a_line", "keep_from_a_fork", "keep_late", "keep_many", "lining", "packing", "read_of"]


def keep_many(_: Any, ctx: ProcessContext) -> str:
    """Keep a few lines, one of them long, and one that UTF-8 has no bytes for."""
    ctx.keep_line(f"attempt {ctx.attempt}")
    ctx.keep_line("x" * 20_000)
    ctx.keep_line("\ud800")
    if ctx.attempt == 1:
        raise ValueError("no")
    return ctx.worker


def die_after_a_line(_: Any, ctx: ProcessContext) -> None:
    """Keep a line, and die."""
    ctx.keep_line("the last word")
    ctx.saved(str)  # its reply comes when the worker has read the line
    os.kill(os.getpid(), signal.SIGKILL)


def keep_late(folder: str, ctx: ProcessContext) -> None:
    """Leave a thread behind that keeps a line after the end of the attempt."""

    def keep() -> None:
        end = time.monotonic() + 240
        while not Path(folder, "ended").exists() and time.monotonic() < end:
            time.sleep(0.005)
        ctx.keep_line("late")
        Path(folder, "told").touch()

    ctx.keep_line("in time")
    threading.Thread(target=keep, daemon=True).start()


def keep_from_a_fork(_: Any, ctx: ProcessContext) -> int:
    """Keep a line here, and one in a fork."""
    ctx.keep_line("here")
    pid = os.fork()
    if pid == 0:
        ctx.keep_line("in the fork")
        os._exit(7)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


packing = Workflow[Any, str]("packing")


@packing.step(pool="process")
def pack(ctx: StepContext[Any]) -> str:
    ctx.keep_line("packed")
    return ctx.flow_id


@packing.step(pool="process", after=pack, spread=True)
def send(ctx: StepContext[Any]) -> str:
    ctx.keep_line("sent")
    return ctx.job_id


@packing.completed
def sent(ctx: StepContext[Any]) -> str:
    return f"{ctx.result(pack)} {ctx.result(send)}"


@task(pool="process", retry=Retry(2, delay=0))
def read(page: int) -> str:
    """Keep a line in each attempt."""
    context = task_context()
    context.keep_line(f"page {page}, attempt {context.attempt}")
    if context.attempt == 1:
        raise ValueError("again")
    return context.worker


@durable("lining")
async def lining(ctx: FlowContext[None]) -> list[str]:
    """Read a page here, and one in a job."""
    return [await ctx.step(read, 1), *await ctx.map(read, [2])]


def read_of(flow_id: str) -> str:
    """Return the id of the job of the page that `lining` reads in a job."""
    return f"{flow_id}/1/1-0/0"
