"""The end of a stopped flow: its rollbacks run, then its `failed` hook, and the flow gets its error.

What must always hold: the root acknowledges its stop first, so that neither the flow's timeout nor a cancel
changes the outcome afterwards; each rollback is saved before the next one begins, and so is the `failed`
hook; another worker that takes over continues after the last one that is saved.

Crash windows: `dies-before-acknowledging`, `dies-in-rollback` (it runs again), `dies-after-rollback-saved`
(it does not), `dies-after-failed-hook` (saved: not again).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Protocol

import msgspec

from eventbus.lowlevel import Failure, Job, Settle, TreePage, cancel, fail
from workflows.distributed.activation import Activation
from workflows.distributed.undo.undo_tries import UndoTries
from workflows.distributed.undo_plan import UndoPlan
from workflows.distributed.worker_runtime import Flow
from workflows.errors import COMPLETED
from workflows.execution.hook_runner import run_failed
from workflows.execution.rollback import RollbackResult, Saga, Undoable, failures_of, verdict_on
from workflows.execution.surroundings import LeaseLost
from workflows.records.checkpoints import FAILED_HOOK, read_undone, undone_name
from workflows.records.entries import Entry
from workflows.records.graph_history import GraphHistory
from workflows.records.ids import parse_member
from workflows.records.records import cause_of, describe_flow, read_flow

__all__ = ["CheckpointKeeper", "JournalKeeper", "UndoKeeper", "Unwinding"]

_FAILED = "failed"


class UndoKeeper(Protocol):
    """The record of what is undone already. Its methods raise LeaseLost if another worker has the
    flow now.
    """

    @property
    def done(self) -> Mapping[str, str]:
        """The outcomes of earlier activations: path -> record of the error, empty on success."""
        ...

    @property
    def has_told(self) -> bool:
        """Whether the `failed` hook has run."""
        ...

    async def save(self, path: str, failure: str) -> None:
        """Save the outcome of one rollback."""
        ...

    async def save_told(self) -> None:
        """Save that the `failed` hook has run."""
        ...

    async def find_error(self) -> tuple[str, str]:
        """Return the step that stopped the flow by its failure, and the record of its error."""
        ...


class Unwinding:
    """The rollbacks of one stopped flow, in one activation."""

    def __init__(self, job: Job, flow: Flow, page: TreePage, plan: UndoPlan, keeper: UndoKeeper) -> None:
        self._job = job
        self._flow = flow
        self._page = page
        self._plan = plan
        self._keeper = keeper

    async def run(self) -> Settle:
        """Roll the flow back, call the `failed` hook, and return the settle with the flow's error.

        Raises LeaseLost, StoreError.
        """
        job, flow = self._job, self._flow
        # From here on the server accepts no other outcome: neither a cancel nor the timeout changes it.
        if not await flow.runtime.jobs.checkpoint(job, acknowledges=True):
            raise LeaseLost
        tries = UndoTries(flow.runtime, job, self._page.saved)
        saga = Saga(
            self._plan.undos,
            flow_id=job.id,
            call_sync=flow.runtime.call_sync,
            sleep=asyncio.sleep,
            save=self._keeper.save,
            save_try=tries.save,
            tried=tries.done,
            done=self._keeper.done,
            around=self._around,
            facts={"correlation_id": flow.facts.correlation_id, **flow.trace},
        )
        outcomes = await saga.run()
        text = await self._describe(outcomes)
        if not self._keeper.has_told and flow.workflow.failed_hook is not None:
            await self._tell_failed(text)
        return cancel(text) if job.stop == "cancelled" else fail(text, counts=False)

    async def _tell_failed(self, text: str) -> None:
        flow, job, plan = self._flow, self._job, self._plan
        with flow.span("failed", job_id=job.id, attempt=job.attempts + 1) as traceparent:
            context = flow.context(
                "",
                job_id=job.id,
                attempt=1,
                traceparent=traceparent,
                records=plan.records,
                reach=flow.workflow.steps,
                unloaded=plan.unloaded,
            )
            error = read_flow(text, flow.workflow.errors)
            await run_failed(flow.workflow, context, error, flow.runtime.call_sync)
        # Saved after the call, so the hook runs at least once, and only a crash in between repeats it.
        await self._keeper.save_told()

    async def _describe(self, outcomes: list[RollbackResult]) -> str:
        """Return the record of the flow's error: its cause, and the outcomes of the rollbacks."""
        job, flow, root = self._job, self._flow, self._page.root
        every = [*self._plan.inherited, *outcomes]
        is_doubtful = self._plan.is_doubtful or "damaged" in root  # some completed steps may be missing
        rollback = "incomplete" if is_doubtful else verdict_on(every)
        cause = cause_of(job.stop)
        step, error = await self._keeper.find_error() if cause == "failed" else ("", "")
        return describe_flow(
            cause,
            flow_id=job.id,
            workflow=flow.workflow.name,
            step=step,
            error=error,
            job=self._job_of(step),
            timeout=flow.message.timeout or 0.0,
            reason=_reason(root.get("text", "")) if cause == "cancelled" else "",
            rollback=rollback,
            rollback_errors=failures_of(every),
        )

    def _job_of(self, step: str) -> str:
        stopper = self._page.root.get("stopper", "")
        return self._flow.job_of(step) if stopper == self._job.id and step not in ("", COMPLETED) else stopper

    def _around(self, undo: Undoable, attempt: int) -> AbstractContextManager[str]:
        """Open a span around an attempt of a rollback, linked to the span of its step."""
        return self._flow.span(
            "rollback",
            workflow=undo.owner,
            step=undo.path,
            job_id=self._flow.flow_id,
            attempt=attempt,
            links=[undo.traceparent],
        )


