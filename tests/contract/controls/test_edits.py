"""Changes of jobs that wait, through the public API."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from eventbus import Event, EventProvider, PayloadError, Retry, UnknownJob, UsageError
from workflows import StepContext, Workflow, WorkflowProvider

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]


async def test_a_delayed_job_and_a_retry_run_at_once(make_provider: MakeProvider, until: Until) -> None:
    provider, failed = make_provider(), list[int]()

    @provider.on("work", retry=Retry(attempts=2, delay=600))
    async def work(n: int) -> int:
        if n == 1 and not failed:
            failed.append(n)
            raise ValueError("not yet")
        return n * 10

    async with provider.worker():
        late, shaky = provider.emit("work", 0, delay="1 hour"), provider.emit("work", 1)
        for each in (late, shaky):
            await each.enqueued()
        assert await provider.inspector.jobs.promote(late.job_id)
        assert await late == 0

        async def waits() -> bool:
            return (await provider.inspector.jobs.get(shaky.job_id)).state == "delayed"

        while not await waits():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert await provider.inspector.jobs.promote(shaky.job_id)
        assert await shaky == 10
        assert not await provider.inspector.jobs.promote(shaky.job_id)


async def test_a_waiting_job_is_put_off_and_another_goes_first(make_provider: MakeProvider) -> None:
    provider, ran = make_provider(concurrency=1), list[int]()

    async with provider:
        emissions = provider.emit_many("work", range(4))
        for each in emissions:
            await each.enqueued()
        assert await provider.inspector.jobs.delay(emissions[0].job_id, "100ms")
        assert await provider.inspector.jobs.prioritize(emissions[2].job_id, -1)
        report = await provider.inspector.jobs.get(emissions[0].job_id)
        assert report.state == "delayed"
        assert report.due_ms > report.created_ms

        @provider.on("work")
        async def work(n: int) -> None:
            ran.append(n)

        async with provider.worker():
            for each in emissions:
                await each
    assert ran == [2, 1, 3, 0]


async def test_a_payload_is_replaced_and_what_came_with_it_stays(make_provider: MakeProvider) -> None:
    provider, heard = make_provider(), list[Any]()
    order = Event("order", payload=dict[str, int], result=int)

    async with provider:
        emission = provider.emit(order, {"n": 1}, meta={"tenant": "a"}, delay="1 hour")
        await emission.enqueued()
        with pytest.raises(PayloadError):
            await provider.inspector.jobs.replace_payload(order, emission.job_id, {"n": "x"})
        with pytest.raises(UsageError, match="not one of event 'other'"):
            await provider.inspector.jobs.replace_payload("other", emission.job_id, {"n": 7})
        assert await provider.inspector.jobs.replace_payload(order, emission.job_id, {"n": 7})
        assert await provider.inspector.jobs.promote(emission.job_id)

        @provider.on(order)
        async def run(payload: dict[str, int]) -> int:
            heard.append(payload)
            return payload["n"]

        async with provider.worker():
            assert await emission == 7
        assert not await provider.inspector.jobs.replace_payload(order, emission.job_id, {"n": 8})
    assert heard == [{"n": 7}]


async def test_unknown_jobs_and_those_of_flows_are_refused(make_provider: MakeProvider) -> None:
    workflow = Workflow[Any, Any]("spread", spread=True)

    @workflow.step
    async def one(ctx: StepContext[Any]) -> None: ...

    async with make_provider() as provider:
        flows = WorkflowProvider(provider)
        flows.register(workflow)
        with pytest.raises(UnknownJob):
            await provider.inspector.jobs.promote("nobody")
        handle = await flows.execute(workflow, None, delay="1 hour")
        with pytest.raises(UsageError, match="belongs to a flow"):
            await provider.inspector.jobs.promote(f"{handle.id}/1/one/0")
        await handle.cancel("no longer")
        with pytest.raises(UsageError, match="is stopped"):
            await provider.inspector.jobs.delay(handle.id, "1 hour")


async def test_an_edit_by_its_revision_overwrites_none_of_others(make_provider: MakeProvider) -> None:
    placed = Event("placed", payload=dict[str, int])
    async with make_provider() as provider:
        job = provider.emit(placed, {"n": 1}, reply=False)
        await job.enqueued()
        seen = (await provider.inspector.jobs.get(job.job_id)).revision
        assert await provider.inspector.jobs.prioritize(job.job_id, 3)
        stale = await provider.inspector.jobs.edit(job.job_id, {"n": 2}, revision=seen)
        assert (stale.changed, stale.differences) == (False, ["its payload, delay or priority was edited"])
        done = await provider.inspector.jobs.edit(job.job_id, {"n": 2}, revision=stale.revision)
        assert (done.changed, done.state) == (True, "waiting")
        assert (await provider.inspector.jobs.get(job.job_id)).payload == {"n": 2}
        with pytest.raises(PayloadError):
            await provider.inspector.jobs.edit(job.job_id, {"n": "x"})
        await provider.inspector.jobs.cancel(job.job_id)
        assert not (await provider.inspector.jobs.edit(job.job_id, {"n": 3})).changed
        with pytest.raises(UnknownJob):
            await provider.inspector.jobs.edit("0-000000000000-00000000", 1)


async def test_an_edit_of_a_flow_or_of_its_steps_is_refused(make_provider: MakeProvider) -> None:
    provider = make_provider()
    flows = WorkflowProvider(provider)
    checkout = Workflow("checkout", input=int)

    @checkout.step()
    async def first(ctx: StepContext[int]) -> int:
        return 1

    flows.register(checkout)
    async with provider:
        flow = await flows.execute(checkout, 1)
        with pytest.raises(UsageError, match="belongs to a flow"):
            await provider.inspector.jobs.edit(flow.id, 2)
