"""Workflows and tasks that run in named pools; processes import them from here by name."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import msgspec

from eventbus import Retry
from workflows import FlowContext, StepContext, Workflow, durable, step_key, task

__all__ = ["Drawn", "NoPaper", "Picture", "draws", "holds", "maps", "prints", "queues", "spread_prints"]


class Picture(msgspec.Struct):
    name: str
    size: int = 1


class Drawn(msgspec.Struct):
    name: str
    pid: int
    key: str
    thread: str


class NoPaper(Exception):
    pass


@task(pool="render", retry=Retry(attempts=2, delay=0))
def draw(picture: Picture, *, scale: int = 1) -> Drawn:
    if picture.name == "none":
        raise NoPaper("there is none")
    if picture.name == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    return Drawn(f"{picture.name} {picture.size * scale}", os.getpid(), step_key(), "")


@task(pool="render")
def stamp(picture: Picture) -> Drawn:
    return draw(picture)


@task(pool="process")
def sketch(picture: Picture) -> Drawn:
    return Drawn(picture.name, os.getpid(), step_key(), "")


@task(pool="wait")
def pin(picture: Picture) -> Drawn:
    return Drawn(picture.name, os.getpid(), step_key(), threading.current_thread().name)


@task(pool="wait", timeout=4, retry=Retry(attempts=1))
def slow(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


@task(pool="render")
def hold(folder: str) -> int:
    """Tell the process's id, and run until the process is killed."""
    Path(folder, f"{os.getpid()}.running").touch()
    time.sleep(60)
    return os.getpid()


@durable("draws", errors=[NoPaper])
async def draws(ctx: FlowContext[Picture]) -> list[Drawn]:
    return [
        await ctx.step(draw, ctx.input, scale=2),
        await ctx.step(sketch, ctx.input),
        await ctx.step(pin, ctx.input),
    ]


@durable("maps")
async def maps(ctx: FlowContext[list[Picture]]) -> list[Drawn]:
    return await ctx.map(stamp, ctx.input)


@durable("queues")
async def queues(ctx: FlowContext[float]) -> Any:
    """Two steps at a time in a pool with one place."""
    return await ctx.gather(ctx.step(slow, ctx.input), ctx.step(slow, ctx.input))


@durable("holds")
async def holds(ctx: FlowContext[str]) -> Any:
    return await ctx.gather(ctx.step(hold, ctx.input), ctx.step(hold, ctx.input))


prints = Workflow[Any, Any]("prints", retry=Retry(attempts=1))


@prints.step(pool="wait", timeout=4)
def first(ctx: StepContext[float]) -> int:
    time.sleep(ctx.input)
    return os.getpid()


@prints.step(pool="wait", timeout=4, after=None)
def second(ctx: StepContext[float]) -> int:
    time.sleep(ctx.input)
    return os.getpid()


@prints.step(pool="render")
def third(_: StepContext[float]) -> int:
    return os.getpid()


@prints.completed
def printed(ctx: StepContext[float]) -> Any:
    return [ctx.result(first), ctx.result(second), ctx.result(third)]


spread_prints = Workflow[Any, Any]("spread-prints", retry=Retry(attempts=1), spread=True)


@spread_prints.step(pool="wait", timeout=4)
def first_apart(ctx: StepContext[float]) -> int:
    time.sleep(ctx.input)
    return os.getpid()


@spread_prints.step(pool="wait", timeout=4, after=None)
def second_apart(ctx: StepContext[float]) -> int:
    time.sleep(ctx.input)
    return os.getpid()


@spread_prints.step(pool="render")
def third_apart(_: StepContext[float]) -> int:
    return os.getpid()


@spread_prints.completed
def printed_apart(ctx: StepContext[float]) -> Any:
    return [ctx.result(first_apart), ctx.result(second_apart), ctx.result(third_apart)]
