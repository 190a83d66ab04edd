"""What runs here: the code of a durable function, or an attempt of a task, with its key and what it
can do.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, TypeVar, overload

from eventbus import UsageError
from eventbus.lowlevel import Attempt, Stopping, read_saved, running_loop, saved_text
from workflows.definition.flow_tools import Done, StepLoad, ThreadLoad

S = TypeVar("S")
D = TypeVar("D")

Wait = Callable[..., Any]
"""Runs a coroutine where it can run, and waits for it in the caller's thread; `wait(work, timeout)`."""

running_code: ContextVar[str] = ContextVar("workflows_running_code", default="")
"""The id of the flow whose code runs here; empty in its steps, and outside of flows."""

_key: ContextVar[str] = ContextVar("workflows_step_key", default="")
_task: ContextVar[TaskContext | None] = ContextVar("workflows_task", default=None)


class TaskContext:
    """What an attempt of a task can do beside its work. `task_context()` returns it. Do not change its
    attributes.

    `key` is its `step_key()`, and `attempt` counts from 1. `worker` is the id of the worker that runs it, as
    in log events and in reports of jobs; empty in a flow that runs inline.
    """

    __slots__ = ("_own", "_owner", "_step", "_wait", "attempt", "key", "worker")

    def __init__(
        self, own: Attempt, wait: Wait, *, workflow: str, step: str, key: str, attempt: int, worker: str
    ) -> None:
        """`step` is the name of the task, with its position."""
        self._own = own
        self._wait = wait
        self._owner = f"{workflow}.{step}"
        self._step = step
        self.key: str = key
        self.attempt: int = attempt
        self.worker: str = worker

    def keep_line(self, line: str) -> None:
        """Keep a log line with the job that this task runs in, as `EventContext.keep_line` does; return at
        once.

        That is the job of its flow, or with `ctx.map` a job of its own; so the line begins with the task and
        its position. It works in threads, processes and rollbacks. Inline it does nothing.
        """
        self._own.keep_line(f"{self._step}: {line}")

    @property
    def stopping(self) -> Stopping | None:
        """Why this attempt should end early: `"stop"`, `"cancel"`, `"timeout"` or `"lease lost"`; None while
        it should go on.

        As `StepContext.stopping`: a task that runs long in a thread or a process asks now and then. Always
        None in a rollback.
        """
        return self._own.stopping

    def save(self, value: Any) -> Awaitable[None]:
        """Keep a JSON value for the next attempt of this call, in place of what was saved before.

        It stays over retries, `Later`, stops and crashes of the worker, and is gone when the call has ended.
        Await it in an async task; in a plain one it returns when the value is recorded. Raises PayloadError
        for a value that would not come back as it is, or over `max_result`; StoreRefused if the lease is lost
        or the attempt has ended; ProviderStopped; UsageError in a rollback.
        """
        work = self._own.save(saved_text(value, owner=self._owner, max_bytes=self._own.max_saved))
        if running_loop() is not None:
            return work
        self._wait(work)
        return Done()

    @overload
    def saved(self, kind: type[S], /) -> StepLoad[S | None]: ...
    @overload
    def saved(self, kind: type[S], /, *, default: D) -> StepLoad[S | D]: ...
    def saved(self, kind: Any, /, *, default: Any = None) -> Any:
        """Return what an attempt of this call saved last, as a value of the type `kind`; otherwise `default`.

        Await it in an async task; in a plain one `.result()` waits. Raises PayloadError if the value does not
        fit, StoreError, ProviderStopped, and UsageError in a rollback.
        """
        work = self._saved(kind, default)
        return work if running_loop() is not None else ThreadLoad(self._wait, work)

    async def _saved(self, kind: Any, default: Any) -> Any:
        return read_saved(await self._own.read_saved(), kind, default, owner=self._owner)


def step_key() -> str:
    """Return the idempotency key of the step of a durable function that the caller runs in.

    It is `<flow id>/<run>/<position>`: the same in every attempt of this call, and no other call has it. Give
    it to the service that the step calls, so that an attempt whose worker died does not act twice. Raises
    UsageError elsewhere.
    """
    key = _key.get()
    if not key:
        raise UsageError(
            "step_key() was called outside of a step of a durable function; call it in the task itself"
        )
    return key


def task_context() -> TaskContext:
    """Return what the task of a durable function that the caller runs in can do: save, keep log lines, and
    hear that it should end.

    In a rollback it keeps log lines alone. Raises UsageError elsewhere.
    """
    context = _task.get()
    if context is None:
        raise UsageError(
            "task_context() was called outside of a task of a durable function; call it in the task itself"
        )
    return context


def set_step_key(key: str) -> None:
    """Set the key for the caller's asyncio task, and for the threads that it starts."""
    _key.set(key)


def set_task(context: TaskContext | None) -> None:
    """Set what `task_context` returns, as `set_step_key` does."""
    _task.set(context)
