"""One activation of a flow of a durable function in a worker.

    claimed -> journal read -> the code runs -> completed | failed | asleep | parked
    claimed with a stop -> rollbacks, each recorded -> failed | cancelled

What must always hold: the flow fails only after the journal says why; a flow that cannot be replayed is
parked, with the reason, and neither fails nor goes on; each rollback is recorded before the next one begins.

Crash windows: `dies-after-last-save` (the next worker replays, and completes), `raised-then-dies` (the
function raises again, from its record), `again-half` (the entry is one append: the new run begins behind it
or not at all), `suspend-not-answered` (the job sleeps; what comes wakes it), `dies-in-rollback` (it runs
again).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import msgspec

from eventbus import PayloadError, StoreCorrupt, StoreError
from eventbus.lowlevel import (
    Job,
    Settle,
    attach_baggage,
    cancel,
    complete,
    fail,
    get_logger,
    give_back,
    log_failure,
    park,
)
from workflows.distributed.activation import Activation
from workflows.distributed.functions.child_undo import note_ends, plan_undo
from workflows.distributed.functions.doubtful_steps import find_doubtful
from workflows.distributed.functions.flow_around import FlowAround, codecs_for
from workflows.distributed.functions.flow_children import FlowChildren
from workflows.distributed.functions.flow_recorder import FlowRecorder
from workflows.distributed.functions.parked_flows import ParkedFlows
from workflows.distributed.undo.undo_tries import UndoTries
from workflows.distributed.undo_plan import UndoPlan
from workflows.distributed.worker_runtime import ServerAway, WorkerRuntime
from workflows.errors import FUNCTION, NonDeterminismError
from workflows.execution.rollback import RollbackResult, Saga, Undoable, failures_of, verdict_on
from workflows.execution.surroundings import FlowStops, LeaseLost
from workflows.functions.calls.kept import kept_entries
from workflows.functions.context import FlowContext
from workflows.functions.definition import Durable
from workflows.functions.endings import Again, Asleep, Completed, Diverged, Ending, Failed
from workflows.functions.function_run import FunctionRun
from workflows.functions.history import History
from workflows.functions.rollbacks import doubts_in, undone_in
from workflows.records.entries import Entry
from workflows.records.failures import reason_in
from workflows.records.records import FlowMessage, cause_of, describe_flow, is_declared

__all__ = ["DurableFlow"]

_log = get_logger("workflows")


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
        self._activation = Activation(runtime.jobs, job)
        self._recorder = FlowRecorder(runtime, self._activation)
        self._entries: list[Entry] = []
        self._codecs = codecs_for(runtime, durable)
        self._parked = parked
        self._around = FlowAround(runtime, durable, job.id, message)
        self._children = FlowChildren(runtime, self._activation, message)
        if message.baggage:
            attach_baggage(message.baggage)

    async def advance(self) -> Settle | None:
        """Run the code until it ends or sleeps; return the settle, None if the lease is lost."""
        try:
            await self._load()
            if (reason := self._parked.get(self._job.id, self._message.run, len(self._entries))) is not None:
                return park(reason)
            while True:
                ending = await self._run()
                if not isinstance(ending, Again):
                    return await self._settle(ending)
                again = Entry(kind="again", result=msgspec.Raw(ending.text), started_ms=self._recorder.now_ms)
                await self._recorder.append([again])
        except FlowStops:
            return give_back()
        except LeaseLost:
            return None
        finally:
            await self._children.close()

    async def undo(self) -> Settle | None:
        """Run the rollbacks of a stopped flow, and settle it with its error. Raises UnknownTask."""
        try:
            await self._load()
            page = await self._runtime.jobs.look(self._job.id, limit=0)
            root, tries = page.root, UndoTries(self._runtime, self._job, page.saved)
            await self._note_stop(has_lost=bool(root.get("lost")))
            await note_ends(self._runtime, self._job.id, self._recorder)
            kept = kept_entries(self._entries)
            # If a task is unknown here, this raises: the root is parked before it acknowledges its stop.
            plan = await plan_undo(
                self._runtime, self._durable, kept.entries, self._around.make(kept.run_of(self._message.run))
            )
            # From here on the server accepts no other outcome: neither a cancel nor the timeout changes it.
            if not await self._runtime.jobs.checkpoint(self._job, acknowledges=True):
                return None
            saga = Saga(
                plan.undos,
                flow_id=self._job.id,
                call_sync=self._runtime.call_sync,
                sleep=asyncio.sleep,
                save=self._save_undo,
                save_try=tries.save,
                tried=tries.done,
                done=undone_in(kept.entries),
                around=_undo_span_of(self._around),
                facts=self._around.facts(),
            )
            outcomes = await saga.run()
            text = self._describe(root, plan, kept.entries, outcomes)
        except LeaseLost:
            return None
        return cancel(text) if self._job.stop == "cancelled" else fail(text, counts=False)

    async def _load(self) -> None:
        """Read the journal; begin the run of a retry by hand."""
        try:
            await self._activation.load()
        except StoreCorrupt:
            raise
        except StoreError as error:
            raise ServerAway(str(error)) from error
        entries = self._entries = self._recorder.entries = list(self._activation.entries)
        run = self._message.run
        if run > 1 and not any(entry.kind == "run" and entry.run == run for entry in entries):
            origin = str(kept_entries(entries).origin or 1) if entries else ""
            begun = Entry(kind="run", run=run, origin=origin, started_ms=self._recorder.now_ms)
            try:
                await self._recorder.append([begun])
            except FlowStops:
                if not self._job.stop:
                    raise

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
            return await self._children.suspend(ending)
        if isinstance(ending, Asleep):
            return self._activation.sleep(until_ms=ending.until_ms, listens=ending.listens)
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
            started_ms=self._recorder.now_ms,
        )
        await self._recorder.append([raised])
        if ending.step == FUNCTION:  # a step has logged its own
            is_answer = is_declared(ending.failure)
            log_failure(_log, "function failed", ending.failure, self._around.facts(), is_answer=is_answer)
        return fail(ending.failure)

    async def _save_undo(self, path: str, failure: str) -> None:
        entry = Entry(kind="undo", place=path, started_ms=self._recorder.now_ms)
        if failure:
            entry.error = msgspec.Raw(failure.encode())
        try:
            await self._recorder.append([entry])
        except FlowStops:  # it is recorded, and that the flow stops is why it is undone
            pass

    async def _note_stop(self, *, has_lost: bool) -> None:
        """Record, once, which steps are in doubt, because a worker died since the last entry, and they may
        have run.
        """
        if not has_lost or any(entry.kind == "stop" for entry in kept_entries(self._entries).entries):
            return
        doubtful = await find_doubtful(self._prepare, self._recorder.now_ms)
        stop = Entry(kind="stop", run=self._message.run, is_lost=doubtful is None)
        await self._recorder.append([*(doubtful or ()), stop])

    def _describe(
        self,
        root: Mapping[str, str],
        plan: UndoPlan,
        entries: Sequence[Entry],
        outcomes: list[RollbackResult],
    ) -> str:
        """Return the record of the flow's error: its cause, and the outcomes of the rollbacks."""
        cause = cause_of(self._job.stop)
        raised = next((entry for entry in reversed(entries) if entry.kind == "raised"), None)
        step, error = (
            (raised.place, raised.failure) if raised is not None else (FUNCTION, root.get("text", ""))
        )
        every = [*doubts_in(entries), *plan.inherited, *outcomes]
        is_doubtful = plan.is_doubtful or any(map(_hides_steps, entries))
        return describe_flow(
            cause,
            flow_id=self._job.id,
            workflow=self._durable.name,
            step=step if cause == "failed" else "",
            error=error if cause == "failed" else "",
            job=self._job.id,
            timeout=self._message.timeout or 0.0,
            reason=reason_in(root.get("text", "")) if cause == "cancelled" else "",
            rollback="incomplete" if is_doubtful else verdict_on(every),
            rollback_errors=failures_of(every),
        )


def _undo_span_of(around: FlowAround) -> Callable[[Undoable, int], AbstractContextManager[str]]:
    """Return what opens the span around an attempt of a rollback, linked to the span of its step."""

    def span(undo: Undoable, attempt: int) -> AbstractContextManager[str]:
        return around.span("rollback", undo.path, attempt, links=[undo.traceparent])

    return span


def _short(error: NonDeterminismError) -> str:
    """Return a mismatch in few words: the server keeps no more than 64 bytes."""
    if not error.position:
        return str(error)
    return f"at {error.position}: recorded {error.recorded}, code has {error.asked}"


def _hides_steps(entry: Entry) -> bool:
    """Tell whether steps may have taken effect that nobody knows of."""
    return entry.kind == "stop" and entry.is_lost
