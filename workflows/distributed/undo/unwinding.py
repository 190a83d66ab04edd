"""The end of a stopped flow of any kind: its rollbacks run, then its `failed` hook, and the flow gets its
error.

    claimed with a stop -> the kind reads its plan -> the stop is acknowledged -> rollbacks, each saved
                        -> the `failed` hook, saved -> failed | cancelled

What must always hold: a worker that does not know what must be undone parks the flow before it acknowledges
the stop; from then on neither the flow's timeout nor a cancel changes the outcome; each rollback is saved
before the next one begins, and so is the `failed` hook; another worker that takes over continues after the
last one that is saved. A failed attempt that another one follows is saved before its pause, so that a
rollback fails no more often than its rule allows.

Crash windows: `dies-before-acknowledging`, `dies-in-rollback` (it runs again), `dies-after-rollback-saved`
(it does not), `dies-after-failed-hook` (saved: not again).
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from typing import Protocol

import msgspec

from eventbus.lowlevel import Job, Settle, TreePage, cancel, fail, trace_facts, trace_id_of
from workflows.distributed.activation import Activation
from workflows.distributed.worker_runtime import WorkerRuntime
from workflows.execution.rollback import Saga, Undoable, UndoPlan
from workflows.execution.stop import Stop
from workflows.execution.surroundings import LeaseLost
from workflows.records.checkpoints import read_tries, try_name
from workflows.records.entries import Entry
from workflows.records.failures import reason_in
from workflows.records.records import FlowMessage, cause_of


class StoppedFlow(Protocol):
    """A claimed flow that is stopped: what its kind knows of its undoing. The methods raise LeaseLost,
    StoreError.
    """

    @property
    def activation(self) -> Activation:
        """What its root job records with."""
        ...

    @property
    def message(self) -> FlowMessage:
        """Its message."""
        ...

    @property
    def workflow_name(self) -> str:
        """The name of its workflow."""
        ...

    async def plan_undo(self, page: TreePage) -> UndoPlan:
        """Return what is to be undone, the same in each activation: what must be recorded for that, is.
        `page` has the fields of the root. Raises UnknownHere.
        """
        ...

    async def find_failure(self, page: TreePage) -> Stop:
        """Return the failure that stopped the flow: of which step, with which error, in which job."""
        ...

    async def save_undo(self, path: str, failure: str) -> None:
        """Save the outcome of one rollback; an empty `failure` is success."""
        ...

    def undo_span(self, undo: Undoable, attempt: int) -> AbstractContextManager[str]:
        """Open the span around an attempt of a rollback."""
        ...

    async def tell_failed(self, plan: UndoPlan, text: str) -> None:
        """Call the `failed` hook with the record of the flow's error, unless an earlier activation has, and
        save that.
        """
        ...


async def unwind(runtime: WorkerRuntime, flow: StoppedFlow) -> Settle:
    """Roll a stopped flow back, and return the settle with its error. Raises UnknownHere, LeaseLost,
    StoreError.
    """
    job, message, jobs = flow.activation.job, flow.message, runtime.jobs
    page = await jobs.look(job.id, limit=0)
    plan = await flow.plan_undo(
        page
    )  # if something is unknown here, this raises, before the stop is acknowledged
    # From here on the server accepts no other outcome: neither a cancel nor the timeout changes it.
    if not await jobs.checkpoint(job, acknowledges=True):
        raise LeaseLost

    async def save_try(path: str, attempts: int) -> None:
        if not await jobs.checkpoint(job, {try_name(path): str(attempts)}):
            raise LeaseLost

    saga = Saga(
        plan,
        flow_id=job.id,
        call_sync=runtime.call_sync,
        sleep=asyncio.sleep,
        save=flow.save_undo,
        save_try=save_try,
        tried=read_tries(page.saved),
        around=flow.undo_span,
        facts={
            "correlation_id": message.correlation_id or job.id,
            **trace_facts(trace_id_of(message.traceparent)),
        },
    )
    outcomes = await saga.run()
    stop = await _find_stop(flow, job, page)
    _, text = plan.end(stop, outcomes, flow_id=job.id, workflow=flow.workflow_name, timeout=message.timeout)
    await flow.tell_failed(plan, text)
    return cancel(text) if job.stop == "cancelled" else fail(text, counts=False)


async def _find_stop(flow: StoppedFlow, job: Job, page: TreePage) -> Stop:
    cause = cause_of(job.stop)
    if cause == "failed":
        return await flow.find_failure(page)
    return Stop(cause=cause, reason=reason_in(page.root.get("text", "")) if cause == "cancelled" else "")


def undo_entry(path: str, failure: str, now_ms: int) -> Entry:
    """Return the entry about the outcome of a rollback, for a flow that has a journal."""
    entry = Entry(kind="undo", place=path, started_ms=now_ms)
    if failure:
        entry.error = msgspec.Raw(failure.encode())
    return entry
