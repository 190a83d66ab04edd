"""What contexts and codecs know of a workflow of steps, and of each step.

The definitions themselves (`definition.workflow`, `definition.step`) stand above the context, because the
functions that they are made of take it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

from workflows.definition.checks.signature import result_of
from workflows.definition.plan import FlowPlan

R = TypeVar("R")

HookName: TypeAlias = Literal["completed", "failed", "before_each", "after_each", "on_error", "data"]


class Hook(NamedTuple):
    """A function that a workflow calls, such as `completed(ctx)` or `failed(ctx, error)`."""

    function: Callable[..., Any]
    is_async: bool


class StepOutline(Generic[R]):
    """The base of a step: its name, its function, and the types of its values. `R` is that of its result."""

    keeps_failures: bool = False
    name: str
    owner: str
    function: Callable[..., Any]
    pool: str | None

    @property
    def where(self) -> str:
        """The name of the step in messages."""
        owner = f" of workflow {self.owner!r}" if self.owner else ""
        return f"step {self.name!r}{owner}"

    @property
    def result(self) -> Any:
        """The type of the result: the annotated return type, `Any` without one.

        Raises DefinitionError if the annotation is the name of something that cannot be found.
        """
        return self.item_result

    @property
    def item(self) -> Any:
        """The type of the items, if it runs for each item of a list."""
        return Any

    @property
    def item_result(self) -> Any:
        """The annotated return type; of a step that runs for each item of a list, that is the type of one
        result.
        """
        return result_of(self.function, self.where)


class GraphOutline(Protocol):
    """A workflow of steps, as its contexts and codecs read it."""

    @property
    def name(self) -> str:
        """The name of the workflow."""
        ...

    @property
    def input(self) -> Any:
        """The type of the input of its flows."""
        ...

    @property
    def output(self) -> Any:
        """The type of their output."""
        ...

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """The declared errors."""
        ...

    @property
    def steps(self) -> Mapping[str, StepOutline[Any]]:
        """The steps by name, in the order of definition."""
        ...

    @property
    def hooks(self) -> Mapping[HookName, Hook]:
        """The functions that run around the steps, and at the end of a flow."""
        ...

    @property
    def spreads(self) -> bool:
        """Whether the jobs of its steps are known, and added, when a flow begins."""
        ...

    @property
    def plan(self) -> FlowPlan:
        """The order of the steps."""
        ...

    def find(self, step: Any) -> StepOutline[Any]:
        """Return a step that is given as itself, its function, or its name. Raises DefinitionError."""
        ...
