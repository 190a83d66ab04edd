"""Steps: the named, recorded units of a workflow, each with its rollback and its options.

Not here: the order of steps (`definition.step_graph`, `definition.plan`), and running them
(`execution.step_runner`).

What must always hold: the options of every step are valid, and its durations are seconds as floats. A step
belongs to at most one workflow: one that `step(...)` made has no owner until it is added to a workflow.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, overload

from eventbus import DefinitionError, Retry
from eventbus.lowlevel import Duration, seconds, shown
from workflows.definition.signature import (
    accepts,
    check_context,
    check_function,
    is_async,
    name_of,
    returned_by,
    taken_by,
    told,
)
from workflows.records.ids import check_step_name

if TYPE_CHECKING:
    from workflows.definition.context import StepContext
    from workflows.definition.workflow import Workflow

__all__ = ["AsyncStep", "Step", "SyncStep", "check_retry", "check_timeout", "make_step", "step"]

I = TypeVar("I")  # noqa: E741  (the input of the workflow)
R = TypeVar("R")
T = TypeVar("T")


class Step(Generic[I, R]):
    """One step of a workflow. Calling it calls its function, so that it can be tested alone.

    `after` names the steps that it waits for. If `retry` is None, the workflow's rule applies; if `timeout`
    is None, there is none. `undo` is the rollback, with the options `undo_retry` and `undo_timeout`.
    `workflow` is the sub-workflow that the step runs, or None, and `input(ctx)` returns the input of that
    one. `owner` is the name of the workflow that the step belongs to. Do not change the attributes.
    """

    def __init__(
        self,
        function: Callable[..., Any] | None,
        *,
        name: str | None = None,
        owner: str = "",
        retry: Retry | None = None,
        timeout: Duration | None = None,
        when: Callable[..., Any] | None = None,
        rollback_on_failure: bool = False,
        workflow: Workflow[Any, Any] | None = None,
        input: Callable[..., Any] | None = None,  # noqa: A002  (the word of the glossary)
    ) -> None:
        """Use `step(...)`, `Workflow.step` or `Workflow.flow` instead; they explain the options."""
        if function is not None and not callable(function):
            place = f" of workflow {owner!r}" if owner else ""
            raise DefinitionError(f"expected a step{place} to be a function, got: {shown(function)}")
        self.owner: str = owner
        self.name: str = check_step_name(name_of(function) if name is None else name, owner)
        # A sub-workflow has no function: calling its step in a test must say so, not fail on None.
        self.function: Callable[..., Any] = self._refuse if function is None else function
        self.workflow = workflow
        self.input = input
        check_function(self.function, self.where, "the context")
        self.is_async: bool = is_async(self.function)
        self.after: tuple[str, ...] = ()
        self.retry: Retry | None = check_retry(retry, self.where)
        self.timeout: float | None = check_timeout(timeout, self.where)
        self.when = when
        if when is not None:
            check_function(when, f"the condition (when) of {self.where}", "the context")
        if input is not None:
            check_function(input, f"the input of {self.where}", "the context")
        self.rollback_on_failure: bool = _check_flag(rollback_on_failure, self.where)
        self.undo: Callable[..., Any] | None = None
        self.undo_is_async = False
        self.undo_retry: Retry | None = None
        self.undo_timeout: float | None = None
        self._input_type: Any = Any

    @property
    def where(self) -> str:
        """The name of the step in messages."""
        owner = f" of workflow {self.owner!r}" if self.owner else ""
        return f"step {self.name!r}{owner}"

    @property
    def result(self) -> Any:
        """The type of the result: the annotated return type (`Any` without one), or a sub-workflow's output.

        Raises DefinitionError if the annotation is the name of something that cannot be found.
        """
        if self.workflow is not None:
            return self.workflow.output
        found = returned_by(self.function)
        if isinstance(found, str):
            raise DefinitionError(
                f"the return type {found!r} of {self.where} is not to be found from its module, so its "
                "result could not be read back; define that type at the top level of a module, and "
                "import it outside of `if TYPE_CHECKING`"
            )
        return found

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
        if self.workflow is None:
            check_context(self.function, self.where, self._input_type)
        if self.when is not None:
            check_context(self.when, f"the condition (when) of {self.where}", self._input_type)
        if self.workflow is not None:
            self._check_nested(self.workflow)

    def _check_nested(self, nested: Workflow[Any, Any]) -> None:
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
        name = "" if self.workflow is None else repr(self.workflow.name)
        raise DefinitionError(f"{self.where} runs workflow {name} and cannot be called as a function")


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
        if step.undo is not None:
            raise DefinitionError(
                f"{step.where} has a rollback already: {name_of(step.undo)}; it can have one, "
                f"so {name_of(function)} must become part of it"
            )
        check_function(function, self._where, "the context", "the result of the step")
        step._check_undo(function)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        step.undo, step.undo_is_async = function, is_async(function)
        step.undo_retry, step.undo_timeout = self._retry, self._timeout
        return function


@overload
def step(
    function: Callable[[StepContext[I]], Coroutine[Any, Any, R]],
    /,
    *,
    name: str | None = ...,
    retry: Retry | None = ...,
    timeout: Duration | None = ...,
    when: Callable[[StepContext[I]], Any] | None = ...,
    rollback: Callable[[StepContext[I], R], Any] | None = ...,
    rollback_on_failure: bool = ...,
) -> AsyncStep[I, R]: ...
@overload
def step(
    function: Callable[[StepContext[I]], R],
    /,
    *,
    name: str | None = ...,
    retry: Retry | None = ...,
    timeout: Duration | None = ...,
    when: Callable[[StepContext[I]], Any] | None = ...,
    rollback: Callable[[StepContext[I], R], Any] | None = ...,
    rollback_on_failure: bool = ...,
) -> SyncStep[I, R]: ...


def step(
    function: Callable[..., Any],
    /,
    *,
    name: str | None = None,
    retry: Retry | None = None,
    timeout: Duration | None = None,
    when: Callable[..., Any] | None = None,
    rollback: Callable[..., Any] | None = None,
    rollback_on_failure: bool = False,
) -> Step[Any, Any]:
    """Make a step of a function, for `Workflow.then` and `Workflow.parallel`.

    The options are those of `Workflow.step`; `rollback(ctx, result)` is the function that undoes the step.
    Raises DefinitionError for a value that cannot be used.
    """
    made = make_step(
        function, name=name, retry=retry, timeout=timeout, when=when, rollback_on_failure=rollback_on_failure
    )
    if rollback is not None:
        made.rollback(rollback)
    return made


def make_step(function: Callable[..., Any], **options: Any) -> Step[Any, Any]:
    """Return an AsyncStep for an `async def` function, and a SyncStep for a plain one."""
    kind = AsyncStep if is_async(function) else SyncStep
    return cast("Step[Any, Any]", kind(function, **options))


def check_retry(retry: Any, where: str) -> Retry | None:
    """Return `retry`. Raises DefinitionError, naming `where`, if it is neither a Retry nor None."""
    if retry is not None and not isinstance(retry, Retry):
        raise DefinitionError(
            f"expected retry of {where} to be a Retry, such as Retry(attempts=5), got: {shown(retry)}"
        )
    return retry


def check_timeout(timeout: Any, where: str) -> float | None:
    """Return a timeout in seconds; None for None and 0. Raises DefinitionError, naming `where`."""
    return None if timeout is None else seconds(timeout, setting=f"timeout of {where}") or None


def _check_flag(flag: Any, where: str) -> bool:
    if not isinstance(flag, bool):
        raise DefinitionError(f"expected rollback_on_failure of {where} to be a bool, got: {shown(flag)}")
    return flag
