"""Tasks: the functions that a durable function runs as steps, with their options and their rollback.

Not here: running them (`functions.step_call`).

What must always hold: the options of every task are valid, and its durations are seconds as floats. A
rollback may run in another process and a year later, so the journal has the key of its task, and each process
that has imported the task finds it by that key.

Alternatives: to import what the journal names would let whoever writes to the server run any function.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType
from typing import Any, Generic, ParamSpec, Self, TypeVar, cast, overload
from weakref import WeakValueDictionary

from msgspec import UNSET, UnsetType

from eventbus import DefinitionError, Retry, UsageError
from eventbus.lowlevel import Codec, Duration, check_answers, hints_of
from workflows.definition.checks.options import check_pool, check_retry, check_timeout
from workflows.definition.checks.signature import (
    accepts,
    check_callable,
    check_function,
    is_async,
    name_of,
    result_of,
    returned_by,
    taken_by,
    told,
)
from workflows.definition.codecs import MAX_VALUE
from workflows.definition.flow_tools import CallSync
from workflows.definition.task_context import TaskContext, running_code
from workflows.records.ids import check_step_name

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_tasks: WeakValueDictionary[str, Task[..., Any]] = WeakValueDictionary()


class Task(Generic[P, R]):
    """A function that durable functions run as a step. Calling it calls the function, so that it can be
    tested alone.

    If `retry` is None, the rule of the durable function applies; if `timeout` is None, there is none. `pool`
    is where a plain function runs, None for an async one. `undo` is the rollback, with the options
    `undo_retry` and `undo_timeout`. `key` is its module and name in it. Do not change the attributes.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        pool: str | None = None,
    ) -> None:
        """Use `task(...)` instead; it explains the options."""
        check_callable(function, "a task")
        self.function = function
        self.name: str = _check_name(name_of(function) if name is None else name)
        _check_no_context(function, self.where)
        self.key: str = _key_of(function)
        self.is_async: bool = is_async(function)
        self.retry: Retry | None = check_retry(retry, self.where)
        self.timeout: float | None = check_timeout(timeout, self.where)
        self.pool: str | None = check_pool(pool, self.where, is_async=self.is_async)
        self.undo: Callable[..., Any] | None = None
        self.undo_is_async: bool = False
        self.undo_retry: Retry | None = None
        self.undo_timeout: float | None = None
        self._codecs: dict[int, Codec] = {}

    @property
    def where(self) -> str:
        """The name of the task in messages."""
        return f"task {self.name!r}"

    @property
    def result(self) -> Any:
        """The annotated return type, `Any` without one. Raises DefinitionError for a name that cannot be
        found.
        """
        return result_of(self.function, self.where)

    def codec(self, max_bytes: int = MAX_VALUE) -> Codec:
        """Return the codec of the result. Raises DefinitionError for a type that cannot be converted."""
        codec = self._codecs.get(max_bytes)
        if codec is None:
            codec = Codec(self.result, role="result", owner=self.name, max_bytes=max_bytes)
            self._codecs[max_bytes] = codec
        return codec

    def item_codec(self, max_bytes: int = MAX_VALUE) -> Codec:
        """Return the codec of its first argument, for calls of it by other workers. Raises
        DefinitionError.
        """
        codec = self._codecs.get(-max_bytes)
        if codec is None:
            kind = taken_by(self.function, 0)
            codec = Codec(
                Any if isinstance(kind, str) else kind, role="payload", owner=self.name, max_bytes=max_bytes
            )
            self._codecs[-max_bytes] = codec
        return codec

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Call the function, without retries and timeout; nothing is recorded.

        Raises UsageError in the code of a durable function, which would run it again in each replay.
        """
        if running_code.get():
            raise UsageError(
                f"{self.where} was called in the code of flow {running_code.get()}, where nothing would "
                f"record it and each replay would run it again; write `await ctx.step({self.name}, ...)`"
            )
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Task {self.name!r}>"

    def using(
        self,
        *,
        name: str | None = None,
        retry: Retry | UnsetType | None = UNSET,
        timeout: Duration | UnsetType | None = UNSET,
    ) -> Self:
        """Return this task with other options for one call; those that are not given stay. Raises
        DefinitionError.
        """
        other = type(self)(
            self.function,
            name=self.name if name is None else name,
            retry=self.retry if isinstance(retry, UnsetType) else retry,
            timeout=self.timeout if isinstance(timeout, UnsetType) else timeout,
            pool=self.pool,
        )
        other.undo, other.undo_is_async = self.undo, self.undo_is_async
        other.undo_retry, other.undo_timeout = self.undo_retry, self.undo_timeout
        other._codecs = self._codecs  # noqa: SLF001  (of the same function)
        return other

    @overload
    def rollback(self, function: Callable[[R], T], /) -> Callable[[R], T]: ...
    @overload
    def rollback(
        self, function: None = None, /, *, retry: Retry | None = ..., timeout: Duration | None = ...
    ) -> Callable[[Callable[[R], T]], Callable[[R], T]]: ...

    def rollback(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        retry: Retry | None = None,
        timeout: Duration | None = None,
    ) -> Any:
        """Make the decorated function the rollback of this task: `rollback(result)`.

        It runs, at least once, if a flow stops after this task completed in it. Its `retry` (default: that of
        the durable function) and `timeout` (of one attempt) are its own. Raises DefinitionError for a second
        rollback, for a function that does not take the result, and for the rollback of a lambda, which no
        other process could find.
        """
        where = f"the rollback of {self.where}"
        options = (check_retry(retry, where), check_timeout(timeout, where))
        if function is None:
            return functools.partial(self._set_undo, *options)
        return self._set_undo(*options, function)

    def _set_undo(self, retry: Retry | None, timeout: float | None, function: Callable[..., Any]) -> Any:
        where = f"the rollback of {self.where}"
        if self.undo is not None:
            raise DefinitionError(
                f"{self.where} has a rollback already: {name_of(self.undo)}; it can have one, "
                f"so {name_of(function)} must become part of it"
            )
        if "<lambda>" in self.key:
            raise DefinitionError(
                f"{self.where} is a lambda, so no other process could find its rollback; make it a function "
                "with a name"
            )
        check_function(function, where, "the result of the task")
        wanted, given = taken_by(function, 0), returned_by(self.function)
        if not accepts(wanted, given):
            raise DefinitionError(
                f"{where} takes {told(wanted)}, but the task returns {told(given)}; "
                f"annotate its parameter as {told(given)}"
            )
        self.undo, self.undo_is_async = function, is_async(function)
        self.undo_retry, self.undo_timeout = retry, timeout
        _tasks[self.key] = self
        return function


class AsyncTask(Task[P, R]):
    """A task whose function is `async def`; calling it returns a coroutine."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Call the function, as `Task` does."""
        return super().__call__(*args, **kwargs)


