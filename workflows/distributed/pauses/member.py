"""A step that only waits, as a job of its own: of a flow whose steps are jobs.

    claimed -> its beginning recorded -> asleep, without a worker -> the time has come -> completed | failed
                                                                  -> its root gave it a signal -> completed

What must always hold: the time at which a wait ends is recorded in the job's journal when it begins; a job
that waits for a signal has told its root so before it sleeps.

Crash windows: `dies-in-wait` (the wait goes on, until the time that is recorded), `dies-before-telling` (the
next activation tells the root; it takes note of a step once).
"""

from __future__ import annotations

from typing import Any

import msgspec

from eventbus import SignalRefused
from eventbus.lowlevel import Job, Settle, complete, describe, give_back, later
from workflows.definition.context import StepContext
from workflows.definition.pause import Pause, late
from workflows.definition.step import Step
from workflows.distributed.activation import Activation
from workflows.distributed.worker_runtime import Flow
from workflows.execution.step_runner import is_wanted
from workflows.execution.surroundings import FlowStops, LeaseLost
from workflows.records.entries import Entry
from workflows.records.records import StepRecord, encode_step

OPENED = "@waits"
"""The name of the signal by which a step tells its root that it waits; no signal of a user can have it."""

_AGAIN_MS = 1000


async def run_pause(
    job: Job, flow: Flow, step: Step[Any, Any], pause: Pause, ctx: StepContext[Any]
) -> Settle | None:
    """Begin to wait, wait on, or end the wait. Raises TimeoutError for a signal that did not come,
    ServerAway.
    """
    activation = Activation(flow.runtime.jobs, job)
    await flow.runtime.ask(activation.load())
    begun = next((entry for entry in activation.entries if entry.kind == pause.kind), None)
    if begun is None:
        if not await is_wanted(step, ctx):
            return complete(encode_step(StepRecord(skipped=True, traceparent=ctx.traceparent)))
        begun = _beginning(activation, step, pause)
        try:
            await activation.append([begun])
        except FlowStops:
            return give_back()
        except LeaseLost:
            return None
    record = StepRecord(traceparent=ctx.traceparent, has_undo=step.undo is not None)
    if job.signals:
        record.result = msgspec.Raw(job.signals[0].payload.encode())
        return complete(encode_step(record))
    if begun.due_ms and activation.clock.now_ms >= begun.due_ms:
        if pause.signal is not None:
            raise late(pause)
        return complete(encode_step(record))
    if pause.signal is not None and (refused := await _tell_root(job, flow, begun)) is not None:
        return refused
    return activation.sleep(until_ms=begun.due_ms or None, listens=pause.signal is not None)


def _beginning(activation: Activation, step: Step[Any, Any], pause: Pause) -> Entry:
    now = activation.clock.now_ms
    due = 0 if pause.length is None else now + round(pause.length * 1000)
    return Entry(kind=pause.kind, place=step.name, name=pause.name, started_ms=now, due_ms=due)


async def _tell_root(job: Job, flow: Flow, begun: Entry) -> Settle | None:
    """Let the root give this step a signal. Return the settle of a root that cannot be told now."""
    payload = msgspec.json.encode((begun.place, begun.due_ms)).decode()
    try:
        await flow.runtime.ask(flow.runtime.jobs.signal(flow.flow_id, OPENED, payload, signal=job.id))
    except SignalRefused as error:
        return later(describe(error, attempts=job.attempts), _AGAIN_MS)
    return None