class CheckpointKeeper:
    """Keeps what is undone in the checkpoints of the root: of flows whose steps are jobs."""

    def __init__(self, job: Job, flow: Flow, page: TreePage) -> None:
        self.done: Mapping[str, str] = read_undone(page.saved)
        self.has_told: bool = FAILED_HOOK in page.saved
        self._jobs = flow.runtime.jobs
        self._job = job
        self._root = page.root
        self._count = len(self.done)

    async def save(self, path: str, failure: str) -> None:
        """Save the outcome of one rollback."""
        self._count += 1
        await self._save({undone_name(self._count, path): failure})

    async def save_told(self) -> None:
        """Save that the `failed` hook has run."""
        await self._save({FAILED_HOOK: ""})

    async def find_error(self) -> tuple[str, str]:
        """Return the step whose job stopped the flow, and its error."""
        stopper, text = self._root.get("stopper", ""), self._root.get("text", "")
        if stopper == self._job.id:
            return COMPLETED, text
        (outcome,) = await self._jobs.outcomes([stopper])
        # A completed step stops its flow if the flow's keys are damaged; only the root's text says so.
        own = outcome.text if outcome.state != "completed" else ""
        return parse_member(stopper).step, own or text

    async def _save(self, saved: dict[str, str]) -> None:
        if not await self._jobs.checkpoint(self._job, saved):
            raise LeaseLost


class JournalKeeper:
    """Keeps what is undone in the journal: of local flows."""

    def __init__(self, activation: Activation, history: GraphHistory, page: TreePage) -> None:
        self.done: Mapping[str, str] = history.undone
        self.has_told: bool = _FAILED in history.hooks
        self._activation = activation
        self._history = history
        self._text = page.root.get("text", "")

    async def save(self, path: str, failure: str) -> None:
        """Append the outcome of one rollback."""
        entry = Entry(kind="undo", place=path)
        if failure:
            entry.error = msgspec.Raw(failure.encode())
        await self._activation.append([entry])

    async def save_told(self) -> None:
        """Append that the `failed` hook has run."""
        await self._activation.append([Entry(kind="hook", place=_FAILED)])

    async def find_error(self) -> tuple[str, str]:
        """Return the step that made the flow fail, and its error."""
        history = self._history
        step = history.stopper or (history.failed.step if history.failed is not None else COMPLETED)
        known = history.steps.get(step)
        own = known.last.failure if known is not None and known.last.kind == "failed" else ""
        return step, own or self._text


def _reason(text: str) -> str:
    try:
        return msgspec.json.decode(text, type=Failure).message
    except (msgspec.MsgspecError, UnicodeError):
        return ""
