"""Workflows: a graph of steps, defined once and used by whoever executes it and whoever runs it.

Not here: running anything, and the order of the steps (`flow.py`).
Always holds: what can be judged when a step is added is judged then; `check` judges the rest (unknown
steps in `after`, circles, types that were not known before) and is called before anything is sent. A
workflow that was registered takes no further step, so its version stays what it was.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, cast, overload

from msgspec import UNSET, UnsetType

from eventbus import DefinitionError, Retry
from eventbus.lowlevel import Codec, Duration, is_untyped, shown
from workflows.flow import FlowPlan
from workflows.graph import After, StepDecorator, StepGraph
from workflows.hooks import Hook, HookName, check_hook, check_output, make_hook
from workflows.names import check_workflow_name
from workflows.nesting import check_depth, check_ends
from workflows.step import AsyncStep, Step, SyncStep, check_retry, check_timeout, make_step

if TYPE_CHECKING:
    from workflows.context import StepContext

__all__ = ["Workflow"]

I = TypeVar("I")  # noqa: E741  (input)
O = TypeVar("O")  # noqa: E741  (output)
R = TypeVar("R")
T = TypeVar("T")
# What an overload of __init__ makes of `self` must be type variables of its own.
IT = TypeVar("IT")
OT = TypeVar("OT")

_VERSION = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.+-]{0,63}")


class Workflow(Generic[I, O]):
    """A graph of steps with its name, its types and its defaults.

    A workflow is a value; to run its flows, register it with a WorkflowProvider. `steps` has its
    steps by name in the order of definition. Attributes are not to be changed.
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
    ) -> None:
        """Define a workflow, yet without steps.

        `input` and `output` are types that msgspec converts, or pydantic models; `Any` is untyped
        JSON, None the value None. `retry` is for steps that have none of their own (3 attempts,
        exponential from 1 s). `timeout` is for a whole flow, None or 0 for none. A flow goes on
        only where its `version` is known; the default follows from the names and edges of the
        steps. `errors` are raised as themselves where a flow is awaited.

        Raises DefinitionError for a value that cannot be used.
        """
        self.name = check_workflow_name(name)
        self.input: Any = input
        self.output: Any = output
        self.retry: Retry = check_retry(retry, self._where) or Retry()
        self.timeout = check_timeout(timeout, self._where)
        self.errors = _check_errors(errors, self._where)
        self.completed_hook: Hook | None = None
        self.failed_hook: Hook | None = None
        self._given_version = _check_version(version, self._where)
        self._graph: StepGraph[I] = StepGraph(self.name, self.input)
        self.steps: Mapping[str, Step[I, Any]] = self._graph.steps
        self._checked = -1  # the number of steps at the last check that found nothing

    def __repr__(self) -> str:
        return f"Workflow({self.name!r})"

    @property
    def version(self) -> str:
        """The version that was given, else 12 hex digits that follow from the steps' names and edges."""
        return self._graph.version if self._given_version is None else self._given_version

    @property
    def plan(self) -> FlowPlan:
        """The order of its steps. Raises DefinitionError for unknown steps in `after` and for circles."""
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
        """Make the decorated function a step, which takes the context and returns what is recorded.

        Its name is the function's unless given. It waits for the steps in `after`; without `after` for
        the one defined before it, with None for nothing. `timeout` bounds one attempt. If `when(ctx)`
        is false, the step is skipped. With `rollback_on_failure` its rollback runs also when the step
        itself failed, and is given None then. A plain function runs in a thread.

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
        """Make a step that runs a flow of `workflow` and has its output as its result.

        Its name is that workflow's unless given. `input(ctx)` gives its input, by default this flow's
        own. If this flow stops later, the steps of that one are undone too. Raises DefinitionError as
        `step` does.
        """
        if not isinstance(workflow, Workflow):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DefinitionError(f"expected a workflow as a step of {self._where}, got: {shown(workflow)}")
        named = workflow.name if name is None else name
        made: Step[I, R] = Step(None, name=named, owner=self.name, when=when, workflow=workflow, input=input)
        return self._graph.add(made, self._graph.resolve(after, made.where))

    def then(self, *steps: Step[I, Any] | Workflow[Any, Any] | Callable[[StepContext[I]], Any]) -> Self:
        """Add steps, each after the one before it, the first after what was defined last.

        Each is a function, a step made by `step(...)`, or a workflow. Raises DefinitionError as `step` does.
        """
        self._check_some(steps, "then")
        for each in steps:
            self._graph.add(self._made(each), self._graph.tail)
        return self

    def parallel(self, *steps: Step[I, Any] | Workflow[Any, Any] | Callable[[StepContext[I]], Any]) -> Self:
        """Add steps that all follow what was defined last, side by side; what is defined next waits for all.

        Each is a function, a step made by `step(...)`, or a workflow. Raises DefinitionError as `step` does.
        """
        self._check_some(steps, "parallel")
        self._graph.add_parallel([self._made(each) for each in steps])
        return self

    def completed(self, function: Callable[[StepContext[I]], T], /) -> Callable[[StepContext[I]], T]:
        """Make the decorated function the one that ends a flow: after the last step, it returns the output.

        It runs at least once, with the workflow's retry; if it fails for good, the flow fails and is
        undone. Raises DefinitionError for a second one, and for annotations that do not fit.
        """
        self.completed_hook = self._hook("completed", function, self.completed_hook)
        return function

    def failed(self, function: Callable[[StepContext[I], Any], T], /) -> Callable[[StepContext[I], Any], T]:
        """Make the decorated function the one that is called when a flow did not complete.

        `failed(ctx, error)` runs once all rollbacks have run, with the error that a caller gets. Raises
        DefinitionError for a second one, and for annotations that do not fit.
        """
        self.failed_hook = self._hook("failed", function, self.failed_hook)
        return function

    def find(self, step: Step[Any, Any] | Workflow[Any, Any] | Callable[..., Any] | str) -> Step[I, Any]:
        """Return a step of this workflow by itself, its name, its function, or the workflow that it runs.

        Raises DefinitionError for one that this workflow does not have, and for a function of several.
        """
        return self._graph.find(step)

    def check(self) -> None:
        """Judge the definition as a whole, and those of its sub-workflows. Cheap when nothing was added.

        Raises DefinitionError, naming workflow and step, for unknown steps in `after`, circles, types
        that do not fit or cannot be converted, a missing `completed` hook, and sub-workflows that run
        each other without end or nest too deep.
        """
        for each in (self, *self.nested()):
            each._check_own()  # noqa: SLF001  (of the same class)

    def nested(self) -> list[Workflow[Any, Any]]:
        """Return the sub-workflows that its steps run, and those of theirs, each once; itself not."""
        found: dict[int, Workflow[Any, Any]] = {id(self): self}
        ahead: list[Workflow[Any, Any]] = [self]
        while ahead:
            inner = [step.workflow for step in ahead.pop().steps.values() if step.workflow is not None]
            fresh = [each for each in inner if id(each) not in found]
            found.update((id(each), each) for each in fresh)
            ahead.extend(fresh)
        return list(found.values())[1:]

    def seal(self) -> None:
        """Check it, and take no further step or hook: others know its version from now on."""
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
        """Judge this workflow without its sub-workflows, unless it was judged since the last step was added."""
        if self._checked == len(self.steps):
            return
        _ = self.plan
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
        """Make sure that values of each type can be sent."""
        Codec(self.input, role="payload", owner=self.name, max_bytes=0)
        Codec(self.output, role="result", owner=self.name, max_bytes=0)
        judged: list[Any] = []
        for step in self.steps.values():
            kind = step.result
            if step.workflow is None and not is_untyped(kind) and kind not in judged[-20:]:
                Codec(kind, role="result", owner=f"{self.name}.{step.name}", max_bytes=0)
                judged.append(kind)


def _check_errors(errors: Any, where: str) -> tuple[type[Exception], ...]:
    given = cast("Sequence[object]", errors if isinstance(errors, (list, tuple)) else (errors,))
    kinds: list[type[Exception]] = []
    for each in given:
        if not (isinstance(each, type) and issubclass(each, Exception)):
            told = shown(cast("object", each))
            raise DefinitionError(
                f"expected errors of {where} to be a list of exception classes, got: {told}"
            )
        kinds.append(each)
    return tuple(kinds)


def _check_version(version: Any, where: str) -> str | None:
    if version is None or (isinstance(version, str) and _VERSION.fullmatch(version)):
        return version
    raise DefinitionError(
        f"expected version of {where} to be 1 to 64 letters, digits, '_', '.', '+' and '-', got: {shown(version)}"
    )
