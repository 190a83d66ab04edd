"""Durable functions: a workflow that is an async function, with its name, its types and its defaults.

Not here: running it (`functions.function_run`).

What must always hold: a definition that exists can run: its types can be converted, and its options are
valid.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from msgspec import UNSET, UnsetType

from eventbus import DefinitionError, Keep, Limit, Retry
from eventbus.lowlevel import Codec, Duration, KeepGiven, check_keep, is_answer, shown
from workflows.definition.checks.declared_errors import check_declared
from workflows.definition.checks.options import check_concurrency, check_limit, check_retry, check_timeout
from workflows.definition.checks.signature import (
    accepts,
    check_function,
    is_async,
    returned_by,
    taken_by,
    told,
)
from workflows.definition.codecs import MAX_VALUE
from workflows.definition.flow_definition import FlowDefinition, FlowKind
from workflows.definition.signal import Signal, check_known
from workflows.definition.type_checks import check_version
from workflows.records.ids import check_workflow_name

if TYPE_CHECKING:
    from workflows.functions.context import FlowContext

__all__ = ["MAX_ENTRIES", "MAX_HISTORY_BYTES", "Durable", "DurableCodecs", "DurableDecorator", "durable"]

I = TypeVar("I")  # noqa: E741  (input)
O = TypeVar("O")  # noqa: E741  (output)
I2 = TypeVar("I2")
O2 = TypeVar("O2")

MAX_ENTRIES = 10_000
"""The entries that one run of a function may record; then `HistoryFull` is raised in it."""

MAX_HISTORY_BYTES = 16 << 20
"""The bytes that these entries may have."""

_CONTEXT = "FlowContext"  # by name: the class itself stands above this module


class Durable(FlowDefinition[I, O]):
    """A durable function, as a definition. To run its flows, register it with a WorkflowProvider.

    `input`, `output` and `state` are types. `retry` applies to tasks without a rule of their own. `timeout`
    is in seconds, None for none. `errors` are the declared errors, and `signals` the declared signals by
    name, None if any is accepted. Do not change the attributes.
    """

    _kind: ClassVar[FlowKind] = "function"

    def __init__(
        self,
        function: Callable[[FlowContext[I]], Coroutine[Any, Any, O]],
        name: str,
        *,
        output: Any = UNSET,
        state: Any = Any,
        errors: Sequence[type[Exception]] = (),
        retry_on: Sequence[type[Exception]] = (),
        signals: Sequence[Signal[Any]] | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        concurrency: int | None = None,
        limit: Limit | None = None,
        keep_completed: KeepGiven | None = None,
        keep_failed: KeepGiven | None = None,
        version: str = "1",
        max_history: int = MAX_ENTRIES,
    ) -> None:
        """Use `durable(...)` instead; it explains the options."""
        self.name: str = check_workflow_name(name)
        self.function: Callable[[FlowContext[I]], Coroutine[Any, Any, O]] = function
        check_function(function, self.where, "the context")
        if not is_async(function):
            raise DefinitionError(f"{self.where} is a plain function; make it `async def`")
        self.input: Any = _input_of(function, self.where)
        self.output: Any = _output_of(function, output, self.where)
        self.state: Any = state
        self.retry: Retry = check_retry(retry, self.where) or Retry()
        declared = check_declared({"errors": errors, "retry_on": retry_on}, self.retry, self.where)
        self.errors: tuple[type[Exception], ...] = declared[0]
        self.retry_on: tuple[type[Exception], ...] = declared[1]
        self.timeout: float | None = check_timeout(timeout, self.where)
        self.concurrency: int | None = check_concurrency(concurrency, self.where)
        self.limit: Limit | None = check_limit(limit, self.where)
        self.keep_completed: Keep | None = check_keep("keep_completed", keep_completed, self.where)
        self.keep_failed: Keep | None = check_keep("keep_failed", keep_failed, self.where)
        self.signals: dict[str, Signal[Any]] | None = _check_signals(signals, self.where)
        self._version: str = check_version(version, self.where) or "1"
        self.max_history: int = _check_history(max_history, self.where)
        DurableCodecs(self)  # raises for a type that cannot be converted

    @property
    def where(self) -> str:
        """The name of the function in messages."""
        return f"durable function {self.name!r}"

    def check_signal(self, name: str) -> Signal[Any] | None:
        """Return the declared signal of this name; None if signals are not declared. Raises
        DefinitionError.
        """
        if self.signals is None:
            return None
        check_known(name, self.signals, self.where)
        return self.signals[name]

    def is_answer(self, error: BaseException) -> bool:
        """Tell whether `error` is a declared error that is not retried."""
        return is_answer(error, self.errors, self.retry_on)

    def __call__(self, ctx: FlowContext[I], /) -> Coroutine[Any, Any, O]:
        """Call the function as a part of another durable function, with the context of that one."""
        return self.function(ctx)

    def __repr__(self) -> str:
        return f"Durable({self.name!r})"


class DurableCodecs:
    """The codecs of one durable function for one size limit."""

    def __init__(self, durable: Durable[Any, Any], *, max_bytes: int = MAX_VALUE) -> None:
        """Make them. Raises DefinitionError for a type that cannot be converted."""
        name = durable.name
        self.max_bytes = max_bytes
        self.input: Codec = Codec(durable.input, role="payload", owner=name, max_bytes=max_bytes)
        self.output: Codec = Codec(durable.output, role="result", owner=name, max_bytes=max_bytes)
        self.state: Codec = Codec(durable.state, role="progress", owner=name, max_bytes=max_bytes)


class DurableDecorator:
    """The decorator that `durable(...)` returns; it returns the definition."""

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        self._name = name
        self._options = options

    def __call__(self, function: Callable[[FlowContext[I2]], Coroutine[Any, Any, O2]], /) -> Durable[I2, O2]:
        """Make the definition. Raises DefinitionError as `durable` says."""
        return Durable(function, self._name, **self._options)


def durable(
    name: str,
    *,
    output: Any = UNSET,
    state: Any = Any,
    errors: Sequence[type[Exception]] = (),
    retry_on: Sequence[type[Exception]] = (),
    signals: Sequence[Signal[Any]] | None = None,
    retry: Retry | None = None,
    timeout: Duration | None = None,
    concurrency: int | None = None,
    limit: Limit | None = None,
    keep_completed: KeepGiven | None = None,
    keep_failed: KeepGiven | None = None,
    version: str = "1",
    max_history: int = MAX_ENTRIES,
) -> DurableDecorator:
    """Make an async function a durable one: `async def order(ctx: FlowContext[Order]) -> Receipt`.

    A flow of it records each call of `ctx`. After a crash or a sleep the function runs again from its top,
    and recorded calls return at once what they returned before. So between these calls the code must do the
    same each time.

    The input type is that of the annotation `FlowContext[...]`. `output` is by default the annotated return
    type; `state` is the type of `ctx.state`. Types are those that msgspec converts, or pydantic models.
    `errors` are the declared errors: awaiting a flow raises them as themselves. They are answers, so a task
    that raises one is not retried, unless the error is in `retry_on` too. `signals` are those that it waits
    for: then a process that has this definition sends no other ones, and the function waits for no other;
    None accepts any. `retry` applies to tasks without a rule of their own (default: 3 attempts, exponential
    from 1 s). `timeout` bounds a whole flow; None or 0 is none. `concurrency` is the most flows of the
    function that one worker runs at a time, by default the provider's setting; a flow that sleeps or waits is
    not counted. Only workers that have a flow's `version` run it. `max_history` is the number of entries that
    a flow may record before `HistoryFull` is raised in it. `keep_completed` and `keep_failed` say how long
    ended flows are kept, as for an event.

    Raises DefinitionError for a value or a function that cannot be used.
    """
    options: dict[str, Any] = {
        "output": output,
        "state": state,
        "errors": errors,
        "retry_on": retry_on,
        "signals": signals,
        "retry": retry,
        "timeout": timeout,
        "concurrency": concurrency,
        "limit": limit,
        "keep_completed": keep_completed,
        "keep_failed": keep_failed,
        "version": version,
        "max_history": max_history,
    }
    return DurableDecorator(name, options)


def _input_of(function: Callable[..., Any], where: str) -> Any:
    """Return the type of the input from the annotation of the first parameter; `Any` without one."""
    hint = taken_by(function, 0)
    if isinstance(hint, str):
        raise DefinitionError(
            f"the annotation {hint!r} of {where} is not to be found from its module, so its input could not be "
            "read; define that type at the top level of a module, and import it outside of `if TYPE_CHECKING`"
        )
    if hint is Any:
        return Any
    kind = typing.get_origin(hint) or hint
    if not inspect.isclass(kind) or kind.__name__ != _CONTEXT:
        raise DefinitionError(
            f"the first parameter of {where} is annotated as {told(hint)}, but it gets the context; "
            f"annotate it as {_CONTEXT}[...]"
        )
    (given,) = typing.get_args(hint) or (Any,)
    return Any if isinstance(given, typing.TypeVar) else given


def _output_of(function: Callable[..., Any], output: Any, where: str) -> Any:
    returned = returned_by(function)
    if isinstance(output, UnsetType):
        if isinstance(returned, str):
            raise DefinitionError(
                f"the return type {returned!r} of {where} is not to be found from its module; define that type "
                "at the top level of a module, or give it as output=..."
            )
        return returned
    if not accepts(output, returned, exact=True):
        raise DefinitionError(
            f"{where} returns {told(returned)}, but its output is {told(output)}; make them the same"
        )
    return output


def _check_signals(signals: Sequence[Signal[Any]] | None, where: str) -> dict[str, Signal[Any]] | None:
    if signals is None:
        return None
    found: dict[str, Signal[Any]] = {}
    for signal in signals:
        if not isinstance(signal, Signal):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DefinitionError(f"expected signals of {where} to be Signals, got: {shown(signal)}")
        if found.setdefault(signal.name, signal) is not signal:
            raise DefinitionError(f"{where} declares two signals {signal.name!r}; rename one of them")
    return found


def _check_history(most: object, where: str) -> int:
    if isinstance(most, int) and not isinstance(most, bool) and 10 <= most <= 100_000:
        return most
    raise DefinitionError(
        f"expected max_history of {where} to be a whole number from 10 to 100,000, got: {shown(most)}"
    )
