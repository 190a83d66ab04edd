"""The actions on a flow: cancel, run again, and tell it what it waits for."""

from __future__ import annotations

from typing import Any

import msgspec

from eventbus.dashboard import timeouts
from eventbus.dashboard.desk.desk import ActionResult, Desk, Reason
from eventbus.dashboard.desk.flows.flow import find_flow, flows_of
from eventbus.dashboard.entry.gate import Caller
from eventbus.dashboard.problem import Problem
from eventbus.dashboard.reading import read_json
from eventbus.model.states import FINAL_STATES

__all__ = ["CancelFlowOrder", "RetryOrder", "SignalOrder", "cancel_flow", "retry_flow", "signal_flow"]


class CancelFlowOrder(msgspec.Struct, frozen=True):
    """Why it is cancelled."""

    reason: Reason = ""


class RetryOrder(msgspec.Struct, frozen=True):
    """Run a flow again that has ended. `run` is the number of the run that is known to the caller, so that
    two clicks begin one run. `resume`: keep the results of steps that completed and were not undone; by
    default unless the flow completed.
    """

    run: int
    resume: bool | None = None
    reason: Reason = ""


class SignalOrder(msgspec.Struct, frozen=True):
    """The payload of a signal: a value of JSON, or with `text` the JSON of it, as people type it into
    a form.
    """

    payload: Any = None
    text: str = ""
    reason: Reason = ""


async def cancel_flow(
    desk: Desk, caller: Caller, path: dict[str, str], order: CancelFlowOrder
) -> ActionResult:
    """Stop a flow, and roll back its completed steps."""
    _, tree, target = await find_flow(desk, caller, path["flow"])

    async def cancel() -> ActionResult:
        reason = order.reason or f"cancelled by {caller.actor.name}"
        flow_id = tree["report"]["flow_id"]
        done = await desk.inspector.jobs.cancel(flow_id, reason)
        return ActionResult(
            changed=done, note="it is being cancelled" if done else "it had ended or was stopping before"
        )

    return await desk.act(caller, "flow.cancel", target, cancel, reason=order.reason)


async def retry_flow(desk: Desk, caller: Caller, path: dict[str, str], order: RetryOrder) -> ActionResult:
    """Run a flow that has ended again, under the same id; a state machine that stands with an error runs
    again what failed.
    """
    _, tree, target = await find_flow(desk, caller, path["flow"])
    report = tree["report"]

    async def retry() -> ActionResult:
        if report["run"] != order.run:
            raise Problem(
                412,
                f"the flow is at run {report['run']} by now, and not at run {order.run}; look at it again",
                run=report["run"],
            )
        await flows_of(desk).retry(report["flow_id"], order.resume, run=order.run, call_timeout=timeouts.READ)
        if report["state"] not in FINAL_STATES:
            return ActionResult(changed=True, note="it goes on at its place", run=order.run)
        return ActionResult(changed=True, note=f"run {order.run + 1} has begun", run=order.run + 1)

    return await desk.act(caller, "flow.retry", target, retry, reason=order.reason)


async def signal_flow(desk: Desk, caller: Caller, path: dict[str, str], order: SignalOrder) -> ActionResult:
    """Send a flow the signal of the path. A payload that does not fit its type is refused where the type is
    known.
    """
    _, tree, target = await find_flow(desk, caller, path["flow"])
    payload = order.payload
    if order.text:
        payload = read_json(order.text, f"the payload of signal {path['signal']!r}")

    async def send() -> ActionResult:
        flow_id = tree["report"]["flow_id"]
        await flows_of(desk).signal(flow_id, path["signal"], payload, call_timeout=timeouts.READ)
        return ActionResult(changed=True, note=f"signal {path['signal']} is sent")

    return await desk.act(caller, "flow.signal", target, send, reason=order.reason)
