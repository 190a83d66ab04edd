"""Steps with pool="process": they work like other steps, in a process that can be killed; inline flows use a
thread.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from drivers.runners import DistributedRunner, FlowHandle, InlineRunner, Runner
from importable import process_steps
from importable.process_steps import NoPicture, Picture

from eventbus import DefinitionError, EventProvider
from workflows import FlowCancelled, StepContext, StepError, Workflow, WorkflowProvider, step


def _lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def _told(handle: FlowHandle, attempt: int) -> int:
    """Wait until an attempt of `hold` has told its process; return the id of that."""
    end = time.monotonic() + 240
    while True:
        told = (await handle.report()).steps["hold"].progress
        if told is not None and told["attempt"] >= attempt:
            return told["pid"]
        assert time.monotonic() < end, "the step has not begun"
        await asyncio.sleep(0.01)


async def test_a_step_in_a_process_has_its_input_results_and_facts(runner: Runner) -> None:
    handle = await runner.start(process_steps.pictures, Picture("cat", 4), meta={"tenant": 7})
    cut = await handle.result()
    assert (cut.name, cut.size) == ("cat", 8)
    assert (cut.pid == os.getpid()) is isinstance(runner, InlineRunner)
    facts = {"workflow": "pictures", "step": "cut", "flow_id": handle.id, "attempt": 1, "run": 1}
    assert cut.facts.items() >= facts.items()
    assert cut.facts["meta"] == {"tenant": 7}
    assert cut.facts["job_id"].startswith(handle.id)


async def test_errors_of_a_process_are_those_of_the_step(runner: Runner) -> None:
    flaky = await runner.start(process_steps.pictures, Picture("flaky"))
    broken = await runner.start(process_steps.pictures, Picture("broken"))
    none = await runner.start(process_steps.pictures, Picture("none"))
    assert (await flaky.result()).facts["attempt"] == 2
    with pytest.raises(StepError, match="never") as caught:
        await broken.result()
    assert "ValueError" in str(caught.value)
    with pytest.raises(NoPicture, match="there is none"):
        await none.result()
    report = await broken.report()
    assert report.steps["cut"].error == "ValueError: never"
    assert report.steps["cut"].attempts == 2
    assert (await none.report()).steps["cut"].attempts == 1, "a declared error is an answer"


async def test_a_step_in_a_process_cannot_emit(runner: Runner) -> None:
    handle = await runner.start(process_steps.pictures, Picture("emits"))
    with pytest.raises(StepError, match="UsageError"):
        await handle.result()


async def test_a_step_in_a_process_has_no_data_and_is_told_what_to_do(
    make_provider: Callable[..., EventProvider],
) -> None:
    runner = DistributedRunner(make_provider, spread=False)
    try:
        handle = await runner.start(process_steps.pictures, Picture("data"))
        with pytest.raises(StepError) as caught:
            await handle.result()
    finally:
        await runner.aclose()
    told = str(caught.value)
    assert 'ctx.data is not there in a step with pool="process"' in told
    assert "make the value in the step's own function" in told
    assert "@workflow.data" not in told, "the workflow has such a function"


@pytest.fixture(params=["local", "spread"])
async def workers(request: pytest.FixtureRequest, make_provider: Callable[..., EventProvider]) -> Any:
    runner = DistributedRunner(make_provider, spread=request.param == "spread")
    yield runner
    await runner.aclose()


async def test_the_death_of_its_process_fails_the_attempt(workers: Runner, tmp_path: Path) -> None:
    handle = await workers.start(process_steps.waits, str(tmp_path))
    os.kill(await _told(handle, 1), signal.SIGKILL)
    assert await handle.result() == "attempt 2"
    assert (await handle.report()).steps["hold"].attempts >= 1


async def test_the_record_of_the_failure_names_the_signal(workers: Runner) -> None:
    handle = await workers.start(process_steps.dies, None)
    with pytest.raises(StepError, match="SIGKILL"):
        await handle.result()
    assert "ProcessDied" in (await handle.report()).steps["die"].error


async def test_a_cancel_kills_the_process(workers: Runner, tmp_path: Path) -> None:
    handle = await workers.start(process_steps.waits, str(tmp_path))
    pid = await _told(handle, 1)
    await handle.cancel("enough")
    end = time.monotonic() + 240
    while _lives(pid):
        assert time.monotonic() < end, "the process lives on"
        await asyncio.sleep(0.01)
    with pytest.raises(FlowCancelled):
        await handle.result()


def plain_step(_: StepContext[Any]) -> None: ...


async def async_step(_: StepContext[Any]) -> None: ...


async def test_a_workflow_that_no_process_can_find_is_refused_at_the_start(
    make_provider: Callable[..., EventProvider],
) -> None:
    workflow = Workflow[Any, Any]("hidden")
    workflow.step(plain_step, pool="process")
    provider = make_provider()
    WorkflowProvider(provider).register(workflow)
    async with provider:
        with pytest.raises(DefinitionError, match="expected workflow 'hidden' to be a name at the top level"):
            async with provider.worker():
                pass


def test_a_pool_that_does_not_fit_is_refused() -> None:
    with pytest.raises(
        DefinitionError, match=r'expected pool of .* to be "thread", "process" or the name of'
    ):
        step(plain_step, pool=4)  # pyright: ignore[reportArgumentType, reportCallIssue]
    with pytest.raises(DefinitionError, match="is async and runs in the event loop"):
        step(async_step, pool="process")
    assert step(plain_step).pool == "thread"


async def test_a_process_knows_of_an_ignored_failure(runner: Runner) -> None:
    handle = await runner.start(process_steps.ignores, None)
    assert await handle.result() == [-1, {}]
