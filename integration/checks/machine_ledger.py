"""The ledger of drawn machines: it compares the record of a machine, the journal of its bodies, and what its
callers were told.

What must always hold for each machine:
- its moves follow its transitions, and each order moved it once, in the order in which they were taken;
- what took effect is what is recorded, move by move; a body ran once more only if its worker was killed;
- of one that was stopped, each move with a rollback was undone once, the last one first; what took effect
  and is neither recorded nor undone stands in doubt, and only if its worker was killed;
- nothing of one that completed was undone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from checks.account import STOPPED
from checks.ledger import Ledger

from workflows import FlowReport

__all__ = ["judge_machine"]


def judge_machine(ledger: Ledger, report: FlowReport, heard: Any, taken: list[int]) -> Iterator[str]:
    """Yield what is wrong with one machine. `taken` are the orders that the server took, in that order."""
    state: dict[str, Any] = (report.machine.state if report.machine is not None else None) or {}
    moves: list[str] = state.get("moves", [])
    orders: list[int] = state.get("orders", [])
    if report.state not in ("completed", *STOPPED):
        yield f"{report.flow_id}: is {report.state}"
    if moves != _expected(len(orders), len(moves), is_over=moves[-1:] == ["retire"]) or (
        report.state == "completed" and moves[-1:] != ["retire"]
    ):
        yield f"{report.flow_id}: its moves are {moves}"
    if orders != taken[: len(orders)] or len(orders) < len(taken) - 1:
        yield f"{report.flow_id}: was given the orders {taken}, and took {orders}"
    if report.state == "completed" and heard != taken:
        yield f"{report.flow_id}: completed, and heard {heard!r}"
    yield from _judge_effects(ledger, report, [f"1/{n}/{name}" for n, name in enumerate(moves, 1)])


def _expected(orders: int, moves: int, *, is_over: bool) -> list[str]:
    """Return the moves of a machine that took so many orders."""
    if is_over:
        return [*(("sail", "land") * orders), "retire"]
    return [*(("sail", "land") * orders)][: max(moves, 2 * orders - 1)]


def _judge_effects(ledger: Ledger, report: FlowReport, moves: list[str]) -> Iterator[str]:
    lines = ledger.lines_of(report.flow_id)
    did = list(dict.fromkeys(each.payload for each in reversed(lines) if each.what == "did"))[::-1]
    undid = list(dict.fromkeys(each.payload for each in reversed(lines) if each.what == "undid"))[::-1]
    for what in ("did", "undid"):
        for key in ledger.repeated(report.flow_id, what):
            if not ledger.are_of_killed(ledger.lines(report.flow_id, what, key)[:-1]):
                yield f"{report.flow_id}: {what} {key} once more, and no kill explains that"
    if did[: len(moves)] != moves or len(did) > len(moves) + 1:
        yield f"{report.flow_id}: did {did}, recorded are {moves}"
    for key in did[len(moves) :]:
        is_explained = ledger.are_of_killed(ledger.lines(report.flow_id, "did", key))
        if not is_explained or (key.endswith("sail") and report.rollback != "incomplete"):
            yield f"{report.flow_id}: did {key}, which is not recorded; {report.state}, {report.rollback}"
    due = [key for key in reversed(moves) if key.endswith("sail")] if report.state in STOPPED else []
    if undid != due:
        yield f"{report.flow_id}: {report.state}, undone were {undid}, due were {due}"
    expected = "complete" if due else "none"
    if report.rollback not in (expected, "incomplete"):
        yield f"{report.flow_id}: rollback {report.rollback}, expected {expected}"
