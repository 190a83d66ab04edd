"""Handles: what a caller holds of a flow, in the process that executed it and in every other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

from eventbus import UnknownJob
from eventbus.lowlevel import Codec, Duration, Emission, Jobs, seconds
from workflows.names import flow_queue, workflow_of
from workflows.records import revive_flow
from workflows.report import FlowReport, FlowStatus
from workflows.status import status_of

__all__ = ["FlowHandle", "FlowReading"]

O = TypeVar("O", covariant=True)  # noqa: E741, PLC0105  (output)


class FlowReading:
    """How the outcome of a workflow's flows is read; an engine's `Reading`."""

    def __init__(self, workflow: str, output: Codec, errors: Sequence[type[Exception]]) -> None:
        self.name = f"workflow {workflow}"
        self.queue = flow_queue(workflow)
        self._output = output
        self._workflow = workflow
        self._errors = errors

    def decode_result(self, text: str) -> Any:
        """Make the flow's output of its JSON text."""
        return self._output.decode(text)

    def revive(self, state: str, text: str, job_id: str) -> Exception:
        """Make the flow's error; a declared one is made as itself."""
        return revive_flow(state, text, self._workflow, job_id, self._errors)


class Reporter(Protocol):
    """Whoever can tell what became of a flow's steps."""

    async def report(self, flow_id: str) -> FlowReport:
        """Return what is recorded of the flow."""
        ...


class FlowHandle(Generic[O]):
    """One flow. Has no state of its own: any number of handles on a flow may be used in any process."""

    def __init__(
        self,
        flow_id: str,
        jobs: Jobs,
        reading: FlowReading,
        reporter: Reporter,
        emission: Emission[Any] | None = None,
    ) -> None:
        """Use `WorkflowProvider.execute` or `handle`. `emission` waits for the outcome already."""
        self._id = flow_id
        self._jobs = jobs
        self._reading = reading
        self._reporter = reporter
        self._emission = emission

    @property
    def id(self) -> str:
        """The flow's id, which names its workflow; `flows.handle(id)` finds it from any process."""
        return self._id

    @property
    def workflow(self) -> str:
        """The name of its workflow."""
        return workflow_of(self._id)

    async def result(self, timeout: Duration | None = None) -> O:  # noqa: ASYNC109  (of the waiting, not of the flow)
        """Wait for the end of the flow and return its output, also after it has ended, for its retention.

        `timeout` bounds this waiting alone; the flow goes on. Raises StepError, or the declared error
        that a step failed with, FlowTimeout, FlowCancelled; ResponseTimeout when the waiting is over
        (it looks at the recorded state before), UnknownJob, ProviderStopped, StoreError.
        """
        if self._emission is not None and timeout is None:
            return await self._emission
        limit = None if timeout is None else seconds(timeout, setting="timeout") or None
        return await self._jobs.result(self._id, self._reading, limit)

    async def status(self) -> FlowStatus:
        """Return its state and what became of its rollbacks, as recorded now. Raises UnknownJob, StoreError."""
        page = await self._jobs.look(self._id, limit=0)
        if not page.root:
            raise UnknownJob(self._id)
        return status_of(page.root)

    async def cancel(self, reason: str = "") -> bool:
        """Stop the flow and undo what was done; returns when the request is recorded.

        What runs is cancelled within a second, wherever it runs; what has not started never does. False if
        the flow had ended, or is rolling back already (`status` tells). Raises UnknownJob, StoreError.
        """
        return await self._jobs.cancel(self._id, reason)

    async def report(self) -> FlowReport:
        """Return what is recorded of its steps and rollbacks now. Raises UnknownJob, StoreError."""
        return await self._reporter.report(self._id)

    def __repr__(self) -> str:
        return f"<FlowHandle {self._id}>"
