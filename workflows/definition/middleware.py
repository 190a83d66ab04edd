"""Middleware of flows: functions around each attempt of a step, a task, a rollback or a hook, the first one
outermost.

What must always hold: an attempt sees what is recorded about its flow, so a middleware passes on the value
that came in. It may raise, return without the call, and change the result, which is then checked as that of
the function.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, cast

from eventbus import CallNext, UsageError
from eventbus.lowlevel import Logger, chain, get_logger, trace_facts, trace_id_of

AttemptKind: TypeAlias = Literal["step", "task", "rollback", "completed", "failed"]
"""What runs: a step of a workflow, a task of a durable function, a rollback, or one of the hooks."""


class AttemptContext:
    """The facts about one attempt, which a middleware of flows gets. Do not change them.

    `kind` says what runs. `workflow`, `step` and `flow_id` name it; `step` is empty in a hook. `run` and
    `attempt` count from 1. `job_id`, `meta`, `correlation_id` and `log` are as in the contexts of
    handlers, so that one function can serve both.
    """

    __slots__ = (
        "_log",
        "attempt",
        "correlation_id",
        "flow_id",
        "job_id",
        "kind",
        "meta",
        "run",
        "step",
        "traceparent",
        "workflow",
    )

    def __init__(
        self,
        kind: AttemptKind,
        *,
        workflow: str,
        step: str,
        flow_id: str,
        run: int,
        job_id: str,
        attempt: int,
        meta: Mapping[str, Any],
        correlation_id: str,
        traceparent: str,
    ) -> None:
        self.kind: AttemptKind = kind
        self.workflow: str = workflow
        self.step: str = step
        self.flow_id: str = flow_id
        self.run: int = run
        self.job_id: str = job_id
        self.attempt: int = attempt
        self.meta: Mapping[str, Any] = meta
        self.correlation_id: str = correlation_id
        self.traceparent: str = traceparent
        self._log: Logger | None = None

    @property
    def log(self) -> Logger:
        """A structlog logger bound to kind, workflow, flow, step, job, attempt, correlation and trace."""
        if self._log is None:
            facts: dict[str, Any] = {"kind": self.kind, "workflow": self.workflow, "flow_id": self.flow_id}
            if self.step:
                facts["step"] = self.step
            facts |= {"job_id": self.job_id, "attempt": self.attempt, "correlation_id": self.correlation_id}
            self._log = get_logger("workflows.step").bind(
                **facts, **trace_facts(trace_id_of(self.traceparent))
            )
        return self._log


FlowMiddleware: TypeAlias = Callable[[Any, AttemptContext, CallNext], Awaitable[Any]]
"""An async function of a value, the facts about the attempt, and the call to go on with; it returns the
result.
"""


async def through(
    middleware: Sequence[FlowMiddleware],
    context: AttemptContext,
    value: Any,
    call: Callable[[], Awaitable[Any]],
) -> Any:
    """Make one attempt, `call`, with the middleware around it. Raises UsageError if one passes another value
    on.
    """

    async def innermost(given: Any, /) -> Any:
        if given is not value:
            raise UsageError(
                f"a middleware passed another value on to the {context.kind} of workflow "
                f"{context.workflow!r}; what a flow was given is recorded, so call(value) takes the value "
                "that came in"
            )
        return await call()

    return await chain(cast("Any", middleware), cast("Any", context), innermost)(value)
