"""Steps: the named, recorded units of a workflow, each with its rollback and its options.

Not here: the order of steps (`definition.step_graph`, `definition.plan`), and running them
(`execution.step_runner`).

What must always hold: the options of every step are valid, and its durations are seconds as floats. A step
belongs to at most one workflow: one that `step(...)` made has no owner until it is added to a workflow.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar, Unpack, cast, overload

from eventbus import DefinitionError, Limit, Retry
from eventbus.lowlevel import Duration, check_options, shown
from workflows.definition.checks.options import (
    OnFailure,
    check_concurrency,
    check_flag,
    check_limit,
    check_on_failure,
    check_pool,
    check_retry,
    check_timeout,
)
from workflows.definition.checks.signature import (
    accepts,
    check_context,
    check_function,
    is_async,
    name_of,
    returned_by,
    taken_by,
    told,
)
from workflows.definition.context import StepContext
from workflows.definition.flow_definition import AnyDefinition
from workflows.definition.keywords import StepKeywords
from workflows.definition.outline import StepOutline
from workflows.definition.pause import Pause
from workflows.records.ids import check_step_name

I = TypeVar("I")  # noqa: E741  (the input of the workflow)
R = TypeVar("R")
T = TypeVar("T")


class Step(StepOutline[R], Generic[I, R]):
    """One step of a workflow. Calling it calls its function, so that it can be tested alone.

    `after` names the steps that it waits for. If `retry` is None, the workflow's rule applies; if `timeout`
    is None, there is none. `concurrency` is the most attempts of it that one worker runs at a time, None for
    no limit of its own; `limit` bounds it in the whole fleet. `pool` is where a plain function runs, None for
    an async one. `undo` is the rollback, with the options `undo_retry` and `undo_timeout`. `workflow` is the
    definition of the sub-workflow that the step runs, of any kind, or None, and `input(ctx)` returns the
    input of that one. With `spread` it is a job of its own. `pause` is what the step waits for, if that is
    all it does. `on_failure` is `"ignore"` if the flow goes on after its final failure. `owner` is the name
    of the workflow that the step belongs to. Do not change the attributes.
    """

    takes: tuple[str, ...] = ("the context",)
    undo_takes: tuple[str, ...] = ("the context", "the result of the step")
    is_each: bool = False
    keeps_saved: bool = False
    """Whether a retry by hand of the flow begins the step with what it saved before it failed."""

    def __init__(
        self,
        function: Callable[..., Any] | None,
        *,
        owner: str = "",
        workflow: AnyDefinition | None = None,
        input: Callable[..., Any] | None = None,  # noqa: A002  (the word of the glossary)
        pause: Pause | None = None,
        **options: Unpack[StepKeywords[Any]],
    ) -> None:
        """Use `step(...)`, `Workflow.step` or `Workflow.flow` instead; they explain the options."""
        if function is not None and not callable(function):
            place = f" of workflow {owner!r}" if owner else ""
            raise DefinitionError(f"expected a step{place} to be a function, got: {shown(function)}")
        self.owner: str = owner
        name = options.get("name")
        self.name: str = check_step_name(name_of(function) if name is None else name, owner)
        # A sub-workflow has no function: calling its step in a test must say so, not fail on None.
        self.function: Callable[..., Any] = self._refuse if function is None else function
        self.workflow: AnyDefinition | None = workflow
        self.input: Callable[..., Any] | None = input
        self.pause: Pause | None = pause
        check_function(self.function, self.where, *self.takes)
        self.is_async: bool = is_async(self.function)
        self.after: tuple[str, ...] = ()
        self.retry: Retry | None = check_retry(options.get("retry"), self.where)
        self.timeout: float | None = check_timeout(options.get("timeout"), self.where)
        self.concurrency: int | None = check_concurrency(options.get("concurrency"), self.where)
        self.limit: Limit | None = check_limit(options.get("limit"), self.where)
        self.when: Callable[..., Any] | None = options.get("when")
        if self.when is not None:
            check_function(self.when, f"the condition (when) of {self.where}", "the context")
        if input is not None:
            check_function(input, f"the input of {self.where}", "the context")
        self.rollback_on_failure: bool = check_flag(
            options.get("rollback_on_failure", False), "rollback_on_failure", self.where
        )
        self.pool: str | None = check_pool(options.get("pool"), self.where, is_async=self.is_async)
        self.spread: bool = check_flag(options.get("spread", False), "spread", self.where)
        self.on_failure: OnFailure = check_on_failure(options.get("on_failure", "fail"), self.where)
        self.undo: Callable[..., Any] | None = None
        self.undo_is_async = False
        self.undo_retry: Retry | None = None
        self.undo_timeout: float | None = None
        self._input_type: Any = Any

    @property
    def runs_apart(self) -> bool:
        """Whether a job of its own runs it even if its flow runs in one worker: it is spread or limited, or a
        sub-workflow.
        """
        return self.spread or self.limit is not None or self.workflow is not None

    @property
    def saved_as(self) -> str:
        """The name under which it saves; what begins with `kept/` stays for a retry by hand
        (`restart.lua`).
        """
        return f"kept/{self.name}" if self.keeps_saved else self.name

    @property
    def has_queue(self) -> bool:
        """Whether its jobs have a queue of their own: it has a limit, or a concurrency."""
        return self.limit is not None or self.concurrency is not None

    @property
    def result(self) -> Any:
        """The type of the result: the annotated return type (`Any` without one), or a sub-workflow's output.

        Raises DefinitionError if the annotation is the name of something that cannot be found.
        """
        if self.workflow is not None:
            return self.workflow.output
        if self.pause is not None:
            return self.pause.result
        return super().result

    def __call__(self, ctx: StepContext[I], /) -> Any:
        """Call the function of the step, without its condition and retries; nothing is recorded."""
        return self.function(ctx)

    def __repr__(self) -> str:
        owner = f" of {self.owner!r}" if self.owner else ""
        return f"<Step {self.name!r}{owner}>"

    @overload
    def rollback(self, function: Callable[[StepContext[I], R], T], /) -> Callable[[StepContext[I], R], T]: ...
    @overload
    def rollback(
        self, function: None = None, /, *, retry: Retry | None = ..., timeout: Duration | None = ...
    ) -> RollbackDecorator[I, R]: ...

    def rollback(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        retry: Retry | None = None,
        timeout: Duration | None = None,
    ) -> Any:
        """Make the decorated function the rollback of this step: `rollback(ctx, result)`.

        It runs, at least once, if the flow stops after this step completed. Its `retry` (default: the
        workflow's) and `timeout` (of one attempt) are separate from those of the step. Raises DefinitionError
        for a second rollback, and for a function that does not take the context and the step's result.
        """
        decorator = RollbackDecorator(self, retry, timeout)
        return decorator if function is None else decorator(function)

    def attach(self, owner: str, after: tuple[str, ...], input_type: Any) -> None:
        """Make this a step of the workflow `owner`, whose input is `input_type`.

        Raises DefinitionError, and changes nothing, if the step has another owner or does not fit.
        """
        if self.owner and self.owner != owner:
            raise DefinitionError(
                f"{self.where} cannot be a step of workflow {owner!r} too; "
                f"make another one: step({name_of(self.function)}, ...)"
            )
        before = self.owner
        self.owner, self._input_type = owner, input_type
        try:
            self._check_contexts()
        except DefinitionError:
            self.owner = before
            raise
        self.after = after

    def check(self) -> None:
        """Check all annotations again, because names that could not be resolved before may be known now."""
        self._check_contexts()
        if self.undo is not None:
            self._check_undo(self.undo)
        _ = self.result

    def _check_contexts(self) -> None:
        if self.workflow is None and self.pause is None:
            check_context(self.function, self.where, self._input_type)
        if self.when is not None:
            check_context(self.when, f"the condition (when) of {self.where}", self._input_type)
        if self.workflow is not None:
            self._check_nested(self.workflow)

    def _check_nested(self, nested: AnyDefinition) -> None:
        given, whose = self._input_type, "the input"
        if self.input is not None:
            check_context(self.input, f"the input of {self.where}", self._input_type)
            given, whose = returned_by(self.input), "what its `input` returns"
        if not accepts(nested.input, given):
            raise DefinitionError(
                f"{self.where} runs workflow {nested.name!r}, whose input is {told(nested.input)}, but "
                f"{whose} is {told(given)}; give an `input` function that returns {told(nested.input)}"
            )

    def _check_undo(self, function: Callable[..., Any]) -> None:
        where = f"the rollback of {self.where}"
        if self.owner:
            check_context(function, where, self._input_type)
        wanted, given = taken_by(function, 1), returned_by(self.function)
        if not accepts(wanted, given):
            raise DefinitionError(
                f"{where} takes {told(wanted)}, but the step returns {told(given)}; "
                f"annotate its second parameter as {told(given)}"
            )

    def _refuse(self, _ctx: StepContext[I], /) -> Any:
        what = f"runs workflow {self.workflow.name!r}" if self.workflow is not None else "only waits"
        raise DefinitionError(f"{self.where} {what} and cannot be called as a function")


class AsyncStep(Step[I, R]):
    """A step whose function is `async def`; calling it returns a coroutine."""

    def __call__(self, ctx: StepContext[I], /) -> Coroutine[Any, Any, R]:
        """Call the function of the step, without its condition and retries; nothing is recorded."""
        return self.function(ctx)


class SyncStep(Step[I, R]):
    """A step whose function is a plain `def`; flows run it in a thread. Calling it returns the result."""

    def __call__(self, ctx: StepContext[I], /) -> R:
        """Call the function of the step, without its condition and retries; nothing is recorded."""
        return self.function(ctx)


class RollbackDecorator(Generic[I, R]):
    """The decorator that `step.rollback(...)` returns; it returns the decorated function unchanged."""

    def __init__(self, step: Step[I, R], retry: Retry | None, timeout: Duration | None) -> None:
        self._step = step
        self._where = where = f"the rollback of {step.where}"
        self._retry = check_retry(retry, where)
        self._timeout = check_timeout(timeout, where)

    def __call__(self, function: Callable[[StepContext[I], R], T], /) -> Callable[[StepContext[I], R], T]:
        """Make `function` the rollback of the step. Raises DefinitionError as `Step.rollback` says."""
        step = self._step
        if step.workflow is not None:
            raise DefinitionError(
                f"{step.where} runs workflow {step.workflow.name!r}, which undoes its own steps; "
                "define rollbacks there"
            )
        if step.pause is not None:
            raise DefinitionError(
                f"{step.where} only waits, so there is nothing to undo: it can have no rollback"
            )
        if step.undo is not None:
            raise DefinitionError(
                f"{step.where} has a rollback already: {name_of(step.undo)}; it can have one, "
                f"so {name_of(function)} must become part of it"
            )
        check_function(function, self._where, *step.undo_takes)
        step._check_undo(function)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        step.undo, step.undo_is_async = function, is_async(function)
        step.undo_retry, step.undo_timeout = self._retry, self._timeout
        return function


@overload
def step(
    function: Callable[[StepContext[I]], Coroutine[Any, Any, R]],
    /,
    *,
    rollback: Callable[[StepContext[I], R], Any] | None = ...,
    **options: Unpack[StepKeywords[I]],
) -> AsyncStep[I, R]: ...
@overload
def step(
    function: Callable[[StepContext[I]], R],
    /,
    *,
    rollback: Callable[[StepContext[I], R], Any] | None = ...,
    **options: Unpack[StepKeywords[I]],
) -> SyncStep[I, R]: ...


def step(
    function: Callable[..., Any],
    /,
    *,
    rollback: Callable[..., Any] | None = None,
    **options: Unpack[StepKeywords[Any]],
) -> Step[Any, Any]:
    """Make a step of a function, for `Workflow.then` and `Workflow.parallel`.

    The options are those of `Workflow.step`; `rollback(ctx, result)` is the function that undoes the step.
    Raises DefinitionError for a value that cannot be used.
    """
    check_options(options, StepKeywords, "a step")
    made = make_step(function, **options)
    if rollback is not None:
        made.rollback(rollback)
    return made


def make_step(function: Callable[..., Any], **options: Any) -> Step[Any, Any]:
    """Return an AsyncStep for an `async def` function, and a SyncStep for a plain one."""
    kind = AsyncStep if is_async(function) else SyncStep
    return cast("Step[Any, Any]", kind(function, **options))
