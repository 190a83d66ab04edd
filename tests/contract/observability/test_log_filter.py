"""`JobLogFilter`: records of the standard library's `logging` know the job that logs them."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from eventbus import EventProvider, JobLogFilter
from workflows import StepContext, Workflow, WorkflowProvider

MakeProvider = Callable[..., EventProvider]

_FORM = "%(event_name)s|%(workflow)s|%(step)s|%(group)s|%(job_id)s|%(attempt)s|%(correlation_id)s|%(message)s"


@pytest.fixture
def lines() -> Iterator[Callable[[], list[str]]]:
    """Return what a logger of the program wrote."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.addFilter(JobLogFilter())
    handler.setFormatter(logging.Formatter(_FORM))
    logger = logging.getLogger("shop")
    logger.addHandler(handler)
    yield lambda: stream.getvalue().splitlines()
    logger.removeHandler(handler)


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "thread"])
async def test_a_record_has_the_facts_of_the_job_whose_handler_logs(
    make_provider: MakeProvider, lines: Callable[[], list[str]], is_async: bool
) -> None:
    provider = make_provider()

    def log(_: Any) -> None:
        logging.getLogger("shop").warning("low stock")

    async def log_async(_: Any) -> None:
        log(_)

    provider.on("order", group="billing")(log_async if is_async else log)
    async with provider.worker() as runner:
        emission = provider.emit("order", correlation_id="req-1", reply=False)
        await emission
        await runner.wait_drained(provider.flush)
    assert lines() == [f"order|||billing|{emission.job_id}@billing|1|req-1|low stock"]


async def test_a_record_of_a_step_names_the_flow_and_the_step(
    make_provider: MakeProvider, lines: Callable[[], list[str]]
) -> None:
    workflow: Workflow[None, None] = Workflow("checkout")

    @workflow.step()
    async def charge(ctx: StepContext[None]) -> None:
        logging.getLogger("shop").warning("charging")

    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(workflow)
    async with provider.worker():
        await (await flows.execute(workflow, None, correlation_id="req-1")).result()
    (line,) = lines()
    assert line.startswith("|checkout|charge||")
    assert line.endswith("|1|req-1|charging")


def test_outside_of_jobs_the_facts_are_empty_and_what_a_record_has_stays(
    lines: Callable[[], list[str]],
) -> None:
    logging.getLogger("shop").warning("plain")
    logging.getLogger("shop").warning("own", extra={"job_id": "mine"})
    assert lines() == ["|||||||plain", "||||mine|||own"]
