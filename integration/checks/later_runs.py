"""What must hold of a flow that was retried, in the runs after the first one.

- What a run completed and did not undo, the next one keeps, if it is resumed: it does not begin again. Of a
  durable function that is said of calls of the function itself before all that did not complete.
- No step takes effect twice in one run, unless its worker was killed.
- What a flow that completed says is done, is in effect; of a flow that was stopped, nothing is that has a
  rollback, unless the record doubts it, or its rollback failed.
- Random numbers and ids of a durable function are those of its first run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence

from apps.drawn.functions import TASKS, Function
from checks.account import STOPPED
from checks.function_ledger import FunctionAccount, InnerAccount, has_undo
from checks.ledger import Ledger, Line

from workflows.records.ids import split_item

__all__ = ["judge_derived", "judge_later", "kept_of"]


def kept_of(account: InnerAccount) -> set[str]:
    """Return what a resumed run must keep of the run that an account is of."""
    steps = account.report.steps
    undone = {each.step.partition("/")[0] for each in account.report.rollbacks if not each.error}
    undone |= {split_item(name)[0] for name in undone}
    kept = {name for name, step in steps.items() if step.state == "completed" and name not in undone}
    if not isinstance(account, FunctionAccount):
        return {name for name in kept if split_item(name)[0] not in undone}
    ended = {name for name, step in steps.items() if step.state == "completed"}
    first = min((_index_of(name) for name in steps.keys() - ended), default=len(steps))
    return {
        name
        for name in kept
        if name.rpartition("@")[0] in TASKS and "." not in name.rpartition("@")[2] and _index_of(name) < first
    }


def _index_of(label: str) -> int:
    return int(label.rpartition("@")[2].partition(".")[0])


def judge_later(
    ledger: Ledger,
    account: InnerAccount,
    starts: Sequence[int],
    kept: Sequence[Collection[str]],
    first_run: int,
) -> Iterator[str]:
    """Yield what is wrong with the runs of a flow. `starts` says how many lines the journal had of it when
    each began, and `kept` what each must keep. The effects of runs before `first_run` (0: none), which began
    from the start, are nobody's any more.
    """
    lines = ledger.lines_of(account.id)
    for number, (first, end) in enumerate(zip(starts, [*starts[1:], len(lines)], strict=True)):
        did: defaultdict[str, list[Line]] = defaultdict(list)
        for place, each in enumerate(lines[first:end]):
            if each.what == "did":
                did[each.payload].append(Line(place, each.pid))
            if each.what == "began" and each.payload in kept[number]:
                yield f"{account.id}: run {number + 1} began {each.payload} again, which it had to keep"
        for name, found in did.items():
            if not ledger.are_of_killed(found[:-1]):
                told = f"{account.id}: run {number + 1} did {name} {len(found)} times"
                yield f"{told}, and no kill explains that"
    if account.report.state not in ("completed", *STOPPED):
        yield f"{account.id}: is {account.report.state}"
    yield from _judge_effects(ledger, account, set(), starts[first_run])


def _judge_effects(ledger: Ledger, account: InnerAccount, doubted: set[str], start: int) -> Iterator[str]:
    """Yield what is in effect and should not be, or the other way round, by the lines from `start` on.
    `doubted` are paths that the flows around doubt.
    """
    report = account.report
    doubted = {*doubted, *account.failures(), *account.doubts()}
    lines = ledger.lines_of(account.id)[start:]
    for name in dict.fromkeys(each.payload for each in lines if each.what in ("did", "undid")):
        last = [each for each in lines if each.payload == name and each.what in ("did", "undid")][-1]
        is_in_effect = last.what == "did"
        state = report.steps[name].state if name in report.steps else "not recorded"
        where = f"{account.id}: {report.state}, its step {name} is {state}"
        if report.state == "completed" and state == "completed" and not is_in_effect:
            yield f"{where}, and it is not in effect"
        is_due = report.state in STOPPED and has_undo(account, name) and name not in doubted
        if is_due and is_in_effect and not ledger.are_of_killed([Line(0, last.pid)]):
            yield f"{where}, and it is in effect"
    for label, inner in account.inner.items():
        if inner.report.state in STOPPED:
            below = {path.removeprefix(f"{label}/") for path in doubted if path.startswith(f"{label}/")}
            yield from _judge_effects(ledger, inner, below, 0)


def judge_derived(function: Function, flow_id: str, seen: Sequence[str]) -> Iterator[str]:
    """Check that each run of the code saw the same random numbers and ids, as far as it draws them in the
    same order.
    """
    steady: set[str] = set()
    for part in function.body.parts:
        if part.kind == "catch" and part.count("derived"):
            break
        if part.kind == "derived":
            steady.add(part.name)
    first: dict[str, list[str]] = {}
    for each in seen:
        name, _, told = each.partition("=")
        if name in steady and first.setdefault(name, told.split()[2:]) != told.split()[2:]:
            yield f"{flow_id}: its code drew {first[name]} in {name}, and {told.split()[2:]} in another run"
