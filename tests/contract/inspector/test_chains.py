"""From a job or a flow to its chain: what reports say of it, and what is found by its correlation id."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated

import msgspec
import pytest

from eventbus import Event, EventContext, EventProvider, HandlerError, Sensitive, Unrecoverable
from workflows import FlowContext, FlowError, StepContext, Workflow, WorkflowProvider, durable

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]


class Order(msgspec.Struct):
    card: Annotated[str, Sensitive()]


_packed: Workflow[int, None] = Workflow("pack", input=int)


@_packed.step
async def wrap(ctx: StepContext[int]) -> None: ...


@durable("ship")
async def ship(ctx: FlowContext[int]) -> None:
    await ctx.flow(_packed, ctx.input)
    raise Unrecoverable("no van")


async def test_a_failed_job_tells_its_chain_its_cause_its_key_and_its_meta(
    make_provider: MakeProvider,
) -> None:
    provider = make_provider()

    @provider.on("placed")
    async def placed(number: int, ctx: EventContext) -> str:
        emission = ctx.emit("paid", number, idempotency_key="paid-7", meta={"try": 1})
        with pytest.raises(HandlerError):
            await emission
        return emission.job_id

    @provider.on("paid")
    async def paid(number: int) -> None:
        raise Unrecoverable("declined")

    async with provider, provider.worker():
        with provider.context(tenant="acme"):
            first = provider.emit("placed", 7)
        failed = await provider.inspector.jobs.get(await first)
        begun = await provider.inspector.jobs.get(first.job_id)
    assert (failed.state, failed.correlation_id, failed.causation_id) == (
        "failed",
        first.job_id,
        first.job_id,
    )
    assert (failed.key, failed.meta) == ("paid-7", {"tenant": "acme", "try": 1})
    assert (begun.correlation_id, begun.causation_id, begun.key) == (first.job_id, "", "")
    assert begun.meta == {"tenant": "acme"}


async def test_jobs_and_flows_of_a_chain_are_found_and_no_others(make_provider: MakeProvider) -> None:
    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(ship)
    flows.register(_packed)

    @provider.on("told")
    async def told(number: int) -> None: ...

    async with provider, provider.worker():
        with provider.context(correlation_id="chain-1"):
            await provider.emit("told", 1)
            flow = await flows.execute(ship, 1, idempotency_key="s-1")
        with pytest.raises(FlowError):
            await flow.result(240)
        await provider.emit("told", 2)
        await (await flows.execute(_packed, 3)).result(240)
        found = await provider.inspector.jobs.find(correlation_id="chain-1")
        assert found.is_whole
        assert sorted(job.queue for job in found.jobs) == ["event.told", "workflow.ship"]
        (shown,) = [job for job in found.jobs if job.id == flow.id]
        assert (shown.state, "no van" in shown.error) == ("failed", True)
        only = await provider.inspector.jobs.find("workflow.ship", correlation_id="chain-1")
        assert [job.id for job in only.jobs] == [flow.id]
        report = await provider.inspector.jobs.get(flow.id)
        assert (report.correlation_id, report.key) == ("chain-1", "s-1")


async def test_a_flow_that_waits_for_its_steps_is_found(make_provider: MakeProvider) -> None:
    provider = make_provider()
    flows = WorkflowProvider(provider)
    spread: Workflow[int, None] = Workflow("spread", input=int, spread=True)

    @spread.step
    async def wait(ctx: StepContext[int]) -> None: ...

    flows.register(spread)
    async with provider:
        flow = await flows.execute(spread, 1, correlation_id="chain-2")
        found = await provider.inspector.jobs.find(correlation_id="chain-2")
        assert [job.id for job in found.jobs] == [flow.id]


async def test_what_is_sensitive_is_hidden_in_key_and_meta_and_other_programs_have_no_chain(
    make_provider: MakeProvider,
) -> None:
    async with make_provider() as provider:
        job = provider.emit(
            Event("paid", payload=Order),
            Order("4111-1111"),
            idempotency_key="of 4111-1111",
            meta={"card": "4111-1111"},
        )
        await job.enqueued()
        report = await provider.inspector.jobs.get(job.job_id)
        assert "4111" not in f"{report.key} {report.meta}"
        revealed = await provider.inspector.jobs.get(job.job_id, reveal=True)
        assert (revealed.key, revealed.meta) == ("of 4111-1111", {"card": "4111-1111"})
