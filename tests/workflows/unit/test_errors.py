"""The errors of workflows: one tree, facts as attributes, messages that say what to do."""

from __future__ import annotations

import traceback
from typing import Any

import pytest

from eventbus import EventBusError, HandlerError, UsageError
from workflows import errors
from workflows.errors import (
    COMPLETED,
    FlowCancelled,
    FlowError,
    FlowTimeout,
    ResultNotLoaded,
    RollbackError,
    StepError,
    StepNotFound,
    StepSkipped,
    WorkflowError,
)

_FLOW: dict[str, Any] = {"flow_id": "checkout~1", "workflow": "checkout"}
_KINDS = [
    each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, WorkflowError)
]


def test_the_drawing_of_the_tree_is_the_tree() -> None:
    drawn, parents = dict[str, str](), ["EventBusError"]
    for line in (errors.__doc__ or "").splitlines():
        if "── " in line:
            depth = (line.index("── ") - 1) // 4
            name = line.split("── ")[1].split()[0]
            drawn[name] = parents[depth - 1]
            parents[depth:] = [name]
    assert drawn == {each.__name__: each.__bases__[0].__name__ for each in _KINDS}
    assert {each.__name__ for each in _KINDS} <= set(errors.__all__)
    assert issubclass(WorkflowError, EventBusError)


def test_the_error_of_a_step_names_step_and_flow_and_has_the_cause() -> None:
    cause = ValueError("card refused")
    error = StepError(step="charge", error=cause, rollback="complete", **_FLOW)
    assert str(error) == "step 'charge' of flow checkout~1 failed: ValueError: card refused"
    assert (error.step, error.error, error.__cause__) == ("charge", cause, cause)
    assert (error.flow_id, error.workflow, error.rollback, error.rollback_errors) == (
        "checkout~1",
        "checkout",
        "complete",
        (),
    )
    assert "ValueError: card refused" in "".join(traceback.format_exception(error))


@pytest.mark.parametrize("step", ["", "a'b", "ü"])
def test_the_error_of_a_step_of_any_name_has_a_text(step: str) -> None:
    error = StepError(step=step, error=ValueError(), **_FLOW)
    assert str(error) == f"step {step!r} of flow checkout~1 failed: ValueError"


def test_an_error_of_ours_is_not_named_twice() -> None:
    cause = HandlerError(
        event="checkout", job_id="1", type_name="ValueError", remote_message="no", attempts=3
    )
    error = StepError(step="charge", error=cause, **_FLOW)
    assert str(error).endswith("failed: ValueError: no (in the handler of checkout, after 3 attempts)")


def test_the_completed_hook_is_named_as_such() -> None:
    error = StepError(step=COMPLETED, error=ValueError("no"), **_FLOW)
    assert str(error) == "the completed hook of flow checkout~1 failed: ValueError: no"
    assert error.step == "__completed__"


def test_what_was_not_undone_is_part_of_the_text_and_of_the_facts() -> None:
    undone = [RollbackError(step=step, error=OSError("down")) for step in ("reserve", "pay/charge")]
    error = StepError(
        step="ship", error=ValueError("no"), rollback="incomplete", rollback_errors=undone, **_FLOW
    )
    assert str(error) == (
        "step 'ship' of flow checkout~1 failed: ValueError: no; rollback incomplete; "
        "the rollback of step 'reserve' failed: OSError: down; "
        "the rollback of step 'pay/charge' failed: OSError: down"
    )
    assert error.rollback_errors == tuple(undone)
    assert [(each.step, each.error, each.__cause__) for each in undone] == [
        (each.step, each.error, each.error) for each in undone
    ]


def test_a_rollback_can_be_incomplete_without_an_error() -> None:
    error = FlowCancelled(rollback="incomplete", **_FLOW)
    assert str(error) == "flow checkout~1 was cancelled; rollback incomplete"


def test_timeout_and_cancel_have_their_facts() -> None:
    timeout = FlowTimeout(timeout=310.0, **_FLOW)
    assert (str(timeout), timeout.timeout) == ("flow checkout~1 timed out after 310 s", 310.0)
    cancelled = FlowCancelled(reason="changed my mind", rollback="complete", **_FLOW)
    assert (str(cancelled), cancelled.reason) == (
        "flow checkout~1 was cancelled: changed my mind",
        "changed my mind",
    )
    assert isinstance(timeout, FlowError)
    assert isinstance(cancelled, FlowError)


def test_errors_of_reading_results_say_what_to_do() -> None:
    skipped = StepSkipped(step="gift", workflow="checkout")
    assert "step 'gift' of workflow 'checkout' was skipped" in str(skipped)
    assert "default=None" in str(skipped)
    missing = ResultNotLoaded(step="gift", workflow="checkout")
    assert isinstance(missing, UsageError)
    assert "await ctx.load('gift')" in str(missing)
    assert (missing.step, missing.workflow, skipped.step) == ("gift", "checkout", "gift")


def test_what_is_not_registered_is_named() -> None:
    error = StepNotFound(workflow="checkout", step="ship", version="2", known="steps 'a'")
    assert str(error) == (
        "step 'ship' of workflow 'checkout' in version '2' is not registered in this process; "
        "known here: steps 'a'; register the workflow first"
    )
    assert str(StepNotFound(workflow="a")) == (
        "workflow 'a' is not registered in this process; register the workflow first"
    )
