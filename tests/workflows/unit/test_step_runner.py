"""What happens after a step fails."""

from __future__ import annotations

from typing import Any

import pytest

from eventbus import PayloadError, Retry, Unrecoverable
from workflows.definition.workflow import Workflow
from workflows.execution.step_runner import decide, judge, rule_of


def test_an_error_is_final_when_no_attempt_is_left() -> None:
    rule = Retry(attempts=3, delay=2)
    assert [decide(rule, n, ValueError()) for n in (1, 2, 3, 4)] == [2, 4, None, None]


@pytest.mark.parametrize("error", [Unrecoverable(), PayloadError("x")])
def test_some_errors_are_final_at_once(error: Exception) -> None:
    assert decide(Retry(attempts=9), 1, error) is None


def test_a_strategy_decides_and_its_own_error_is_the_final_one() -> None:
    def strategy(attempt: int, error: BaseException) -> float:
        if attempt == 2:
            raise RuntimeError("lost")
        return 7

    rule, error = Retry(attempts=9, backoff=strategy), ValueError()
    assert judge(rule, 1, error) == (7, error)
    delay, own = judge(rule, 2, error)
    assert delay is None
    assert isinstance(own, RuntimeError)
    with pytest.raises(RuntimeError):
        decide(rule, 2, error)


def test_the_rule_is_the_steps_then_the_workflows_and_once_for_a_sub_workflow() -> None:
    workflow: Workflow[Any, Any] = Workflow("w", retry=Retry(attempts=5))

    @workflow.step()
    async def plain(ctx: Any) -> None: ...

    @workflow.step(retry=Retry(attempts=2))
    async def own(ctx: Any) -> None: ...

    nested = workflow.flow(Workflow("inner").then(inner_step))
    rules = [rule_of(workflow, step).attempts for step in (plain, own, nested)]
    assert rules == [5, 2, 1]


async def inner_step(ctx: Any) -> None: ...
