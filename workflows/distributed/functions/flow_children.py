"""The children of a flow of a durable function in a worker: members of its tree, which any worker runs.

What must always hold: a child of an earlier activation is asked for once, before the code runs, so that an
end that came meanwhile is known at once. One that is recorded and not there is added again.

Crash windows: those of `distributed.child_jobs`, and `recorded-not-cancelled` (a child that lost a race is
cancelled by the next activation, which finds it open under a race that is decided).
"""

from __future__ import annotations

import asyncio

from eventbus import DefinitionError, UnknownJob
from eventbus.lowlevel import Member, Outcome
from workflows.definition.flow_definition import AnyDefinition
from workflows.definition.job_tree import child_job
from workflows.distributed.activation import Activation
from workflows.distributed.child_jobs import ChildJobs
from workflows.distributed.functions.task_jobs import describe_task
from workflows.distributed.nested_flows import effective_timeout, flow_root
from workflows.distributed.worker_runtime import WorkerRuntime
from workflows.execution.surroundings import Child
from workflows.functions.history import History
from workflows.records.ids import workflow_of
from workflows.records.records import FlowMessage


class FlowChildren(ChildJobs):
    """The children of one activation."""

    are_here = False

    def __init__(self, runtime: WorkerRuntime, activation: Activation, message: FlowMessage) -> None:
        super().__init__(runtime, activation)
        self._message = message
        self._open: set[str] = set()
        self._found: dict[str, Outcome] = {}

    async def ask(self, history: History) -> None:
        """Ask for the ends of the children that were open before this activation. Raises ServerAway."""
        children = [entry.child for entry in history.open_children.values()]
        self._open |= set(children)
        self._found.update(await self.find_ended(children))

    def check(self, workflow: AnyDefinition) -> None:
        """Raise DefinitionError for a workflow that is not registered with this flow's."""
        check_registered(self._runtime, self._activation.job.id, workflow)

    def follow(self, child: Child) -> asyncio.Future[Outcome]:
        """Add a child, unless it is there; return the future of its end."""
        found = self._found.get(child.id)
        if child.id in self._open and (found is None or found.state != "unknown"):
            return self.follow_lost(child.id)
        return self.add_member(self._member(child))

    def follow_lost(self, child_id: str) -> asyncio.Future[Outcome]:
        """Return the future of the end of a child that is there, or never was."""
        found = self._found.get(child_id)
        if found is None:
            return self.end_of(child_id)
        end: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        end.set_result(found)
        return end

    async def cancel(self, child_id: str, reason: str) -> None:
        """Stop a child. Raises ServerAway."""
        if child_id in self._found:
            return
        while not self.drop(child_id):
            try:
                await self._runtime.ask(self._runtime.jobs.cancel(child_id, reason))
            except UnknownJob:  # it is being added, or its record is gone
                if not self.is_adding:
                    return
                await asyncio.sleep(0.01)
            else:
                return

    def _member(self, child: Child) -> Member:
        job, flow_id = self._activation.job, self._activation.job.id
        if child.workflow is None:
            return child_job(workflow_of(flow_id), child.id, describe_task(self._message, child))
        return flow_root(
            self._message,
            child.workflow,
            child.id,
            starter=(job.id, job.id),
            given=child.given,
            timeout=effective_timeout(child.timeout, self._runtime.services.settings.lease),
            traceparent=self._message.traceparent,
            up="ignore",
        )


def check_registered(runtime: WorkerRuntime, flow_id: str, workflow: AnyDefinition) -> None:
    """Raise DefinitionError for a workflow that is not registered with that of the flow which wants to start
    it.
    """
    name = workflow.name
    if runtime.registry.find(name, workflow.version) is not workflow:
        raise DefinitionError(
            f"workflow {name!r} is not registered with the provider that runs flow {flow_id}; "
            "register it, so that its flows can be run and undone"
        )
