"""Pause and resume of events and workflows, through the public API."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from eventbus import DefinitionError, EventProvider, QueueControls, UnknownJob
from workflows import FlowContext, StepContext, Workflow, WorkflowProvider, durable

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]


async def test_a_paused_group_waits_while_the_others_go_on(make_provider: MakeProvider, until: Until) -> None:
    provider, billed = make_provider(name="office"), list[int]()

    @provider.on("placed")
    async def answer(n: int) -> int:
        return n

    @provider.on("placed", group="billing")
    async def bill(n: int) -> None:
        billed.append(n)

    async with provider.worker():
        await provider.pause("placed", group="billing", reason="the bank is down")
        assert [await each for each in provider.emit_many("placed", range(3))] == [0, 1, 2]
        (found,) = await provider.inspector.queues.controls()
        assert found.is_paused
        assert found == QueueControls(
            queue="event.placed@billing",
            workers=1,
            waiting=3,
            paused_ms=found.paused_ms,
            paused_by="office",
            reason="the bank is down",
        )
        assert billed == []
        await provider.resume("placed", group="billing")
        await until(lambda: billed == [0, 1, 2], "the group goes on")
        assert await provider.inspector.queues.controls() == []
        (again,) = await provider.inspector.queues.controls("placed@billing")
        assert not again.is_paused


async def test_a_pause_outlives_the_providers_that_saw_it(make_provider: MakeProvider, until: Until) -> None:
    first, second, ran = make_provider(), make_provider(), list[int]()

    @second.on("placed")
    async def run(n: int) -> None:
        ran.append(n)

    async with first:
        await first.pause("placed")
        await first.emit("placed", 1, reply=False)
    async with second.worker(), make_provider() as third:
        await third.emit("placed", 2, reply=False)
        assert (await third.inspector.queues.count("placed"))["waiting"] == 2
        await third.resume("placed")
        await until(lambda: ran == [1, 2], "both run")


async def test_a_thread_pauses_and_resumes(make_provider: MakeProvider) -> None:
    provider = make_provider()

    def work() -> list[bool]:
        provider.sync.pause("placed", reason="audit", by="ann")
        paused = provider.sync.emit("placed", 1, reply=False)
        paused.enqueued()
        provider.sync.resume("placed")
        return [True]

    async with provider:
        assert await asyncio.to_thread(work) == [True]
        assert await provider.inspector.queues.controls() == []


@pytest.mark.parametrize("given", ["", "a b", "event.x{y}", "x@y@z", "x@", "@x", 7, "x" * 300])
async def test_what_names_no_queue_is_refused(make_provider: MakeProvider, given: Any) -> None:
    async with make_provider() as provider:
        with pytest.raises((DefinitionError, UnknownJob)):
            await provider.pause(given)
        for ask in (
            provider.inspector.queues.controls,
            provider.inspector.queues.count,
            provider.inspector.queues.groups,
        ):
            with pytest.raises(DefinitionError):
                await ask(given)
        with pytest.raises(DefinitionError):
            await provider.inspector.jobs.list(given, state="waiting")
        with pytest.raises(DefinitionError, match="a queue of its own"):
            await provider.pause("event.placed", group="billing")
        with pytest.raises(DefinitionError, match="512 characters"):
            await provider.pause("placed", reason="x" * 513)


graph = Workflow("graph", input=int, output=int)


@graph.step()
async def add(ctx: StepContext[int]) -> int:
    return ctx.input + 1


@graph.completed
async def output(ctx: StepContext[int]) -> int:
    return ctx.result(add)


@durable("function")
async def function(ctx: FlowContext[int]) -> int:
    return ctx.input + 1


@pytest.mark.parametrize("flow", [graph, function], ids=["graph", "function"])
async def test_a_paused_workflow_begins_no_flow(make_provider: MakeProvider, flow: Any) -> None:
    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(graph)
    flows.register(function)
    async with provider.worker():
        await flows.pause(flow, reason="a bad release")
        handle = await flows.execute(flow, 1)
        (found,) = await provider.inspector.queues.controls()
        assert (found.queue, found.waiting, found.reason) == (f"workflow.{flow.name}", 1, "a bad release")
        await flows.resume(flow.name)
        assert await handle.result() == 2
        for wrong in (7, "a b"):
            with pytest.raises(DefinitionError):
                await flows.pause(wrong)  # type: ignore[arg-type]
