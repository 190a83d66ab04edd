"""One activation of a flow of a durable function in a worker.

    claimed -> journal read -> the code runs -> completed | failed | asleep | parked
    claimed with a stop -> undone (`undo.unwinding`)

What must always hold: the flow fails only after the journal says why; a flow that cannot be replayed is
parked, with the reason, and neither fails nor goes on. The ends of all children are recorded before the
rollbacks begin, so that each activation has the same plan.

Crash windows: `dies-after-last-save` (the next worker replays, and completes), `raised-then-dies` (the
function raises again, from its record), `again-half` (the entry is one append: the new run begins behind it
or not at all), `suspend-not-answered` (the job sleeps; what comes wakes it), and those of `undo.unwinding`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import msgspec

from eventbus import PayloadError
from eventbus.lowlevel import Job, Settle, TreePage, complete, describe, fail, get_logger, log_failure, park
from workflows.distributed.activation import Activation
from workflows.distributed.functions.doubtful_steps import find_doubtful
from workflows.distributed.functions.flow_around import FlowAround, codecs_for
from workflows.distributed.functions.flow_children import FlowChildren
from workflows.distributed.functions.flow_recorder import FlowRecorder
from workflows.distributed.functions.parked_flows import ParkedFlows
from workflows.distributed.undo.unwinding import undo_entry
from workflows.distributed.worker_runtime import WorkerRuntime, needing_server
from workflows.errors import FUNCTION, NonDeterminismError
from workflows.execution.rollback import Undoable, UndoPlan, UnknownHere
from workflows.execution.stop import Stop
from workflows.functions.calls.child_call import end_entry
from workflows.functions.calls.kept import kept_entries
from workflows.functions.context import FlowContext
from workflows.functions.definition import Durable
from workflows.functions.endings import Again, Asleep, Completed, Diverged, Ending, Failed
from workflows.functions.function_run import FunctionRun
from workflows.functions.history import History
from workflows.functions.rollbacks import plan_function
from workflows.records.entries import Entry
from workflows.records.records import FlowMessage, is_declared

_log = get_logger("workflows")


class DurableDriver:
    """Opens the flows of one durable function."""

    follows: Sequence[str] = ()

    def __init__(self, newest: Durable[Any, Any], runtime: WorkerRuntime) -> None:
        self.newest: Durable[Any, Any] = newest
        self._runtime = runtime
        self._parked = ParkedFlows()

    async def open(self, job: Job, message: FlowMessage) -> DurableFlow:
        """Return the flow of a root job. Raises UnknownHere."""
        name = self.newest.name
        durable = self._runtime.registry.durable(name, message.version or None)
        if durable is None:
            raise UnknownHere(f"version {message.version} of durable function {name}")
        return DurableFlow(self._runtime, durable, job, message, self._parked)

    def judge(self, job: Job, error: BaseException) -> Settle:
        """Fail the flow: what the function raises is recorded, and not raised here."""
        return fail(describe(error, attempts=job.attempts + 1, event=self.newest.name))

    def log_failed(self, job: Job, settle: Settle, facts: Mapping[str, Any]) -> None:
        """Do nothing: the steps and the function have logged theirs."""


class DurableFlow:
    """A claimed flow. Await `advance` or `undo`, only once."""

    def __init__(
        self,
        runtime: WorkerRuntime,
        durable: Durable[Any, Any],
        job: Job,
        message: FlowMessage,
        parked: ParkedFlows,
    ) -> None:
        self._runtime = runtime
        self._durable = durable
        self._job = job
        self._message = message
        self.activation: Activation = Activation(runtime.jobs, job)
        self.message: FlowMessage = message
        self.workflow_name: str = durable.name
        self._recorder = FlowRecorder(runtime, self.activation)
        self._entries: list[Entry] = []
        self._codecs = codecs_for(runtime, durable)
        self._parked = parked
        self._around = FlowAround(runtime, durable, job.id, message)
        self._children = FlowChildren(runtime, self.activation, message)

    async def advance(self) -> Settle | None:
        """Run the code until it ends or sleeps. Raises FlowStops, LeaseLost, ServerAway, StoreCorrupt."""
        try:
            with needing_server():
                return await self._advance()
        finally:
            await self._children.close()

    async def _advance(self) -> Settle | None:
        await self._load()
        if (reason := self._parked.get(self._job.id, self._message.run, len(self._entries))) is not None:
            return park(reason)
        while True:
            ending = await self._run()
            if not isinstance(ending, Again):
                return await self._settle(ending)
            again = Entry(
                kind="again", result=msgspec.Raw(ending.text), started_ms=self._recorder.clock.now_ms
            )
            await self._recorder.append([again])

    # Its undoing.

    async def plan_undo(self, page: TreePage) -> UndoPlan:
        """Return the plan that the journal gives, after what must be recorded for that."""
        await self._load()
        await self._note_stop(has_lost=bool(page.root.get("lost")))
        await self._note_ends()
        kept = kept_entries(self._entries)
        around = self._around.make(kept.run_of(self._message.run))
        return await plan_function(self._durable, kept.entries, around, self._runtime.add_inner)

    async def find_failure(self, page: TreePage) -> Stop:
        """Return the failure that the function raised."""
        entries = kept_entries(self._entries).entries
        raised = next((entry for entry in reversed(entries) if entry.kind == "raised"), None)
        step = FUNCTION if raised is None else raised.place
        failure = page.root.get("text", "") if raised is None else raised.failure
        return Stop(cause="failed", step=step, failure=failure, job=self._job.id)

    async def save_undo(self, path: str, failure: str) -> None:
        """Append the outcome of one rollback."""
        await self.activation.append([undo_entry(path, failure, self._recorder.clock.now_ms)])

    def undo_span(self, undo: Undoable, attempt: int) -> AbstractContextManager[str]:
        """Open the span around an attempt of a rollback, linked to the span of its step."""
        return self._around.span("rollback", undo.path, attempt, links=[undo.traceparent], owner=undo.owner)

    async def tell_failed(self, plan: UndoPlan, text: str) -> None:
        """Do nothing: a function has no such hook."""

    async def _load(self) -> None:
        """Read the journal; begin the run of a retry by hand."""
        await self._runtime.ask(self.activation.load())
        entries = self._entries = self._recorder.entries = list(self.activation.entries)
        run = self._message.run
        if run > 1 and not any(entry.kind == "run" and entry.run == run for entry in entries):
            origin = str(kept_entries(entries).origin or 1) if entries else ""
            begun = Entry(kind="run", run=run, origin=origin, started_ms=self._recorder.clock.now_ms)
            await self._recorder.append([begun])

    def _prepare(self, *, has_effects: bool = True) -> tuple[FunctionRun, FlowContext[Any]]:
        """Return a run of the code, and its context. Raises PayloadError for an input that does not fit."""
        kept = kept_entries(self._entries)
        history = History(kept.entries, created_ms=self._job.created_ms, number=kept.first, loose=kept.loose)
        run = FunctionRun(
            self._durable,
            self._codecs,
            history,
            self._recorder,
            self._around.make(
                kept.run_of(self._message.run),
                self._children,
                self._job,
                seed=kept.seed_of(self._message.run),
            ),
            has_effects=has_effects,
            is_rescued=self._job.stalls > 0,  # an append of this run makes it 0
        )
        given = kept.input if kept.input is not None else self._message.input
        decoded = self._codecs.input.decode(memoryview(given))
        return run, FlowContext(run, decoded, number=self._message.run)

    async def _run(self) -> Ending:
        try:
            run, context = self._prepare()
        except PayloadError as error:  # a later release has another type: a worker that has this one goes on
            flow_id, name = self._job.id, self._durable.name
            told = f"the input of flow {flow_id} does not fit durable function {name}: {error}"
            return Diverged(NonDeterminismError(told, flow_id=flow_id, position="", recorded="", asked=""))
        await self._children.ask(run.history)
        return await run.run(self._durable.function(context))

    async def _settle(self, ending: Completed | Failed | Asleep | Diverged) -> Settle | None:
        if isinstance(ending, Completed):
            return complete(ending.output)
        if isinstance(ending, Asleep) and ending.children:
            return await self._children.suspend(
                ending.children, until_ms=ending.until_ms, listens=ending.listens
            )
        if isinstance(ending, Asleep):
            return self.activation.sleep(until_ms=ending.until_ms, listens=ending.listens)
        if isinstance(ending, Diverged):
            reason, short = str(ending.error), _short(ending.error)
            _log.error(
                "flow parked, its function does something else than it recorded",
                **self._around.facts(),
                error=reason,
            )
            self._parked.keep(self._job.id, self._message.run, len(self._entries), short)
            return park(short)
        raised = Entry(
            kind="raised",
            place=ending.step,
            error=msgspec.Raw(ending.failure.encode()),
            steps=ending.sources,
            started_ms=self._recorder.clock.now_ms,
        )
        await self._recorder.append([raised])
        if ending.step == FUNCTION:  # a step has logged its own
            is_answer = is_declared(ending.failure)
            log_failure(_log, "function failed", ending.failure, self._around.facts(), is_answer=is_answer)
        return fail(ending.failure)

    async def _note_stop(self, *, has_lost: bool) -> None:
        """Record, once, which steps are in doubt, because a worker died since the last entry, and they may
        have run.
        """
        if not has_lost or any(entry.kind == "stop" for entry in kept_entries(self._entries).entries):
            return
        doubtful = await find_doubtful(self._prepare, self._recorder.clock.now_ms)
        stop = Entry(kind="stop", run=self._message.run, is_lost=doubtful is None)
        await self._recorder.append([*(doubtful or ()), stop])

    async def _note_ends(self) -> None:
        """Record the ends of the children that nobody has recorded."""
        open_ones = [*History(kept_entries(self._entries).entries).open_children.values()]
        if not open_ones:
            return
        ends = await self._runtime.ask(self._runtime.jobs.outcomes([entry.child for entry in open_ones]))
        flow_id, now_ms = self._job.id, self._recorder.clock.now_ms
        await self._recorder.append(
            [
                end_entry(entry, end, flow_id=flow_id, now_ms=now_ms, is_wanted=False)
                for entry, end in zip(open_ones, ends, strict=True)
            ]
        )


def _short(error: NonDeterminismError) -> str:
    """Return a mismatch in few words: the server keeps no more than 64 bytes."""
    if not error.position:
        return str(error)
    return f"at {error.position}: recorded {error.recorded}, code has {error.asked}"
