"""Workflows: a graph of steps, defined once, and used both to execute flows and to run their steps.

Not here: running anything, and the order of the steps (`definition.plan`).

What must always hold: adding a step checks everything that is known by then; `check` checks the rest (unknown
steps in `after`, circles, types that could not be resolved before) and is called before anything is sent. A
registered workflow takes no further steps, so its version does not change.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, cast, overload

from msgspec import UNSET, UnsetType

from eventbus import DefinitionError, Retry
from eventbus.lowlevel import Codec, Duration, is_answer, is_untyped, shown
from workflows.definition.declared_errors import check_errors, check_retry_on
from workflows.definition.hooks import NOTHING, Hook, HookName, check_hook, check_output, make_hook
from workflows.definition.nesting import check_depth, check_ends
from workflows.definition.plan import FlowPlan
from workflows.definition.step import AsyncStep, Step, SyncStep, check_retry, check_timeout, make_step
from workflows.definition.step_graph import After, StepDecorator, StepGraph
from workflows.records.ids import check_workflow_name

if TYPE_CHECKING:
    from workflows.definition.context import StepContext

__all__ = ["Workflow"]

I = TypeVar("I")  # noqa: E741  (input)
O = TypeVar("O")  # noqa: E741  (output)
R = TypeVar("R")
T = TypeVar("T")
# The overloads of __init__ annotate `self`, which needs type variables other than those of the class.
IT = TypeVar("IT")
OT = TypeVar("OT")

_VERSION = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.+-]{0,63}")


class Workflow(Generic[I, O]):
    """A graph of steps with its name, its types and its defaults.

    A workflow is only a definition; to run its flows, register it with a WorkflowProvider. `steps` maps names
    to steps in the order of definition. Do not change the attributes.
    """

    @overload
    def __init__(
        self: Workflow[IT, OT],
        name: str,
        *,
        input: type[IT],
        output: type[OT],
        retry: Retry | None = ...,
        timeout: Duration | None = ...,
        version: str | None = ...,
        errors: Sequence[type[Exception]] = ...,
        retry_on: Sequence[type[Exception]] = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: Workflow[IT, None],
        name: str,
        *,
        input: type[IT],
        output: None,
        retry: Retry | None = ...,
        timeout: Duration | None = ...,
        version: str | None = ...,
        errors: Sequence[type[Exception]] = ...,
        retry_on: Sequence[type[Exception]] = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: Workflow[IT, Any],
        name: str,
        *,
        input: type[IT],
        output: Any = ...,
        retry: Retry | None = ...,
        timeout: Duration | None = ...,
        version: str | None = ...,
        errors: Sequence[type[Exception]] = ...,
        retry_on: Sequence[type[Exception]] = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: Workflow[Any, OT],
        name: str,
        *,
        input: Any = ...,
        output: type[OT],
        retry: Retry | None = ...,
        timeout: Duration | None = ...,
        version: str | None = ...,
        errors: Sequence[type[Exception]] = ...,
        retry_on: Sequence[type[Exception]] = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: Workflow[Any, Any],
        name: str,
        *,
        input: Any = ...,
        output: Any = ...,
        retry: Retry | None = ...,
        timeout: Duration | None = ...,
        version: str | None = ...,
        errors: Sequence[type[Exception]] = ...,
        retry_on: Sequence[type[Exception]] = ...,
    ) -> None: ...

    def __init__(
        self,
        name: str,
        *,
        input: Any = Any,  # noqa: A002  (the word of the glossary)
        output: Any = Any,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        version: str | None = None,
        errors: Sequence[type[Exception]] = (),
        retry_on: Sequence[type[Exception]] = (),
    ) -> None:
        """Define a workflow that has no steps yet.

        `input` and `output` are types that msgspec converts, or pydantic models; `Any` is untyped JSON, None
        the value None. `retry` applies to steps without a rule of their own (default: 3 attempts, exponential
        from 1 s). `timeout` bounds a whole flow; None or 0 is none. Only workers that have a flow's `version`
        run it; the default version is computed from the names and edges of the steps. `errors` are the
        declared errors: awaiting a flow raises them as themselves. They are answers, so a step that raises
        one is not retried, unless the error is in `retry_on` too.

        Raises DefinitionError for a value that cannot be used.
        """
        self.name: str = check_workflow_name(name)
        self.input: Any = input
        self.output: Any = output
        self.retry: Retry = check_retry(retry, self._where) or Retry()
        self.timeout: float | None = check_timeout(timeout, self._where)
        self.errors: tuple[type[Exception], ...] = check_errors(errors, self._where)
        self.retry_on: tuple[type[Exception], ...] = check_retry_on(retry_on, self.errors, self._where)
        self.completed_hook: Hook | None = None
        self.failed_hook: Hook | None = None
        self._given_version = _check_version(version, self._where)
        self._graph: StepGraph[I] = StepGraph(self.name, self.input)
        self.steps: Mapping[str, Step[I, Any]] = self._graph.steps
        self._checked = -1  # the number of steps at the last check that found nothing

    def __repr__(self) -> str:
        return f"Workflow({self.name!r})"

    def is_answer(self, error: BaseException) -> bool:
        """Tell whether `error` is a declared error that is not retried."""
        return is_answer(error, self.errors, self.retry_on)

    @property
    def version(self) -> str:
        """The version that was given; without one, 12 hex digits computed from the steps' names and edges."""
        return self._graph.version if self._given_version is None else self._given_version

    @property
    def plan(self) -> FlowPlan:
        """The order of the steps. Raises DefinitionError for unknown steps in `after` and for circles."""
        return self._graph.plan

    @overload
    def step(  # pyright: ignore[reportOverlappingOverload]
        self,
        function: Callable[[StepContext[I]], Coroutine[Any, Any, R]],
        /,
        *,
        name: str | None = ...,
        after: After | UnsetType = ...,
        retry: Retry | None = ...,
        timeout: Duration | None = ...,
        when: Callable[[StepContext[I]], Any] | None = ...,
        rollback_on_failure: bool = ...,
    ) -> AsyncStep[I, R]: ...
    @overload
    def step(
        self,
        function: Callable[[StepContext[I]], R],
        /,
        *,
        name: str | None = ...,
        after: After | UnsetType = ...,
        retry: Retry | None = ...,
        timeout: Duration | None = ...,
        when: Callable[[StepContext[I]], Any] | None = ...,
        rollback_on_failure: bool = ...,
    ) -> SyncStep[I, R]: ...
    @overload
    def step(
        self,
        function: None = None,
        /,
        *,
        name: str | None = ...,
        after: After | UnsetType = ...,
        retry: Retry | None = ...,
        timeout: Duration | None = ...,
        when: Callable[[StepContext[I]], Any] | None = ...,
        rollback_on_failure: bool = ...,
    ) -> StepDecorator[I]: ...

    def step(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        after: After | UnsetType = UNSET,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        when: Callable[..., Any] | None = None,
        rollback_on_failure: bool = False,
    ) -> Any:
        """Make the decorated function a step: it takes the context, and its return value is recorded.

        The step is named after the function, unless `name` is given. It waits for the steps in `after`;
        without `after` it waits for the step defined before it, and with None for no step. `timeout` bounds
        one attempt. If `when(ctx)` is false, the step is skipped. With `rollback_on_failure` its rollback
        also runs if the step itself failed, and then gets None as the result. A plain function runs in a
        thread.

        Raises DefinitionError, naming workflow and step, for a value that cannot be used, a name that
        is taken, and a function whose parameters or annotations do not fit.
        """
        options: dict[str, Any] = {
            "name": name,
            "retry": retry,
            "timeout": timeout,
            "when": when,
            "rollback_on_failure": rollback_on_failure,
        }
        decorator = StepDecorator(self._graph, after, options)
        return decorator if function is None else decorator(function)

    def flow(
        self,
        workflow: Workflow[Any, R],
        /,
        *,
        name: str | None = None,
        after: After | UnsetType = UNSET,
        when: Callable[[StepContext[I]], Any] | None = None,
        input: Callable[[StepContext[I]], Any] | None = None,  # noqa: A002  (the word of the glossary)
    ) -> Step[I, R]:
        """Make a step that runs a flow of `workflow`; the output of that flow is the step's result.

        The step is named after `workflow`, unless `name` is given. `input(ctx)` returns the input of the
        inner flow; by default it is the input of this flow. If this flow stops later, the steps of the inner
        flow are rolled back too. Raises DefinitionError as `step` does.
        """
        if not isinstance(workflow, Workflow):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DefinitionError(f"expected a workflow as a step of {self._where}, got: {shown(workflow)}")
        named = workflow.name if name is None else name
        made: Step[I, R] = Step(None, name=named, owner=self.name, when=when, workflow=workflow, input=input)
        return self._graph.add(made, self._graph.resolve(after, made.where))

    def then(self, *steps: Step[I, Any] | Workflow[Any, Any] | Callable[[StepContext[I]], Any]) -> Self:
        """Add steps in a row: each waits for the one before it, the first for the steps defined last.

        Each is a function, a step made by `step(...)`, or a workflow. Raises DefinitionError as `step` does.
        """
        self._check_some(steps, "then")
        for given in steps:
            self._graph.add(self._made(given), self._graph.tail)
        return self

    def parallel(self, *steps: Step[I, Any] | Workflow[Any, Any] | Callable[[StepContext[I]], Any]) -> Self:
        """Add steps that run side by side: all wait for the steps defined last; the next step waits for all.

        Each is a function, a step made by `step(...)`, or a workflow. Raises DefinitionError as `step` does.
        """
        self._check_some(steps, "parallel")
        self._graph.add_parallel([self._made(given) for given in steps])
        return self

    def completed(
        self, function: Callable[[StepContext[I]], T] = NOTHING, /
    ) -> Callable[[StepContext[I]], T]:
        """Make the decorated function the `completed` hook, which returns the output after the last step.

        It runs at least once, with the workflow's retry rule; if it fails for good, the flow fails and is
        rolled back. Raises DefinitionError for a second hook, and for annotations that do not fit.
        """
        self.completed_hook = self._hook("completed", function, self.completed_hook)
        return function

    def failed(
        self, function: Callable[[StepContext[I], Any], T] = NOTHING, /
    ) -> Callable[[StepContext[I], Any], T]:
        """Make the decorated function the `failed` hook, which is called if a flow did not complete.

        `failed(ctx, error)` runs after all rollbacks, with the error that a caller gets. Raises
        DefinitionError for a second hook, and for annotations that do not fit.
        """
        self.failed_hook = self._hook("failed", function, self.failed_hook)
        return function

    def find(self, step: Step[Any, Any] | Workflow[Any, Any] | Callable[..., Any] | str) -> Step[I, Any]:
        """Return a step of this workflow by itself, its name, its function, or the workflow that it runs.

        Raises DefinitionError if this workflow has no such step, or if several steps match.
        """
        return self._graph.find(step)

    def check(self) -> None:
        """Check the whole definition and those of its sub-workflows. Cheap if no step was added since.

        Raises DefinitionError, naming workflow and step, for unknown steps in `after`, circles, types
        that do not fit or cannot be converted, a missing `completed` hook, and sub-workflows that run
        each other without end or nest too deep.
        """
        for workflow in (self, *self.nested()):
            workflow._check_own()  # noqa: SLF001  (of the same class)

    def nested(self) -> list[Workflow[Any, Any]]:
        """Return all sub-workflows, direct and nested, each once and without this workflow."""
        found: dict[int, Workflow[Any, Any]] = {id(self): self}
        ahead: list[Workflow[Any, Any]] = [self]
        while ahead:
            inner = [step.workflow for step in ahead.pop().steps.values() if step.workflow is not None]
            fresh = [workflow for workflow in inner if id(workflow) not in found]
            found.update((id(workflow), workflow) for workflow in fresh)
            ahead.extend(fresh)
        return list(found.values())[1:]

    def seal(self) -> None:
        """Check the workflow, then refuse further steps and hooks: its version is in use from now on."""
        self.check()
        self._graph.sealed = True

    @property
    def _where(self) -> str:
        return f"workflow {self.name!r}"

    def _check_some(self, steps: tuple[Any, ...], method: str) -> None:
        if not steps:
            raise DefinitionError(f"expected {method} of {self._where} to get at least one step, got: none")

    def _made(self, each: Any) -> Step[Any, Any]:
        if isinstance(each, Workflow):
            nested = cast("Workflow[Any, Any]", each)
            return Step(None, name=nested.name, owner=self.name, workflow=nested)
        return cast("Step[Any, Any]", each) if isinstance(each, Step) else make_step(each, owner=self.name)

    def _hook(self, name: HookName, function: Callable[..., Any], known: Hook | None) -> Hook:
        self._graph.check_open(f"the {name} hook of {self._where}")
        hook = make_hook(name, function, known, self.name)
        check_hook(name, hook, self.name, input_type=self.input, output=self.output)
        return hook

    def _check_own(self) -> None:
        """Check this workflow without its sub-workflows, unless no step was added since the last check."""
        if self._checked == len(self.steps):
            return
        _ = self.plan  # raises for unknown steps and circles
        check_ends(self)
        check_depth(self)
        for step in self.steps.values():
            step.check()
        hooks: dict[HookName, Hook | None] = {"completed": self.completed_hook, "failed": self.failed_hook}
        for name, hook in hooks.items():
            if hook is not None:
                check_hook(name, hook, self.name, input_type=self.input, output=self.output)
        if self.steps:  # a declaration without steps is for processes that execute only
            check_output(self.completed_hook, self.name, self.output)
        self._check_types()
        self._checked = len(self.steps)

    def _check_types(self) -> None:
        """Make sure that values of each type can be sent: making a codec raises DefinitionError if not."""
        Codec(self.input, role="payload", owner=self.name, max_bytes=0)
        Codec(self.output, role="result", owner=self.name, max_bytes=0)
        judged: list[Any] = []
        for step in self.steps.values():
            kind = step.result
            # Only the last few types are compared: the cost stays linear for thousands of steps.
            if step.workflow is None and not is_untyped(kind) and kind not in judged[-20:]:
                Codec(kind, role="result", owner=f"{self.name}.{step.name}", max_bytes=0)
                judged.append(kind)


def _check_version(version: Any, where: str) -> str | None:
    if version is None or (isinstance(version, str) and _VERSION.fullmatch(version)):
        return version
    raise DefinitionError(
        f"expected version of {where} to be 1 to 64 letters, digits, '_', '.', '+' and '-', got: {shown(version)}"
    )
