"""Tasks whose pool has processes: the message about one attempt, and the function that runs in the process.

    worker    the task's import path and its arguments, as JSON ->
    process                                                        result, or the record of the error

What must always hold: the process finds the task by the import path of its function; arguments are checked
against their annotations on both sides; nothing is recorded there.

Crash windows: `process-dies` (the attempt fails with ProcessDied), `worker-dies` (the process ends with it,
and the task runs again with the same step key).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from eventbus import ProcessContext
from eventbus.lowlevel import (
    Codec,
    ImportPath,
    attempt_in,
    find,
    hints_of,
    import_path_of_function,
    run_at_once,
    with_facts,
)
from workflows.definition.checks.signature import taken_by
from workflows.definition.codecs import MAX_VALUE
from workflows.definition.task import Task, as_task
from workflows.definition.task_context import TaskContext, set_step_key, set_task


class _Given(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt of a task, for another process. Arguments are JSON; `facts` are the fields of log
    events.
    """

    task: ImportPath
    args: list[str]
    kwargs: dict[str, str]
    key: str
    facts: dict[str, Any]
    max_bytes: int
    worker: str


def place_of(task: Task[..., Any]) -> ImportPath:
    """Return where a process finds a task. Raises DefinitionError if it is not at the top level of a
    module.
    """
    return import_path_of_function(task.function, task.where)


@functools.cache
def function_place() -> ImportPath:
    """Return where a process finds the function that runs tasks."""
    return import_path_of_function(run_task_here, "the function that runs tasks in processes")


def make_request(
    task: Task[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    key: str,
    facts: Mapping[str, Any],
    max_bytes: int,
    worker: str,
) -> dict[str, Any]:
    """Return the message about one attempt. Raises PayloadError for an argument that does not fit its
    annotation.
    """
    return msgspec.to_builtins(
        _Given(
            task=place_of(task),
            args=[_codec(task.function, at, task.name).encode(arg).decode() for at, arg in enumerate(args)],
            kwargs={
                name: _codec(task.function, name, task.name).encode(arg).decode()
                for name, arg in kwargs.items()
            },
            key=key,
            facts=dict(facts),
            max_bytes=max_bytes,
            worker=worker,
        )
    )


def run_task_here(payload: Mapping[str, Any], ctx: ProcessContext) -> str:
    """Run one attempt in this process; return the result as JSON text. Raises what the function raises, and
    PayloadError.
    """
    given = msgspec.convert(payload, _Given)
    task = as_task(find(given.task))
    function = task.function
    args = [_codec(function, at, task.name).decode(text.encode()) for at, text in enumerate(given.args)]
    kwargs = {
        name: _codec(function, name, task.name).decode(text.encode()) for name, text in given.kwargs.items()
    }
    set_step_key(given.key)
    set_task(
        TaskContext(
            attempt_in(ctx),
            run_at_once,
            workflow=given.facts.get("workflow", ""),
            step=given.facts.get("step", task.name),
            key=given.key,
            attempt=ctx.attempt,
            worker=given.worker,
        )
    )
    try:
        with with_facts(given.facts):
            return task.codec(given.max_bytes).encode(function(*args, **kwargs)).decode()
    finally:
        set_step_key("")  # the process serves others, too
        set_task(None)


@functools.lru_cache(maxsize=1024)
def _codec(function: Callable[..., Any], argument: int | str, owner: str) -> Codec:
    """Return the codec of an argument, by its place or name."""
    kind = taken_by(function, argument) if isinstance(argument, int) else _named(function, argument)
    return Codec(Any if isinstance(kind, str) else kind, role="payload", owner=owner, max_bytes=MAX_VALUE)


def _named(function: Callable[..., Any], name: str) -> Any:
    parameters = inspect.signature(function).parameters
    if name not in parameters:  # it goes to **kwargs, or the call raises
        name = next((each.name for each in parameters.values() if each.kind is each.VAR_KEYWORD), name)
    return hints_of(function).get(name, Any)
