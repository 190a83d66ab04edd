"""The steps of one definition: adding them, finding them, and the edges between them.

Not here: a single step (`definition.step`) and the order of the steps (`definition.plan`).

What must always hold: names are unique; a step that is refused leaves the graph unchanged; plan and version
always match the steps in the graph.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Generic, TypeAlias, TypeVar, Unpack, cast, overload

import msgspec
from msgspec import UNSET, UnsetType

from eventbus import DefinitionError
from eventbus.lowlevel import Duration, check_options, shown
from workflows.definition.checks.options import OnFailure
from workflows.definition.checks.signature import name_of
from workflows.definition.context import StepContext
from workflows.definition.flow_definition import (
    AnyWorkflow,
    FlowDefinition,
    MachineClass,
    definition_in,
    definition_of,
)
from workflows.definition.keywords import PauseKeywords
from workflows.definition.pause import sleep_for, wait_for
from workflows.definition.plan import FlowPlan, build, listed
from workflows.definition.signal import Signal
from workflows.definition.step import AsyncStep, Step, SyncStep, make_step

I = TypeVar("I")  # noqa: E741  (input)
R = TypeVar("R")

_One: TypeAlias = "Step[Any, Any] | AnyWorkflow[Any, Any] | Callable[..., Any] | str"
After: TypeAlias = "_One | Sequence[_One] | None"
"""The steps that a step waits for: a step, its name, function or sub-workflow; several of them; or None."""


class StepGraph(Generic[I]):
    """The steps of the workflow `name`, whose input is `input_type`.

    `steps` maps names to steps in the order of definition. `tail` names the steps defined last; a step
    without `after` waits for them. When `sealed`, the graph takes no more steps.
    """

    def __init__(self, name: str, input_type: Any) -> None:
        self.name = name
        self.tail: tuple[str, ...] = ()
        self.sealed = False
        self._steps: dict[str, Step[I, Any]] = {}
        self.steps: Mapping[str, Step[I, Any]] = MappingProxyType(self._steps)
        self._input_type = input_type
        self._plan: FlowPlan | None = None
        self._version = ""

    @property
    def plan(self) -> FlowPlan:
        """The order of the steps. Raises DefinitionError for unknown steps in `after` and for circles."""
        if self._plan is None:
            self._plan = build(self)
        return self._plan

    @property
    def version(self) -> str:
        """12 hex digits computed from names, edges and what steps wait for; the order of definition does not
        change them.
        """
        if not self._version:
            edges = sorted(_edges_of(step) for step in self._steps.values())
            self._version = hashlib.sha256(msgspec.json.encode(edges)).hexdigest()[:12]
        return self._version

    def check_open(self, what: str) -> None:
        """Raise DefinitionError, naming `what`, if the graph is sealed."""
        if self.sealed:
            raise DefinitionError(
                f"{what} comes too late: workflow {self.name!r} is registered already; define it whole before"
            )

    def add(self, step: Step[Any, R], after: tuple[str, ...]) -> Step[I, R]:
        """Add one step, which becomes the tail. Raises DefinitionError for a name that is taken."""
        self.check_open(f"step {step.name!r} of workflow {self.name!r}")
        if step.name in self._steps:
            raise DefinitionError(
                f"workflow {self.name!r} has a step {step.name!r} already; "
                'give the second one another name with name="..."'
            )
        step.attach(self.name, after, self._input_type)
        self._steps[step.name] = step
        self.tail = (step.name,)
        self._plan, self._version = None, ""  # computed again when they are next needed
        return step

    def add_parallel(self, steps: Sequence[Step[Any, Any]]) -> None:
        """Add steps that all wait for the tail; together they become the new tail."""
        before = self.tail
        for step in steps:
            self.add(step, before)
        self.tail = tuple(step.name for step in steps)

    def resolve(self, after: Any, where: str) -> tuple[str, ...]:
        """Return the names of the steps in the `after` of `where`.

        A name is not checked here, because its step may be defined later. Raises DefinitionError for a value
        that is neither a name nor a step of this graph.
        """
        if after is UNSET:
            return self.tail
        if after is None:
            return ()
        several = isinstance(after, Sequence) and not isinstance(after, str)
        given = cast("Sequence[Any]", after if several else (after,))
        return tuple(dict.fromkeys(self._named(needed, where) for needed in given))

    def find(self, step: Any) -> Step[I, Any]:
        """Return a step by itself, its name, its function, or the workflow that it runs.

        Raises DefinitionError if there is no such step, and for a function or workflow of several steps.
        """
        found = self._matching(step)
        if len(found) == 1:
            return found[0]
        raise DefinitionError(f"{self._why_not(step, found)}; its steps are: {listed(list(self._steps))}")

    def _named(self, each: Any, where: str) -> str:
        if isinstance(each, str):
            return each
        found = self._matching(each)
        if len(found) == 1:
            return found[0].name
        raise DefinitionError(
            f"{where} comes after {_told(each)}, but {self._why_not(each, found)}; "
            "expected a step that was defined before, its name, or a list of them"
        )

    def _why_not(self, step: Any, found: list[Step[I, Any]]) -> str:
        if not found:
            return f"{_told(step)} is no step of workflow {self.name!r}"
        names = listed([match.name for match in found])
        return (
            f"{_told(step)} is in several steps of workflow {self.name!r} ({names}), so name the one you mean"
        )

    def _matching(self, step: Any) -> list[Step[I, Any]]:
        steps = self._steps
        if isinstance(step, str):
            return [steps[step]] if step in steps else []
        if isinstance(step, Step):
            name = cast("Step[Any, Any]", step).name
            return [steps[name]] if steps.get(name) is step else []
        inner = definition_in(step)
        if inner is not None:
            return [known for known in steps.values() if known.workflow is inner]
        return [known for known in steps.values() if known.function == step]


class PauseSteps(Generic[I]):
    """The methods of a workflow that add steps without a function: they wait, for a signal or a time."""

    _graph: StepGraph[I]

    @overload
    def wait(
        self,
        signal: Signal[R],
        /,
        *,
        timeout: Duration | None = ...,
        after: After | UnsetType = ...,
        on_failure: OnFailure = ...,
        **options: Unpack[PauseKeywords[I]],
    ) -> Step[I, R]: ...
    @overload
    def wait(
        self,
        signal: str,
        type: type[R],
        /,
        *,
        timeout: Duration | None = ...,
        after: After | UnsetType = ...,
        on_failure: OnFailure = ...,
        **options: Unpack[PauseKeywords[I]],
    ) -> Step[I, R]: ...
    @overload
    def wait(
        self,
        signal: str,
        type: Any = ...,
        /,
        *,
        timeout: Duration | None = ...,
        after: After | UnsetType = ...,
        on_failure: OnFailure = ...,
        **options: Unpack[PauseKeywords[I]],
    ) -> Step[I, Any]: ...

    def wait(
        self,
        signal: Any,
        type: Any = Any,  # noqa: A002  (the word of the field)
        /,
        *,
        timeout: Duration | None = None,
        after: After | UnsetType = UNSET,
        on_failure: OnFailure = "fail",
        **options: Unpack[PauseKeywords[I]],
    ) -> Any:
        """Make a step that waits for a signal, without a worker; its result is the payload.

        `signal` is a Signal, or a name with the `type` of the payload. The flow keeps a signal that comes
        before the step begins. A payload that does not fit is refused, and the step waits on. The step is
        named after the signal, unless `name` is given. It fails with TimeoutError if no signal came within
        `timeout` (None or 0: without limit), counted from its beginning; with `on_failure="ignore"` the flow
        goes on then. `after` and `when` are those of `step`. Raises DefinitionError as `step` does.
        """
        check_options(options, PauseKeywords, f"a wait of workflow {self._graph.name!r}")
        pause = wait_for(signal, type, timeout, f"a wait of workflow {self._graph.name!r}")
        name = options.get("name") or pause.name
        made: Step[I, Any] = Step(
            None,
            name=name,
            owner=self._graph.name,
            when=options.get("when"),
            pause=pause,
            on_failure=on_failure,
        )
        return self._graph.add(made, self._graph.resolve(after, made.where))

    def sleep(
        self, duration: Duration, /, *, after: After | UnsetType = UNSET, **options: Unpack[PauseKeywords[I]]
    ) -> Step[I, None]:
        """Make a step that sleeps for `duration`, without a worker.

        Its end is recorded when it begins, so that a crash does not prolong it. The step is named `sleep`,
        unless `name` is given. `after` and `when` are those of `step`. Raises DefinitionError as `step` does.
        """
        check_options(options, PauseKeywords, f"a sleep of workflow {self._graph.name!r}")
        pause = sleep_for(duration, f"a sleep of workflow {self._graph.name!r}")
        name = options.get("name") or "sleep"
        made: Step[I, None] = Step(
            None, name=name, owner=self._graph.name, when=options.get("when"), pause=pause
        )
        return self._graph.add(made, self._graph.resolve(after, made.where))


class FlowSteps(Generic[I]):
    """The method of a workflow that adds steps which are flows of their own."""

    _graph: StepGraph[I]

    @overload
    def flow(
        self,
        workflow: FlowDefinition[Any, R],
        /,
        *,
        name: str | None = ...,
        after: After | UnsetType = ...,
        when: Callable[[StepContext[I]], Any] | None = ...,
        input: Callable[[StepContext[I]], Any] | None = ...,
        on_failure: OnFailure = ...,
    ) -> Step[I, R]: ...
    @overload
    def flow(
        self,
        workflow: type[MachineClass[Any]],
        /,
        *,
        name: str | None = ...,
        after: After | UnsetType = ...,
        when: Callable[[StepContext[I]], Any] | None = ...,
        input: Callable[[StepContext[I]], Any] | None = ...,
        on_failure: OnFailure = ...,
    ) -> Step[I, Any]: ...

    def flow(
        self,
        workflow: AnyWorkflow[Any, Any],
        /,
        *,
        name: str | None = None,
        after: After | UnsetType = UNSET,
        when: Callable[[StepContext[I]], Any] | None = None,
        input: Callable[[StepContext[I]], Any] | None = None,  # noqa: A002  (the word of the glossary)
        on_failure: OnFailure = "fail",
    ) -> Step[I, Any]:
        """Make a step that runs a flow of `workflow`, of any kind; the output of that flow is the step's
        result.

        The step is named after `workflow`, unless `name` is given. `input(ctx)` returns the input of the
        inner flow, which of a state machine is its first state; by default it is the input of this flow. If
        this flow stops later, the steps of the inner flow, or the moves of the inner machine, are rolled back
        too. With `on_failure="ignore"` this flow goes on if the inner flow does not complete. Raises
        DefinitionError as `step` does.
        """
        owner = self._graph.name
        inner = definition_of(workflow, f"a step of workflow {owner!r}")
        made: Step[I, Any] = Step(
            None,
            name=inner.name if name is None else name,
            owner=owner,
            when=when,
            workflow=inner,
            input=input,
            on_failure=on_failure,
        )
        return self._graph.add(made, self._graph.resolve(after, made.where))


class StepDecorator(Generic[I]):
    """The decorator that `Workflow.step(...)` returns: it makes a step of the function."""

    def __init__(self, graph: StepGraph[I], after: After | UnsetType, options: dict[str, Any]) -> None:
        self._graph = graph
        self._after: After | UnsetType = after
        self._options = options

    @overload
    def __call__(  # pyright: ignore[reportOverlappingOverload]
        self, function: Callable[[StepContext[I]], Coroutine[Any, Any, R]], /
    ) -> AsyncStep[I, R]: ...
    @overload
    def __call__(self, function: Callable[[StepContext[I]], R], /) -> SyncStep[I, R]: ...

    def __call__(self, function: Callable[..., Any], /) -> Any:
        """Make `function` a step. Raises DefinitionError as `Workflow.step` says."""
        graph = self._graph
        made = make_step(function, owner=graph.name, **self._options)
        return graph.add(made, graph.resolve(self._after, made.where))


def _edges_of(step: Step[Any, Any]) -> tuple[Any, ...]:
    pause = step.pause
    waits = () if pause is None else (f"{pause.kind} {pause.name}".strip(),)
    waits = ("each",) if step.is_each else waits
    return (step.name, sorted(step.after), *waits)


def _told(step: Any) -> str:
    if isinstance(step, Step):
        return cast("Step[Any, Any]", step).where
    inner = definition_in(step)
    if inner is not None:
        return repr(inner)
    return shown(step) if isinstance(step, str) or not callable(step) else name_of(step)
