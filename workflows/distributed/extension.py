"""The extension that makes the workers of an event provider run the flows of its workflow provider."""

from __future__ import annotations

from collections.abc import Sequence

from eventbus.lowlevel import Consumer, JobClient, WorkerServices
from workflows.distributed.flow_consumer import FlowConsumer
from workflows.distributed.step_consumer import StepConsumer
from workflows.distributed.worker_runtime import WorkerRuntime
from workflows.records.ids import flow_queue, steps_queue
from workflows.registry import StepRegistry

__all__ = ["FlowExtension"]


class FlowExtension:
    """Makes the consumers for the workflows of a registry; implements `handlers.extension.Extension`."""

    def __init__(self, jobs: JobClient, registry: StepRegistry) -> None:
        self._jobs = jobs
        self._registry = registry
        self._runtime: WorkerRuntime | None = None

    @property
    def queues(self) -> Sequence[str]:
        """The queues that workers of this process serve: two for each workflow with steps or hooks here."""
        names = dict.fromkeys(
            workflow.name
            for workflow in self._registry
            if workflow.steps or workflow.completed_hook is not None
        )
        return [queue for name in names for queue in (flow_queue(name), steps_queue(name))]

    def make_consumer(self, queue: str, services: WorkerServices) -> Consumer:
        """Make the consumer of one of these queues."""
        # All consumers of one worker have the same services, so they share one runtime.
        if self._runtime is None or self._runtime.services is not services:
            self._runtime = WorkerRuntime(self._jobs, services, self._registry)
        name = queue.removeprefix(flow_queue(""))
        if name.endswith(".steps"):
            return StepConsumer(name.removesuffix(".steps"), self._runtime, services)
        return FlowConsumer(name, self._runtime, services)
