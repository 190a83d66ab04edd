"""Workflows of random shape and the course of each flow, made from a seed: the same in every process.

A shape has 3 to 12 steps; each step follows some of the earlier ones. Some steps have a rollback or a
condition, some are plain functions, some run for each item of a list, and now and then a step is a
sub-workflow. Half of the shapes are local: one worker runs all steps of a flow, but those that are spread.
The input of a flow is its `Course`: how long each step takes, at which attempt it succeeds, whether its
condition is true and how its rollback goes.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from apps.step_actions import note, tell_failed

from eventbus import Retry
from workflows import StepContext, StepFailed, Workflow

__all__ = ["NEVER", "RULE", "Act", "Course", "End", "acts_of", "make_course", "make_parts", "make_shapes"]

NEVER = 9
"""An attempt that no retry reaches."""
RULE = Retry(attempts=3, delay="20ms", backoff="fixed")
_MOST_ITEMS = 4


class Act(msgspec.Struct):
    """What a step does in one flow; its attempt `good` succeeds, and so does attempt `undo` of its
    rollback. In the runs after the first one, attempt `later` succeeds, unless that is 0.
    """

    ms: int = 10
    good: int = 1
    undo: int = 1
    is_wanted: bool = True
    later: int = 0

    def good_in(self, run: int) -> int:
        """Return the attempt that succeeds in a run of the flow."""
        return self.later if self.later and run > 1 else self.good


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


def make_parts(seed: int, *, has_threads: bool = True) -> list[Workflow[Course, Any]]:
    """Make the workflows of which sub-workflows are chosen; without `has_threads` no function is plain."""
    return [
        _make_shape(f"part{n}", random.Random(f"{seed}-part-{n}"), [], has_threads=has_threads)
        for n in range(4)
    ]


def make_shapes(
    seed: int, count: int, parts: Sequence[Workflow[Course, Any]], *, has_threads: bool = True
) -> list[Workflow[Course, Any]]:
    """Make `count` workflows, at least one of them spread; their sub-workflows, some of `parts`, are not in
    the list. Without `has_threads` no function is plain.
    """

    def make(n: int, number: int) -> Workflow[Course, Any]:
        rng = random.Random(f"{seed}-shape-{number}")
        return _make_shape(f"shape{n}", rng, parts, has_threads=has_threads)

    shapes = [make(n, n) for n in range(count)]
    number = count
    while not any(shape.spreads for shape in shapes):
        shapes[-1] = make(count - 1, number)
        number += 1
    return shapes


def acts_of(workflow: Workflow[Course, Any]) -> list[str]:
    """Return the names of all that a flow does: its steps and items, those of sub-workflows, too."""
    found: list[str] = []
    for shape in (workflow, *workflow.nested()):
        for name, step in shape.steps.items():
            if step.is_each:
                found += [f"{shape.name}.{name}[{index}]" for index in range(_MOST_ITEMS)]
            if step.workflow is None:
                found.append(f"{shape.name}.{name}")  # of an each step it says whether its condition is true
    return found


def make_course(seed: int, number: int, names: Sequence[str]) -> tuple[Course, End]:
    """Draw what the acts of these names do. One in four flows has one that fails for good; one in ten is
    cancelled, and one in ten times out.
    """
    rng = random.Random(f"{seed}-course-{number}")
    acts = {name: _make_act(rng) for name in names}
    end = End()
    fate = rng.random()
    if fate < 0.25:
        acts[rng.choice(names)].good = NEVER
    elif fate < 0.35:
        end.cancel = rng.uniform(0.01, 1.0)
    elif fate < 0.45:
        end.timeout = rng.uniform(0.1, 0.6)
        acts[rng.choice(names)].ms = 30_000
    return Course(number, acts), end


def _make_act(rng: random.Random) -> Act:
    ms = rng.randint(1, 30) if rng.random() < 0.6 else rng.randint(50, 400)
    good = rng.choices([1, 2, 3], [90, 7, 3])[0]
    undo = rng.choices([1, 2, NEVER], [85, 10, 5])[0]
    return Act(ms, good, undo, rng.random() > 0.3)


def _make_shape(
    name: str, rng: random.Random, parts: Sequence[Workflow[Course, Any]], *, has_threads: bool
) -> Workflow[Course, Any]:
    shape: Workflow[Course, Any] = Workflow(name, input=Course, retry=RULE, spread=rng.random() < 0.5)
    share_of_each = rng.choice([0, 0.2])  # a workflow with one is local
    for n in range(rng.randint(3, 12) if parts else rng.randint(2, 4)):
        earlier = list(shape.steps)
        many = min(len(earlier), rng.choices([0, 1, 2, 3], [10, 55, 25, 10])[0])
        after = rng.sample(earlier, many)
        if parts and rng.random() < 0.08:
            shape.flow(rng.choice(parts), name=f"s{n}", after=after)
            continue
        if rng.random() < share_of_each:
            _add_each(shape, f"s{n}", after, rng)
            continue
        step = shape.step(
            _act_plainly if rng.random() < 0.2 and has_threads else _act,
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


def _add_each(shape: Workflow[Course, Any], name: str, after: list[str], rng: random.Random) -> None:
    options: dict[str, Any] = {
        "name": name,
        "over": _list_of(rng.randint(0, _MOST_ITEMS)),
        "at_once": rng.randint(1, 3),
        "on_failure": rng.choice(["fail", "fail", "ignore"]),
        "after": after,
        "when": _is_wanted if rng.random() < 0.2 else None,
        "spread": rng.random() < 0.3,
    }
    step = shape.each(**options)(_act_for)
    if rng.random() < 0.7:
        step.rollback(_undo_for)


def _list_of(size: int) -> Callable[[StepContext[Course]], list[int]]:
    def over(ctx: StepContext[Course]) -> list[int]:
        return [ctx.input.number] * size

    return over


async def _act_for(ctx: StepContext[Course], item: int) -> int:
    assert item == ctx.input.number
    return await _act(ctx)


async def _undo_for(ctx: StepContext[Course], item: int, result: int) -> None:
    assert item == result
    await _undo(ctx, result)


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
    if ctx.attempt < act.good_in(ctx.run):
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


async def _tell_completed(ctx: StepContext[Any]) -> dict[str, Any]:
    """Tell the result of each step; that of an each step is how many of its items completed."""
    note("completed", ctx, "completed")
    return {name: _count(each) if isinstance(each, list) else each for name, each in ctx.results.items()}


def _count(results: list[Any]) -> int:
    return sum(not isinstance(each, StepFailed) for each in results)
