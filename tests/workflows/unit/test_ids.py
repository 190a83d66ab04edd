"""Names of workflows and steps, and the ids made of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventbus import DefinitionError, UnknownJob
from workflows.records.ids import (
    StepJobId,
    check_flow_id,
    check_step_name,
    check_workflow_name,
    flow_queue,
    member_id,
    nested_flow_id,
    new_flow_id,
    parent_of,
    parse_member,
    split_queue,
    steps_queue,
    workflow_of,
)

_STEPS = st.from_regex(r"[a-zA-Z0-9][a-zA-Z0-9_-]{0,20}", fullmatch=True)
_WORKFLOWS = st.from_regex(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,20}", fullmatch=True)
_NUMBERS = st.integers(0, 10**6)
_TOP = "checkout~0123456789abcdef0123"
_BAD: list[Any] = [
    "",
    "_a",
    "__completed__",
    "a b",
    "a/b",
    "a~b",
    "a:b",
    "ä",
    "a\n",
    "{a}",
    "a" * 129,
    5,
    None,
]


@pytest.mark.parametrize("name", ["a", "0", "Reserve-stock_2", "a" * 128])
def test_names_of_letters_digits_underscores_and_dashes_are_taken(name: str) -> None:
    assert check_step_name(name) == check_workflow_name(name) == name


@pytest.mark.parametrize("name", [*_BAD, "a.b"])
def test_a_bad_name_of_a_step_is_refused_with_workflow_and_value(name: object) -> None:
    with pytest.raises(
        DefinitionError, match="expected the name of a step of workflow 'shop' of 1 to 128"
    ) as raised:
        check_step_name(name, "shop")
    assert repr(name)[:50] in str(raised.value)


def test_a_reserved_name_is_said_to_be_reserved() -> None:
    with pytest.raises(DefinitionError, match="names that begin with '__' are reserved"):
        check_step_name("__completed__")


@pytest.mark.parametrize("name", [*_BAD, "a.steps"])
def test_a_bad_name_of_a_workflow_is_refused(name: object) -> None:
    with pytest.raises(DefinitionError, match="expected the name of a workflow"):
        check_workflow_name(name)


@given(st.sets(_WORKFLOWS, min_size=2, max_size=2))
def test_no_two_workflows_share_a_queue(names: set[str]) -> None:
    fine = [name for name in names if not name.endswith(".steps")]
    queues = {
        queue: (name, step)
        for name in fine
        for queue, step in (
            (flow_queue(name), None),
            (steps_queue(name), ""),
            (steps_queue(name, "charge"), "charge"),
        )
    }
    assert len(queues) == 3 * len(fine)
    assert all(split_queue(queue) == parts for queue, parts in queues.items())


def test_queues_are_named_after_the_workflow() -> None:
    assert (flow_queue("order.return"), steps_queue("order.return")) == (
        "workflow.order.return",
        "workflow.order.return.steps",
    )


@given(_WORKFLOWS)
def test_a_flow_id_names_its_workflow_and_is_fresh(workflow: str) -> None:
    flow_id = new_flow_id(workflow)
    assert flow_id != new_flow_id(workflow)
    assert len(flow_id) == len(workflow) + 21
    assert (workflow_of(flow_id), check_flow_id(flow_id), parent_of(flow_id)) == (workflow, flow_id, None)


@given(_WORKFLOWS, st.lists(st.tuples(_NUMBERS, _STEPS, _NUMBERS, _WORKFLOWS, _NUMBERS), max_size=4))
def test_every_id_reads_back_as_what_it_was_made_of(
    workflow: str, levels: list[tuple[int, str, int, str, int]]
) -> None:
    flow_id, name = new_flow_id(workflow), workflow
    for run, step, index, inner, again in levels:
        job_id = member_id(flow_id, run, step, index)
        assert parse_member(job_id) == StepJobId(flow_id, run, step, index)
        assert workflow_of(flow_id) == name
        flow_id, name = nested_flow_id(job_id, inner, again), inner
        assert (workflow_of(flow_id), parent_of(flow_id)) == (inner, parse_member(job_id))


def test_the_id_of_a_member_is_flow_run_step_and_index() -> None:
    assert member_id(_TOP, 1, "charge") == f"{_TOP}/1/charge/0"
    assert nested_flow_id(f"{_TOP}/1/charge/0", "pay") == f"{_TOP}/1/charge/0/pay~0"


@pytest.mark.parametrize(
    "flow_id",
    [
        "",
        "checkout",
        "checkout~",
        "checkout~xyz",
        "checkout~0",
        "~0123456789abcdef0123",
        "checkout~0123456789ABCDEF0123",
        f"{_TOP}\n",
        f"{_TOP}/1/charge/0",
        f"{_TOP}/1/charge/0/pay",
        f"{_TOP}/1/charge/0/pay~01",
        f"{_TOP}/1/charge/pay~0",
        "nothing/1/charge/0/pay~0",
        "0-4f1c2a9be07d-00000001",
        _TOP + "/1/charge/0/pay~0" * 40,
        f"{_TOP}/{'9' * 5000}/charge/0/pay~0",
    ],
)
def test_text_that_is_no_id_of_a_flow_is_of_an_unknown_one(flow_id: str) -> None:
    for read in (check_flow_id, workflow_of, parent_of):
        with pytest.raises(
            UnknownJob, match="is no id of a flow; expected the id of a flow, such as 'che"
        ) as caught:
            read(flow_id)
        assert caught.value.job_id == flow_id


@pytest.mark.parametrize("flow_id", [5, None, b"checkout~0123456789abcdef0123"])
def test_what_is_no_text_is_no_id_of_a_flow(flow_id: Any) -> None:
    for read in (check_flow_id, workflow_of, parent_of):
        with pytest.raises(DefinitionError, match="expected the id of a flow, such as 'checkout~"):
            read(flow_id)


@pytest.mark.parametrize(
    "job_id",
    ["", _TOP, f"{_TOP}/1/charge", f"{_TOP}/x/charge/0", f"{_TOP}/1/__a/0", f"{_TOP}/1/charge/-1", "a/1/b/0"],
)
def test_what_is_no_id_of_a_member_is_refused(job_id: str) -> None:
    with pytest.raises(DefinitionError, match="expected the id of a step's job"):
        parse_member(job_id)


@given(st.text())
def test_reading_any_text_gives_an_answer_or_a_definition_error(text: str) -> None:
    for given_id in (text, f"{_TOP}/{text}", f"{text}/1/a/0"):
        try:
            assert member_id(*_fields(parse_member(given_id))) == given_id
        except DefinitionError:
            assert parse_or_none(given_id) is None


def _fields(member: StepJobId) -> tuple[str, int, str, int]:
    return member.flow_id, member.run, member.step, member.index


def parse_or_none(job_id: str) -> StepJobId | None:
    try:
        return parse_member(job_id)
    except DefinitionError:
        return None


def test_an_id_that_would_be_too_long_is_refused_before_anything_is_sent() -> None:
    long = "a" * 128
    job_id = member_id(nested_flow_id(member_id(new_flow_id(long), 1, long), long), 1, "b")
    with pytest.raises(DefinitionError, match=r"more than 512: .*; nest workflows less deep"):
        nested_flow_id(job_id, long)
    with pytest.raises(DefinitionError, match=r"would have 5.. characters"):
        member_id(nested_flow_id(member_id(new_flow_id(long), 1, long), long), 1, long)
