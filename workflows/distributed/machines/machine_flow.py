"""One activation of a flow of a state machine in a worker.

    claimed -> snapshot read -> transitions, each recorded -> completed | rests | given back | parked
    claimed with a stop -> undone (`undo.unwinding`)

What must always hold: what an activation reads does not grow with the number of moves; a flow at a place that
this worker does not know is parked, and neither fails nor moves.

Crash windows: those of the package `workflows.machines` and of `undo.unwinding`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from eventbus import StoreCorrupt
from eventbus.lowlevel import (
    Job,
    JobClient,
    Outcome,
    Settle,
    TreePage,
    complete,
    describe,
    fail,
    get_logger,
    give_back,
    park,
)
from workflows.distributed.activation import Activation
from workflows.distributed.functions.flow_around import FlowAround
from workflows.distributed.functions.flow_recorder import FlowRecorder
from workflows.distributed.machines.machine_child_jobs import MachineChildJobs
from workflows.distributed.undo.unwinding import undo_entry
from workflows.distributed.worker_runtime import WorkerRuntime, needing_server
from workflows.execution.rollback import Undoable, UndoPlan, UnknownHere
from workflows.execution.stop import Stop
from workflows.functions.endings import Completed
from workflows.machines.definition import MachineDefinition
from workflows.machines.run import Leaving, MachineRun
from workflows.machines.snapshot import HISTORY, NAMES, Snapshot, document_name
from workflows.machines.standing import Standing
from workflows.machines.transition import END
from workflows.machines.undo import plan_machine, undone_text
from workflows.records.records import FlowMessage

_log = get_logger("workflows")


class MachineDriver:
    """Opens the flows of one state machine."""

    follows: Sequence[str] = ()

    def __init__(self, newest: MachineDefinition, runtime: WorkerRuntime) -> None:
        self.newest: MachineDefinition = newest
        self._runtime = runtime

    async def open(self, job: Job, message: FlowMessage) -> MachineFlow:
        """Return the flow of a root job. Raises UnknownHere."""
        name = self.newest.name
        machine = self._runtime.registry.machine(name, message.version or None)
        if machine is None:
            raise UnknownHere(f"version {message.version} of state machine {name}")
        return MachineFlow(self._runtime, machine, job, message)

    def judge(self, job: Job, error: BaseException) -> Settle:
        """Fail the flow: what a transition raises is recorded, and not raised here."""
        return fail(describe(error, attempts=job.attempts + 1, event=self.newest.name))

    def log_failed(self, job: Job, settle: Settle, facts: Mapping[str, Any]) -> None:
        """Do nothing: the transitions have logged theirs."""


class MachineFlow:
    """A claimed flow. Await `advance` or `undo`, only once."""

    def __init__(
        self, runtime: WorkerRuntime, definition: MachineDefinition, job: Job, message: FlowMessage
    ) -> None:
        job.keep_newest(HISTORY)
        self._runtime = runtime
        self._definition = definition
        self._job = job
        self._message = message
        self.activation: Activation = Activation(runtime.jobs, job)
        self.message: FlowMessage = message
        self.workflow_name: str = definition.name
        self._recorder = FlowRecorder(runtime, self.activation, remembers=False)
        self._undos: Sequence[Undoable] = ()
        self._around = FlowAround(runtime, definition, job.id, message)

    async def advance(self) -> Settle | None:
        """Fire until the machine rests or ends. Raises FlowStops, LeaseLost, ServerAway, StoreCorrupt,
        UnknownHere.
        """
        live: Mapping[str, str] = {}
        if self._job.passed:  # otherwise it has not recorded anything
            live = await self._runtime.ask(self._runtime.jobs.lives(self._job.id, NAMES))
        standing = self._stand(live)
        place = standing.snapshot.place
        if place != END and place not in self._definition.out_of:
            reason = f"not known here: place {place} of state machine {self._definition.name}"
            _log.warning("flow parked, its place is not known here", **self._around.facts(), place=place)
            return park(reason)
        children = MachineChildJobs(self._runtime, self.activation, self._message)
        run = MachineRun(
            self._definition,
            standing,
            self._recorder,
            self._around.make(str(self._message.run), job=self._job),
            children,
            number=self._message.run,
            load=self._load,
        )
        with needing_server():
            ending = await run.run()
            if isinstance(ending, Completed):
                return complete(ending.output)
            return give_back() if isinstance(ending, Leaving) else await children.rest(ending)

    # Its undoing.

    async def plan_undo(self, page: TreePage) -> UndoPlan:
        """Return the plan that the live texts give."""
        jobs, flow_id, definition = self._runtime.jobs, self._job.id, self._definition
        live = await jobs.lives(flow_id) if self._job.passed else {}
        standing, around = self._stand(live), self._around.make(str(self._message.run))
        ends = await read_ends(self._runtime, standing)
        plan = await plan_machine(
            definition, around, standing, live, self._load, ends, self._runtime.add_inner
        )
        # A body that a dead worker ran, and that nobody recorded, would be one to undo.
        may_have_acted = any(
            each.undo is not None for each in definition.out_of.get(standing.snapshot.place, ())
        )
        plan.is_doubtful = plan.is_doubtful or (bool(page.root.get("lost")) and may_have_acted)
        self._undos = plan.undos
        return plan

    async def find_failure(self, page: TreePage) -> Stop:
        """Return the error of its root."""
        text = page.root.get("text", "")
        return Stop(cause="failed", step=self._definition.name, failure=text, job=self._job.id)

    async def save_undo(self, path: str, failure: str) -> None:
        """Append the outcome of one rollback."""
        live = undone_text(self._undos, path, failure)
        await self.activation.append([undo_entry(path, failure, self._recorder.clock.now_ms)], live=live)

    def undo_span(self, undo: Undoable, attempt: int) -> AbstractContextManager[str]:
        """Open the span around an attempt of a rollback, linked to the span of its move."""
        return self._around.span("rollback", undo.path, attempt, links=[undo.traceparent], owner=undo.owner)

    async def tell_failed(self, plan: UndoPlan, text: str) -> None:
        """Do nothing: a machine has no such hook."""

    def _stand(self, live: Mapping[str, str]) -> Standing:
        if self._job.passed and not live:
            raise StoreCorrupt(f"the snapshot of flow {self._job.id} is gone")
        first = Snapshot(self._definition.start, entered_ms=self._job.created_ms, run=self._message.run)
        return Standing(self._job.id, live, first, bytes(self._message.input).decode())

    async def _load(self, name: str) -> str | None:
        return await load_document(self._runtime.jobs, self._job.id, name)


async def read_ends(runtime: WorkerRuntime, standing: Standing) -> Sequence[Outcome]:
    """Return the outcomes of the children of a machine that it waits for. Raises ServerAway."""
    ids = [child.id for child in standing.awaited]
    return await runtime.ask(runtime.jobs.outcomes(ids)) if ids else ()


async def load_document(jobs: JobClient, flow_id: str, name: str) -> str | None:
    """Return a document of the history of a machine as JSON text; None without one. Raises StoreError."""
    return await jobs.live(flow_id, document_name(name))
