"""How flows are shown to people: a list as a table, one flow as a tree."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime

from rich.console import Console
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from workflows import FlowReport, FlowSummary, FlowTree, StepReport

__all__ = ["print_list", "print_tree"]

_STYLES = {
    "completed": "green",
    "failed": "bold red",
    "cancelled": "yellow",
    "unknown": "bold red",
    "active": "cyan",
    "running": "cyan",
    "rolling_back": "magenta",
}
_ENDED = ("completed", "failed", "cancelled")
_WIDE = 400  # where nobody's screen sets the width


def print_list(found: list[FlowSummary]) -> None:
    """Print flows as a table."""
    if not found:
        print("no flows")
        return
    table = Table(box=None, pad_edge=False)
    for name in ("flow", "state", "run", "done", "began", "took"):
        table.add_column(name, no_wrap=True, justify="right" if name in ("run", "done") else "left")
    table.add_column("error", no_wrap=True, overflow="ellipsis")
    for each in found:
        table.add_row(
            each.flow_id,
            _state(each.state, each.rollback),
            str(each.run),
            str(each.completed),
            _moment(each.created_ms),
            _span(each.created_ms, each.ended_ms),
            Text(_line(each.error)),
        )
    _console().print(table)


def print_tree(flow: FlowTree) -> None:
    """Print one flow with all its steps."""
    _console().print(_flow(flow), soft_wrap=True)


def _console() -> Console:
    """Colours and the width of the screen, on a screen; plain and wide lines elsewhere."""
    is_screen = sys.stdout.isatty()
    return Console(width=None if is_screen else _WIDE, highlight=False, markup=False, emoji=False)


def _flow(flow: FlowTree) -> Tree:
    report = flow.report
    head = Text.assemble(report.flow_id, "  ", _state(report.state, report.rollback))
    if report.run > 1:
        head.append(f"  run {report.run}")
    head.append(f"  began {_moment(report.created_ms)}, {_took(report)}")
    tree = Tree(head)
    for each in flow.errors.get("", []):
        tree.add(Text(f"earlier: {_line(each)}"))
    for step in report.steps.values():
        _add_step(tree, step, flow)
    if report.rollbacks:
        branch = tree.add(Text(f"rollback {report.rollback}" if report.state in _ENDED else "rollback"))
        for each in report.rollbacks:
            outcome = Text("failed", "bold red") if each.error else Text("rolled back", "green")
            branch.add(
                Text.assemble(each.step, "  ", outcome, f"  {_line(each.error)}" if each.error else "")
            )
    if report.error:
        tree.add(Text(_line(report.error), "red"))
    return tree


def _add_step(tree: Tree, step: StepReport, flow: FlowTree) -> None:
    line = Text.assemble(step.step, "  ", _state(step.state))
    if step.started_ms:
        line.append(f"  {_span(step.started_ms, step.ended_ms)}")
    if step.attempts > 1 or (step.attempts and step.state == "completed"):
        count = step.attempts + (step.state == "completed")
        line.append(f"  {count} attempts")
    branch = tree.add(line)
    for each in flow.errors.get(step.step, []):
        branch.add(Text(_line(each), "dim"))
    if step.error:
        branch.add(Text(_line(step.error), "red"))
    for each in flow.nested.get(step.step, []):
        branch.add(_flow(each))


def _state(state: str, rollback: str = "none") -> Text:
    told = state.replace("_", " ") + (f", rollback {rollback}" if rollback != "none" else "")
    return Text(told, _STYLES.get(state, ""))


def _moment(unix_ms: int) -> str:
    """A time of the server's clock, in this machine's time zone."""
    if not unix_ms:
        return "-"
    return datetime.fromtimestamp(unix_ms / 1000, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _took(report: FlowReport) -> str:
    if report.state in _ENDED:
        return f"took {_span(report.created_ms, report.ended_ms)}"
    return f"for {_span(report.created_ms, 0)}"


def _span(began_ms: int, ended_ms: int) -> str:
    seconds = max(0.0, (ended_ms or time.time() * 1000) - began_ms) / 1000
    if seconds < 100:
        return f"{seconds:.2f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def _line(text: str) -> str:
    return " ".join(text.split())
