"""Steps that run for each item of a list: their definition, their items as steps, and their results.

    over (a step or a function) -> the list of items, recorded once
                                -> `step[0]`, `step[1]`, ..., at most `at_once` at a time
                                -> the list of their results, recorded as the result of the step

An item is a step of its own in all but the definition: it has its attempts, its records and its rollback, and
its name is that of the step with its number. So whoever runs or undoes a graph treats it as any other step.

What must always hold: the items are recorded before the first of them begins, so that each run of the flow
has the same ones; items begin in order; the step ends after all of them. If the step is spread, each item is
a job of its own, but the worker of the flow lists them: no job is a step with all of its items.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Generic, Literal, TypeAlias, TypeVar, Unpack, cast, overload

import msgspec
from msgspec import UNSET, UnsetType

from eventbus import DefinitionError, PayloadError, Retry
from eventbus.lowlevel import Duration, check_options, shown
from workflows.definition.checks.options import OnFailure, check_concurrency
from workflows.definition.checks.signature import accepts, check_context, check_function, taken_by, told
from workflows.definition.context import StepContext, codecs_of
from workflows.definition.keywords import EachKeywords
from workflows.definition.step import RollbackDecorator, Step
from workflows.definition.step_graph import After, StepGraph
from workflows.errors import StepFailed
from workflows.records.ids import item_name
from workflows.records.records import StepRecord

I = TypeVar("I")  # noqa: E741  (input)
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

MOST_ITEMS = 10_000
_MOST_BYTES = 8 << 20  # of all items or results; one call to the server has 16 MiB
_AT_ONCE = 10

Over: TypeAlias = "Step[Any, Any] | str | Callable[[StepContext[I]], Any]"
"""What gives the items: an earlier step or its name, or a function of the context."""


class EachStep(Step[I, R]):
    """A step that runs for each item of a list; `R` is the type of its result, which is a list.

    `over` is the name of the step that gives the items, or a function of the context. At most `at_once` items
    run at a time. `keeps_failures` tells that failed items do not stop the flow. Do not change the
    attributes.
    """

    is_each: bool = True
    takes: tuple[str, ...] = ("the context", "the item")
    undo_takes: tuple[str, ...] = ("the context", "the item", "the result of the item")

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        over: str | Callable[..., Any],
        at_once: int,
        on_failure: OnFailure,
        owner: str,
        **options: Any,
    ) -> None:
        """Use `Workflow.each` instead; it explains the options."""
        super().__init__(function, owner=owner, on_failure=on_failure, **options)
        self.over: str | Callable[..., Any] = over
        self.at_once: int = check_concurrency(at_once, self.where, option="at_once") or _AT_ONCE
        self.keeps_failures: bool = on_failure == "ignore"
        self.on_failure: OnFailure = "fail"  # of the step itself: an error of `over` always counts
        if callable(over):
            check_function(over, f"the `over` of {self.where}", "the context")

    @property
    def item(self) -> Any:
        """The type of an item: the annotation of the second parameter, `Any` without one."""
        found = taken_by(self.function, 1)
        return Any if isinstance(found, (str, TypeVar)) else found

    @property
    def result(self) -> Any:
        """The type of the result: a list of the results of the items."""
        return list[self.item_result]

    def __call__(self, ctx: StepContext[I], item: Any = None, /) -> Any:
        """Call the function with one item, without condition and retries; nothing is recorded."""
        return self.function(ctx, item)

    @overload
    def rollback(self, function: F, /) -> F: ...
    @overload
    def rollback(
        self, function: None = None, /, *, retry: Retry | None = ..., timeout: Duration | None = ...
    ) -> Callable[[F], F]: ...

    def rollback(  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        retry: Retry | None = None,
        timeout: Duration | None = None,
    ) -> Any:
        """Make the decorated function the rollback of an item: `rollback(ctx, item, result)`.

        It runs for each item that completed, the last one first. Options and errors are those of
        `Step.rollback`.
        """
        decorator: Any = RollbackDecorator(self, retry, timeout)
        return decorator if function is None else decorator(function)

    def _check_contexts(self) -> None:
        super()._check_contexts()
        if callable(self.over):
            check_context(self.over, f"the `over` of {self.where}", self._input_type)

    def _check_undo(self, function: Callable[..., Any]) -> None:
        where = f"the rollback of {self.where}"
        if self.owner:
            check_context(function, where, self._input_type)
        for index, given in ((1, self.item), (2, self.item_result)):
            if not accepts(wanted := taken_by(function, index), given):
                raise DefinitionError(
                    f"{where} takes {told(wanted)}, but the {'item' if index == 1 else 'result'} is "
                    f"{told(given)}; annotate its parameter number {index + 1} as {told(given)}"
                )


class EachDecorator(Generic[I]):
    """The decorator that `Workflow.each(...)` returns: it makes a step of the function."""

    def __init__(self, graph: StepGraph[I], after: After | UnsetType, options: dict[str, Any]) -> None:
        self._graph = graph
        self._after: After | UnsetType = after
        self._options = options

    @overload
    def __call__(  # pyright: ignore[reportOverlappingOverload]
        self, function: Callable[[StepContext[I], Any], Coroutine[Any, Any, R]], /
    ) -> EachStep[I, list[R]]: ...
    @overload
    def __call__(self, function: Callable[[StepContext[I], Any], R], /) -> EachStep[I, list[R]]: ...

    def __call__(self, function: Callable[..., Any], /) -> Any:
        """Make `function` the step. Raises DefinitionError as `Workflow.each` says."""
        return _add(self._graph, function, self._after, self._options)


class FailuresDecorator(Generic[I]):
    """The decorator of a step whose failed items are ignored: they have a StepFailed in its result."""

    def __init__(self, made: EachDecorator[I]) -> None:
        self._made = made

    @overload
    def __call__(  # pyright: ignore[reportOverlappingOverload]
        self, function: Callable[[StepContext[I], Any], Coroutine[Any, Any, R]], /
    ) -> EachStep[I, list[R | StepFailed]]: ...
    @overload
    def __call__(
        self, function: Callable[[StepContext[I], Any], R], /
    ) -> EachStep[I, list[R | StepFailed]]: ...

    def __call__(self, function: Callable[..., Any], /) -> Any:
        """Make `function` the step. Raises DefinitionError as `Workflow.each` says."""
        return self._made(function)


class EachSteps(Generic[I]):
    """The method of a workflow that adds a step for each item of a list."""

    name: str
    _graph: StepGraph[I]

    @overload
    def each(
        self,
        *,
        over: Over[I],
        at_once: int = ...,
        on_failure: Literal["fail"] = ...,
        after: After | UnsetType = ...,
        **options: Unpack[EachKeywords[I]],
    ) -> EachDecorator[I]: ...
    @overload
    def each(
        self,
        *,
        over: Over[I],
        at_once: int = ...,
        on_failure: Literal["ignore"],
        after: After | UnsetType = ...,
        **options: Unpack[EachKeywords[I]],
    ) -> FailuresDecorator[I]: ...

    def each(
        self,
        *,
        over: Any,
        at_once: int = _AT_ONCE,
        on_failure: OnFailure = "fail",
        after: After | UnsetType = UNSET,
        **options: Unpack[EachKeywords[I]],
    ) -> Any:
        """Make the decorated function a step that runs for each item of a list: `function(ctx, item)`.

        `over` gives the list, at most 10,000 items: an earlier step, its name, or a function of the context.
        At most `at_once` items run at a time. The result is the list of the items' results, in order. Each
        item has its own attempts (`retry`, `timeout`), its own record and its own rollback:
        `rollback(ctx, item, result)`. `ctx.step` names the step and the number of the item, such as
        `convert[3]`. The first item that fails for good stops the flow; with `on_failure="ignore"` a
        StepFailed is in its place in the result instead. With `spread` each item is a job of its own, which
        any worker of the fleet takes. The other options are those of `step`; `when` is asked once, before
        `over`.

        Raises DefinitionError as `step` does.
        """
        check_options(options, EachKeywords, f"an each step of workflow {self.name!r}")
        given: dict[str, Any] = {**options, "over": over, "at_once": at_once, "on_failure": on_failure}
        decorator = EachDecorator(self._graph, after, given)
        return decorator if on_failure != "ignore" else FailuresDecorator(decorator)


def _add(
    graph: StepGraph[Any], function: Callable[..., Any], after: After | UnsetType, options: dict[str, Any]
) -> EachStep[Any, Any]:
    options = dict(options)
    over = options.pop("over")
    if isinstance(over, Step):
        over = graph.find(over).name
    elif not isinstance(over, str) and not callable(over):
        raise DefinitionError(
            f"expected `over` of an each step of workflow {graph.name!r} to be a step, "
            f"its name or a function, got: {shown(over)}"
        )
    made = EachStep[Any, Any](function, over=over, owner=graph.name, **options)
    if isinstance(over, str) and over not in graph.steps:
        raise DefinitionError(
            f"{made.where} runs over step {over!r}, which workflow {graph.name!r} does not have yet; "
            "define it before"
        )
    needs = graph.resolve(after, made.where)
    if isinstance(over, str):
        needs = tuple(dict.fromkeys((*needs, over)))
    graph.add(made, needs)
    return made


def make_item(step: EachStep[Any, Any], index: int, item: msgspec.Raw) -> Step[Any, Any]:
    """Return the step that runs one item, which is JSON."""

    def read(ctx: StepContext[Any]) -> Any:
        return codecs_of(ctx).item(step.name).decode(memoryview(item))

    made = cast("Step[Any, Any]", copy.copy(step))
    made.name, made.when = item_name(step.name, index), None
    made.__class__ = Step  # it runs as any other step
    made.on_failure = "ignore" if step.keeps_failures else "fail"

    def run(ctx: StepContext[Any]) -> Any:
        return step.function(ctx, read(ctx))

    made.function = run
    undo = step.undo
    if undo is not None:

        def roll_back(ctx: StepContext[Any], result: Any) -> Any:
            return undo(ctx, read(ctx), result)

        made.undo = roll_back
    return made


def read_items(step: EachStep[Any, Any], value: Any, ctx: StepContext[Any]) -> bytes:
    """Return the items of a step as JSON. Raises PayloadError for what is no list, and for an item of another
    type.
    """
    where = f"the `over` of {step.where}"
    if not isinstance(value, (list, tuple)):
        raise PayloadError(f"expected {where} to give a list, got: {shown(value)}")
    items = cast("Sequence[Any]", value)
    if len(items) > MOST_ITEMS:
        raise PayloadError(
            f"expected {where} to give at most {MOST_ITEMS} items, got: {len(items)}; "
            "put several into one item"
        )
    codec = codecs_of(ctx).item(step.name)
    found: list[bytes] = []
    for index, item in enumerate(items):
        try:
            found.append(codec.encode(item))
        except PayloadError as error:
            raise PayloadError(f"item {index} of {where} cannot be used: {error}") from error
    return _joined(found, where)


def join_results(step: EachStep[Any, Any], records: Sequence[StepRecord]) -> bytes:
    """Return the result of a step as JSON, from the records of its items. Raises PayloadError if it is too
    large.
    """
    if step.keeps_failures:
        return _joined([msgspec.json.encode(each) for each in records], f"the result of {step.where}")
    return _joined([bytes(each.result) for each in records], f"the result of {step.where}")


def _joined(texts: Sequence[bytes], what: str) -> bytes:
    text = b"[" + b",".join(texts) + b"]"
    if len(text) > _MOST_BYTES:
        raise PayloadError(f"expected {what} to have at most {_MOST_BYTES} bytes, got: {len(text)} bytes")
    return text
