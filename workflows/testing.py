"""Testing workflows: runs a workflow in this process, without a server, and reports what it did.

Definition, rules, types and errors are those of a distributed flow, but nothing is durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Generic, TypeVar

from eventbus.lowlevel import Duration
from workflows.definition.workflow import Workflow
from workflows.execution.environment import Environment
from workflows.inline.flow import InlineFlow, Stop
from workflows.inline.start import open_inline
from workflows.records.report import FlowReport, FlowStatus, RollbackReport, StepReport

__all__ = [
    "FlowReport",
    "FlowStatus",
    "InlineHandle",
    "RollbackReport",
    "StepReport",
    "run_inline",
    "start_inline",
]

I = TypeVar("I")  # noqa: E741  (input, beside O)
O = TypeVar("O")  # noqa: E741  (output)


class InlineHandle(Generic[O]):
    """A flow that runs in this event loop; use it like the handle of a distributed flow.

    The handle owns the task of the flow: the caller must await `result`, or end the flow with `aclose`.
    """

    def __init__(self, flow: InlineFlow) -> None:
        self.id: str = flow.facts.flow_id
        self._flow = flow
        self._task = asyncio.create_task(flow.settle(), name=f"inline flow {self.id}")

    async def result(self) -> O:
        """Wait for the end of the flow and return its output.

        Raises StepError, or the declared error that a step failed with, FlowTimeout, FlowCancelled.
        """
        await asyncio.shield(self._task)  # cancelling one waiter must not cancel the flow
        return self._flow.outcome()

    async def status(self) -> FlowStatus:
        """Return the state of the flow and of its rollbacks."""
        return FlowStatus(self._flow.state, self._flow.rollback)

    async def cancel(self, reason: str = "") -> bool:
        """Cancel the flow and roll back its completed steps.

        Return True if it will end with FlowCancelled, False if it has ended or was stopping already.
        """
        return self._flow.stop(Stop(cause="cancelled", reason=reason))

    async def report(self) -> FlowReport:
        """Return the report of the flow so far, step by step."""
        return self._flow.report()

    async def aclose(self) -> None:
        """End the flow at once, like the end of the process: cancel running functions and undo nothing."""
        self._task.cancel()
        await asyncio.wait({self._task})


def start_inline(
    workflow: Workflow[I, O],
    input: I,  # noqa: A002  (as the workflow calls it)
    *,
    meta: Mapping[str, Any] | None = None,
    timeout: Duration | None = None,
    sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
    provider: Any = None,
) -> InlineHandle[O]:
    """Start a flow in this event loop and return its handle.

    `timeout` overrides the workflow's timeout; 0 is none. `sleep(seconds)` waits between attempts: for tests
    of retries pass one that returns at once. `ctx.emit` uses `provider`. Raises DefinitionError and
    PayloadError before anything runs.
    """
    environment = Environment(provider=provider, sleep=sleep)
    return InlineHandle(open_inline(workflow, input, meta=meta, timeout=timeout, environment=environment))


async def run_inline(
    workflow: Workflow[I, O],
    input: I,  # noqa: A002  (as the workflow calls it)
    *,
    meta: Mapping[str, Any] | None = None,
    idempotency_key: str | None = None,  # noqa: ARG001  (nothing is kept, so there is nothing to join)
    timeout: Duration | None = None,  # noqa: ASYNC109  (of the flow, with rollback)
    sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
    provider: Any = None,
) -> O:
    """Run a flow in this process and return its output.

    The options are those of `start_inline`; an `idempotency_key` is accepted and ignored. Raises the errors
    of the handle's `result`. Cancelling this call cancels the running functions and undoes nothing, like the
    end of the process.
    """
    handle = start_inline(workflow, input, meta=meta, timeout=timeout, sleep=sleep, provider=provider)
    try:
        return await handle.result()
    except asyncio.CancelledError:
        await handle.aclose()  # no function of the flow may outlive this call
        raise
