"""Flows: lists, one flow with its steps, rollbacks and nested flows, and the actions on it.

`Dashboard(flows=...)` gives them (`flow_source`); without it there are none, and their pages and routes answer 404.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import msgspec

from eventbus.dashboard.desk.desk import Change, Desk
from eventbus.dashboard.desk.hiding import error_without_secrets, learn_payload
from eventbus.dashboard.desk.queue_views import READ_SECONDS
from eventbus.dashboard.entry.gate import Caller
from eventbus.dashboard.entry.rights import Action, Target
from eventbus.dashboard.flow_source import FlowSource
from eventbus.dashboard.problem import Problem
from eventbus.dashboard.redaction import Redaction
from eventbus.errors import UnknownJob

__all__ = [
    "CancelFlowOrder",
    "FlowLine",
    "FlowList",
    "FlowView",
    "FlowsQuery",
    "RetryOrder",
    "cancel_flow",
    "read_flow",
    "read_flows",
    "retry_flow",
]

_MOST = 200
_ACTIONS: tuple[Action, ...] = ("flow.cancel", "flow.retry")


class FlowsQuery(msgspec.Struct, frozen=True):
    """Which flows are listed: the newest ones, of one workflow and in one state if these are given."""

    workflow: str = ""
    state: str = ""
    limit: int = 50


class FlowLine(msgspec.Struct, frozen=True, kw_only=True):
    """One flow in a list. `completed` counts completed steps."""

    flow_id: str
    workflow: str
    state: str
    run: int = 1
    rollback: str = "none"
    completed: int = 0
    is_parked: bool = False
    created_ms: int = 0
    ended_ms: int = 0
    error: str = ""


class FlowList(msgspec.Struct, frozen=True, kw_only=True):
    """The newest flows."""

    flows: list[FlowLine]


class FlowView(msgspec.Struct, frozen=True, kw_only=True):
    """One flow. `tree` is its `FlowTree`: the report, the errors of its steps, and the nested trees.

    `keeps` and `again` are the steps that a resumed retry keeps and runs, empty unless the flow has ended without success.
    """

    flow_id: str
    workflow: str
    state: str
    run: int
    tree: dict[str, Any]
    keeps: list[str] = []
    again: list[str] = []
    may: list[str] = []


class CancelFlowOrder(msgspec.Struct, frozen=True):
    """Why it is cancelled."""

    reason: str = ""


class RetryOrder(msgspec.Struct, frozen=True):
    """Run a flow again that has ended. `run` is the number of the run that is known to the caller, so that two clicks begin
    one run. `resume`: keep the results of steps that completed and were not undone; by default unless the flow completed.
    """

    run: int
    resume: bool | None = None
    reason: str = ""


async def read_flows(desk: Desk, caller: Caller, _path: dict[str, str], query: FlowsQuery) -> FlowList:
    """Return the newest flows that the caller may see."""
    flows = _source(desk)
    if not 0 < query.limit <= _MOST:
        raise Problem(422, f"expected limit to be 1 to {_MOST}, got: {query.limit}")
    found = await flows.flows(
        query.workflow or None, state=query.state or None, limit=query.limit, call_timeout=READ_SECONDS
    )
    lines = [msgspec.convert(each, FlowLine, from_attributes=True) for each in found]
    seen = [line for line in lines if desk.may(caller, "flow.read", _target(line.flow_id, line.workflow))]

    async def clean(line: FlowLine) -> FlowLine:
        if not line.error:
            return line
        event = f"workflow.{line.workflow}"
        error = await error_without_secrets(desk, caller, line.flow_id, line.error, event)
        return msgspec.structs.replace(line, error=error)

    return FlowList(flows=await asyncio.gather(*map(clean, seen)))


async def read_flow(desk: Desk, caller: Caller, path: dict[str, str], _query: Any) -> FlowView:
    """Return one flow with those of its sub-workflows."""
    tree, target = await _find(desk, caller, path["flow"])
    report = tree["report"]
    keeps, again = _plan_retry(report)
    redactions: list[Redaction] = []
    cleaned = await _without_secrets(desk, caller, tree, redactions)
    for redaction in redactions:
        cleaned = redaction.texts(cleaned)
    return FlowView(
        flow_id=report["flow_id"],
        workflow=report["workflow"],
        state=report["state"],
        run=report["run"],
        tree=cleaned,
        keeps=keeps,
        again=again,
        may=desk.abilities(caller, target, *_ACTIONS),
    )


async def cancel_flow(desk: Desk, caller: Caller, path: dict[str, str], order: CancelFlowOrder) -> Change:
    """Stop a flow, and roll back its completed steps."""
    tree, target = await _find(desk, caller, path["flow"])

    async def cancel() -> Change:
        reason = order.reason or f"cancelled by {caller.actor.name}"
        flow_id = tree["report"]["flow_id"]
        done = await desk.provider.inspector.cancel(flow_id, reason, call_timeout=READ_SECONDS)
        return Change(
            changed=done, note="it is being cancelled" if done else "it had ended or was stopping before"
        )

    return await desk.act(caller, "flow.cancel", target, cancel, reason=order.reason)


async def retry_flow(desk: Desk, caller: Caller, path: dict[str, str], order: RetryOrder) -> Change:
    """Run a flow that has ended again, under the same id."""
    tree, target = await _find(desk, caller, path["flow"])
    report = tree["report"]

    async def retry() -> Change:
        if report["run"] != order.run:
            raise Problem(
                412,
                f"the flow is at run {report['run']} by now, and not at run {order.run}; look at it again",
                run=report["run"],
            )
        await _source(desk).retry(report["flow_id"], order.resume, run=order.run, call_timeout=READ_SECONDS)
        return Change(changed=True, note=f"run {order.run + 1} has begun", run=order.run + 1)

    return await desk.act(caller, "flow.retry", target, retry, reason=order.reason)


async def _find(desk: Desk, caller: Caller, flow_id: str) -> tuple[dict[str, Any], Target]:
    tree: dict[str, Any] = msgspec.to_builtins(
        await _source(desk).tree(flow_id, call_timeout=READ_SECONDS), enc_hook=str
    )
    target = _target(flow_id, tree["report"]["workflow"])
    if not desk.may(caller, "flow.read", target):
        raise Problem(404, str(UnknownJob(flow_id)))  # in the words for a flow that does not exist
    return tree, target


def _source(desk: Desk) -> FlowSource:
    if desk.flows is None:
        raise Problem(404, "this dashboard has no flows; give Dashboard(flows=...) those of the program")
    return desk.flows


def _target(flow_id: str, workflow: str) -> Target:
    return Target("flow", flow_id, f"workflow.{workflow}")


def _plan_retry(report: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Return the steps that a resumed retry keeps, and those that it runs again."""
    if report["state"] not in ("failed", "cancelled"):
        return [], []
    undone = {each["step"].partition("/")[0] for each in report["rollbacks"] if not each["error"]}
    keeps = [step for step in report["order"] if step not in undone]
    return keeps, [step for step in report["steps"] if step not in keeps]


