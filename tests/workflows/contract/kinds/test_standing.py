"""What a machine does where flows of other kinds fail: it stands at its place, and the rest of the contract
holds from there.
"""

from __future__ import annotations

from typing import Any

import pytest
from drivers.kinds.parts import Parts
from drivers.kinds.rows import make_row
from drivers.kinds.running import Running, Until

from eventbus import Retry
from workflows import FlowCancelled, FlowHandle, StepError
from workflows.testing import run_inline

pytestmark = [pytest.mark.needs("stands"), pytest.mark.virtual]

SOON = Retry(attempts=3, delay=0.01)


async def stands(flow: FlowHandle[Any], until: Until) -> None:
    async def does() -> bool:
        report = await flow.report()
        has_failed = any(step.state == "failed" for step in report.steps.values())
        return has_failed and report.state == "waiting" and "second is broken" in report.error

    await until(does, "it stands with its error")


async def test_after_its_last_attempt_it_stands_with_its_error_and_a_retry_goes_on(
    running: Running, parts: Parts, until: Until
) -> None:
    parts.fails["second"] = 3
    await running.open(retry=SOON)
    flow = await running.start()
    await stands(flow, until)
    assert parts.did == ["first", "second", "second", "second"]
    await flow.retry()
    assert await flow.result(240) == 13
    assert parts.attempts["second"] == [1, 2, 3, 1]
    assert len(parts.keys["second"]) == 1, "it is the same move"


async def test_an_error_that_is_final_is_not_tried_again(
    running: Running, parts: Parts, until: Until
) -> None:
    parts.fails["second"], parts.is_final = 9, True
    await running.open(retry=SOON)
    await stands(await running.start(), until)
    assert parts.did == ["first", "second"]


async def test_what_completed_is_undone_when_it_is_given_up(
    running: Running, parts: Parts, until: Until
) -> None:
    parts.fails["second"] = 1
    await running.open()
    flow = await running.start()
    await stands(flow, until)
    await flow.cancel()
    with pytest.raises(FlowCancelled) as caught:
        await flow.result(240)
    assert parts.did == ["first", "second", "undo first"]
    assert caught.value.rollback == "complete"


async def test_in_this_process_nobody_helps_so_the_error_is_raised(kind: str, parts: Parts) -> None:
    parts.fails["second"] = 1
    with pytest.raises(StepError, match="second is broken"):
        await run_inline(make_row(kind), 10)
