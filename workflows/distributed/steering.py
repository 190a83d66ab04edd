"""Steering for tests: the names by which a test kit sees, fails and replaces the functions of flows.

    <workflow>.<step>                 a step, a task of a durable function, a transition of a state machine
    <workflow>.<step>[<number>]       one item of a step over a list
    <workflow>.<step>.rollback        its rollback
    <workflow>@completed, @failed     a hook

Not here: who steers (`eventbus.testing`). What must always hold: a name means the same in a run and in a
test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from inspect import isfunction
from typing import Any, NamedTuple, cast

from eventbus import CallNext, UsageError
from eventbus.lowlevel import Around, Codec, RunFacts, Target, shown
from workflows.definition.codecs import MAX_VALUE
from workflows.definition.middleware import AttemptContext, FlowMiddleware
from workflows.definition.step import Step
from workflows.definition.task import Task, as_task, known_tasks, named_in
from workflows.machines.definition import MachineDefinition
from workflows.machines.transition import END, Transition
from workflows.registry import StepRegistry


def steering(around: Around) -> FlowMiddleware:
    """Return the middleware of flows that calls `around`."""

    async def steered(value: Any, ctx: AttemptContext, call: CallNext) -> Any:
        return await around(value, RunFacts(_name_of(ctx), ctx.flow_id, ctx.attempt), call)

    return steered


def find_target(registry: StepRegistry, given: object) -> Target | None:
    """Return what a test names: a step, a task, a transition, a function of one of these, or the name of a
    run. None if it is nothing of this registry.

    Raises UsageError for a step that has no function of its own.
    """
    if isinstance(given, Task):
        return _of_task(cast("Task[..., Any]", given))
    found = [
        known
        for known in _list(registry)
        if (known.name == given if isinstance(given, str) else any(each is given for each in known.objects))
    ]
    if found:
        return _target(found)
    if isinstance(given, str):
        return _by_name_of_task(registry, given)
    return None


def list_targets(registry: StepRegistry) -> list[str]:
    """Return the names of all that can be meant."""
    return [each.name for each in _list(registry)]


class _Known(NamedTuple):
    name: str
    objects: tuple[Any, ...]
    check: Callable[[Any], object]
    refusal: str = ""


def _list(registry: StepRegistry) -> Iterator[_Known]:
    for workflow in registry:
        for step in workflow.steps.values():
            name = f"{workflow.name}.{step.name}"
            yield _Known(name, (step, step.function), _check_step(step), _refusal(step))
            if step.undo is not None:
                yield _Known(f"{name}.rollback", (step.undo,), _accept)
    for durable in registry.durables:
        for task in _tasks_of(durable.function):
            name = f"{durable.name}.{task.name}"
            yield _Known(name, (task, task.function), task.codec().encode)
            if task.undo is not None:
                yield _Known(f"{name}.rollback", (task.undo,), _accept)
    for machine in registry.machines:
        for transition in machine.transitions.values():
            name = f"{machine.name}.{transition.name}"
            yield _Known(name, (transition, transition.function), _check_transition(machine, transition))
            if transition.undo is not None:
                yield _Known(f"{name}.rollback", (transition.undo,), _accept)


def _tasks_of(function: Callable[..., Any]) -> list[Task[..., Any]]:
    """Return the tasks that the code of a durable function names. Other functions count as well: a step may
    call any.
    """
    named = named_in(function)
    tasks = [cast("Task[..., Any]", each) for each in named if isinstance(each, Task)]
    return [*tasks, *(as_task(each) for each in named if isfunction(each))]


def _target(found: list[_Known]) -> Target:
    """Return all functions that are meant: one may be a step of several workflows."""
    for known in found:
        if known.refusal:
            raise UsageError(known.refusal)
    names = {known.name for known in found}

    def check(value: Any) -> None:
        for known in found:
            known.check(value)

    return Target(found[0].name, lambda name: name.partition("[")[0] in names, check)


def _of_task(task: Task[..., Any]) -> Target:
    """A task may run in any durable function, also in one that does not name it."""
    return Target(task.name, lambda name: name.endswith(f".{task.name}"), task.codec().encode)


def _by_name_of_task(registry: StepRegistry, name: str) -> Target | None:
    workflow, _, step = name.removesuffix(".rollback").rpartition(".")
    task = next((each for each in known_tasks() if each.name == step), None)
    if task is None or registry.durable(workflow) is None:
        return None
    return Target(name, lambda run: run == name, task.codec().encode)


def _check_step(step: Step[Any, Any]) -> Callable[[Any], object]:
    def check(value: Any) -> object:
        kind = step.item_result
        return Codec(kind, role="result", owner=step.name, max_bytes=MAX_VALUE).encode(value)

    return check


def _check_transition(machine: MachineDefinition, transition: Transition[Any]) -> Callable[[Any], object]:
    if transition.target == END:
        return machine.codecs.output.encode

    def check(value: Any) -> None:
        if value is not None:
            raise UsageError(
                f"only a transition to END returns a value, and {transition.where} leads to "
                f"{transition.target!r}; got: {shown(value)}"
            )

    return check


def _refusal(step: Step[Any, Any]) -> str:
    if step.workflow is not None:
        return f"{step.where} runs workflow {step.workflow.name!r}; name a step of that one"
    return f"{step.where} only waits, so it has no function" if step.pause is not None else ""


def _accept(_: Any) -> None:
    """A rollback may return anything."""


def _name_of(ctx: AttemptContext) -> str:
    if not ctx.step:
        return f"{ctx.workflow}@{ctx.kind}"
    name = f"{ctx.workflow}.{ctx.step.partition('@')[0]}"
    return f"{name}.rollback" if ctx.kind == "rollback" else name
