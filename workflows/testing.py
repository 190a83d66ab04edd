"""The testing door: run a workflow in this process, without a server, and look at what it did.

The same definition, rules, types and errors as in the distributed run; nothing is durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Generic, TypeVar

from eventbus.lowlevel import Duration
from workflows.definition import Workflow
from workflows.inline import InlineFlow, Stop
from workflows.opening import open_inline
from workflows.report import FlowReport, FlowStatus, RollbackReport, StepReport
from workflows.surroundings import Surroundings

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
    """A flow that runs in this event loop; use it as the handle of a distributed one.

    Its task belongs to the handle: who starts a flow awaits `result`, or ends it with `aclose`.
    """

    def __init__(self, flow: InlineFlow) -> None:
        self.id = flow.facts.flow_id
        self._flow = flow
        self._task = asyncio.create_task(flow.settle(), name=f"inline flow {self.id}")

    async def result(self) -> O:
        """Wait for the end and return the output.

        Raises StepError, or the declared error that a step failed with, FlowTimeout, FlowCancelled.
        """
        await asyncio.shield(self._task)
        return self._flow.outcome()

    async def status(self) -> FlowStatus:
        """Return the flow's state, and what became of its rollbacks."""
        return FlowStatus(self._flow.state, self._flow.rollback)

    async def cancel(self, reason: str = "") -> bool:
        """Cancel the flow, with rollback; False if it has ended, or stops already."""
        return self._flow.stop(Stop(cause="cancelled", reason=reason))

    async def report(self) -> FlowReport:
        """Return what became of the flow so far, step by step."""
        return self._flow.report()

    async def aclose(self) -> None:
        """End the flow at once, as the end of this process would: what runs is cancelled, nothing undone."""
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

    `timeout` overrides the workflow's; 0 is none. `sleep(seconds)` waits between attempts: pass one that
    returns at once for tests of retries. `provider` is used by `ctx.emit`. Raises DefinitionError and
    PayloadError before anything runs.
    """
    surroundings = Surroundings(provider=provider, sleep=sleep)
    return InlineHandle(open_inline(workflow, input, meta=meta, timeout=timeout, surroundings=surroundings))


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

    Options are those of `start_inline`; an `idempotency_key` is taken and ignored. Raises what the
    handle's `result` raises. Cancelling it cancels what runs and undoes nothing, as the end of this process
    would.
    """
    handle = start_inline(workflow, input, meta=meta, timeout=timeout, sleep=sleep, provider=provider)
    try:
        return await handle.result()
    except asyncio.CancelledError:
        await handle.aclose()
        raise
