"""`require_worker`: an emission that nobody serves is refused at once, with what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from eventbus import DefinitionError, Event, EventProvider, NoWorker
from workflows import StepContext, Workflow, WorkflowProvider

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]

asked = Event("asked", payload=int, result=int, require_worker=True)


async def test_an_emission_that_nobody_serves_is_refused_with_the_way_out(
    make_provider: MakeProvider,
) -> None:
    provider = make_provider()
    async with provider:
        for emission in (
            provider.emit(asked, 1),
            provider.emit("asked", 1, priority=3),
            provider.emit("asked", 1, idempotency_key="k"),
            *provider.emit_many(asked, [1, 2]),
        ):
            with pytest.raises(NoWorker) as caught:
                await emission.enqueued()
            assert (caught.value.event, caught.value.queue, caught.value.enqueued) == (
                "asked",
                "event.asked",
                False,
            )
            assert str(caught.value) == (
                "no worker serves asked, and require_worker is set; start one, or leave require_worker out"
            )
        provider.on(asked)(lambda n: n + 1)
        async with provider.worker():
            assert await provider.emit(asked, 1, idempotency_key="k") == 2


async def test_an_emission_says_it_over_its_event(make_provider: MakeProvider) -> None:
    provider = make_provider()
    async with provider:
        await provider.emit(asked, 1, require_worker=False, reply=False).enqueued()
        await provider.emit("plain", 1, reply=False).enqueued()
        with pytest.raises(NoWorker):
            await provider.emit("plain", 1, require_worker=True, reply=False).enqueued()
        await provider.emit("plain", 1, require_worker=None, reply=False).enqueued()


async def test_the_refusal_names_the_group_that_nobody_serves(make_provider: MakeProvider) -> None:
    provider = make_provider()
    provider.on(asked)(lambda n: n)
    async with provider, provider.worker():
        await provider.add_group(asked, "retired")
        with pytest.raises(
            NoWorker, match=r"no worker serves group 'retired' of asked, .*remove_group\('asked'"
        ):
            await provider.emit(asked, 1)
        await provider.remove_group(asked, "retired")
        assert await provider.emit(asked, 1) == 1


async def test_a_worker_that_has_stopped_serves_nothing(make_provider: MakeProvider) -> None:
    provider = make_provider()
    provider.on(asked)(lambda n: n)
    async with provider:
        async with provider.worker():
            assert await provider.emit(asked, 1) == 1
        with pytest.raises(NoWorker):
            await provider.emit(asked, 1)


@pytest.mark.parametrize("has_others", [False, True])
async def test_an_event_whose_handler_was_taken_back_is_served_no_more(
    make_provider: MakeProvider, *, has_others: bool
) -> None:
    provider = make_provider()
    provider.on(asked)(lambda n: n)
    if has_others:
        provider.on("other")(lambda n: n)
    async with provider, provider.worker():
        assert await provider.emit(asked, 1) == 1
        await provider.unsubscribe(asked)
        with pytest.raises(NoWorker):
            await provider.emit(asked, 1).enqueued()
        await provider.subscribe(asked, lambda n: n + 1)
        assert await provider.emit(asked, 1) == 2


async def test_a_paused_event_that_is_served_is_taken(make_provider: MakeProvider) -> None:
    provider = make_provider()
    provider.on(asked)(lambda n: n)
    async with provider, provider.worker():
        await provider.pause(asked)
        emission = provider.emit(asked, 1)
        await emission.enqueued()
        await provider.resume(asked)
        assert await emission == 1


@pytest.mark.parametrize("spread", [False, True])
async def test_a_flow_that_nobody_serves_is_refused(make_provider: MakeProvider, *, spread: bool) -> None:
    provider = make_provider()
    flows = WorkflowProvider(provider)
    workflow: Workflow[int, int] = Workflow("count", input=int, output=int, spread=spread)

    @workflow.step
    async def add(ctx: StepContext[int]) -> int:
        return ctx.input + 1

    @workflow.completed
    async def end(ctx: StepContext[int]) -> int:
        return ctx.result(add)

    flows.register(workflow)
    async with provider:
        with pytest.raises(
            NoWorker, match="no worker serves workflow count, and require_worker is set"
        ) as caught:
            await flows.execute(workflow, 1, require_worker=True)
        assert caught.value.enqueued is False
        async with provider.worker():
            handle = await flows.execute(workflow, 1, require_worker=True, idempotency_key="k")
            assert await handle.result() == 2
            assert "add" in (await handle.report()).steps
        again = await flows.execute(workflow, 1, require_worker=True, idempotency_key="k")
        assert await again.result() == 2, "its outcome is there"


@pytest.mark.parametrize("given", ["yes", 1])
async def test_what_is_no_truth_value_is_refused_with_it(make_provider: MakeProvider, given: Any) -> None:
    with pytest.raises(DefinitionError, match=r"require_worker of event 'a' to be True or False, got: "):
        Event("a", require_worker=given)
    provider = make_provider()
    flows = WorkflowProvider(provider)
    workflow: Workflow[None, None] = Workflow("empty")
    flows.register(workflow)
    async with provider:
        with pytest.raises(
            DefinitionError, match=r"expected require_worker to be bool or NoneType, got: |or None, got"
        ):
            provider.emit("a", 1, require_worker=given)
        with pytest.raises(DefinitionError, match=r"expected require_worker to be True or False, got: "):
            await flows.execute(workflow, None, require_worker=given)
