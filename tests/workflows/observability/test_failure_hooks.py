"""Hooks for failed jobs are called once for each flow that ended as failed, after its rollbacks, local or
spread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from eventbus import DefinitionError, EventProvider, HandlerError, JobFailure, Retry, StalledError
from workflows import (
    FlowCancelled,
    FlowContext,
    FlowTimeout,
    StepContext,
    StepError,
    Workflow,
    WorkflowProvider,
    durable,
    task,
)

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]

_ONCE = Retry(attempts=1)
_TWICE = Retry(attempts=2, delay="1ms", jitter=0)


class Declined(Exception):
    pass


def _listen(owner: EventProvider | WorkflowProvider) -> list[JobFailure]:
    told: list[JobFailure] = []

    @owner.on_failure
    async def keep(failure: JobFailure) -> None:
        told.append(failure)

    return told


async def test_a_failed_flow_is_told_once_with_its_step_after_its_rollbacks(
    make_provider: MakeProvider,
) -> None:
    order = list[str]()
    workflow = Workflow[Any, Any]("checkout", retry=_TWICE)

    @workflow.step()
    async def reserve(ctx: StepContext[Any]) -> int:
        return 1

    @reserve.rollback
    def release(ctx: StepContext[Any], _: int) -> None:
        order.append("undone")

    @workflow.step()
    def charge(ctx: StepContext[Any]) -> None:
        raise OSError("bank away")

    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(workflow)
    told, told_flows = _listen(provider), _listen(flows)

    @flows.on_failure
    async def note(failure: JobFailure) -> None:
        order.append("told")

    async with provider, provider.worker() as worker:
        handle = await flows.execute(workflow, None, correlation_id="req-1", meta={"tenant": "a"})
        with pytest.raises(StepError):
            await handle.result()
    (failure,) = told
    assert told_flows == told
    assert order == ["undone", "told"]
    assert (failure.name, failure.step, failure.queue) == ("checkout", "charge", "workflow.checkout")
    assert (failure.job_id, failure.flow_id, failure.root_id) == (handle.id, handle.id, handle.id)
    assert (failure.correlation_id, failure.meta) == ("req-1", {"tenant": "a"})
    assert (failure.error, failure.attempts, failure.outcome) == ("OSError: bank away", 2, "failed")
    assert "in charge" in failure.traceback
    assert (failure.rollback, failure.rollback_errors) == ("complete", [])
    assert failure.worker == worker.id


async def test_a_rollback_that_failed_is_told_with_its_error(make_provider: MakeProvider) -> None:
    workflow = Workflow[Any, Any]("w", retry=_ONCE)

    @workflow.step()
    async def reserve(ctx: StepContext[Any]) -> int:
        return 1

    @reserve.rollback
    def release(ctx: StepContext[Any], _: int) -> None:
        raise ConnectionError("warehouse away")

    @workflow.step()
    def charge(ctx: StepContext[Any]) -> None:
        raise OSError("bank away")

    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(workflow)
    told = _listen(flows)
    async with provider, provider.worker():
        with pytest.raises(StepError):
            await (await flows.execute(workflow, None)).result()
    (failure,) = told
    assert failure.rollback == "incomplete"
    assert failure.rollback_errors == [("reserve", "ConnectionError: warehouse away")]


async def test_nothing_is_told_of_a_flow_that_completes_though_steps_failed_on_the_way(
    make_provider: MakeProvider,
) -> None:
    workflow = Workflow[Any, Any]("w", retry=_TWICE)

    @workflow.step()
    async def flaky(ctx: StepContext[Any]) -> int:
        if ctx.attempt == 1:
            raise ValueError("once")
        return 1

    @workflow.step(on_failure="ignore")
    async def optional(ctx: StepContext[Any]) -> None:
        raise ValueError("whatever")

    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(workflow)
    told = _listen(provider)
    async with provider, provider.worker():
        await (await flows.execute(workflow, None)).result()
    assert told == []


async def test_a_cancelled_flow_is_not_told(make_provider: MakeProvider) -> None:
    workflow = Workflow[Any, Any]("w", retry=_ONCE)
    began = asyncio.Event()

    @workflow.step()
    async def hang(ctx: StepContext[Any]) -> None:
        began.set()
        await asyncio.Event().wait()

    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(workflow)
    told = _listen(provider)
    async with provider, provider.worker():
        handle = await flows.execute(workflow, None)
        await began.wait()
        await handle.cancel("no more")
        with pytest.raises(FlowCancelled):
            await handle.result()
    assert told == []


async def test_the_timeout_of_a_flow_is_told_as_such(make_provider: MakeProvider) -> None:
    workflow = Workflow[Any, Any]("w", retry=_ONCE)

    @workflow.step()
    async def hang(ctx: StepContext[Any]) -> None:
        await asyncio.Event().wait()

    provider = make_provider(lease=0.5)
    flows = WorkflowProvider(provider)
    flows.register(workflow)
    told = _listen(provider)
    async with provider, provider.worker():
        with pytest.raises(FlowTimeout):
            await (await flows.execute(workflow, None, timeout="10ms")).result()
    assert [(each.outcome, each.step, each.error_type) for each in told] == [("timeout", "", "FlowTimeout")]


async def test_the_flow_of_a_sub_workflow_is_told_too_and_names_the_outermost(
    make_provider: MakeProvider,
) -> None:
    inner = Workflow[Any, Any]("inner", retry=_ONCE, errors=[Declined])

    @inner.step()
    async def pay(ctx: StepContext[Any]) -> None:
        raise Declined("card")

    outer = Workflow[Any, Any]("outer", retry=_ONCE, errors=[Declined])
    outer.flow(inner, name="pay")
    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(outer)
    told = _listen(flows)
    async with provider, provider.worker():
        handle = await flows.execute(outer, None)
        with pytest.raises(Declined):
            await handle.result()
    assert [(each.name, each.step, each.root_id) for each in told] == [
        ("inner", "pay", handle.id),
        ("outer", "pay", handle.id),
    ]
    for each in told:
        assert (each.error_type.rpartition(".")[2], each.message, each.is_declared) == (
            "Declined",
            "card",
            True,
        )
        assert each.traceback


async def test_a_retry_by_hand_that_fails_again_is_told_again(make_provider: MakeProvider) -> None:
    workflow = Workflow[Any, Any]("w", retry=_ONCE)

    @workflow.step()
    async def charge(ctx: StepContext[Any]) -> None:
        raise OSError("bank away")

    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(workflow)
    told = _listen(flows)
    async with provider, provider.worker():
        handle = await flows.execute(workflow, None)
        with pytest.raises(StepError):
            await handle.result()
        again = await flows.retry(handle.id, workflow=workflow)
        with pytest.raises(StepError):
            await again.result()
    assert [each.job_id for each in told] == [handle.id, handle.id]


@task(retry=_ONCE)
async def debit(amount: int) -> None:
    raise OSError("bank away")


@durable("transfer")
async def transfer(ctx: FlowContext[int]) -> None:
    await ctx.step(debit, ctx.input)


@durable("many")
async def many(ctx: FlowContext[int]) -> None:
    await ctx.map(debit, range(3))


@pytest.mark.parametrize("which", [transfer, many])
async def test_the_flow_of_a_durable_function_is_told_once_with_its_task(
    make_provider: MakeProvider, which: Any
) -> None:
    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(which)
    told = _listen(flows)
    async with provider, provider.worker():
        handle = await flows.execute(which, 7)
        with pytest.raises(StepError):
            await handle.result()
    (failure,) = told
    assert (failure.name, failure.job_id, failure.error) == (which.name, handle.id, "OSError: bank away")
    assert failure.step.startswith("debit")


async def test_a_flow_hook_hears_of_flows_alone_and_jobs_of_events_are_told_to_the_others(
    make_provider: MakeProvider,
) -> None:
    provider = make_provider(retry=_ONCE)
    flows = WorkflowProvider(provider)
    told, told_flows = _listen(provider), _listen(flows)

    @provider.on("ask")
    async def ask(_: int) -> None:
        raise ValueError("no")

    async with provider, provider.worker():
        with pytest.raises(HandlerError):
            await provider.emit("ask", 1)
    assert [each.name for each in told] == ["ask"]
    assert told_flows == []


async def test_a_flow_whose_undoing_kills_its_workers_is_told_by_the_one_that_ends_it(
    make_provider: MakeProvider, until: Until
) -> None:
    workflow = Workflow[Any, Any]("w", retry=_ONCE)
    began = asyncio.Event()

    @workflow.step()
    async def reserve(ctx: StepContext[Any]) -> int:
        return 1

    @reserve.rollback
    async def release(ctx: StepContext[Any], _: int) -> None:
        began.set()
        await asyncio.Event().wait()

    @workflow.step()
    async def charge(ctx: StepContext[Any]) -> None:
        raise OSError("bank away")

    provider, other = make_provider(lease=0.5, grace=0), make_provider(lease=0.5, max_stalls=0)
    flows, others = WorkflowProvider(provider), WorkflowProvider(other)
    flows.register(workflow)
    others.register(workflow)
    dead, told = _listen(flows), _listen(others)
    async with provider, provider.worker() as worker:
        handle = await flows.execute(workflow, None)
        await began.wait()
        await worker._worker.leases.aclose()  # pyright: ignore[reportPrivateUsage]
        worker._worker._rescuer.run_once = _never  # pyright: ignore[reportPrivateUsage]
        async with other.worker():
            with pytest.raises(StalledError):
                await asyncio.wait_for(handle.result(), 240)
            await until(lambda: told, "the rescuer's hook is called")
    (failure,) = told
    assert (failure.job_id, failure.outcome, failure.rollback) == (handle.id, "stalled", "incomplete")
    assert dead == []


async def _never(*, now_ms: int | None = None) -> float:
    return 60.0


def test_a_function_that_cannot_be_a_hook_of_flows_is_refused_at_once() -> None:
    flows, nothing = WorkflowProvider(EventProvider("memory:")), None
    with pytest.raises(DefinitionError, match=r"write @flows.on_failure without parentheses"):
        flows.on_failure(nothing)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]


def test_the_old_name_warns_and_does_the_same() -> None:
    provider = EventProvider("memory:")
    flows = WorkflowProvider(provider)
    told: list[JobFailure] = []
    with pytest.warns(DeprecationWarning, match=r"flows\.failed is deprecated: use flows\.on_failure"):
        assert flows.failed(told.append) == told.append
    (hook,) = provider._life.failure_hooks
    assert (hook.function, hook.flows_only) == (told.append, True)
