"""Workflows: a graph of steps, defined once, and used both to execute flows and to run their steps. Not here:
running anything, and the order of the steps (`definition.plan`).

What must always hold: adding a step checks what is known by then; `check` checks the rest (unknown steps in
`after`, circles, types) before anything is sent. A registered workflow takes no further steps, so its version
does not change.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, ClassVar, Generic, Self, TypeVar, Unpack, cast, overload

from msgspec import UNSET, UnsetType

from eventbus import DefinitionError, Retry
from eventbus.lowlevel import Codec, check_answers, check_options, is_answer, is_untyped
from workflows.definition.checks.declared_errors import check_declared
from workflows.definition.checks.options import check_flag, check_retry
from workflows.definition.context import StepContext
from workflows.definition.each import EachSteps
from workflows.definition.flow_definition import (
    AnyDefinition,
    AnyWorkflow,
    FlowDefinition,
    FlowKind,
    definition_in,
)
from workflows.definition.hooks import NOTHING, StepHooks, check_hook, check_output, make_hook
from workflows.definition.keywords import StepKeywords, WorkflowKeywords
from workflows.definition.nesting import check_depth, check_ends
from workflows.definition.outline import Hook, HookName
from workflows.definition.plan import FlowPlan
from workflows.definition.signal import Signal
from workflows.definition.step import AsyncStep, Step, SyncStep, make_step
from workflows.definition.step_graph import After, FlowSteps, PauseSteps, StepDecorator, StepGraph
from workflows.records.ids import check_workflow_name, steps_queue

I = TypeVar("I")  # noqa: E741  (input)
O = TypeVar("O")  # noqa: E741  (output)
R = TypeVar("R")
T = TypeVar("T")
# The overloads of __init__ annotate `self`, which needs type variables other than those of the class.
IT = TypeVar("IT")
OT = TypeVar("OT")


class Workflow(FlowDefinition[I, O], EachSteps[I], PauseSteps[I], FlowSteps[I], StepHooks[I], Generic[I, O]):
    """A graph of steps with its name, its types and its defaults.

    To run its flows, register it with a WorkflowProvider. `steps` is in the order of definition. Do not
    change the attributes.
    """

    _kind: ClassVar[FlowKind] = "graph"

    @overload
    def __init__(
        self: Workflow[IT, OT],
        name: str,
        *,
        input: type[IT],
        output: type[OT],
        **options: Unpack[WorkflowKeywords],
    ) -> None: ...
    @overload
    def __init__(
        self: Workflow[IT, None],
        name: str,
        *,
        input: type[IT],
        output: None,
        **options: Unpack[WorkflowKeywords],
    ) -> None: ...
    @overload
    def __init__(
        self: Workflow[IT, Any],
        name: str,
        *,
        input: type[IT],
        output: Any = ...,
        **options: Unpack[WorkflowKeywords],
    ) -> None: ...
    @overload
    def __init__(
        self: Workflow[Any, OT],
        name: str,
        *,
        input: Any = ...,
        output: type[OT],
        **options: Unpack[WorkflowKeywords],
    ) -> None: ...
    @overload
    def __init__(
        self: Workflow[Any, Any],
        name: str,
        *,
        input: Any = ...,
        output: Any = ...,
        **options: Unpack[WorkflowKeywords],
    ) -> None: ...

    def __init__(
        self,
        name: str,
        *,
        input: Any = Any,  # noqa: A002  (the word of the glossary)
        output: Any = Any,
        **options: Unpack[WorkflowKeywords],
    ) -> None:
        """Define a workflow that has no steps yet.

        `input` and `output` are types that msgspec converts, or pydantic models; `Any` is untyped JSON, None
        the value None. `retry` applies to steps without a rule of their own (default: 3 attempts, exponential
        from 1 s). `timeout` bounds a whole flow; None or 0 is none. `concurrency` is the most flows of the
        workflow that one worker runs at a time, by default the provider's setting; of a spread workflow it
        limits hooks and rollbacks alone, because its steps are jobs. `limit` bounds the same in the whole
        fleet. Only workers that have a flow's `version` run it; the default version is computed from the
        names and edges of the steps and what they wait for. With `spread` each step is a job of its own, so
        that parallel steps use all workers; otherwise one worker runs the steps of a flow, but for those that
        are spread themselves. `errors` are the declared errors: awaiting a flow raises them as themselves,
        and a step that raises one is not retried, unless it is in `retry_on` too. `keep_completed` and
        `keep_failed` say how long ended flows are kept, as for an event. Raises DefinitionError for a value
        that cannot be used.
        """
        self.name: str = check_workflow_name(name)
        self._given_version = self._take(options, WorkflowKeywords, self._where)
        self.input: Any = input
        self.output: Any = output
        self.retry: Retry = check_retry(options.get("retry"), self._where) or Retry()
        declared = check_declared(options, self.retry, self._where)
        self.errors: tuple[type[Exception], ...] = declared[0]
        self.retry_on: tuple[type[Exception], ...] = declared[1]
        self.hooks: dict[HookName, Hook] = {}
        self.spread: bool = check_flag(options.get("spread", False), "spread", self._where)
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
    def spreads(self) -> bool:
        """Whether the jobs of its steps are known, and added, when a flow begins: it is spread, and has no
        lists of items.
        """
        return self.spread and not any(step.is_each for step in self.steps.values())

    @property
    def has_members(self) -> bool:
        """Whether its flows have further jobs: a part of the steps or all of them, or the flows of
        sub-workflows.
        """
        return self.spread or any(step.runs_apart for step in self.steps.values())

    def runs_apart(self, step: Step[Any, Any]) -> bool:
        """Tell whether a job or a flow of its own runs a step of a local flow, or each of its items."""
        return step.runs_apart or (self.spread and not self.spreads)

    @property
    def limited(self) -> list[str]:
        """The names of the steps whose jobs have a queue of their own, for their concurrency or their
        limit.
        """
        return [name for name, step in self.steps.items() if step.has_queue]

    @property
    def completed_hook(self) -> Hook | None:
        """The function that makes the output; None if there is none."""
        return self.hooks.get("completed")

    @property
    def failed_hook(self) -> Hook | None:
        """The function that is called if a flow did not complete; None if there is none."""
        return self.hooks.get("failed")

    @property
    def signals(self) -> dict[str, Signal[Any]]:
        """The signals that its steps wait for, by name."""
        pauses = [step.pause for step in self.steps.values() if step.pause is not None]
        return {pause.name: pause.signal for pause in pauses if pause.signal is not None}

    @property
    def listens(self) -> bool:
        """Whether a step waits for a signal."""
        return bool(self.signals)

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
        after: After | UnsetType = ...,
        **options: Unpack[StepKeywords[I]],
    ) -> AsyncStep[I, R]: ...
    @overload
    def step(
        self,
        function: Callable[[StepContext[I]], R],
        /,
        *,
        after: After | UnsetType = ...,
        **options: Unpack[StepKeywords[I]],
    ) -> SyncStep[I, R]: ...
    @overload
    def step(
        self, function: None = None, /, *, after: After | UnsetType = ..., **options: Unpack[StepKeywords[I]]
    ) -> StepDecorator[I]: ...

    def step(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        after: After | UnsetType = UNSET,
        **options: Unpack[StepKeywords[I]],
    ) -> Any:
        """Make the decorated function a step: it takes the context, and its return value is recorded.

        The step is named after the function, unless `name` is given. It waits for the steps in `after`;
        without `after` it waits for the step defined before it, and with None for no step. `timeout` bounds
        one attempt. At most `concurrency` attempts of the step run in one worker at a time, whichever flows
        they belong to; by default the setting of the worker limits them. With a `limit` its attempts are
        bounded in the whole fleet, at once or by time; each is a job of its own then. If `when(ctx)` is
        false, the step is skipped. With `rollback_on_failure` its rollback also runs if the step itself
        failed, and then gets None as the result. With `on_failure="ignore"` its final failure is recorded,
        and the steps after it run: `ctx.result` of it needs a default. With `spread` the step is a job of its
        own, which any worker of the fleet takes. A plain function runs in a thread, or with `pool="process"`
        in a process of its own, which is killed when the attempt times out or is cancelled; its context can
        neither emit nor share. `pool` may also be the name of a pool of the provider. Inline flows run it in
        a thread.

        Raises DefinitionError, naming workflow and step, for a value that cannot be used, a name that
        is taken, and a function whose parameters or annotations do not fit.
        """
        check_options(options, StepKeywords, f"a step of {self._where}")
        decorator = StepDecorator(self._graph, after, {**options})
        return decorator if function is None else decorator(function)

    def then(self, *steps: Step[I, Any] | AnyWorkflow[Any, Any] | Callable[[StepContext[I]], Any]) -> Self:
        """Add steps in a row: each waits for the one before it, the first for the steps defined last.

        Each is a function, a step made by `step(...)`, or a workflow of any kind. Raises DefinitionError as
        `step` does.
        """
        self._check_some(steps, "then")
        for given in steps:
            self._graph.add(self._made(given), self._graph.tail)
        return self

    def parallel(
        self,
        *steps: Step[I, Any] | AnyWorkflow[Any, Any] | Callable[[StepContext[I]], Any],
        spread: bool = False,
    ) -> Self:
        """Add steps that run side by side: all wait for the steps defined last; the next step waits for all.

        Each is a function, a step made by `step(...)`, or a workflow of any kind. With `spread` each is a job
        of its own. Raises DefinitionError as `step` does.
        """
        self._check_some(steps, "parallel")
        made = [self._made(given) for given in steps]
        if check_flag(spread, "spread", f"a parallel group of {self._where}"):
            for each in made:
                each.spread = True
        self._graph.add_parallel(made)
        return self

    def completed(
        self, function: Callable[[StepContext[I]], T] = NOTHING, /
    ) -> Callable[[StepContext[I]], T]:
        """Make the decorated function the `completed` hook, which returns the output after the last step.

        It runs at least once, with the workflow's retry rule; if it fails for good, the flow fails and is
        rolled back. Raises DefinitionError for a second hook, and for annotations that do not fit.
        """
        return self._add_hook("completed", function)

    def failed(
        self, function: Callable[[StepContext[I], Any], T] = NOTHING, /
    ) -> Callable[[StepContext[I], Any], T]:
        """Make the decorated function the `failed` hook, which is called if a flow did not complete.

        `failed(ctx, error)` runs after all rollbacks, with the error that a caller gets. Raises
        DefinitionError for a second hook, and for annotations that do not fit.
        """
        return self._add_hook("failed", function)

    def find(self, step: Step[Any, Any] | AnyWorkflow[Any, Any] | Callable[..., Any] | str) -> Step[I, Any]:
        """Return a step by itself, its name, its function, or its workflow. Raises DefinitionError if not one
        matches.
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
        """Return all sub-workflows of steps, direct and nested, each once and without this workflow."""
        return [definition for definition in self.inner() if isinstance(definition, Workflow)]

    def inner(self) -> list[AnyDefinition]:
        """Return all sub-workflows of any kind, direct and nested, each once and without this workflow."""
        found: dict[int, AnyDefinition] = {id(self): self}
        ahead: list[AnyDefinition] = [self]
        while ahead:
            outer = ahead.pop()
            steps = outer.steps.values() if isinstance(outer, Workflow) else ()
            inner = [step.workflow for step in steps if step.workflow is not None]
            fresh = [definition for definition in inner if id(definition) not in found]
            found.update((id(definition), definition) for definition in fresh)
            ahead.extend(fresh)
        return list(found.values())[1:]

    def seal(self) -> None:
        """Check the workflow, then refuse further steps and hooks: its version is in use."""
        self.check()
        self._graph.sealed = True

    @property
    def _where(self) -> str:
        return f"workflow {self.name!r}"

    def _check_some(self, steps: tuple[Any, ...], method: str) -> None:
        if not steps:
            raise DefinitionError(f"expected {method} of {self._where} to get at least one step, got: none")

    def _made(self, each: Any) -> Step[Any, Any]:
        nested = definition_in(each)
        if nested is not None:
            return Step(None, name=nested.name, owner=self.name, workflow=nested)
        return cast("Step[Any, Any]", each) if isinstance(each, Step) else make_step(each, owner=self.name)

    def _add_hook(self, name: HookName, function: Callable[..., T]) -> Callable[..., T]:
        self._graph.check_open(f"the {name} hook of {self._where}")
        hook = make_hook(name, function, self.hooks.get(name), self.name)
        check_hook(name, hook, self.name, input_type=self.input, output=self.output)
        self.hooks[name] = hook
        return function

    def _check_own(self) -> None:
        """Check this workflow without its sub-workflows, unless no step was added since the last check."""
        if self._checked == len(self.steps):
            return
        _ = self.plan  # raises for unknown steps and circles
        check_ends(self)
        check_depth(self)
        for step in self.steps.values():
            step.check()
            check_answers(step.retry, step.where, errors=self.errors, retry_on=self.retry_on)
        for limited in self.limited:
            steps_queue(self.name, limited)  # raises for a name that is too long
        for name, hook in self.hooks.items():
            check_hook(name, hook, self.name, input_type=self.input, output=self.output)
        if self.steps:  # a declaration without steps is for processes that execute only
            check_output(self.completed_hook, self.name, self.output)
        _check_types(self.name, self.input, self.output, self.steps.values())
        self._checked = len(self.steps)


def _check_types(name: str, input: Any, output: Any, steps: Iterable[Step[Any, Any]]) -> None:  # noqa: A002
    """Make sure that values of each type of workflow `name` can be sent: input, output and the steps'
    results.

    Raises DefinitionError for a type that cannot be converted.
    """
    Codec(input, role="payload", owner=name, max_bytes=0)
    Codec(output, role="result", owner=name, max_bytes=0)
    judged: list[Any] = []
    for step in steps:
        kind = step.result
        if step.is_each:
            Codec(step.item, role="payload", owner=f"{name}.{step.name}", max_bytes=0)
        # Only the last few types are compared: the cost stays linear for thousands of steps.
        if step.workflow is None and not is_untyped(kind) and kind not in judged[-20:]:
            Codec(kind, role="result", owner=f"{name}.{step.name}", max_bytes=0)
            judged.append(kind)
