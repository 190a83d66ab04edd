"""What the functions of a workflow may know and do: the facts of their flow, and earlier results.

One class for steps, conditions, rollbacks and hooks. Not here: where results come from; they are
loaded before the function is called, as far as the bounds allow, and the rest on request.

What must hold: a result is read typed and decoded once for each context, from the record that its
step left, so that every reader has a copy of its own, and parallel members see the same.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar, overload

import msgspec

from eventbus import DefinitionError
from eventbus.lowlevel import Logger, get_logger, trace_id_of
from workflows.codecs import Codecs
from workflows.errors import ResultNotLoaded, StepSkipped
from workflows.records import StepRecord
from workflows.step import Step

__all__ = ["FlowFacts", "FlowTools", "StepContext"]

I = TypeVar("I")  # noqa: E741  (input, beside O and R)
R = TypeVar("R")
D = TypeVar("D")

_UNSET: Any = object()


class FlowTools(Protocol):
    """What contexts need of whoever runs the flow."""

    def emit(self, event: Any, payload: Any = ..., **options: Any) -> Any:
        """As `EventProvider.emit`."""
        ...

    def emit_many(self, event: Any, payloads: Iterable[Any], **options: Any) -> Any:
        """As `EventProvider.emit_many`."""
        ...

    def shared(self, lifespan: Callable[..., Any]) -> Any:
        """Return what a lifespan of the worker that runs here yielded."""
        ...

    async def load_record(self, step: str) -> StepRecord | None:
        """Return the record of a step of this flow, None if it did not complete."""
        ...


class FlowFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is the same in every function of one run of a flow."""

    flow_id: str
    run: int = 1
    meta: Mapping[str, Any] = MappingProxyType({})
    correlation_id: str = ""
    tracestate: str = ""


