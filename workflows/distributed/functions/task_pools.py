"""The pools of the tasks of one durable function in one worker: the places to wait for, and the calls there.

Not here: tasks without a named pool, which run in the threads of the worker (`definition.task`).

What must always hold: a worker does not start if a task that it can see in the code names a pool that it does
not have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

from eventbus import DefinitionError
from eventbus.lowlevel import (
    Attempt,
    ImportPath,
    ProcessCalls,
    baggage_around,
    current,
    import_path_of_object,
)
from workflows.definition.checks.declared_errors import mark_last
from workflows.definition.task import Task
from workflows.execution.process_steps import check_known
from workflows.execution.slots import FlowSlots
from workflows.functions.process_tasks import function_place, make_request, place_of

if TYPE_CHECKING:
    from workflows.distributed.worker_runtime import WorkerRuntime
    from workflows.functions.definition import Durable


class TaskPools:
    """The pools as the tasks of one flow see them; implements `execution.surroundings.Pools`."""

    def __init__(
        self, runtime: WorkerRuntime, durable: Durable[Any, Any], flow_id: str, *, max_bytes: int
    ) -> None:
        self._runtime = runtime
        self._durable = durable
        self._flow_id = flow_id
        self._max_bytes = max_bytes
        self._slots: dict[str, FlowSlots] = {}

    def places(self, task: Task[..., Any]) -> FlowSlots | None:
        """Return the places that the task shares; None if its pool is not named. Raises DefinitionError for
        no pool.
        """
        pool = task.pool
        if pool is None or pool == "thread":
            return None
        slots = self._slots.get(pool)
        if slots is None:
            try:
                check_known(pool, task.where, self._runtime.services.pools)
            except DefinitionError as error:
                mark_last(error)  # no attempt in this worker would find it
                raise
            slots = self._slots[pool] = FlowSlots(self._runtime.services.pools[pool].places)
        return slots

    async def call(
        self,
        task: Task[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        key: str,
        attempt: int,
        facts: Mapping[str, Any],
        own: Attempt,
    ) -> Any:
        """Call a task in its pool. Raises what it raises, PayloadError, ProcessDied and StillRuns."""
        pool = self._runtime.services.pools[task.pool or ""]
        if pool.calls is None:
            return await self._runtime.call_sync(partial(task.function, *args, **kwargs), pool.threads)
        text = await self._call_process(
            pool.calls,
            task,
            make_request(
                task,
                args,
                kwargs,
                key=key,
                facts=facts,
                max_bytes=self._max_bytes,
                worker=self._runtime.services.worker,
            ),
            attempt,
            own,
        )
        return task.codec(self._max_bytes).decode(text.encode())

    async def _call_process(
        self,
        calls: ProcessCalls,
        task: Task[..., Any],
        request: Mapping[str, Any],
        attempt: int,
        own: Attempt,
    ) -> str:
        around = current()
        return await calls.run(
            function_place(),
            request,
            name=f"{self._durable.name}.{task.name}",
            job_id=self._flow_id,
            attempt=attempt,
            own=own,
            correlation_id=around.correlation_id,
            meta=around.meta,
            traceparent=around.traceparent,
            baggage=baggage_around(),
            errors_place=_errors_place(self._durable),
            declared=self._durable.errors,
        )


def check_tasks(durable: Durable[Any, Any], runtime: WorkerRuntime) -> None:
    """Raise DefinitionError if a task that the code of a function names cannot run in its pool here."""
    pools = runtime.services.pools
    for task in _tasks_in(durable.function):
        if task.pool is None or task.pool == "thread":
            continue
        check_known(task.pool, task.where, pools)
        if pools[task.pool].processes is not None:
            place_of(task)
            _errors_place(durable)


def _tasks_in(function: Any) -> Iterator[Task[..., Any]]:
    """Yield the tasks that the code of a function names, as far as its globals and their modules show
    them.
    """
    known = getattr(function, "__globals__", {})
    names = set(_names_in(getattr(function, "__code__", None)))
    for name in names:
        value = known.get(name)
        if isinstance(value, Task):
            yield value
        elif isinstance(value, ModuleType):
            yield from (found for other in names if isinstance(found := vars(value).get(other), Task))


def _names_in(code: CodeType | None) -> Iterator[str]:
    if code is None:
        return
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names_in(inner)


def _errors_place(durable: Durable[Any, Any]) -> ImportPath | None:
    if not durable.errors:
        return None
    return import_path_of_object(
        durable,
        getattr(durable.function, "__module__", ""),
        durable.where,
        why="it declares errors, and a process that runs a task of it finds them there",
    )
