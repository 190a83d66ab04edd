"""The actions on a flow: cancel, run again, and tell it what it waits for."""

from __future__ import annotations

from typing import Any

from eventbus.dashboard import timeouts
from eventbus.dashboard.desk.desk import ActionResult, Desk
from eventbus.dashboard.desk.flows.flow import FoundFlow, find_flow, flows_of
from eventbus.dashboard.desk.rows import Act, BareOrder, Subject
from eventbus.dashboard.entry.gate import Caller
from eventbus.dashboard.entry.rights import Target
from eventbus.dashboard.problem import Problem
from eventbus.dashboard.reading import read_json
from eventbus.model.states import FINAL_STATES


class RetryOrder(BareOrder, frozen=True):
    """Run a flow again that has ended. `run` is the number of the run that is known to the caller, so that
    two clicks begin one run. `resume`: keep the results of steps that completed and were not undone; by
    default unless the flow completed.
    """

    run: int
    resume: bool | None = None


class SignalOrder(BareOrder, frozen=True):
    """The payload of a signal: a value of JSON, or with `text` the JSON of it, as people type it into
    a form.
    """

    payload: Any = None
    text: str = ""


async def _find(desk: Desk, caller: Caller, flow_id: str) -> tuple[FoundFlow, Target]:
    found = await find_flow(desk, caller, flow_id)
    return found, found.target


FLOW: Subject[FoundFlow] = Subject("/flows/{flow}", _find)


async def cancel_flow(desk: Desk, caller: Caller, flow: FoundFlow, order: BareOrder) -> ActionResult:
    """Stop a flow, and roll back its completed steps."""
    reason = order.reason or f"cancelled by {caller.actor.name}"
    done = await desk.inspector.jobs.cancel(flow.target.id, reason)
    return ActionResult(
        changed=done, note="it is being cancelled" if done else "it had ended or was stopping before"
    )


async def retry_flow(desk: Desk, _caller: Caller, flow: FoundFlow, order: RetryOrder) -> ActionResult:
    """Run a flow that has ended again, under the same id; a state machine that stands with an error runs
    again what failed.
    """
    report = flow.tree["report"]
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


async def signal_flow(desk: Desk, caller: Caller, path: dict[str, str], order: SignalOrder) -> ActionResult:
    """Send a flow the signal of the path. A payload that does not fit its type is refused where the type is
    known.
    """
    name, payload = path["signal"], order.payload
    if order.text:
        payload = read_json(order.text, f"the payload of signal {name!r}")

    async def send(desk: Desk, _caller: Caller, flow: FoundFlow, _order: SignalOrder) -> ActionResult:
        await flows_of(desk).signal(flow.target.id, name, payload, call_timeout=timeouts.READ)
        return ActionResult(changed=True, note=f"signal {name} is sent")

    return await FLOW.act(desk, caller, path, order, right="flow.signal", change=send)


ACTS = (
    FLOW.row("cancel", "Cancel a flow, with rollback.", "flow.cancel", BareOrder, cancel_flow),
    FLOW.row("retry", "Run a flow again that has ended.", "flow.retry", RetryOrder, retry_flow),
    Act(
        "POST",
        "/flows/{flow}/signals/{signal}",
        "/flows/{flow}/signals/{signal}",
        "Send a flow a signal.",
        SignalOrder,
        signal_flow,
    ),
)
