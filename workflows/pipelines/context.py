"""The context of a pipeline's functions: the merged result, the progress, and what a step's context has."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from eventbus.lowlevel import Logger, Stopping
    from workflows.definition.context import StepContext

G = TypeVar("G")


class PipelineContext(Generic[G]):
    """What functions of a pipeline get: `async def fetch(given: Given, ctx: PipelineContext[Cursor])`.

    `result` is the merged result so far, read-only: the fields of the input, and over them those of the
    outputs of earlier steps, as JSON values. `progress` is the progress, of the type that the pipeline
    declares, otherwise None: change it as you like; what it is when the step ends is recorded with the step.
    `step_context` is the context of the step, which emits, tells how far the step is, and shares what
    lifespans made. The other attributes are those of the same names there.
    """

    __slots__ = ("_save", "progress", "result", "start", "step_context")

    def __init__(
        self,
        step_context: StepContext[Any],
        result: dict[str, Any],
        progress: G,
        save: Callable[[], Awaitable[None]],
        start: Any = None,
    ) -> None:
        """`start` is the progress that the step began with, as JSON."""
        self.step_context: StepContext[Any] = step_context
        self.result: Mapping[str, Any] = MappingProxyType(result)
        self.progress: G = progress
        self.start: Any = start
        self._save = save

    def save(self) -> Awaitable[None]:
        """Record the progress now, so that the next attempt of this step begins with it.

        It is kept over retries, stops and crashes of the worker, and for `flows.retry` of a flow that failed.
        Await it in an async function; in a plain function it returns when the progress is recorded. Raises
        what `StepContext.save` raises, and UsageError in a condition and in a hook.
        """
        return self._save()

    @property
    def input(self) -> Any:
        """The input of the flow."""
        return self.step_context.input

    @property
    def data(self) -> Any:
        """What the pipeline's `data` function returned in this activation."""
        return self.step_context.data

    @property
    def flow_id(self) -> str:
        """The id of the flow."""
        return self.step_context.flow_id

    @property
    def step(self) -> str:
        """The name of the step."""
        return self.step_context.step

    @property
    def run(self) -> int:
        """The number of the flow's run, from 1; `flows.retry` begins another one."""
        return self.step_context.run

    @property
    def attempt(self) -> int:
        """The number of the attempt, from 1."""
        return self.step_context.attempt

    @property
    def meta(self) -> Mapping[str, Any]:
        """The meta data of the flow."""
        return self.step_context.meta

    @property
    def log(self) -> Logger:
        """A logger that is bound to the flow and the step."""
        return self.step_context.log

    @property
    def stopping(self) -> Stopping | None:
        """Why the step should end early: see `StepContext.stopping`."""
        return self.step_context.stopping