class StepContext(Generic[I]):
    """The first argument of every function of a workflow; not to be changed.

    `input` is the flow's. `workflow` and `step` are names; `step` is empty in the hooks `completed`
    and `failed`. `attempt` counts from 1. `meta` and `correlation_id` are the same in every function of
    a flow. In a rollback `step` is the one that is undone.
    """

    __slots__ = (
        "_log",
        "_reach",
        "_records",
        "_tools",
        "_unloaded",
        "_values",
        "attempt",
        "codecs",
        "correlation_id",
        "flow_id",
        "input",
        "job_id",
        "meta",
        "run",
        "step",
        "traceparent",
        "tracestate",
        "workflow",
    )

    def __init__(
        self,
        tools: FlowTools,
        codecs: Codecs,
        facts: FlowFacts,
        *,
        input: I,  # noqa: A002  (as the workflow calls it)
        step: str,
        job_id: str,
        attempt: int,
        traceparent: str,
        records: Mapping[str, StepRecord],
        reach: Collection[str],
        unloaded: Collection[str] = (),
    ) -> None:
        """`records` are loaded; `reach` names all whose results may be asked for, nearest first.

        `unloaded` are those of `reach` that were left out for their size or number; what is in neither
        did not complete.
        """
        self.codecs = codecs
        self.workflow = codecs.workflow.name
        self.input = input
        self.flow_id = facts.flow_id
        self.run = facts.run
        self.meta = facts.meta
        self.correlation_id = facts.correlation_id
        self.tracestate = facts.tracestate
        self.step = step
        self.job_id = job_id
        self.attempt = attempt
        self.traceparent = traceparent
        self._tools = tools
        self._records = records
        self._reach = reach
        self._unloaded = unloaded
        self._values: dict[str, Any] = {}
        self._log: Logger | None = None

    @property
    def log(self) -> Logger:
        """A structlog logger that knows the flow, workflow, step, attempt, correlation and trace."""
        if self._log is None:
            facts: dict[str, Any] = {"flow_id": self.flow_id, "workflow": self.workflow}
            if self.step:
                facts["step"] = self.step
            facts |= {"attempt": self.attempt, "correlation_id": self.correlation_id}
            if self.traceparent:
                facts["trace_id"] = trace_id_of(self.traceparent)
            self._log = get_logger("workflows.step").bind(**facts)
        return self._log

    @overload
    def result(self, step: Step[Any, R]) -> R: ...
    @overload
    def result(self, step: Step[Any, R], default: D) -> R | D: ...
    @overload
    def result(self, step: Callable[[StepContext[Any]], Awaitable[R]]) -> R: ...
    @overload
    def result(self, step: Callable[[StepContext[Any]], Awaitable[R]], default: D) -> R | D: ...
    @overload
    def result(self, step: Any, default: Any = ...) -> Any: ...
    def result(self, step: Any, default: Any = _UNSET) -> Any:
        """Return the result of an earlier step: given as itself, its function, or its name.

        `default` stands in for a step that was skipped, or in a hook or rollback did not complete.
        Raises StepSkipped without one, ResultNotLoaded for a result that was left out beforehand (see
        `load`), and DefinitionError for a step that does not run before this one.
        """
        name = self._find(step)
        if name in self._unloaded and name not in self._records:
            raise ResultNotLoaded(step=name, workflow=self.workflow)
        return self._read(name, self._records.get(name), default)

    @overload
    async def load(self, step: Step[Any, R]) -> R: ...
    @overload
    async def load(self, step: Step[Any, R], default: D) -> R | D: ...
    @overload
    async def load(self, step: Callable[[StepContext[Any]], Awaitable[R]]) -> R: ...
    @overload
    async def load(self, step: Callable[[StepContext[Any]], Awaitable[R]], default: D) -> R | D: ...
    @overload
    async def load(self, step: Any, default: Any = ...) -> Any: ...
    async def load(self, step: Any, default: Any = _UNSET) -> Any:
        """Return as `result` does, and ask the server for what was not loaded beforehand."""
        name = self._find(step)
        record = self._records.get(name)
        if record is None and name in self._unloaded:
            record = await self._tools.load_record(name)
        return self._read(name, record, default)

    @property
    def results(self) -> Mapping[str, Any]:
        """The results that are loaded, by step; skipped steps are not in it."""
        names = (name for name in self.codecs.workflow.steps if name in self._reach)
        found = {
            name: self._read(name, self._records[name], None)
            for name in names
            if name in self._records and not self._records[name].skipped
        }
        return MappingProxyType(found)

    def emit(self, event: Any, payload: Any = None, **options: Any) -> Any:
        """Emit as `EventProvider.emit` does, as part of this flow's chain and trace.

        In a plain function, which runs in a thread, as `SyncProvider.emit` does: `.result()` waits.
        """
        return self._tools.emit(event, payload, **options)

    def emit_many(self, event: Any, payloads: Iterable[Any], **options: Any) -> Any:
        """Emit many as `EventProvider.emit_many` does, as part of this flow's chain and trace."""
        return self._tools.emit_many(event, payloads, **options)

    def shared(self, lifespan: Callable[..., Any]) -> Any:
        """Return what a function under `@provider.lifespan` yielded in this worker."""
        return self._tools.shared(lifespan)

    def _find(self, step: Any) -> str:
        name = self.codecs.workflow.find(step).name
        if name not in self._reach:
            raise DefinitionError(
                f"step {self.step!r} of workflow {self.workflow!r} asks for the result of step {name!r}, "
                f"which does not run before it; put {name!r} into its `after`"
            )
        return name

    def _read(self, name: str, record: StepRecord | None, default: Any) -> Any:
        if record is None or record.skipped:
            if default is _UNSET:
                reason = "was skipped" if record is not None else "did not complete"
                raise StepSkipped(step=name, workflow=self.workflow, reason=reason)
            return default
        if name not in self._values:
            self._values[name] = self.codecs.result(name).decode(memoryview(record.result))
        return self._values[name]
