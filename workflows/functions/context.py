"""The context of a durable function: what its code may do, and what is recorded of it.

What must always hold: each call takes its position at once, before anything is awaited; what the code can ask
without a call (the time, random numbers, ids) follows from what is recorded, so that it is the same in each
replay.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Literal, NoReturn, ParamSpec, TypeVar, Unpack, overload

import msgspec

from eventbus import DefinitionError, EmitKeywords, Event, UsageError
from eventbus.lowlevel import (
    Codec,
    Duration,
    HasLifespans,
    LifespanValues,
    Logger,
    get_logger,
    seconds,
    shown,
    trace_facts,
    trace_id_of,
)
from workflows.definition.flow_definition import AnyWorkflow, FlowDefinition, MachineClass
from workflows.definition.signal import Signal
from workflows.definition.task import Task, as_task, check_rule
from workflows.functions.calls.child_call import FlowCall
from workflows.functions.calls.emit_call import EmitCall
from workflows.functions.calls.group import Gather, Race, Winner
from workflows.functions.calls.map_call import MapCall
from workflows.functions.calls.step_call import StepCall
from workflows.functions.calls.wait_call import SleepCall, WaitCall
from workflows.functions.code_run import Scope
from workflows.functions.control import ContinueAsNew
from workflows.functions.definition import CodeContext
from workflows.functions.function_run import FunctionRun
from workflows.functions.history import family_of
from workflows.functions.silent_log import SILENT
from workflows.records.entries import Entry

I = TypeVar("I")  # noqa: E741  (input)
I2 = TypeVar("I2")
P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")
T1 = TypeVar("T1")
T2 = TypeVar("T2")
T3 = TypeVar("T3")
T4 = TypeVar("T4")
_PAYLOAD = TypeVar("_PAYLOAD")


class FlowContext(CodeContext[I], LifespanValues):
    """The argument of a durable function. Its calls are recorded; await them where you make them.

    `input` is the input of the flow. `meta` and `correlation_id` are those of its caller. `run` counts from
    1, and rises with each retry by hand. Do not change attributes other than `state`.
    """

    __slots__ = ("_log", "_run", "_state", "correlation_id", "flow_id", "input", "meta", "run")

    def __init__(self, run: FunctionRun, given: I, *, number: int = 1) -> None:
        """Make the context of one run of the code; `given` is its input."""
        self._run = run
        self.input: I = given
        self.flow_id: str = run.flow_id
        self.run: int = number
        self.meta: Mapping[str, Any] = run.around.meta
        self.correlation_id: str = run.around.correlation_id
        self._state: Any = None
        self._log: Logger | None = None

    # Calls.

    @overload
    def step(self, call: Task[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[R]: ...
    @overload
    def step(
        self, call: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[R]: ...
    @overload
    def step(self, call: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[R]: ...

    def step(self, call: Any, /, *args: Any, **kwargs: Any) -> Awaitable[Any]:
        """Run a task, or any function, as a step; awaiting it returns its result, which is recorded once.

        It runs at least once: a worker that dies in it makes another one run it again. The arguments are not
        recorded. What it raises after its last attempt is raised here as a HandlerError, a declared error as
        itself, also in the run in which it happened. Raises DefinitionError for what is no function or has no
        name, and for a task whose retry rule contradicts the declared errors.
        """
        scope = self._run.scope("step")
        made: StepCall[Any] = StepCall(self._run, scope, self._task_of(call), args, kwargs)
        return scope.expect(made)  # made without `[Any]`, which costs as much as the rest of the call

    def sleep(self, delay: Duration) -> Awaitable[None]:
        """Sleep, in seconds, as a timedelta or a text such as "3 days". No worker waits meanwhile."""
        scope = self._run.scope("sleep")
        delay_ms = round(seconds(delay, setting="the delay of ctx.sleep") * 1000)
        return scope.expect(SleepCall(self._run, scope, delay_ms))

    def wait_for(self, signal: Signal[T], *, timeout: Duration | None = None) -> Awaitable[T]:
        """Wait for a signal; awaiting it returns its payload. No worker waits meanwhile.

        A signal that came before is there at once. Signals of one name go to the waits in the order of both.
        A payload that does not fit its type is recorded as refused, and the wait goes on. Raises TimeoutError
        past `timeout`, and DefinitionError for a signal that the function does not declare, if it declares
        some.
        """
        if not isinstance(signal, Signal):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DefinitionError(f"expected a Signal to wait for, got: {shown(signal)}")
        self._run.durable.check_signal(signal.name)
        limit = None if timeout is None else seconds(timeout, setting="the timeout of ctx.wait_for")
        scope = self._run.scope("wait_for")
        limit_ms = None if limit is None else round(limit * 1000)
        made: WaitCall[T] = WaitCall(self._run, scope, signal, limit_ms)
        return scope.expect(made)

    @overload
    def emit(
        self, event: Event[_PAYLOAD, R], payload: _PAYLOAD, **options: Unpack[EmitKeywords]
    ) -> Awaitable[R]: ...
    @overload
    def emit(self, event: str, payload: Any = ..., **options: Unpack[EmitKeywords]) -> Awaitable[Any]: ...

    def emit(self, event: Any, payload: Any = None, **options: Any) -> Awaitable[Any]:
        """Emit an event once. Await it for the outcome; without await nobody waits for that.

        Its idempotency key follows from the position, unless you give another one. An emission that is not
        awaited is sent before the next call of the same code.
        """
        scope = self._run.scope("emit")
        return EmitCall(self._run, scope, event, payload, options)

    @overload
    def flow(
        self, workflow: FlowDefinition[I2, T], input: I2, *, timeout: Duration | None = ...
    ) -> Awaitable[T]: ...
    @overload
    def flow(
        self, workflow: type[MachineClass[I2]], input: I2, *, timeout: Duration | None = ...
    ) -> Awaitable[Any]: ...
    def flow(
        self,
        workflow: AnyWorkflow[Any, Any],
        input: Any,  # noqa: A002  (as the workflow calls it)
        *,
        timeout: Duration | None = None,
    ) -> Awaitable[Any]:
        """Run a flow of another workflow, of any kind, as a part of this one; awaiting it returns its output.

        The input of a state machine is its first state. It runs anywhere in the fleet, and no worker waits
        for it. It has the meta and the correlation id of this flow. `timeout` overrides that of the workflow
        (0: none). If this flow stops later, what a completed one did is undone, too; a failed one has undone
        it itself. Raises the error of the flow as its caller gets it: StepError, a declared error,
        FlowTimeout, FlowCancelled. Raises DefinitionError for a workflow that is not registered, and
        PayloadError.
        """
        scope = self._run.scope("flow")
        return scope.expect(FlowCall(self._run, scope, workflow, input, timeout))

    @overload
    def map(
        self,
        call: Task[[S], R],
        items: Iterable[S],
        *,
        limit: int = ...,
        local: bool = ...,
        return_exceptions: Literal[False] = ...,
    ) -> Awaitable[list[R]]: ...
    @overload
    def map(
        self,
        call: Task[[S], R],
        items: Iterable[S],
        *,
        limit: int = ...,
        local: bool = ...,
        return_exceptions: bool,
    ) -> Awaitable[list[R | Exception]]: ...

    def map(
        self,
        call: Task[[S], Any],
        items: Iterable[S],
        *,
        limit: int = 20,
        local: bool = False,
        return_exceptions: bool = False,
    ) -> Awaitable[Any]:
        """Call a task with each item, at most `limit` at a time; awaiting it returns the results in the order
        of the items.

        The calls are jobs, which any worker of this function runs; with `local` this worker runs them. Each
        is recorded, has the retries and the timeout of the task, and owes its rollback when it has completed.
        Items of jobs are JSON. After an error no further call begins; when those that run have ended, the
        error of the lowest item is raised. With `return_exceptions` errors are values, and all items are
        called. Raises DefinitionError, and PayloadError for an item.
        """
        scope = self._run.scope("map")
        return scope.expect(
            MapCall(
                self._run,
                scope,
                self._task_of(call),
                items,
                limit=limit,
                is_local=local,
                keeps_errors=return_exceptions,
            )
        )

    @overload
    def gather(  # pyright: ignore[reportOverlappingOverload]
        self, one: Awaitable[T1], two: Awaitable[T2], /, *, return_exceptions: Literal[False] = ...
    ) -> Awaitable[tuple[T1, T2]]: ...
    @overload
    def gather(
        self,
        one: Awaitable[T1],
        two: Awaitable[T2],
        three: Awaitable[T3],
        /,
        *,
        return_exceptions: Literal[False] = ...,
    ) -> Awaitable[tuple[T1, T2, T3]]: ...
    @overload
    def gather(
        self,
        one: Awaitable[T1],
        two: Awaitable[T2],
        three: Awaitable[T3],
        four: Awaitable[T4],
        /,
        *,
        return_exceptions: Literal[False] = ...,
    ) -> Awaitable[tuple[T1, T2, T3, T4]]: ...
    @overload
    def gather(self, *calls: Awaitable[T], return_exceptions: Literal[False] = ...) -> Awaitable[list[T]]: ...
    @overload
    def gather(self, *calls: Awaitable[T], return_exceptions: bool) -> Awaitable[list[T | Exception]]: ...

    def gather(self, *calls: Any, return_exceptions: bool = False) -> Awaitable[Any]:
        """Run calls and coroutines side by side and wait for all; awaiting it returns their values in order.

        The error of the lowest position is raised, after all have ended; with `return_exceptions` errors are
        values. A coroutine is a branch with positions of its own. Branches must not share variables that they
        change.

        Raises UsageError for a call that belongs to another group, and for one that lost a race.
        """
        scope = self._run.scope("gather")
        return scope.expect(Gather(self._run, scope, calls, keeps_errors=return_exceptions))

    def race(self, *calls: Awaitable[T]) -> Awaitable[Winner[T]]:
        """Run calls and coroutines side by side until the first one ends; returns its number, from 0, and its
        value.

        The winner is recorded. The steps of the others are cancelled, and their waits forgotten; they cannot
        be awaited any more. Raises the error of the winner, and UsageError as `gather` does.
        """
        scope = self._run.scope("race")
        return scope.expect(Race(self._run, scope, calls))

    def rollback(self, undo: Task[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Have a task run, at least once, if the flow stops from now on; it belongs to no step.

        The arguments are JSON. Raises DefinitionError for what is no task: other processes could not find it.
        """
        if (
            not isinstance(undo, Task)  # pyright: ignore[reportUnnecessaryIsInstance]
            or "<lambda>" in undo.key
        ):
            raise DefinitionError(
                f"expected a function that is decorated with @task in ctx.rollback, got: {shown(undo)}; "
                "another process must find it"
            )
        text = Codec(Any, role="payload", owner=undo.name, max_bytes=self._run.max_bytes).encode(
            [list(args), dict(kwargs)]
        )
        entry = self._note("rollback", undo.name)
        if entry is not None:
            self._run.outbox.append(msgspec.structs.replace(entry, result=msgspec.Raw(text), undo=undo.key))

    def patched(self, name: str) -> bool:
        """Tell whether this flow runs the new code of a change: true unless the flow was here before the
        change.

        Write `if ctx.patched("fraud-check"): new else: old`. The answer is recorded.
        """
        run, scope = self._run, self._run.scope("patched")
        position = scope.position(scope.count)
        if self._has_patch(scope, name):
            scope.take()
            return True
        if run.history.highest(scope.name) >= scope.count or run.history.has_loose(scope.name, scope.count):
            return False
        scope.take()
        run.outbox.append(Entry(kind="patch", place=position, name=name, started_ms=run.now_ms))
        return True

    def retired(self, name: str) -> None:
        """Say that all flows run the new code of a change: remove `patched(name)`, and put this in
        its place.
        """
        scope = self._run.scope("retired")
        if self._has_patch(scope, name):
            scope.take()

    def continue_as_new(self, input: I) -> NoReturn:  # noqa: A002  (the word of the glossary)
        """Start the function again from its top with another input and an empty history; the flow stays the
        same one.

        Rollbacks that are known so far are forgotten. Signals that no wait has taken stay. Raises
        PayloadError for an input that does not fit, and UsageError in a branch.
        """
        if self._run.scope("continue_as_new").name:
            raise UsageError("ctx.continue_as_new is for the function itself; return from the branch first")
        raise ContinueAsNew(self._run.codecs.input.encode(input))

    # What is no call.

    @property
    def state(self) -> Any:
        """The live state of the flow, of the type `state` of the definition; None before it is set.

        Set it to show where the flow is: `FlowHandle.state()` reads it in any process. It goes out with the
        next record. Setting it raises PayloadError for a value that does not fit.
        """
        return self._state

    @state.setter
    def state(self, value: Any) -> None:
        scope = self._run.scope("state")
        self._run.live["state"] = self._run.codecs.state.encode(value).decode()
        self._state = value
        scope.has_news = True

    def now(self) -> datetime:
        """Return the time of the last recorded call, in UTC; it is the same in each replay."""
        return datetime.fromtimestamp(self._run.scope("now").mark.time_ms / 1000, UTC)

    @property
    def random(self) -> random.Random:
        """Random numbers; they are the same in each replay, and others in each branch and flow."""
        return self._run.scope("random").random

    def uuid(self) -> uuid.UUID:
        """Return a new id; it is the same in each replay."""
        return self._run.scope("uuid").uuid()

    @property
    def history_is_long(self) -> bool:
        """Whether the flow has recorded 80 % of what it may; then `continue_as_new`."""
        run = self._run
        return run.is_long(run.scope("history_is_long"))

    @property
    def log(self) -> Logger:
        """A structlog logger bound to the flow; it is silent while the code repeats what is recorded."""
        if self._run.is_repeating(self._run.scope("log")):
            return SILENT
        if self._log is None:
            around = self._run.around
            trace = trace_facts(trace_id_of(around.traceparent))
            self._log = get_logger("workflows.flow").bind(**around.facts, **trace)
        return self._log

    def keep_line(self, line: str) -> None:
        """Keep a log line with the job of this flow, as `EventContext.keep_line` does; return at once.

        Silent while the code repeats what is recorded, as `log` is. Inline it does nothing.
        """
        if not self._run.is_repeating(self._run.scope("keep_line")):
            self._run.around.own.keep_line(line)

    @property
    def worker(self) -> str:
        """The id of the worker that runs the code now, as in log events and in reports of jobs; empty inline.

        A replay may have another one, so let nothing depend on it but what people read.
        """
        return self._run.around.worker

    @property
    def _lifespans(self) -> HasLifespans:
        return self._run.around.tools

    def _has_patch(self, scope: Scope, name: str) -> bool:
        history, position = self._run.history, scope.position(scope.count)
        history.recall(position, "patch", name)
        entry = history.at(position)
        return entry is not None and (entry.kind, entry.name) == ("patch", name)

    def _task_of(self, call: Any) -> Task[..., Any]:
        task, durable = as_task(call), self._run.durable
        check_rule(task, durable.where, durable.errors, durable.retry_on)
        return task

    def _note(self, family: str, name: str) -> Entry | None:
        """Take a position for something that is not awaited; return its entry if it is not recorded yet."""
        run, scope = self._run, self._run.scope(family)
        position = scope.take()
        run.history.recall(position, family, name)
        entry = run.history.at(position)
        if entry is None and run.history.highest(scope.name) < scope.count:
            return Entry(kind=family, place=position, name=name, started_ms=run.now_ms)
        if entry is None or (family_of(entry), entry.name) != (family, name):
            found = entry or run.history.first_from(scope.name, scope.count - 1)
            raise run.mismatch(position, found, f"{family} {name!r}")
        return None
