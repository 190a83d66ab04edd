"""The listing of flows, and one flow as a tree for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from rich.text import Text
from rich.tree import Tree

from eventbus.cli.toolkit import Listing, Row, json_text, moment, open_console, printable, span
from eventbus.lowlevel import FINAL_STATES
from workflows import END, FlowReport, FlowSummary, FlowTree, MachineReport, StepReport

_SHORT = 500
"""Characters of a value that are shown."""

_STYLES = {
    "completed": "green",
    "failed": "bold red",
    "cancelled": "yellow",
    "unknown": "bold red",
    "damaged": "bold red",
    "active": "cyan",
    "running": "cyan",
    "sleeping": "cyan",
    "waiting": "cyan",
    "parked": "bold red",
    "rolling_back": "magenta",
}


def _row(flow: FlowSummary) -> Row:
    state = _state("parked" if flow.is_parked else flow.state, flow.rollback)
    times = (moment(flow.created_ms), span(flow.created_ms, flow.ended_ms))
    return flow.flow_id, state, flow.run, flow.completed, *times, flow.error


FLOWS: Listing[FlowSummary] = Listing(_row, "flow, state, >run, >done, began, took, error", none="no flows")


def print_tree(flow: FlowTree, *, is_full: bool = False) -> None:
    """Print one flow with all its steps. Unless `is_full`, long values are cut."""
    open_console().print(_flow(flow, None if is_full else _SHORT), soft_wrap=True)


def _flow(flow: FlowTree, most: int | None) -> Tree:
    report = flow.report
    head = Text.assemble(
        report.flow_id, "  ", _state("parked" if report.is_parked else report.state, report.rollback)
    )
    if report.run > 1:
        head.append(f"  run {report.run}")
    head.append(f"  began {moment(report.created_ms)}, {_took(report)}")
    tree = Tree(head)
    if report.machine is not None:
        tree.add(_place(report.machine))
    for line in _values(report, most):
        tree.add(line)
    for entry in flow.errors.get("", []):
        tree.add(Text(f"earlier: {printable(entry)}"))
    for step in report.steps.values():
        _add_step(tree, step, flow, most)
    for name, count in report.kept_signals.items():
        kept = f"signal {printable(name)} is kept, and nobody waits for it"
        tree.add(Text(kept if count == 1 else f"{kept}, {count} times", "yellow"))
    if report.rollbacks:
        branch = tree.add(Text(f"rollback {report.rollback}" if report.state in FINAL_STATES else "rollback"))
        for entry in report.rollbacks:
            outcome = Text("failed", "bold red") if entry.error else Text("rolled back", "green")
            branch.add(
                Text.assemble(entry.step, "  ", outcome, f"  {printable(entry.error)}" if entry.error else "")
            )
    if report.error:
        tree.add(Text(printable(report.error), "red"))
    return tree


def _place(machine: MachineReport) -> Text:
    """Return a line about where a state machine stands."""
    if not machine.place:
        return Text("at its start")
    place = "its end" if machine.place == END else machine.place
    line = Text.assemble("at ", (place, "bold"), f", {_counted(machine.version, 'move')}")
    if machine.accepts:
        line.append(f", accepts {', '.join(machine.accepts)}")
    if machine.documents:
        line.append(f", documents {', '.join(map(printable, machine.documents))}")
    return line


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _values(report: FlowReport, most: int | None) -> Iterator[Text]:
    """Yield what the flow got, returned and told as its state, a line for each."""
    values = [("input", report.input), ("state", report.own_state), ("output", report.output)]
    if report.machine is not None:
        values[1] = ("state", report.machine.state)
    for name, value in values:
        if name.replace("state", "own_state") in report.left_out:
            yield Text(f"{name} is long: eventbus flows show {report.flow_id}", "dim")
        elif value is not None:
            yield Text(f"{name} {json_text(value, most=most)}")


def _add_step(tree: Tree, step: StepReport, flow: FlowTree, most: int | None) -> None:
    line = Text.assemble(step.step, "  ", _state(step.state))
    if step.started_ms:
        line.append(f"  {span(step.started_ms, step.ended_ms)}")
    if step.attempts > 1 or (step.attempts and step.state == "completed"):
        count = step.attempts + (step.state == "completed")
        line.append(f"  {count} attempts")
    if step.progress is not None:
        line.append(f"  {_progress(step.progress)}")
    branch = tree.add(line)
    for entry in flow.errors.get(step.step, []):
        branch.add(Text(printable(entry), "dim"))
    if step.error:
        branch.add(Text(printable(step.error), "red"))
    for entry in flow.nested.get(step.step, []):
        branch.add(_flow(entry, most))


def _progress(value: Any) -> str:
    """Return a progress value on one short line: a number from 0 to 100 as a percentage, else its JSON."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 100:
        return f"{value:g} %"
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else f"{text[:57]}..."


def _state(state: str, rollback: str = "none") -> Text:
    told = state.replace("_", " ") + (f", rollback {rollback}" if rollback != "none" else "")
    return Text(told, _STYLES.get(state, ""))


def _took(report: FlowReport) -> str:
    if report.state in FINAL_STATES:
        return f"took {span(report.created_ms, report.ended_ms)}"
    return f"for {span(report.created_ms, 0)}"
