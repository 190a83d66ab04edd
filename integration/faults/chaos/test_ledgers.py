"""The ledgers of chaos runs find each flaw: a record, a journal or a result that is wrong is told, and a
right one is not.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from apps.drawn.functions import Function
from apps.drawn.graphs import NEVER, Act, Course
from apps.drawn.pieces import Piece
from checks.account import Account, read_account
from checks.function_ledger import FunctionAccount, FunctionLedger
from checks.ledger import Ledger
from checks.returned import Fates, can_fail, judge_lines
from harness.journal import Journal

from eventbus import EventProvider, Retry, StalledError
from eventbus.testing import TestBus
from workflows import (
    FlowCancelled,
    FlowReport,
    StepContext,
    StepError,
    StepReport,
    Workflow,
    WorkflowProvider,
)
from workflows.errors import RollbackError
from workflows.records.report import RollbackReport

PID = os.getpid()
FLOW = "drawn~8b1cf1cba69ebab41af9"

a, b = Piece("call", "a", "act"), Piece("call", "b", "act")
pieces = {each.name: each for each in (a, b)}
drawn = Function("drawn", Piece("row", "drawn", parts=(a, Piece("wait", "w"), b)))
course = Course(1, {"a": Act(0, 1, 1, True), "b": Act(0, 1, 1, True)})

graph = Workflow[Course, Any]("drawn")


@graph.each(over=lambda _: [1, 2], name="s")
async def convert(ctx: StepContext[Course], item: int) -> int:
    return item


@convert.rollback
async def forget(ctx: StepContext[Course], item: int, result: int) -> None: ...


@graph.completed
async def tell(ctx: StepContext[Course]) -> None: ...


class Case:
    """One flow that has ended: its record, what it did, and what its caller heard. A test spoils one
    of them.
    """

    def __init__(self, kind: str, state: str) -> None:
        self.kind = kind
        self.killed: set[int] = set()
        names = ["act@0", "act@2"] if kind == "function" else ["s[0]", "s[1]"]
        self.names = names
        self.lines = [(what, name) for name in names for what in ("began", "did")]
        self.steps = {name: _step(name, "completed", number) for number, name in enumerate(names)}
        self.order = list(names)
        self.rollbacks: list[str] = []
        self.state, self.rollback = state, "none"
        self.heard: Any = [f"a by {PID}", "go 0", f"b by {PID}"] if kind == "function" else {"s": 2}
        if kind == "function":
            self.lines[2:2] = [("saw", "w=go 0")]
            self.lines.append(("ended", "drawn"))
        else:
            self.steps["s"] = _step("s", "completed", 3)
            self.order.append("s")
            self.lines += [("completed", "completed")] * (state == "completed")
        if state == "cancelled":
            self._cancel()

    def _cancel(self) -> None:
        self.rollback, self.rollbacks = "complete", self.names[::-1]
        self.lines += [(what, name) for name in self.rollbacks for what in ("undoing", "undid")]
        self.heard = _cancelled("complete")
        if self.kind == "graph":
            self.steps["s"] = msgspec.structs.replace(self.steps["s"], state="cancelled")
            self.order.remove("s")

    def judge(self, folder: Path) -> list[str]:
        journal = Journal(folder / "journal")
        for what, name in self.lines:
            journal.write(what, FLOW, 1, name)
        journal.close()
        report: Any = FlowReport(
            flow_id=FLOW,
            workflow="drawn",
            state=self.state,  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
            rollback=self.rollback,  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
            steps=self.steps,
            order=self.order,
            rollbacks=[RollbackReport(step=name) for name in self.rollbacks],
        )
        ledger = Ledger(journal, self.killed)
        if self.kind == "function":
            return FunctionLedger(ledger).flaws(FunctionAccount(drawn, report, {}, course, self.heard))
        return ledger.flaws(Account(graph, report, {}, self.heard))


def _step(name: str, state: Any, number: int) -> StepReport:
    result = {"errand": {"name": "ab"[number % 2]}, "pid": PID} if "@" in name else None
    return StepReport(step=name, state=state, result=result, started_ms=number + 1, ended_ms=number + 1)


def _cancelled(rollback: Any, *doubts: str) -> FlowCancelled:
    errors = [RollbackError(step=each, error=StalledError("lost")) for each in doubts]
    return FlowCancelled(flow_id=FLOW, workflow="drawn", rollback=rollback, rollback_errors=errors)


Spoil = Callable[[Case], Any]


def _say(case: Case, place: int, what: str, name: str) -> None:
    case.lines.insert(place, (what, name))


def _set_step(case: Case, name: str, **facts: Any) -> None:
    case.steps[name] = msgspec.structs.replace(case.steps[name], **facts)


def _set(case: Case, **facts: Any) -> None:
    vars(case).update(facts)


def _doubt(case: Case, name: str) -> None:
    """Let a step be in doubt that had not completed when the flow was stopped."""
    _set_step(case, name, state="unknown", result=None)
    case.order.remove(name)
    case.rollbacks.remove(name)
    case.lines = [line for line in case.lines if line not in (("undoing", name), ("undid", name))]


def _doubt_told(case: Case) -> None:
    _doubt(case, case.names[1])
    _set(case, rollback="incomplete", heard=_cancelled("incomplete", case.names[1]), killed={PID})


@pytest.mark.parametrize("shape", ["function", "graph"])
@pytest.mark.parametrize("state", ["completed", "cancelled"])
def test_a_flow_that_is_right_has_no_flaw(shape: str, state: str, tmp_path: Path) -> None:
    assert Case(shape, state).judge(tmp_path) == []


@pytest.mark.parametrize("shape", ["function", "graph"])
def test_a_doubt_that_is_told_is_no_flaw(shape: str, tmp_path: Path) -> None:
    case = Case(shape, "cancelled")
    _doubt_told(case)
    assert case.judge(tmp_path) == []


ANY: list[tuple[str, Spoil, str]] = [
    ("completed", lambda case: case.lines.remove(("did", case.names[0])), "is not in the journal"),
    ("completed", lambda case: _say(case, 0, "did", case.names[0]), "no kill explains that"),
    ("completed", lambda case: _set_step(case, case.names[0], started_ms=0), "has no time for it"),
    ("completed", lambda case: case.order.append(case.names[0]), "2 times in the order"),
    ("completed", lambda case: _set(case, state="running"), "is running"),
    ("completed", lambda case: _set(case, heard=_cancelled("none")), "completed, heard"),
    ("completed", lambda case: _set(case, rollbacks=case.names[:1]), "due were []"),
    ("completed", lambda case: _say(case, 9, "undoing", case.names[0]), "ran and is not recorded"),
    ("completed", lambda case: _say(case, 9, "began", case.names[1]), "after it"),
    ("cancelled", lambda case: case.rollbacks.pop(), "undone were"),
    ("cancelled", lambda case: case.rollbacks.append(case.names[0]), "undone twice"),
    ("cancelled", lambda case: case.rollbacks.reverse(), "undone in the order"),
    ("cancelled", lambda case: case.lines.remove(("undid", case.names[0])), "is not in the journal"),
    ("cancelled", lambda case: _say(case, 99, "undid", case.names[0]), "no kill explains that"),
    ("cancelled", lambda case: _say(case, 0, "undid", case.names[1]), "no kill explains that"),
    ("cancelled", lambda case: case.lines.extend(case.lines[-4:-2]), "really undone in another order"),
    ("cancelled", lambda case: _say(case, 99, "did", case.names[0]), "while it was undone"),
    ("cancelled", lambda case: _set(case, rollback="none"), "expected complete"),
    ("cancelled", lambda case: _set(case, heard=None), "cancelled, heard None"),
    ("cancelled", lambda case: _set(case, heard=_cancelled("none")), "heard none"),
    ("cancelled", lambda case: _doubt(case, case.names[1]), "expected incomplete"),
    (
        "cancelled",
        lambda case: (_doubt_told(case), _set(case, heard=_cancelled("incomplete"))),
        "heard of []",
    ),
    ("cancelled", lambda case: (_doubt_told(case), _set(case, killed=set[int]())), "no kill explains that"),
    (
        "cancelled",
        lambda case: (_doubt_told(case), _set_step(case, case.names[1], state="cancelled")),
        "did what it says it did not",
    ),
]


@pytest.mark.parametrize("shape", ["function", "graph"])
@pytest.mark.parametrize(("state", "spoil", "said"), [pytest.param(*each, id=each[2]) for each in ANY])
def test_what_is_wrong_with_a_step_or_a_rollback_is_told(
    shape: str, state: str, spoil: Spoil, said: str, tmp_path: Path
) -> None:
    case = Case(shape, state)
    spoil(case)
    assert said in " ".join(case.judge(tmp_path))


FUNCTION: list[tuple[str, Spoil, str]] = [
    (
        "recorded",
        lambda case: _set_step(case, "act@0", result=case.steps["act@0"].result | {"pid": 1}),
        "ran again",
    ),
    ("unrecorded", lambda case: case.steps.pop("act@2"), "act@2 happened, and is not recorded"),
    ("replay", lambda case: _say(case, 9, "saw", "w=go 1"), "in another run of it"),
    ("short", lambda case: case.heard.pop(), "cannot return that"),
    ("order", lambda case: case.heard.reverse(), "cannot return that"),
    ("value", lambda case: _set(case, heard=["a by 1", *case.heard[1:]]), "completed with ['a by 1'"),
    ("signal", lambda case: _set(case, heard=[case.heard[0], "go 1", case.heard[2]]), "signals [1]"),
]  # fmt: skip


@pytest.mark.parametrize(("spoil", "said"), [pytest.param(*each[1:], id=each[0]) for each in FUNCTION])
def test_what_is_wrong_with_the_code_of_a_function_is_told(spoil: Spoil, said: str, tmp_path: Path) -> None:
    case = Case("function", "completed")
    spoil(case)
    assert said in " ".join(case.judge(tmp_path))


@pytest.mark.parametrize("is_called_before", [True, False])
def test_what_a_function_did_not_wait_for_began_late_only_if_it_was_called_before_the_end(
    tmp_path: Path, *, is_called_before: bool
) -> None:
    """A task that lost a race begins on another worker when the code has its winner, and has ended."""
    case = Case("function", "completed")
    late = _step("act@1.0", "completed", 0 if is_called_before else 8)
    case.steps["act@1.0"] = msgspec.structs.replace(late, ended_ms=9)
    case.lines += [("began", "act@1.0"), ("did", "act@1.0")]
    assert any("after it had ended" in each for each in case.judge(tmp_path)) != is_called_before


def test_a_function_that_failed_although_nothing_in_it_fails_is_told(tmp_path: Path) -> None:
    case = Case("function", "cancelled")
    error = StepError(step="act@2", error=ValueError(), flow_id=FLOW, workflow="drawn", rollback="complete")
    _set(case, state="failed", heard=error)
    assert "nothing in it fails" in " ".join(case.judge(tmp_path))


def test_the_items_of_an_each_step_that_its_flow_counts_are_those_that_completed(tmp_path: Path) -> None:
    case = Case("graph", "completed")
    case.heard = {"s": 1}
    assert "heard of 1 of s" in " ".join(case.judge(tmp_path))


# What a function may return.

sleep, limited = Piece("sleep", "z"), Piece("limited", "l")
started = Piece("flow", "f", flow=drawn)


def _group(kind: Any, *parts: Piece) -> Piece:
    return Piece(kind, kind, parts=parts)


def _fails(*names: str) -> Course:
    return Course(1, {name: Act(0, NEVER if name in names else 1, 1, True) for name in pieces})


@pytest.mark.parametrize(
    ("body", "fails", "lines", "is_right"),
    [
        (_group("row", a, sleep, b), "", ["a by 1", "b by 2"], True),
        (_group("row", a, b), "", ["b by 2", "a by 1"], False),
        (_group("row", a, b), "b", ["a by 1"], False),
        (_group("gather", a, _group("row", b)), "", ["a by 1", "b by 2"], True),
        (_group("race", a, b), "", ["won 0", "a by 1"], True),
        (_group("race", a, b), "", ["won 1", "a by 1"], False),
        (_group("race", a, b), "", ["won 2", "a by 1"], False),
        (_group("race", a, b), "a", ["won 1", "b by 1"], True),
        (_group("race", a, b), "a", ["won 0", "a by 1"], False),
        (_group("race", a, sleep), "", ["won 1"], True),
        (_group("race", a, sleep), "", [], False),
        (_group("catch", a), "a", ["caught"], True),
        (_group("catch", a), "", ["caught"], False),
        (_group("catch", _group("race", a, b)), "b", ["caught"], True),
        (Piece("map", "a", "act", 0), "", [], True),
        (_group("row", limited, a), "", ["maybe not", "a by 1"], True),
        (_group("row", limited, limited), "", ["maybe 0", "maybe 0"], False),
        (started, "", ["drawn"], True),
        (started, "", [], False),
        (_group("row", Piece("wait", "v"), Piece("wait", "w")), "", ["go 1", "go 0"], False),
        (_group("gather", Piece("wait", "v"), Piece("wait", "w")), "", ["go 1", "go 0"], True),
        (_group("gather", Piece("wait", "v"), Piece("wait", "w")), "", ["go 0", "go 0"], False),
        (Piece("derived", "d"), "", ["derived 1 2 3"], True),
    ],
)  # fmt: skip
def test_what_a_function_may_return_follows_from_its_code_and_its_course(
    body: Piece, fails: str, lines: list[str], is_right: bool
) -> None:
    fates = Fates(_fails(*fails), {"drawn": {"completed"}})
    assert (list(judge_lines(body, lines, fates)) == []) == is_right


def test_a_function_can_fail_if_something_in_it_does_that_nothing_catches() -> None:
    fates = Fates(_fails("a"), {"drawn": {"failed"}})
    assert can_fail(_group("row", b, _group("race", a, b)), fates)
    assert can_fail(started, fates)
    assert not can_fail(_group("row", b, _group("catch", a, started)), fates)


async def test_a_nested_flow_counts_by_its_record_also_if_it_told_nothing() -> None:
    """`dies-before-told`: a worker is killed when a step is recorded as begun, and before it says so."""
    provider = EventProvider(name="drawn")
    flows = WorkflowProvider(provider)
    outer = Workflow[None, Any]("outer", spread=True)
    inner = Workflow[None, Any]("inner", spread=True)

    @inner.step(retry=Retry(attempts=1))
    async def hang(ctx: StepContext[None]) -> None:
        await asyncio.Event().wait()

    outer.flow(inner, name="nested")
    flows.register(outer)
    async with TestBus(provider) as bus:
        flow = await flows.execute(outer, None)
        await bus.settle()
        bus.kill_worker()
        account = await read_account(flows, outer, flow.id, None)
    assert list(account.inner) == ["nested"]
    assert account.inner["nested"].report.steps["hang"].state == "active"
