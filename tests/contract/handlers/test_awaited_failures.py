"""The final failure of a job that a handler or step awaits is final for it too: attempts do not multiply."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from eventbus import Event, EventContext, EventProvider, HandlerError, JobError, Retry, Unrecoverable
from workflows import (
    END,
    FlowContext,
    FlowError,
    MachineContext,
    StateMachine,
    StepContext,
    Workflow,
    WorkflowProvider,
    durable,
    task,
    transition,
)
from workflows.testing import run_inline

MakeProvider = Callable[..., EventProvider]


class Refused(Exception):
    pass


THRICE = Retry(3, delay=0)
runs: list[str] = []
below = Event("below", payload=str, errors=[Refused], retry_on=[Refused])


async def fail(how: str) -> None:
    runs.append("below")
    if how == "unrecoverable":
        raise Unrecoverable("never")
    raise Refused("no") if how == "declared" else ValueError("no luck")


def expected(how: str) -> int:
    return 1 if how == "unrecoverable" else 3


every_failure = pytest.mark.parametrize("how", ["error", "declared", "unrecoverable"])


@pytest.fixture(autouse=True)
def _forgotten() -> None:
    runs.clear()


@every_failure
@pytest.mark.parametrize("pool", ["loop", "thread"])
async def test_of_an_event_in_a_handler(make_provider: MakeProvider, how: str, pool: str) -> None:
    provider = make_provider(retry=THRICE)
    provider.on(below)(fail)

    async def ask(payload: str, ctx: EventContext) -> None:
        runs.append("above")
        await ctx.emit(below, payload)

    def ask_in_thread(payload: str) -> None:
        runs.append("above")
        provider.sync.emit(below, payload).result()

    provider.on("above")(ask if pool == "loop" else ask_in_thread)
    async with provider, provider.worker():
        with pytest.raises(HandlerError):
            await provider.emit("above", how)
    assert (runs.count("above"), runs.count("below")) == (1, expected(how))


async def test_a_rule_that_names_it_in_only_tries_again(make_provider: MakeProvider) -> None:
    provider = make_provider(retry=Retry(1))
    provider.on(below)(fail)

    @provider.on("above", retry=Retry(3, delay=0, only=(JobError,)))
    async def ask(payload: str) -> None:
        runs.append("above")
        await provider.emit(below, payload)

    async with provider, provider.worker():
        with pytest.raises(HandlerError):
            await provider.emit("above", "error")
    assert (runs.count("above"), runs.count("below")) == (3, 3)


@pytest.mark.parametrize("way", ["same", "from", "new", "own"])
async def test_the_same_error_counts_and_a_new_one_does_not(make_provider: MakeProvider, way: str) -> None:
    provider = make_provider(retry=THRICE)
    provider.on(below, retry=Retry(1))(fail)

    @provider.on(Event("above", errors=[Refused], retry_on=[Refused]))
    async def ask(payload: str) -> None:
        runs.append("above")
        if way == "own":
            raise Refused("of its own")
        try:
            await provider.emit(below, "declared")
        except Refused as error:
            if way == "same":
                raise
            if way == "from":
                raise error from KeyError("why")
            raise ConnectionError("again") from error

    async with provider, provider.worker():
        with pytest.raises((HandlerError, Refused)):
            await provider.emit("above", "")
    assert runs.count("above") == (1 if way in ("same", "from") else 3)


inner = Workflow("inner", input=str, errors=[Refused], retry_on=[Refused], retry=THRICE)


@inner.step()
async def look(ctx: StepContext[str]) -> None:
    await fail(ctx.input)


graph = Workflow("graph-above", input=str, retry=THRICE)


@graph.step()
async def ask_in_graph(ctx: StepContext[str]) -> None:
    runs.append("above")
    await ctx.emit(below, ctx.input)


@task(retry=THRICE)
async def ask_in_task(how: str) -> None:
    runs.append("above")
    await flows_of[0].provider_emit(how)


class _Asking:
    def __init__(self, provider: EventProvider) -> None:
        self._provider = provider

    async def provider_emit(self, how: str) -> None:
        await self._provider.emit(below, how)


flows_of: list[_Asking] = []


@durable("program-above")
async def program(ctx: FlowContext[str]) -> None:
    await ctx.step(ask_in_task, ctx.input)


class Order(msgspec.Struct):
    how: str


class Machine(StateMachine[Order], name="machine-above", start="a"):
    @transition("a", to="b", retry=THRICE, error_place="b")
    async def ask(self, ctx: MachineContext[Order]) -> None:
        runs.append("above")
        await flows_of[0].provider_emit(ctx.state.how)

    @transition("b", to=END)
    async def end(self, ctx: MachineContext[Order]) -> None:
        """It has failed, or not."""


@every_failure
@pytest.mark.parametrize("kind", ["graph", "spread", "function", "machine"])
async def test_of_an_event_in_a_flow(make_provider: MakeProvider, how: str, kind: str) -> None:
    provider = make_provider(retry=THRICE)
    provider.on(below)(fail)
    flows = WorkflowProvider(provider)
    flows_of[:] = [_Asking(provider)]
    graph.spread = kind == "spread"
    definition: Any = {"function": program, "machine": Machine}.get(kind, graph)
    flows.register(definition)
    async with provider, provider.worker():
        handle = await flows.execute(definition, Order(how) if kind == "machine" else how)
        if kind == "machine":
            await handle.result(timeout=240)
        else:
            with pytest.raises((FlowError, Refused)):
                await handle.result(timeout=240)
    assert (runs.count("above"), runs.count("below")) == (1, expected(how))


@every_failure
@pytest.mark.parametrize("where", ["server", "inline"])
async def test_of_a_flow_in_a_handler(make_provider: MakeProvider, how: str, where: str) -> None:
    provider = make_provider(retry=THRICE)
    flows = WorkflowProvider(provider)
    flows.register(inner)

    @provider.on("above")
    async def ask(payload: str) -> None:
        runs.append("above")
        if where == "inline":
            await run_inline(inner, payload)
        else:
            await (await flows.execute(inner, payload)).result()

    async with provider, provider.worker():
        with pytest.raises(HandlerError):
            await provider.emit("above", how)
    assert (runs.count("above"), runs.count("below")) == (1, expected(how))


async def test_a_rollback_is_tried_again_all_the_same(make_provider: MakeProvider) -> None:
    provider = make_provider(retry=Retry(1))
    provider.on(below)(fail)
    workflow: Workflow[Any, Any] = Workflow("owes", retry=Retry(1))

    @workflow.step()
    async def first(ctx: StepContext[Any]) -> None:
        """Has a rollback."""

    @first.rollback(retry=THRICE)
    async def undo(ctx: StepContext[Any], result: None) -> None:
        runs.append("above")
        await ctx.emit(below, "error")

    @workflow.step(after=first)
    async def second(ctx: StepContext[Any]) -> None:
        raise ValueError("no luck")

    flows = WorkflowProvider(provider)
    flows.register(workflow)
    async with provider, provider.worker():
        with pytest.raises(FlowError):
            await (await flows.execute(workflow, None)).result(timeout=240)
    assert runs.count("above") == 3
