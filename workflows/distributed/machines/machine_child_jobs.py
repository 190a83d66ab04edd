"""The children of a state machine in a worker: roots of flows in its tree, which any worker runs.

What must always hold: a child is added only after the move that starts it is recorded; nobody asks for the
end of one before it is added; one that is recorded and not there is added again.

Crash windows: `recorded-not-added` (the next activation adds it), `added-not-answered` (the repeat adds
nothing).
"""

from __future__ import annotations

from collections.abc import Sequence

from eventbus import UnknownJob
from eventbus.lowlevel import FINAL_STATES, Member, Outcome, Settle, give_back
from workflows.definition.flow_definition import AnyDefinition
from workflows.distributed.activation import Activation
from workflows.distributed.functions.flow_children import check_registered
from workflows.distributed.nested_flows import effective_timeout, flow_root
from workflows.distributed.worker_runtime import WorkerRuntime
from workflows.execution.rollback import UnknownHere
from workflows.execution.surroundings import FlowStops, LeaseLost
from workflows.machines.children import read_end
from workflows.machines.choosing import Rest
from workflows.machines.settled import ChildEnd
from workflows.machines.snapshot import Awaited
from workflows.records.records import FlowMessage


class MachineChildJobs:
    """The children of one activation, as jobs."""

    def __init__(self, runtime: WorkerRuntime, activation: Activation, message: FlowMessage) -> None:
        self._runtime = runtime
        self._activation = activation
        self._message = message
        self._pending: list[Member] = []

    def check(self, workflow: AnyDefinition) -> None:
        """Raise DefinitionError for a workflow that is not registered with this machine."""
        check_registered(self._runtime, self._activation.job.id, workflow)

    async def start(self, children: Sequence[Awaited], *, rests: bool) -> None:
        """Add children; if the machine rests now, the call that lets it wait brings them."""
        self._pending += [self._member(child) for child in children]
        if not rests:
            await self._add()

    async def ends(self, children: Sequence[Awaited]) -> dict[str, Outcome]:
        """Return the ends of those that have ended, by id; add those that are not there. Raises
        ServerAway.
        """
        added = {member.id for member in self._pending}
        asked = [child for child in children if child.id not in added]
        found = await self._runtime.ask(self._runtime.jobs.outcomes([child.id for child in asked]))
        missing = [child for child, end in zip(asked, found, strict=True) if end.state == "unknown"]
        self._pending += [self._member(child) for child in missing]
        return {end.job: end for end in found if end.state in FINAL_STATES}

    def read(self, child: Awaited, end: Outcome) -> ChildEnd:
        """Return the end of a child, typed if its workflow is known here."""
        return read_end(child, end, self._find(child))

    async def cancel(self, child_id: str, reason: str) -> None:
        """Stop a child; one that waits to be added is added first, so that it has an end. Raises
        ServerAway.
        """
        await self._add()
        try:
            await self._runtime.ask(self._runtime.jobs.cancel(child_id, reason))
        except UnknownJob:
            pass  # the next question adds it again

    async def rest(self, rest: Rest) -> Settle | None:
        """Let the machine rest; return what is to be settled: nothing, if it waits for children or has lost
        its lease.
        """
        activation = self._activation
        if not rest.children:
            await self._add()
            return activation.sleep(until_ms=rest.until_ms, listens=True)
        word = await self._runtime.ask(
            self._runtime.jobs.spawn(
                activation.job,
                self._pending,
                tree=activation.job.id,
                awaited=list(rest.children),
                delay_ms=None if rest.until_ms is None else max(0, rest.until_ms - activation.clock.now_ms),
                heard=activation.job.heard,
                first=rest.first,
            )
        )
        return give_back() if word == "stopping" else None

    async def _add(self) -> None:
        """Add what waits for that. Raises FlowStops, LeaseLost, ServerAway."""
        if not self._pending:
            return
        job = self._activation.job
        word = await self._runtime.ask(self._runtime.jobs.spawn(job, self._pending, tree=job.id, waits=False))
        if word == "stopping":
            raise FlowStops
        if word == "lost":
            raise LeaseLost
        self._pending = []

    def _member(self, child: Awaited) -> Member:
        definition = self._find(child)
        if definition is None:
            raise UnknownHere(f"version {child.version} of workflow {child.workflow}")
        flow_id = self._activation.job.id
        return flow_root(
            self._message,
            definition,
            child.id,
            starter=(flow_id, flow_id),
            given=bytes(child.given),
            timeout=effective_timeout(definition.timeout, self._runtime.services.settings.lease),
            traceparent=self._message.traceparent,
            up="ignore",
        )

    def _find(self, child: Awaited) -> AnyDefinition | None:
        return self._runtime.registry.find(child.workflow, child.version)
