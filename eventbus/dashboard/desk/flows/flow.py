"""One flow: its steps, rollbacks and nested flows, what it waits for, and what a retry of it would do.

What must always hold: what leaves here has passed the rights and the redaction of each flow in it, the nested
ones too.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import msgspec

from eventbus.dashboard import timeouts
from eventbus.dashboard.desk.desk import Desk
from eventbus.dashboard.desk.rows import Read
from eventbus.dashboard.entry.gate import Caller
from eventbus.dashboard.entry.rights import Action, Target
from eventbus.dashboard.flow_source import FlowSource
from eventbus.dashboard.problem import Problem
from eventbus.errors import UnknownJob
from eventbus.model.codec import json_values
from eventbus.model.states import FINAL_STATES

_VALUES = ("input", "output", "own_state")
_ACTIONS: tuple[Action, ...] = ("flow.cancel", "flow.retry", "flow.signal")


class FoundFlow(NamedTuple):
    """A flow as it was read, the same as dicts, and the target of actions on it. Nothing is redacted."""

    read: Any
    tree: dict[str, Any]
    target: Target


class WaitLine(msgspec.Struct, frozen=True, kw_only=True):
    """What an open flow waits for: the `signal`, or a time if that is empty. `place` is its step, or the
    position of the call.
    """

    place: str
    signal: str = ""
    since_ms: int = 0
    until_ms: int = 0


class FlowView(msgspec.Struct, frozen=True, kw_only=True):
    """One flow. `tree` is its `FlowTree`: the report, the errors of its steps, and the nested trees.

    `keeps` and `again` are the steps that a resumed retry keeps and runs, empty unless the flow has ended
    without success.
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


async def view_flow(desk: Desk, caller: Caller, found: FoundFlow) -> FlowView:
    """Return a flow that was read, as the caller may see it."""
    _, tree, target = found
    report = tree["report"]
    keeps, again = _plan_retry(report)
    cleaned = _without_secrets(desk, caller, tree)
    _share_rollbacks(cleaned)
    waits: list[WaitLine] = []
    if report["state"] not in FINAL_STATES:
        told = await flows_of(desk).waits(report["flow_id"], call_timeout=timeouts.READ)
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


async def find_flow(desk: Desk, caller: Caller, flow_id: str) -> FoundFlow:
    """Read a flow. Raises Problem, 404, for one that is not to be seen."""
    read = await flows_of(desk).tree(flow_id, call_timeout=timeouts.READ)
    tree: dict[str, Any] = json_values(read)
    target = flow_target(flow_id, tree["report"]["workflow"])
    if not desk.may(caller, "flow.read", target):
        raise Problem(404, str(UnknownJob(flow_id)))  # in the words for a flow that does not exist
    return FoundFlow(read, tree, target)


def may_see(desk: Desk, caller: Caller, flow_id: str, workflow: str) -> bool:
    """Return whether the caller may know of a flow."""
    return desk.may(caller, "flow.read", flow_target(flow_id, workflow))


def states_of(report: dict[str, Any]) -> dict[str, str]:
    """Return the state of each step as all pages show it: with what became of its rollback, also of one of
    its items or nested steps.
    """
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
    """Add to each nested flow that completed what the flow around it has undone of it, as its own page has
    it.
    """
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


def _may_read_all(desk: Desk, caller: Caller, tree: dict[str, Any]) -> bool:
    """Return whether the caller may read the payloads of a flow and of all that are nested in it."""
    report = tree["report"]
    target = flow_target(report["flow_id"], report["workflow"])
    inner = [each for trees in tree["nested"].values() for each in cast("list[dict[str, Any]]", trees)]
    return desk.may(caller, "payload.read", target) and all(
        _may_read_all(desk, caller, each) for each in inner
    )


def _without_secrets(desk: Desk, caller: Caller, tree: dict[str, Any]) -> dict[str, Any]:
    """Return a tree without what is hidden, each flow's as its own rights say, and without the nested ones
    that are hidden.

    What an error quotes of the flow that it came from was hidden when it was recorded. But a caller that may
    not read the payloads of a nested flow sees no text of an error of the flows around it either.
    """
    report = tree["report"]
    redaction = desk.redaction(caller, flow_target(report["flow_id"], report["workflow"]))
    if not _may_read_all(desk, caller, tree):
        redaction.hides_errors = True
    steps: dict[str, Any] = {}
    for name, step in report["steps"].items():
        values = {field: redaction.value(step[field], f"{name}/{field}") for field in ("result", "progress")}
        steps[name] = redaction.errors({**step, **dict.fromkeys(values)}) | values
    machine = report["machine"]
    if machine is not None:
        values = {field: redaction.value(machine[field], field) for field in ("state", "documents")}
        machine = redaction.errors({**machine, **dict.fromkeys(values)}) | values
        machine["documents"] = machine["documents"] or {}
    values = {field: redaction.value(report[field], field) for field in _VALUES}
    rest = redaction.errors({**report, **dict.fromkeys(values), "steps": {}, "machine": None}) | values
    nested: dict[str, list[Any]] = {}
    for name, trees in tree["nested"].items():
        for each in cast("list[dict[str, Any]]", trees):
            inner = each["report"]
            if desk.may(caller, "flow.read", flow_target(inner["flow_id"], inner["workflow"])):
                nested.setdefault(name, []).append(_without_secrets(desk, caller, each))
    errors = redaction.errors({"errors": tree["errors"]})["errors"]
    return {"report": {**rest, "steps": steps, "machine": machine}, "errors": errors, "nested": nested}


READS = (Read("/flows/{flow}", "One flow with its steps.", FlowView, read_flow),)
