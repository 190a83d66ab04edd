"""What every kind of flow does with its parts: results, attempts, failures, rollbacks, in this process and on
the server.
"""

from __future__ import annotations

from typing import Any

import pytest
from drivers.kinds.parts import Parts
from drivers.kinds.rows import answer, make_row
from drivers.kinds.running import Run

from eventbus import HandlerError, Retry, UsageError
from workflows import FlowTimeout, StepError
from workflows.testing import run_inline

pytestmark = pytest.mark.virtual

SOON = Retry(attempts=3, delay=0.01)


async def test_the_parts_run_in_their_order_and_the_flow_has_a_result(run: Run, parts: Parts) -> None:
    assert await run(10) == 13
    assert parts.did == ["first", "second", "third"]


async def test_a_part_is_tried_as_its_rule_says_with_one_key_and_undoes_nothing_meanwhile(
    run: Run, parts: Parts
) -> None:
    parts.fails["second"] = 2
    assert await run(10, retry=SOON) == 13
    assert parts.did == ["first", "second", "second", "second", "third"]
    assert parts.attempts["second"] == [1, 2, 3]
    assert {name: len(keys) for name, keys in parts.keys.items()} == {"first": 1, "second": 1, "third": 1}
    assert len(set.union(*parts.keys.values())) == 3, "each has a key of its own"


@pytest.mark.needs("fails")
async def test_an_attempt_that_takes_too_long_is_cut_and_counts(run: Run, parts: Parts) -> None:
    parts.holds.add("second")
    with pytest.raises(StepError, match=r"ran longer than its timeout of 0\.1 s"):
        await run(10, limit=0.1, retry=Retry(attempts=2, delay=0.01))
    assert parts.did == ["first", "second", "second cut", "second", "second cut", "undo first"]


@pytest.mark.needs("fails")
async def test_the_last_failure_ends_the_flow_with_the_part_that_failed_and_its_error(
    run: Run, parts: Parts
) -> None:
    parts.fails["second"] = 9
    with pytest.raises(StepError) as caught:
        await run(10, retry=SOON)
    error = caught.value
    assert error.step is not None
    assert error.step.startswith("second")
    assert isinstance(error.error, HandlerError)
    assert (error.error.type_name, error.error.attempts, error.rollback) == ("ValueError", 3, "complete")
    assert parts.did == ["first", "second", "second", "second", "undo first"]


@pytest.mark.needs("fails")
async def test_an_error_that_is_final_is_not_tried_again(run: Run, parts: Parts) -> None:
    parts.fails["second"], parts.is_final = 9, True
    with pytest.raises(StepError, match="second is broken"):
        await run(10, retry=SOON)
    assert parts.did == ["first", "second", "undo first"]


@pytest.mark.needs("fails")
async def test_what_completed_is_undone_the_newest_first(run: Run, parts: Parts) -> None:
    parts.fails["third"] = 1
    with pytest.raises(StepError) as caught:
        await run(10)
    assert parts.did == ["first", "second", "third", "undo second", "undo first"]
    assert (caught.value.rollback, caught.value.rollback_errors) == ("complete", ())


async def test_a_timeout_of_the_flow_cuts_the_part_that_runs_and_undoes_the_others(
    run: Run, parts: Parts
) -> None:
    parts.holds.add("third")
    with pytest.raises(FlowTimeout) as caught:
        await run(10, flow={"timeout": 0.5})
    assert parts.did == ["first", "second", "third", "third cut", "undo second", "undo first"]
    assert caught.value.rollback == "complete"


async def test_a_rollback_that_fails_is_told_and_the_others_still_run(run: Run, parts: Parts) -> None:
    parts.holds.add("third")
    parts.fails["undo second"] = 9
    with pytest.raises(FlowTimeout) as caught:
        await run(10, flow={"timeout": 0.5})
    assert caught.value.rollback == "incomplete"
    (failed,) = caught.value.rollback_errors
    assert failed.step.startswith("second")
    assert parts.did[-1] == "undo first"


@pytest.mark.needs("asks")
async def test_in_this_process_a_flow_gets_the_answers_that_it_is_given(kind: str, parts: Parts) -> None:
    row = make_row(kind, asks=True)
    given: dict[str, Any] = (
        {"triggers": [(row.asked, 5)]} if kind == "machine" else {"signals": [(answer, 5)]}
    )
    assert await run_inline(row, 10, **given) == 18
    assert parts.did == ["first", "second", "third"]


@pytest.mark.needs("asks")
async def test_in_this_process_an_answer_that_nobody_gives_is_an_error(kind: str, parts: Parts) -> None:
    with pytest.raises(UsageError, match="does not come"):
        await run_inline(make_row(kind, asks=True), 10)
    assert parts.did == ["first"]


async def test_a_part_knows_the_meta_and_the_correlation_id(run: Run, parts: Parts) -> None:
    await run(10, flow={"meta": {"tenant": "t"}})
    metas, ids = [meta for meta, _ in parts.told], {chain for _, chain in parts.told}
    assert metas == [{"tenant": "t"}] * 3
    (chain,) = ids
    assert chain.startswith("row~")
