"""The ledgers of machines and of later runs find each flaw, and none in what is right."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from apps.drawn.functions import Function
from apps.drawn.graphs import Course
from apps.drawn.pieces import Piece
from checks.function_ledger import FunctionAccount
from checks.later_runs import judge_derived, judge_later, kept_of
from checks.ledger import Ledger
from checks.machine_ledger import judge_machine
from harness.journal import PROCESS, Journal, Process

from workflows import FlowReport, StepReport
from workflows.records.report import MachineReport, RollbackReport

FLOW = "ship~8b1cf1cba69ebab41af9"
KILLED = 7


def ledger_of(folder: Path, lines: Sequence[str]) -> Ledger:
    """Make a ledger of lines `did 1/1/sail`; what begins with `!` was done by a process that was killed."""
    journal = Journal(folder / "journal")
    for line in lines:
        what, _, name = line.lstrip("!").partition(" ")
        place = PROCESS.set(Process(KILLED if line[0] == "!" else 1))
        journal.write(what, FLOW, 1, name)
        PROCESS.reset(place)
    journal.close()
    return Ledger(journal, {KILLED})


def machine(state: Any, rollback: Any, moves: Sequence[str], orders: Sequence[int]) -> FlowReport:
    values = {"moves": list(moves), "orders": list(orders)}
    report = MachineReport(place="port", version=len(moves), state=values)
    return FlowReport(flow_id=FLOW, workflow="ship", state=state, rollback=rollback, machine=report)


DONE = ["did 1/1/sail", "did 1/2/land", "did 1/3/retire"]
ENDED = machine("completed", "none", ["sail", "land", "retire"], [0])
STOPPED = machine("cancelled", "complete", ["sail", "land"], [0])


@pytest.mark.parametrize(
    ("report", "lines", "taken", "told"),
    [
        (ENDED, DONE, [0], ""),
        (ENDED, ["!did 1/1/sail", *DONE], [0], ""),
        (STOPPED, [*DONE[:2], "undid 1/1/sail"], [0], ""),
        (machine("cancelled", "incomplete", [], []), ["!did 1/1/sail"], [0], ""),
        (ENDED, ["did 1/1/sail", *DONE], [0], "once more, and no kill explains that"),
        (ENDED, DONE[:2], [0], "recorded are"),
        (ENDED, DONE, [0, 1, 2], "was given the orders"),
        (machine("running", "none", ["sail"], [0]), DONE[:1], [0], "is running"),
        (machine("completed", "none", ["sail", "sail", "retire"], [0]), DONE, [0], "its moves are"),
        (STOPPED, DONE[:2], [0], "due were ['1/1/sail']"),
        (STOPPED, [*DONE, "undid 1/1/sail"], [0], "which is not recorded"),
        (machine("cancelled", "none", [], []), ["!did 1/1/sail"], [0], "which is not recorded"),
        (machine("cancelled", "none", ["sail"], [0]), [DONE[0], "undid 1/1/sail"], [0], "expected complete"),
    ],
)
def test_what_is_wrong_with_a_machine_is_told(
    report: FlowReport, lines: list[str], taken: list[int], told: str, tmp_path: Path
) -> None:
    flaws = list(judge_machine(ledger_of(tmp_path, lines), report, taken, taken))
    assert (told in str(flaws)) if told else not flaws, flaws


call, wait = Piece("call", "a", "act"), Piece("derived", "d")
drawn = Function("ship", Piece("row", "ship", parts=(call, wait)))


def account(state: Any, steps: dict[str, Any], undone: Sequence[str] = ()) -> FunctionAccount:
    report = FlowReport(
        flow_id=FLOW,
        workflow="ship",
        state=state,
        steps={name: StepReport(step=name, state=each) for name, each in steps.items()},
        rollbacks=[RollbackReport(step=name) for name in undone],
    )
    return FunctionAccount(drawn, report, {}, Course(1))


def test_a_resumed_run_keeps_what_completed_before_the_failed_call_and_was_not_undone() -> None:
    steps = {"look@0": "completed", "act@1": "completed", "look@2": "failed", "look@3": "completed"}
    assert kept_of(account("failed", steps, ["act@1"])) == {"look@0"}


@pytest.mark.parametrize(
    ("state", "lines", "told"),
    [
        ("completed", ["began act@0", "did act@0", "undid act@0", "|", "did act@0"], ""),
        ("completed", ["did act@0", "|", "began look@9"], ""),
        ("cancelled", ["did act@0", "undid act@0", "|", "!did act@0"], ""),
        ("completed", ["did act@0", "|", "began kept@1"], "which it had to keep"),
        ("completed", ["|", "did act@0", "did act@0"], "2 times, and no kill explains that"),
        ("completed", ["did act@0", "undid act@0", "|"], "it is not in effect"),
        ("cancelled", ["did act@0", "undid act@0", "|", "did act@0"], "and it is in effect"),
    ],
)
def test_what_is_wrong_with_a_later_run_is_told(
    state: str, lines: list[str], told: str, tmp_path: Path
) -> None:
    start = lines.index("|")
    ledger = ledger_of(tmp_path, [each for each in lines if each != "|"])
    ended = account(state, {"act@0": "completed"})
    flaws = list(judge_later(ledger, ended, [0, start], [(), {"kept@1"}], 0))
    assert (told in str(flaws)) if told else not flaws, flaws
    if told.endswith("it is not in effect"):  # unless the second run began from the start
        assert list(judge_later(ledger, ended, [0, start], [(), ()], 1)) == []


def test_random_numbers_of_a_later_run_are_those_of_the_first() -> None:
    seen = ["d=derived 1.0 0.5 x", "a=act", "d=derived 2.0 0.5 x"]
    assert list(judge_derived(drawn, FLOW, seen)) == []
    assert len(list(judge_derived(drawn, FLOW, [*seen, "d=derived 2.0 0.6 x"]))) == 1


def test_a_process_that_is_astray_is_known_by_the_jobs_that_it_wrote_for(tmp_path: Path) -> None:
    journal, process = Journal(tmp_path / "journal"), Process(1)
    place = PROCESS.set(process)
    journal.write("did", "before", 1, "a")
    process.stray()
    journal.write("did", FLOW, 1, "a")
    PROCESS.reset(place)
    journal.close()
    assert (process.is_suspect, process.strayed) == (True, {FLOW})
    assert [msgspec.to_builtins(each)[3] for each in journal.read()] == [1, 1]
