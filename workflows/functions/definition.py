"""Durable functions: a workflow that is an async function, with its name, its types and its defaults.

Not here: the decorator (`functions.durable`), and running it (`functions.function_run`).

What must always hold: a definition that exists can run: its types can be converted, and its options are
valid.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, ClassVar, Generic, TypeVar, Unpack

from msgspec import UNSET, UnsetType

from eventbus import DefinitionError, Retry
from eventbus.lowlevel import Codec, is_answer, shown
from workflows.definition.checks.declared_errors import check_declared
from workflows.definition.checks.options import check_most, check_retry
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
from workflows.definition.keywords import DurableKeywords
from workflows.definition.signal import Signal, check_known
from workflows.records.ids import check_workflow_name

I = TypeVar("I")  # noqa: E741  (input)
O = TypeVar("O")  # noqa: E741  (output)

MAX_ENTRIES = 10_000
"""The entries that one run of a function may record; then `HistoryFull` is raised in it."""

MAX_HISTORY_BYTES = 16 << 20
"""The bytes that these entries may have."""


class CodeContext(Generic[I]):
    """The base of the context of a durable function (`functions.context`), which is made of a run of it."""

    __slots__ = ()


class Durable(FlowDefinition[I, O]):
    """A durable function, as a definition. To run its flows, register it with a WorkflowProvider.

    `input`, `output` and `state` are types. `retry` applies to tasks without a rule of their own. `timeout`
    is in seconds, None for none. `errors` are the declared errors, and `signals` the declared signals by
    name, None if any is accepted. Do not change the attributes.
    """

    _kind: ClassVar[FlowKind] = "function"

    def __init__(
        self, function: Callable[[Any], Coroutine[Any, Any, O]], name: str, **options: Unpack[DurableKeywords]
    ) -> None:
        """Use `durable(...)` instead; it explains the options."""
        self.name: str = check_workflow_name(name)
        self.function: Callable[[Any], Coroutine[Any, Any, O]] = function
        check_function(function, self.where, "the context")
        if not is_async(function):
            raise DefinitionError(f"{self.where} is a plain function; make it `async def`")
        self._version: str = self._take(options, DurableKeywords, self.where) or "1"
        self.input: Any = _input_of(function, self.where)
        self.output: Any = _output_of(function, options.get("output", UNSET), self.where)
        self.state: Any = options.get("state", Any)
        self.retry: Retry = check_retry(options.get("retry"), self.where) or Retry()
        declared = check_declared(options, self.retry, self.where)
        self.errors: tuple[type[Exception], ...] = declared[0]
        self.retry_on: tuple[type[Exception], ...] = declared[1]
        self.signals: dict[str, Signal[Any]] | None = _check_signals(options.get("signals"), self.where)
        self.max_history: int = check_most(options.get("max_history", MAX_ENTRIES), "max_history", self.where)
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

    def __call__(self, ctx: CodeContext[I], /) -> Coroutine[Any, Any, O]:
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


def _input_of(function: Callable[..., Any], where: str) -> Any:
    """Return the type of the input from the annotation of the first parameter; `Any` without one."""
    hint = taken_by(function, 0)
    if isinstance(hint, str):
        raise DefinitionError(
            f"the annotation {hint!r} of {where} is not to be found from its module, "
            "so its input could not be read; define that type at the top level of a module, "
            "and import it outside of `if TYPE_CHECKING`"
        )
    if hint is Any:
        return Any
    kind = typing.get_origin(hint) or hint
    if not inspect.isclass(kind) or CodeContext not in kind.__bases__:
        raise DefinitionError(
            f"the first parameter of {where} is annotated as {told(hint)}, but it gets the context; "
            "annotate it as FlowContext[...]"
        )
    (given,) = typing.get_args(hint) or (Any,)
    return Any if isinstance(given, typing.TypeVar) else given


def _output_of(function: Callable[..., Any], output: Any, where: str) -> Any:
    returned = returned_by(function)
    if isinstance(output, UnsetType):
        if isinstance(returned, str):
            raise DefinitionError(
                f"the return type {returned!r} of {where} is not to be found from its module; "
                "define that type at the top level of a module, or give it as output=..."
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
