"""One flow: its steps, rollbacks and nested flows, what it waits for, and what a retry of it would do.

What must always hold: what leaves here has passed the rights and the redaction of each flow in it, the nested ones too.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import msgspec

from eventbus.dashboard.desk.desk import Desk
from eventbus.dashboard.desk.hiding import learn_payload
from eventbus.dashboard.desk.queue_views import READ_SECONDS
from eventbus.dashboard.entry.gate import Caller
from eventbus.dashboard.entry.rights import Action, Target
from eventbus.dashboard.flow_source import FlowSource
from eventbus.dashboard.problem import Problem
from eventbus.dashboard.redaction import Redaction
from eventbus.errors import UnknownJob
from eventbus.model.states import FINAL_STATES

__all__ = [
    "FlowView",
    "Found",
    "WaitLine",
    "find_flow",
    "flow_target",
    "flows_of",
    "may_see",
    "read_flow",
    "states_of",
    "view_flow",
]

_VALUES = ("input", "output", "own_state")
_ACTIONS: tuple[Action, ...] = ("flow.cancel", "flow.retry", "flow.signal")


class Found(NamedTuple):
    """A flow as it was read, the same as dicts, and the target of actions on it. Nothing of it is redacted."""

    read: Any
    tree: dict[str, Any]
    target: Target


class WaitLine(msgspec.Struct, frozen=True, kw_only=True):
    """What an open flow waits for: the `signal`, or a time if that is empty. `place` is its step, or the position of the call."""

    place: str
    signal: str = ""
    since_ms: int = 0
    until_ms: int = 0


class FlowView(msgspec.Struct, frozen=True, kw_only=True):
    """One flow. `tree` is its `FlowTree`: the report, the errors of its steps, and the nested trees.

    `keeps` and `again` are the steps that a resumed retry keeps and runs, empty unless the flow has ended without success.
    """

    flow_id: str
    workflow: str
    version: str
    state: str
    run: int
    tree: dict[str, Any]
    waits: list[WaitLine] = []
    keeps: list[str] = []
    again: list[str] = []
    may: list[str] = []


async def read_flow(desk: Desk, caller: Caller, path: dict[str, str], _query: Any) -> FlowView:
    """Return one flow with those of its sub-workflows."""
    return await view_flow(desk, caller, await find_flow(desk, caller, path["flow"]))


async def view_flow(desk: Desk, caller: Caller, found: Found) -> FlowView:
    """Return a flow that was read, as the caller may see it."""
    _, tree, target = found
    report = tree["report"]
    keeps, again = _plan_retry(report)
    redactions: list[Redaction] = []
    cleaned = await _without_secrets(desk, caller, tree, redactions)
    for redaction in redactions:
        cleaned = redaction.texts(cleaned)
    _share_rollbacks(cleaned)
    waits: list[WaitLine] = []
    if report["state"] not in FINAL_STATES:
        told = await flows_of(desk).waits(report["flow_id"], call_timeout=READ_SECONDS)
        waits = [msgspec.convert(each, WaitLine, from_attributes=True) for each in told]
    return FlowView(
        flow_id=report["flow_id"],
        workflow=report["workflow"],
        version=report["version"],
        state=report["state"],
        run=report["run"],
        tree=cleaned,
        waits=waits,
        keeps=keeps,
        again=again,
        may=desk.abilities(caller, target, *_ACTIONS),
    )


async def find_flow(desk: Desk, caller: Caller, flow_id: str) -> Found:
    """Read a flow. Raises Problem, 404, for one that is not to be seen."""
    read = await flows_of(desk).tree(flow_id, call_timeout=READ_SECONDS)
    tree: dict[str, Any] = msgspec.to_builtins(read, enc_hook=str)
    target = flow_target(flow_id, tree["report"]["workflow"])
    if not desk.may(caller, "flow.read", target):
        raise Problem(404, str(UnknownJob(flow_id)))  # in the words for a flow that does not exist
    return Found(read, tree, target)


def may_see(desk: Desk, caller: Caller, flow_id: str, workflow: str) -> bool:
    """Return whether the caller may know of a flow."""
    return desk.may(caller, "flow.read", flow_target(flow_id, workflow))


def states_of(report: dict[str, Any]) -> dict[str, str]:
    """Return the state of each step as all pages show it: with what became of its rollback, also of one of its items or nested steps."""
    states = {name: str(step["state"]) for name, step in report["steps"].items()}
    for undone in report["rollbacks"]:
        name = undone["step"].partition("/")[0].partition("[")[0]
        if name in states and states[name] != "undo_failed":
            states[name] = "undo_failed" if undone["error"] else "undone"
    return states


def flows_of(desk: Desk) -> FlowSource:
    """Return the source of the flows. Raises Problem, 404, without one."""
    if desk.flows is None:
        raise Problem(404, "this dashboard has no flows; give Dashboard(flows=...) those of the program")
    return desk.flows


def flow_target(flow_id: str, workflow: str) -> Target:
    """Return a flow as the target of actions; without an id all flows of the workflow."""
    return Target("flow", flow_id, f"workflow.{workflow}")


def _share_rollbacks(tree: dict[str, Any]) -> None:
    """Add to each nested flow that completed what the flow around it has undone of it, as its own page has it."""
    for name, trees in tree["nested"].items():
        start = f"{name}/"
        found = [line for line in tree["report"]["rollbacks"] if line["step"].startswith(start)]
        for each in trees:
            report = each["report"]
            if report["state"] == "completed":
                own = [{**line, "step": line["step"].removeprefix(start)} for line in found]
                report["rollbacks"] = [*report["rollbacks"], *own]
            _share_rollbacks(each)


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
    target = flow_target(report["flow_id"], report["workflow"])
    may_read = desk.may(caller, "payload.read", target)
    redaction = Redaction(desk.redact if may_read else "all", target.event)
    redactions.append(redaction)
    # The input of the flow is in the record of its root, and errors may repeat its values.
    await learn_payload(desk, redaction, report["flow_id"])
    steps: dict[str, Any] = {}
    for name, step in report["steps"].items():
        values = {each: redaction.value(step[each]) for each in ("result", "progress")}
        steps[name] = {**step, **(values if may_read else dict.fromkeys(values))}
    nested: dict[str, list[Any]] = {}
    for name, trees in tree["nested"].items():
        for each in cast("list[dict[str, Any]]", trees):
            inner, cleaned = each["report"], await _without_secrets(desk, caller, each, redactions)
            if desk.may(caller, "flow.read", flow_target(inner["flow_id"], inner["workflow"])):
                nested.setdefault(name, []).append(cleaned)
    values = {name: redaction.value(report[name]) for name in _VALUES} if may_read else dict.fromkeys(_VALUES)
    machine: dict[str, Any] | None = report["machine"]
    if machine is not None:
        told = {name: redaction.value(machine[name]) for name in ("state", "documents")}
        machine = {**machine, **(told if may_read else {"state": None, "documents": cast("Any", {})})}
    return {
        "report": {**report, **values, "machine": machine, "steps": steps},
        "errors": tree["errors"],
        "nested": nested,
    }