class SyncTask(Task[P, R]):
    """A task whose function is a plain `def`; flows run it in a thread. Calling it returns the result."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function, as `Task` does."""
        return super().__call__(*args, **kwargs)


class TaskDecorator:
    """The decorator that `task(...)` returns; it returns the task."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options

    @overload
    def __call__(  # pyright: ignore[reportOverlappingOverload]
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> SyncTask[P, R]: ...

    def __call__(self, function: Callable[..., Any], /) -> Any:
        """Make the task. Raises DefinitionError as `task` says."""
        made = _make(function, **self._options)
        known = _tasks.get(made.key)
        if (
            known is None or known.function is not made.function
        ):  # not in place of one that may have a rollback
            _tasks[made.key] = made
        return made


@overload
def task(  # pyright: ignore[reportOverlappingOverload]
    function: Callable[P, Coroutine[Any, Any, R]], /
) -> AsyncTask[P, R]: ...
@overload
def task(function: Callable[P, R], /) -> SyncTask[P, R]: ...
@overload
def task(
    function: None = None,
    /,
    *,
    name: str | None = ...,
    retry: Retry | None = ...,
    timeout: Duration | None = ...,
    pool: str | None = ...,
) -> TaskDecorator: ...


def task(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    retry: Retry | None = None,
    timeout: Duration | None = None,
    pool: str | None = None,
) -> Any:
    """Make a function a task, which durable functions run as a step: `ctx.step(charge, order_id)`.

    Its arguments are any values; they are not recorded. Its result is JSON of the annotated return type. The
    task is named after the function, unless `name` is given. `retry` is its own rule, by default that of the
    durable function; `timeout` bounds one attempt. A plain function runs in a thread, or with
    `pool="process"` or the name of a pool of the provider there: a process finds it at the top level of its
    module, and its arguments travel as JSON of their annotations, too. Inline flows run it in a thread.
    Raises DefinitionError for a value that cannot be used.
    """
    decorator = TaskDecorator({"name": name, "retry": retry, "timeout": timeout, "pool": pool})
    return decorator if function is None else decorator(function)


async def call_task(
    task: Task[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], call_sync: CallSync
) -> Any:
    """Call the function of a task once; a plain function runs outside of the event loop."""
    if task.is_async:
        return await task.function(*args, **kwargs)
    return await call_sync(functools.partial(task.function, *args, **kwargs))


def as_task(call: Task[..., Any] | Callable[..., Any]) -> Task[..., Any]:
    """Return a task as it is, and any other function as a task without options. Raises DefinitionError."""
    return cast("Task[..., Any]", call) if isinstance(call, Task) else _plain(call)


def check_tasks(
    function: Callable[..., Any],
    where: str,
    errors: Sequence[type[Exception]],
    retry_on: Sequence[type[Exception]],
) -> None:
    """Check the retry rules of the tasks that the code of a function names, as `check_rule` does; `where` is
    that function.
    """
    for each in named_in(function):
        if isinstance(each, Task):
            check_rule(cast("Task[..., Any]", each), where, errors, retry_on)


def named_in(function: Callable[..., Any]) -> list[Any]:
    """Return what the code of a function names outside of itself, as far as that has a value yet."""
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType):
        return []
    known: dict[str, Any] = getattr(function, "__globals__", {})
    found = [known.get(name) for name in _globals_in(code)]
    for cell in getattr(function, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # it has no value yet
            found.append(cell.cell_contents)
    return found


def check_rule(
    task: Task[..., Any], where: str, errors: Sequence[type[Exception]], retry_on: Sequence[type[Exception]]
) -> None:
    """Raise DefinitionError if the retry rule of a task contradicts what the function that calls it
    declares.
    """
    check_answers(task.retry, f"{task.where} in {where}", errors=errors, retry_on=retry_on)


def _globals_in(code: CodeType) -> Iterator[str]:
    """Yield the names that code reads as globals, also in the functions inside of it."""
    for instruction in dis.get_instructions(code):
        if instruction.opname == "LOAD_GLOBAL":
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _globals_in(constant)


def known_tasks() -> list[Task[..., Any]]:
    """Return the tasks that were decorated in this process."""
    return list(_tasks.values())


def find_task(key: str) -> Task[..., Any] | None:
    """Return the task with this key, as it was decorated; None if this process has not imported it."""
    return _tasks.get(key)


def _make(function: Callable[..., Any], **options: Any) -> Task[..., Any]:
    kind = AsyncTask if is_async(function) else SyncTask
    return cast("Task[..., Any]", kind(function, **options))


_plain = functools.lru_cache(maxsize=1024)(_make)


def _key_of(function: Callable[..., Any]) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    return f"{_importable(module)}:{name}"


def _importable(module: str) -> str:
    """Return the name by which other processes import a module, also that of the program itself."""
    if module != "__main__":
        return module
    main = sys.modules[module]
    spec = getattr(main, "__spec__", None)
    return str(spec.name) if spec is not None else Path(getattr(main, "__file__", module)).stem


def _check_no_context(function: Any, where: str) -> None:
    """Raise DefinitionError for a parameter that waits for the context, as one of a step or a handler
    would.
    """
    for name, hint in hints_of(function).items():
        if hint is TaskContext and name != "return":
            raise DefinitionError(
                f"{where} has the parameter {name!r} for a TaskContext, but a task gets only the arguments "
                "of its call; leave it out, and call task_context() inside"
            )


def _check_name(name: object) -> str:
    if name == "<lambda>":
        raise DefinitionError(
            'a lambda has no name for its step; make it a task: task(name="...")(lambda: ...)'
        )
    return check_step_name(name)
