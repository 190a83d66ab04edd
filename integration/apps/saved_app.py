"""A program whose jobs, steps and tasks save what is done, and one whose jobs are not kept.

Run it in `integration/`: `eventbus worker apps.saved_app:provider`. Each walk writes into the journal which
part it does, under the id of its job or the key of its call.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

from harness.journal import Journal

from eventbus import Event, EventContext, EventProvider, Later, ProcessContext, Retry
from workflows import FlowContext, StepContext, Workflow, WorkflowProvider, durable, task, task_context

__all__ = ["flows", "provider"]

provider: EventProvider = EventProvider()
flows: WorkflowProvider = WorkflowProvider(provider)
quick = Event("quick", payload=int, result=str, keep_completed=0)
_journal = Journal(Path(os.environ["EVENTBUS_TEST_FOLDER"]) / "journal")


async def _walk(ctx: Any, name: str, parts: int) -> int:
    """Do the parts one by one, save how many are done, and put the job off now and then."""
    done = await ctx.saved(int, default=0)
    while done < parts:
        _journal.write("part", name, ctx.attempt, done)
        await asyncio.sleep(0.03)  # the effect of a part takes a moment
        done += 1
        await ctx.save(done)
        if done % 10 == 0:
            raise Later("20ms")
    return done


@provider.on("walk", concurrency=100)
async def walk(payload: Any, ctx: EventContext) -> int:
    """Walk as a job."""
    return await _walk(ctx, ctx.job_id, payload["parts"])


@provider.on("walk-apart", pool="process", concurrency=4)
def walk_apart(payload: Any, ctx: ProcessContext) -> int:
    """Walk in a process, and put the job off when the worker stops."""
    done = ctx.saved(int, default=0)
    while done < payload["parts"]:
        if ctx.stopping:
            raise Later(0)
        _journal.write("part", ctx.job_id, ctx.attempt, done)
        time.sleep(0.03)
        done += 1
        ctx.save(done)
    return done


async def _walk_step(ctx: StepContext[Any]) -> int:
    return await _walk(ctx, ctx.job_id, ctx.input["parts"])


def _walking(name: str, *, spread: bool) -> Workflow[Any, Any]:
    made = Workflow[Any, Any](name, retry=Retry(1), spread=spread)
    made.step(_walk_step, name="walk")

    @made.completed
    def walked(ctx: StepContext[Any]) -> Any:
        return ctx.result("walk")

    return made


@task(retry=Retry(1))
async def walk_task(parts: int) -> int:
    context = task_context()
    return await _walk(context, context.key, parts)


@durable("walk-code")
async def _walk_code(ctx: FlowContext[Any]) -> int:
    return await ctx.step(walk_task, ctx.input["parts"])


flows.register(_walking("walk-step", spread=False))
flows.register(_walking("walk-spread", spread=True))
flows.register(_walk_code)


@provider.on(quick, concurrency=100)
async def answer(size: int) -> str:
    """Return a text of that length."""
    return "x" * size
