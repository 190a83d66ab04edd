"""What every kind of flow does on the server: cancels, keys, reports, retries by hand, versions, signals, and
workers that stop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from drivers.kinds.parts import Parts
from drivers.kinds.rows import NAMES, answer_to, make_row, name_of_part
from drivers.kinds.running import Running, Until

from eventbus import EventProvider, JobFailure, PayloadError, Retry
from workflows import AttemptContext, FlowCancelled, StepError, WorkflowProvider

pytestmark = pytest.mark.virtual


def done_in(parts: Parts, *names: str) -> Callable[[], bool]:
    """Return whether these have run, in this order and nothing else."""
    return lambda: parts.did == [*names]


async def test_a_cancel_cuts_the_part_that_runs_and_undoes_the_others(
    running: Running, parts: Parts, until: Until
) -> None:
    parts.holds.add("third")
    await running.open()
    flow = await running.start()
    await until(done_in(parts, "first", "second", "third"), "the third part runs")
    assert await flow.cancel("enough")
    with pytest.raises(FlowCancelled, match="enough") as caught:
        await flow.result(240)
    assert parts.did[3:] == ["third cut", "undo second", "undo first"]
    assert caught.value.rollback == "complete"
    report = await flow.report()
    assert (report.state, report.rollback) == ("cancelled", "complete")
    assert [name_of_part(each.step) for each in report.rollbacks] == ["second", "first"]
    assert not await flow.cancel("again"), "it has ended"


async def test_a_cancel_before_a_worker_has_begun_runs_nothing(running: Running, parts: Parts) -> None:
    flows = await running.open(worker=False)
    flow = await running.start()
    assert await flow.cancel()
    async with flows.provider.worker():
        with pytest.raises(FlowCancelled):
            await flow.result(240)
    assert parts.did == []
    assert (await flow.report()).rollback == "none"


async def test_one_key_is_one_flow_while_it_is_open_and_when_it_has_completed(
    running: Running, parts: Parts, until: Until
) -> None:
    parts.holds.add("second")
    await running.open()
    flow = await running.start(idempotency_key="k")
    assert (await running.start(idempotency_key="k")).id == flow.id
    await until(done_in(parts, "first", "second"), "the second part runs")
    parts.release()
    assert await flow.result(240) == 13
    assert (await running.start(idempotency_key="k")).id == flow.id
    assert parts.did == [*NAMES]


async def test_the_report_has_each_part_in_the_order_in_which_it_completed(
    running: Running, parts: Parts, until: Until
) -> None:
    parts.fails["second"] = 1
    parts.holds.add("third")
    await running.open(retry=Retry(attempts=2, delay=0.01))
    flow = await running.start()
    await until(done_in(parts, "first", "second", "second", "third"), "the third part runs")
    open_one = await flow.report()
    assert (open_one.workflow, open_one.flow_id, open_one.ended_ms) == ("row", flow.id, 0)
    assert [name_of_part(each) for each in open_one.order] == ["first", "second"]
    assert (await flow.status()).state == "running"
    parts.release()
    await flow.result(240)
    report = await flow.report()
    assert (report.state, report.rollback, report.run) == ("completed", "none", 1)
    assert [name_of_part(each) for each in report.order] == [*NAMES]
    steps = {name_of_part(name): step for name, step in report.steps.items()}
    assert {name: step.state for name, step in steps.items()} == dict.fromkeys(NAMES, "completed")
    assert steps["second"].attempts == 1
    times = [steps[name].ended_ms for name in NAMES]
    assert times == sorted(times)
    assert report.created_ms <= times[0]
    assert times[-1] <= report.ended_ms
    (line,) = await running.flows.flows("row")
    assert (line.flow_id, line.state, line.completed) == (flow.id, "completed", 3)


async def test_a_retry_by_hand_of_a_cancelled_flow_brings_it_to_its_end(
    running: Running, parts: Parts, until: Until
) -> None:
    parts.holds.add("third")
    await running.open()
    flow = await running.start()
    await until(done_in(parts, "first", "second", "third"), "the third part runs")
    await flow.cancel()
    with pytest.raises(FlowCancelled):
        await flow.result(240)
    parts.release()
    await flow.retry()
    assert await flow.result(240) == 13
    assert parts.did[-1] == "third"
    assert (await flow.report()).run == 2


async def test_a_retry_by_hand_of_a_completed_flow_begins_again(running: Running, parts: Parts) -> None:
    await running.open()
    flow = await running.start()
    assert await flow.result(240) == 13
    await flow.retry()
    assert await flow.result(240) == 13
    assert parts.did == [*NAMES, *NAMES]
    assert {name: len(keys) for name, keys in parts.keys.items()} == dict.fromkeys(NAMES, 2), "a new run"


async def test_a_flow_of_a_version_that_no_worker_has_is_parked_until_one_comes(
    running: Running, parts: Parts, until: Until, make_provider: Callable[..., EventProvider]
) -> None:
    old = WorkflowProvider(make_provider())
    old.register(make_row(running.kind, version="1"))
    flows = await running.open(version="2", worker=False)
    flow = await running.start()
    async with old.provider:
        async with old.provider.worker():

            async def is_parked() -> bool:
                queues = await old.provider.inspector.queues.list()
                return sum(queue.parked for queue in queues if queue.name.startswith("workflow.row")) == 1

            await until(
                is_parked, "it is parked; of a spread flow its first step is, which is a job of its own"
            )
            assert running.kind == "spread" or "version 2" in (await flow.report()).error
        async with flows.provider.worker():
            assert await flow.result(240) == 13
    assert (await flow.report()).version == "2"
    assert parts.did == [*NAMES]


@pytest.mark.needs("asks")
async def test_a_flow_that_waits_holds_no_worker_and_goes_on_with_its_answer(
    running: Running, parts: Parts, until: Until
) -> None:
    flows = await running.open(asks=True, worker=False)
    async with flows.provider.worker():
        flow = await running.start()

        async def asks() -> bool:
            return [each.signal for each in await flows.waits(flow.id)] in (["asked"], ["answer"])

        await until(asks, "it waits")
        assert (await flow.status()).state in ("waiting", "running")
    with pytest.raises(PayloadError):
        await answer_to(running.kind, flow, running.row, "five")  # pyright: ignore[reportArgumentType]
    await answer_to(running.kind, flow, running.row, 5)
    assert parts.did == ["first"]
    async with flows.provider.worker():
        assert await flow.result(240) == 18
    assert parts.did == [*NAMES]


@pytest.mark.needs("asks")
async def test_a_cancel_of_a_flow_that_waits_undoes_it(running: Running, parts: Parts, until: Until) -> None:
    flows = await running.open(asks=True)
    flow = await running.start()

    async def asks() -> bool:
        return bool(await flows.waits(flow.id))

    await until(asks, "it waits")
    await flow.cancel()
    with pytest.raises(FlowCancelled):
        await flow.result(240)
    assert parts.did == ["first", "undo first"]


async def test_a_worker_that_stops_between_two_parts_leaves_the_rest_to_another(
    running: Running, parts: Parts, until: Until
) -> None:
    parts.holds.add("second")
    flows = await running.open(worker=False)
    flow = await running.start()
    async with flows.provider.worker() as worker:
        await until(done_in(parts, "first", "second"), "the second part runs")
        stopping = worker.stop()
        parts.release()
        await stopping
    assert parts.did[:2] == ["first", "second"]
    async with flows.provider.worker():
        assert await flow.result(240) == 13
    assert [name for name in parts.did if name in ("first", "third")] == ["first", "third"]
    assert {name: len(keys) for name, keys in parts.keys.items()} == dict.fromkeys(NAMES, 1)


async def test_middleware_is_around_each_attempt_and_each_rollback(
    running: Running, parts: Parts, until: Until
) -> None:
    parts.holds.add("third")
    seen: list[tuple[str, str]] = []
    flows = await running.open(worker=False)

    @flows.use
    async def watched(value: Any, ctx: AttemptContext, call: Any) -> Any:
        if ctx.step:
            kind = "step" if ctx.kind == "task" else ctx.kind  # a task is the step of a durable function
            seen.append((kind, name_of_part(ctx.step)))
        return await call(value)

    async with flows.provider.worker():
        flow = await running.start()
        await until(done_in(parts, "first", "second", "third"), "the third part runs")
        await flow.cancel()
        with pytest.raises(FlowCancelled):
            await flow.result(240)
    assert seen == [
        ("step", "first"),
        ("step", "second"),
        ("step", "third"),
        ("rollback", "second"),
        ("rollback", "first"),
    ]


@pytest.mark.needs("fails")
async def test_a_flow_that_failed_is_told_once_to_the_hook_of_failures(
    running: Running, parts: Parts
) -> None:
    parts.fails["second"] = 1
    heard: list[tuple[str, str]] = []
    flows = await running.open(worker=False)

    @flows.on_failure
    async def alert(failure: JobFailure) -> None:
        heard.append((failure.name, failure.rollback))

    async with flows.provider.worker():
        flow = await running.start()
        with pytest.raises(StepError):
            await flow.result(240)
    assert heard == [("row", "complete")]
