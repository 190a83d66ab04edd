"""The pauses of workflows: a provider of workflows pauses the queue of a workflow, and resumes it."""

from __future__ import annotations

from typing import Any

from eventbus import DefinitionError, EventProvider
from eventbus.lowlevel import Duration, shown
from workflows.definition.workflow import Workflow
from workflows.functions.definition import Durable
from workflows.records.ids import check_workflow_name, flow_queue

__all__ = ["FlowPauses"]


class FlowPauses:
    """The part of a provider of workflows that pauses them."""

    provider: EventProvider

    async def pause(
        self,
        workflow: Workflow[Any, Any] | Durable[Any, Any] | str,
        *,
        reason: str = "",
        by: str | None = None,
        call_timeout: Duration | None = None,
    ) -> None:
        """Pause a workflow, of which the name is enough: no worker begins its flows, or goes on with one, until `resume`.

        A flow that a worker runs now goes on to its end, or until it waits without a worker; jobs of spread steps run.
        Flows can be started, cancelled and sent signals. `reason`, `by` and the time are kept and shown, as by
        `EventProvider.pause`. Raises DefinitionError, StoreError, ProviderStopped.
        """
        await self.provider.pause(_queue_of(workflow), reason=reason, by=by, call_timeout=call_timeout)

    async def resume(
        self, workflow: Workflow[Any, Any] | Durable[Any, Any] | str, *, call_timeout: Duration | None = None
    ) -> None:
        """Let workers run the flows of a paused workflow again. Does nothing if it is not paused. Raises as `pause`."""
        await self.provider.resume(_queue_of(workflow), call_timeout=call_timeout)


def _queue_of(workflow: Workflow[Any, Any] | Durable[Any, Any] | str) -> str:
    if isinstance(workflow, str):
        return flow_queue(check_workflow_name(workflow))
    if not isinstance(workflow, (Workflow, Durable)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DefinitionError(f"expected a workflow or its name, got: {shown(workflow)}")
    return flow_queue(workflow.name)
