"""Workflows of random shape and the course of each flow, made from a seed: the same in every process.

A shape has 3 to 12 steps; each step follows some of the earlier ones. Some steps have a rollback or a
condition, some are plain functions, and now and then a step is a sub-workflow. Half of the shapes without one
are local: one worker runs all steps of a flow. The input of a flow is its `Course`: how long each step takes,
at which attempt it succeeds, whether its condition is true and how its rollback goes.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import msgspec
from apps.step_actions import note, tell_failed

from eventbus import Retry
from workflows import StepContext, Workflow

__all__ = ["Act", "Course", "End", "make_course", "make_shapes"]

NEVER = 9
"""An attempt that no retry reaches."""
_RULE = Retry(attempts=3, delay="20ms", backoff="fixed")


class Act(msgspec.Struct):
    """What a step does in one flow; its attempt `good` succeeds, and so does attempt `undo` of its rollback."""

    ms: int = 10
    good: int = 1
    undo: int = 1
    is_wanted: bool = True


class Course(msgspec.Struct):
    """The input of all flows here: `workflow.step` -> what that step does."""

    number: int
    acts: dict[str, Act] = {}

    def act_of(self, ctx: StepContext[Any]) -> Act:
        return self.acts.get(f"{ctx.workflow}.{ctx.step}", Act())


class End(msgspec.Struct):
    """What ends a flow from outside: seconds until it is cancelled or times out; 0 means never."""

    cancel: float = 0.0
    timeout: float = 0.0


def make_shapes(seed: int, count: int) -> list[Workflow[Course, Any]]:
    """Make `count` workflows; their sub-workflows are not in the list."""
    parts = [_make_shape(f"part{n}", random.Random(f"{seed}-part-{n}"), []) for n in range(4)]
    return [_make_shape(f"shape{n}", random.Random(f"{seed}-shape-{n}"), parts) for n in range(count)]


def make_course(seed: int, number: int, workflow: Workflow[Course, Any]) -> tuple[Course, End]:
    """One in four flows has a step that fails for good; one in ten is cancelled, and one in ten times out."""
    rng = random.Random(f"{seed}-course-{number}")
    acts: dict[str, Act] = {}
    for shape in (workflow, *workflow.nested()):
        for name, step in shape.steps.items():
            if step.workflow is None:
                acts[f"{shape.name}.{name}"] = _make_act(rng)
    end = End()
    fate = rng.random()
    if fate < 0.25:
        acts[rng.choice(list(acts))].good = NEVER
    elif fate < 0.35:
        end.cancel = rng.uniform(0.01, 1.0)
    elif fate < 0.45:
        end.timeout = rng.uniform(0.1, 0.6)
        acts[rng.choice(list(acts))].ms = 30_000
    return Course(number, acts), end


def _make_act(rng: random.Random) -> Act:
    ms = rng.randint(1, 30) if rng.random() < 0.6 else rng.randint(50, 400)
    good = rng.choices([1, 2, 3], [90, 7, 3])[0]
    undo = rng.choices([1, 2, NEVER], [85, 10, 5])[0]
    return Act(ms, good, undo, rng.random() > 0.3)


def _make_shape(name: str, rng: random.Random, parts: list[Workflow[Course, Any]]) -> Workflow[Course, Any]:
    shape: Workflow[Course, Any] = Workflow(name, input=Course, retry=_RULE, spread=rng.random() < 0.5)
    for n in range(rng.randint(3, 12) if parts else rng.randint(2, 4)):
        earlier = list(shape.steps)
        many = min(len(earlier), rng.choices([0, 1, 2, 3], [10, 55, 25, 10])[0])
        after = rng.sample(earlier, many)
        if parts and rng.random() < 0.08:
            shape.flow(rng.choice(parts), name=f"s{n}", after=after)
            continue
        step = shape.step(
            _act_plainly if rng.random() < 0.2 else _act,
            name=f"s{n}",
            after=after,
            when=_is_wanted if rng.random() < 0.2 else None,
            rollback_on_failure=rng.random() < 0.1,
            spread=rng.random() < 0.15,
        )
        if rng.random() < 0.7:
            step.rollback(_undo)
    shape.completed(_tell_completed)
    shape.failed(tell_failed)
    return shape


async def _act(ctx: StepContext[Course]) -> int:
    act = ctx.input.act_of(ctx)
    note("began", ctx)
    await asyncio.sleep(act.ms / 1000)
    return _do(ctx, act)


def _act_plainly(ctx: StepContext[Course]) -> int:
    act = ctx.input.act_of(ctx)
    note("began", ctx)
    time.sleep(act.ms / 1000)
    return _do(ctx, act)


def _do(ctx: StepContext[Course], act: Act) -> int:
    if ctx.attempt < act.good:
        raise ConnectionError(f"attempt {ctx.attempt} of {ctx.step}")
    note("did", ctx)
    return ctx.input.number


def _is_wanted(ctx: StepContext[Course]) -> bool:
    return ctx.input.act_of(ctx).is_wanted


async def _undo(ctx: StepContext[Course], result: Any) -> None:
    act = ctx.input.act_of(ctx)
    note("undoing", ctx)
    await asyncio.sleep(min(act.ms, 50) / 1000)
    if ctx.attempt < act.undo:
        raise ConnectionError(f"attempt {ctx.attempt} to undo {ctx.step}, which takes a text of some length")
    assert result in (ctx.input.number, None)
    note("undid", ctx)


async def _tell_completed(ctx: StepContext[Course]) -> dict[str, Any]:
    note("completed", ctx, "completed")
    return dict(ctx.results)
