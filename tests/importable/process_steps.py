"""Workflows with steps that run in processes, which import them from here by name."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import msgspec

from eventbus import Retry
from workflows import StepContext, Workflow

__all__ = ["Cut", "NoPicture", "Picture", "dies", "pictures", "raising", "waits"]


class Picture(msgspec.Struct):
    name: str
    size: int = 100


class Cut(msgspec.Struct):
    name: str
    size: int
    pid: int
    facts: dict[str, Any]


class NoPicture(Exception):
    pass


pictures = Workflow(
    "pictures", input=Picture, output=Cut, errors=[NoPicture], retry=Retry(attempts=2, delay=0)
)


@pictures.data
def share(_: StepContext[Picture]) -> dict[str, str]:
    return {"shared": "here"}


@pictures.step
async def find(ctx: StepContext[Picture]) -> Picture:
    return Picture(ctx.input.name, ctx.input.size * 2)


@pictures.step(pool="process")
def cut(ctx: StepContext[Picture]) -> Cut:
    if ctx.input.name == "none":
        raise NoPicture("there is none")
    if ctx.input.name == "emits":
        ctx.emit("anything")
    if ctx.input.name == "data":
        assert ctx.data
    if ctx.input.name == "flaky" and ctx.attempt == 1:
        raise ValueError("not the first time")
    if ctx.input.name == "broken":
        raise ValueError("never")
    found = ctx.load(find).result()
    assert found == ctx.result(find)
    facts = {name: getattr(ctx, name) for name in ("workflow", "step", "flow_id", "attempt", "job_id", "run")}
    ctx.log.info("cut here")
    return Cut(found.name, found.size, os.getpid(), {**facts, "meta": dict(ctx.meta)})


@pictures.completed
def output(ctx: StepContext[Picture]) -> Cut:
    return ctx.result(cut)


waits = Workflow[Any, Any]("waits", retry=Retry(attempts=2, delay=0))


@waits.step(pool="process", timeout="50s")
def hold(ctx: StepContext[Any]) -> str:
    """Tell the process's id; end in the second attempt, or when the test says so."""
    ctx.progress({"pid": os.getpid(), "attempt": ctx.attempt})
    end = time.monotonic() + 240
    while ctx.attempt == 1 and not Path(ctx.input, "go").exists() and time.monotonic() < end:
        time.sleep(0.01)
    return f"attempt {ctx.attempt}"


@waits.completed
def held(ctx: StepContext[Any]) -> str:
    return ctx.result(hold)


dies = Workflow[Any, Any]("dies", retry=Retry(attempts=1))


@dies.step(pool="process")
def die(_: StepContext[Any]) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


ignores = Workflow[Any, Any]("ignores", retry=Retry(attempts=1))


@ignores.step(on_failure="ignore")
async def fall(_: StepContext[Any]) -> int:
    raise ValueError("down")


@ignores.step(pool="process")
def go_on(ctx: StepContext[Any]) -> Any:
    """Use what another step left."""
    return [ctx.result(fall, -1), dict(ctx.results)]


@ignores.completed
def told(ctx: StepContext[Any]) -> Any:
    return ctx.result(go_on)


raising = Workflow("raising", input=str, retry=Retry(attempts=3, delay=0, only=(OSError,)))


@raising.step(pool="process")
def give_up(ctx: StepContext[str]) -> None:
    """Raise an error of the built-in class that the input names."""
    raise {"ConnectionError": ConnectionError, "KeyError": KeyError}[ctx.input]("as asked")
