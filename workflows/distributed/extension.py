"""The extension that makes the workers of an event provider run the flows of its workflow provider."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial

from eventbus.lowlevel import Around, Consumer, JobClient, Target, WorkerServices
from workflows.definition.middleware import FlowMiddleware
from workflows.distributed.flow_consumer import FlowConsumer, FlowDriver
from workflows.distributed.functions.durable_flow import DurableDriver
from workflows.distributed.functions.task_jobs import TaskConsumer
from workflows.distributed.functions.task_pools import check_tasks
from workflows.distributed.graph_flow import GraphDriver
from workflows.distributed.machines.machine_flow import MachineDriver
from workflows.distributed.nested_undo import add_nested
from workflows.distributed.steering import find_target, list_targets, steering
from workflows.distributed.step_consumer import StepConsumer, step_queues
from workflows.distributed.worker_runtime import WorkerRuntime
from workflows.records.ids import flow_queue, split_queue, steps_queue
from workflows.registry import StepRegistry


class FlowExtension:
    """Makes the consumers for the workflows of a registry; implements `eventbus.lowlevel.Extension`, and for
    tests `Steered`.
    """

    def __init__(
        self, jobs: JobClient, registry: StepRegistry, middleware: list[FlowMiddleware] | None = None
    ) -> None:
        """Use the functions that `middleware` has when a worker starts."""
        self._middleware: list[FlowMiddleware] = [] if middleware is None else middleware
        self._jobs = jobs
        self._registry = registry
        self._runtime: WorkerRuntime | None = None

    @property
    def queues(self) -> Sequence[str]:
        """The queues that workers of this process serve.

        There is one for each state machine, and two for each durable function, and for each workflow with
        steps or hooks here. Each step with a concurrency of its own has one more.
        """
        names = dict.fromkeys(
            workflow.name
            for workflow in self._registry
            if workflow.steps or workflow.completed_hook is not None
        )
        functions = [
            queue
            for name in dict.fromkeys(durable.name for durable in self._registry.durables)
            for queue in (flow_queue(name), steps_queue(name))
        ]
        steps = [
            queue
            for name in names
            for queue in (flow_queue(name), *step_queues(self._registry.limited(name), name))
        ]
        machines = [flow_queue(name) for name in dict.fromkeys(each.name for each in self._registry.machines)]
        return [*steps, *functions, *machines]

    def make_consumer(self, queue: str, services: WorkerServices) -> Consumer:
        """Make the consumer of one of these queues."""
        # All consumers of one worker have the same services, so they share one runtime.
        if self._runtime is None or self._runtime.services is not services:
            self._runtime = WorkerRuntime(
                self._jobs, services, self._registry, tuple(self._middleware), add_nested
            )
            for workflow in self._registry:
                self._runtime.remote.check(workflow)
            for durable in self._registry.durables:
                check_tasks(durable, self._runtime)
        name, step = split_queue(queue)
        runtime, durable = self._runtime, self._registry.durable(name)
        if step is None:
            return FlowConsumer(name, self._driver(name, runtime), runtime)
        if durable is not None:
            return TaskConsumer(name, runtime, services)
        return StepConsumer(name, runtime, services, limited=step)

    def _driver(self, name: str, runtime: WorkerRuntime) -> FlowDriver:
        """Return what runs the flows of the kind that has this name."""
        if (machine := self._registry.machine(name)) is not None:
            return MachineDriver(machine, runtime)
        if (durable := self._registry.durable(name)) is not None:
            return DurableDriver(durable, runtime)
        return GraphDriver(name, runtime)

    # For tests.

    def steer(self, around: Around) -> Callable[[], None]:
        """Put `around` inside of all middleware of later workers; return what takes it away."""
        own = steering(around)
        self._middleware.append(own)
        return partial(self._middleware.remove, own)

    def find_target(self, given: object) -> Target | None:
        """Return the step, task, transition or rollback that a test names."""
        return find_target(self._registry, given)

    @property
    def targets(self) -> Collection[str]:
        """The names of the steps, tasks, transitions and rollbacks of the registered workflows."""
        return list_targets(self._registry)
