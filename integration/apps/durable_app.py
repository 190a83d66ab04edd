"""A durable function under test: its steps write what they do into a journal outside of the server, and die
on demand.

Run by `eventbus worker apps.durable_app:provider` in `integration/`. A file `die in <step>` in the test's
folder kills once.
"""

from __future__ import annotations

import asyncio
import os
from functools import cache
from pathlib import Path

from apps.step_actions import die_at
from harness.journal import Journal

from eventbus import EventProvider, Retry
from workflows import FlowContext, Signal, WorkflowProvider, durable, step_key, task, task_context

__all__ = ["STEPS", "approval", "contest", "flows", "part", "provider", "report", "stumbling", "whole"]

STEPS = ("collect", "render", "print", "mail")

provider: EventProvider = EventProvider()
flows: WorkflowProvider = WorkflowProvider(provider)
approval: Signal[bool] = Signal("approval", bool)


@cache
def _journal() -> Journal:
    return Journal(Path(os.environ["EVENTBUS_TEST_FOLDER"]) / "journal")


def act(name: str) -> None:
    _journal().write("began", step_key(), 1, name)
    die_at(f"in {name}")
    _journal().write("did", step_key(), 1, name)


@task
async def work(name: str) -> str:
    act(name)
    return f"{name} done"


@work.rollback
async def undo(done: str) -> None:
    act(f"undo {done.partition(' ')[0]}")


@durable("report", retry=Retry(attempts=1))
async def report(ctx: FlowContext[str]) -> list[str]:
    done = [await ctx.step(work, "collect"), await ctx.step(work, "render")]
    if not await ctx.wait_for(approval):
        raise ValueError("refused")
    return [*done, await ctx.step(work, "print"), await ctx.step(work, "mail")]


@durable("part", retry=Retry(attempts=1))
async def part(ctx: FlowContext[str]) -> str:
    return await ctx.step(work, ctx.input)


@durable("whole", retry=Retry(attempts=1))
async def whole(ctx: FlowContext[bool]) -> list[str]:
    """Start a flow, then two jobs; fail behind them if the input is false."""
    done = [await ctx.flow(part, "inner"), *await ctx.map(work, ["left", "right"], limit=1)]
    if not ctx.input:
        raise ValueError("refused")
    return done


@task
async def stay(name: str) -> str:
    act(name)
    await asyncio.Event().wait()
    return name


@stay.rollback
async def leave(name: str) -> None:
    act(f"leave {name}")


@durable("contest", retry=Retry(attempts=1))
async def contest(ctx: FlowContext[None]) -> None:
    """Let a step lose a race that has taken effect, then fail."""
    await ctx.race(ctx.step(stay, "loser"), ctx.step(work, "winner"))
    await ctx.step(work, "later")
    raise ValueError("refused")


@task(retry=Retry(5, delay="0.4s", backoff="fixed"))
async def stumble(name: str) -> str:
    """Fail in each attempt, after it is written down."""
    _journal().write("tried", step_key(), task_context().attempt, name)
    raise ConnectionError(name)


@task
async def climb(name: str) -> str:
    return name


@climb.rollback(retry=Retry(5, delay="0.4s", backoff="fixed"))
async def descend(name: str) -> None:
    """Fail in each attempt, as `stumble` does."""
    _journal().write("tried", step_key(), task_context().attempt, f"undo {name}")
    raise ConnectionError(name)


@durable("stumbling", retry=Retry(attempts=1))
async def stumbling(ctx: FlowContext[str]) -> None:
    """Make a step fail until its rule gives up: alone, or beside a wait; or the rollback of one."""
    if ctx.input == "rollback":
        await ctx.step(climb, "it")
        raise ValueError("refused")
    if ctx.input == "beside a wait":
        await ctx.gather(ctx.wait_for(approval, timeout="1s"), ctx.step(stumble, "it"))
    await ctx.step(stumble, "it")


flows.register(stumbling)
flows.register(contest)
flows.register(report)
flows.register(part)
flows.register(whole)
