"""One activation of a flow of a state machine in a worker.

    claimed -> snapshot read -> transitions, each recorded -> completed | rests | given back | parked
    claimed with a stop -> rollbacks, each recorded -> failed | cancelled

What must always hold: what an activation reads does not grow with the number of moves; a flow at a place that
this worker does not know is parked, and neither fails nor moves.

Crash windows: those of the package `workflows.machines`, and `dies-in-rollback` (it runs again).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

import msgspec

from eventbus import StoreCorrupt
from eventbus.lowlevel import Job, Settle, attach_baggage, cancel, complete, fail, get_logger, give_back, park
from workflows.distributed.activation import Activation
from workflows.distributed.functions.flow_around import FlowAround
from workflows.distributed.functions.flow_recorder import FlowRecorder
from workflows.distributed.machines.machine_child_jobs import MachineChildJobs
from workflows.distributed.machines.machine_undo import add_failed_children
from workflows.distributed.undo.undo_tries import UndoTries
from workflows.distributed.undo_plan import UndoPlan
from workflows.distributed.worker_runtime import WorkerRuntime
from workflows.execution.rollback import RollbackResult, Saga, failures_of, verdict_on
from workflows.execution.surroundings import FlowStops, LeaseLost
from workflows.functions.endings import Completed
from workflows.machines.definition import MachineDefinition
from workflows.machines.run import Leaving, MachineRun
from workflows.machines.snapshot import (
    HISTORY,
    NAMES,
    Obligation,
    Snapshot,
    document_name,
    obligations_in,
)
from workflows.machines.standing import Standing
from workflows.machines.transition import END
from workflows.machines.undo import MachineUndo, MachineUndos, doubts_in
from workflows.records.entries import Entry
from workflows.records.failures import reason_in
from workflows.records.records import FlowMessage, cause_of, describe_flow

__all__ = ["MachineFlow"]

_log = get_logger("workflows")


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
        self._activation = Activation(runtime.jobs, job)
        self._recorder = FlowRecorder(runtime, self._activation, remembers=False)
        self._around = FlowAround(runtime, definition, job.id, message)
        if message.baggage:
            attach_baggage(message.baggage)

    async def advance(self) -> Settle | None:
        """Fire until the machine rests or ends; return the settle, None if the lease is lost."""
        live: Mapping[str, str] = {}
        if self._job.passed:  # otherwise it has not recorded anything
            live = await self._runtime.ask(self._runtime.jobs.lives(self._job.id, NAMES))
        standing = self._stand(live)
        place = standing.snapshot.place
        if place != END and place not in self._definition.out_of:
            reason = f"not known here: place {place} of state machine {self._definition.name}"
            _log.warning("flow parked, its place is not known here", **self._around.facts(), place=place)
            return park(reason)
        children = MachineChildJobs(self._runtime, self._activation, self._message)
        run = MachineRun(
            self._definition,
            standing,
            self._recorder,
            self._around.make(str(self._message.run), job=self._job),
            children,
            number=self._message.run,
            load=self._load,
        )
        try:
            ending = await run.run()
            if isinstance(ending, Completed):
                return complete(ending.output)
            return give_back() if isinstance(ending, Leaving) else await children.rest(ending)
        except FlowStops:
            return give_back()
        except LeaseLost:
            return None

    async def undo(self) -> Settle | None:
        """Run the rollbacks of a stopped flow, and settle it with its error. Raises UnknownTask."""
        jobs, flow_id = self._runtime.jobs, self._job.id
        page = await self._runtime.ask(jobs.look(flow_id, limit=0))
        root, tries = page.root, UndoTries(self._runtime, self._job, page.saved)
        live = await self._runtime.ask(jobs.lives(flow_id)) if self._job.passed else {}
        standing, owed = self._stand(live), obligations_in(flow_id, live)
        around = self._around.make(str(self._message.run))
        undos = MachineUndos(self._definition, around, standing.snapshot, standing.state, self._load)
        # If a rollback is unknown here, this raises: the root is parked before it acknowledges its stop.
        plan, every = UndoPlan(), undos.list_open(owed)
        await add_failed_children(self._runtime, flow_id, standing.awaited, plan)
        if not await self._runtime.ask(jobs.checkpoint(self._job, acknowledges=True)):
            return None
        saga: Saga[MachineUndo] = Saga(
            every,
            flow_id=flow_id,
            call_sync=self._runtime.call_sync,
            sleep=asyncio.sleep,
            save_try=tries.save,
            tried=tries.done,
            save=lambda path, failure: self._save_undo(undos, owed, path, failure),
            done=undos.done(owed),
            around=self._undo_span,
            facts=self._around.facts(),
        )
        try:
            outcomes = await saga.run()
        except LeaseLost:
            return None
        is_doubtful = plan.is_doubtful or (bool(root.get("lost")) and self._may_have_acted(standing.snapshot))
        every = [*doubts_in(flow_id, live), *plan.inherited, *outcomes]
        text = self._describe(root, every, is_doubtful=is_doubtful)
        return cancel(text) if self._job.stop == "cancelled" else fail(text, counts=False)

    def _stand(self, live: Mapping[str, str]) -> Standing:
        if self._job.passed and not live:
            raise StoreCorrupt(f"the snapshot of flow {self._job.id} is gone")
        first = Snapshot(self._definition.start, entered_ms=self._job.created_ms, run=self._message.run)
        return Standing(self._job.id, live, first, bytes(self._message.input).decode())

    async def _load(self, name: str) -> str | None:
        return await self._runtime.jobs.live(self._job.id, document_name(name))

    def _may_have_acted(self, snapshot: Snapshot) -> bool:
        """Tell whether a body that a dead worker ran, and that nobody recorded, would be one to undo."""
        return any(each.undo is not None for each in self._definition.out_of.get(snapshot.place, ()))

    async def _save_undo(
        self, undos: MachineUndos, owed: Sequence[Obligation], path: str, failure: str
    ) -> None:
        text = undos.text_of(owed, path, failure)
        entry = Entry(kind="undo", place=path, started_ms=self._recorder.now_ms)
        if failure:
            entry.error = msgspec.Raw(failure.encode())
        try:
            await self._recorder.append([entry], live=text)
        except FlowStops:  # it is recorded, and that the flow stops is why it is undone
            pass

    def _undo_span(self, undo: MachineUndo, attempt: int) -> AbstractContextManager[str]:
        return self._around.span("rollback", undo.path, attempt, links=[undo.traceparent])

    def _describe(
        self, root: Mapping[str, str], outcomes: Sequence[RollbackResult], *, is_doubtful: bool
    ) -> str:
        """Return the record of the flow's error: its cause, and the outcomes of the rollbacks."""
        cause = cause_of(self._job.stop)
        text = root.get("text", "")
        return describe_flow(
            cause,
            flow_id=self._job.id,
            workflow=self._definition.name,
            step=self._definition.name if cause == "failed" else "",
            error=text if cause == "failed" else "",
            job=self._job.id,
            timeout=self._message.timeout or 0.0,
            reason=reason_in(text) if cause == "cancelled" else "",
            rollback="incomplete" if is_doubtful else verdict_on(outcomes),
            rollback_errors=failures_of(outcomes),
        )