async def _without_secrets(
    desk: Desk, caller: Caller, tree: dict[str, Any], redactions: list[Redaction]
) -> dict[str, Any]:
    """Return a tree whose results are redacted, each flow's as its own rights say, without the nested ones that are hidden.

    `redactions` gets those of all flows, for the texts, because an error goes up from flow to flow.
    """
    report = tree["report"]
    target = _target(report["flow_id"], report["workflow"])
    may_read = desk.may(caller, "payload.read", target)
    redaction = Redaction(desk.redact if may_read else "all", target.event)
    redactions.append(redaction)
    # The input of the flow is in the record of its root. It is not shown, but errors may repeat its values.
    await learn_payload(desk, redaction, report["flow_id"])
    steps: dict[str, Any] = {}
    for name, step in report["steps"].items():
        values = {each: redaction.value(step[each]) for each in ("result", "progress")}
        steps[name] = {**step, **(values if may_read else dict.fromkeys(values))}
    nested: dict[str, list[Any]] = {}
    for name, trees in tree["nested"].items():
        for each in cast("list[dict[str, Any]]", trees):
            inner, cleaned = each["report"], await _without_secrets(desk, caller, each, redactions)
            if desk.may(caller, "flow.read", _target(inner["flow_id"], inner["workflow"])):
                nested.setdefault(name, []).append(cleaned)
    return {"report": {**report, "steps": steps}, "errors": tree["errors"], "nested": nested}
