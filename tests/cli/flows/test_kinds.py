"""Every kind of flow is managed alike, by `WorkflowProvider` and by `eventbus flows`: graphs, pipelines,
functions and machines.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import pytest
from typer.testing import Result

from eventbus import EventProvider, Retry, UnknownJob, UsageError
from workflows import (
    END,
    FlowContext,
    FlowNotEnded,
    FlowReport,
    MachineContext,
    Pipeline,
    StateMachine,
    StepContext,
    Workflow,
    WorkflowProvider,
    durable,
    task,
    transition,
)

Invoke = Callable[..., Result]
Act = Callable[..., Any]

did: list[str] = []
broken: set[str] = set()

_ONCE = Retry(attempts=1)


async def act(name: str) -> None:
    did.append(name)
    if "held" in broken:
        await asyncio.sleep(60)  # until it is cancelled
    if name in broken:
        raise ValueError(f"{name} is broken")


class Given(msgspec.Struct):
    number: int = 1


def make_graph(*, spread: bool = False) -> Workflow[Given, Any]:
    graph: Workflow[Given, Any] = Workflow(
        "spread" if spread else "graph", input=Given, retry=_ONCE, spread=spread
    )

    @graph.step()
    async def first(ctx: StepContext[Given]) -> None:
        await act("first")

    @graph.step(when=lambda ctx: ctx.input.number > 0)
    async def second(ctx: StepContext[Given]) -> None:
        await act("second")

    return graph


async def first(given: Given) -> None:
    await act("first")


async def second(given: Given) -> None:
    await act("second")


pipeline = Pipeline("pipeline", input=Given, retry=_ONCE).then(first).then(second).returns()


@task(name="first", retry=_ONCE)
async def first_task() -> None:
    await act("first")


@task(name="second", retry=_ONCE)
async def second_task() -> None:
    await act("second")


@durable("function")
async def function(ctx: FlowContext[Given]) -> None:
    await ctx.step(first_task)
    await ctx.step(second_task)


class Machine(StateMachine[Given], name="machine", start="a"):
    @transition("a", to="b")
    async def first(self, ctx: MachineContext[Given]) -> None:
        await act("first")

    @transition("b", to=END)
    async def second(self, ctx: MachineContext[Given]) -> None:
        await act("second")


class Kind(NamedTuple):
    """A workflow, and the names of its two parts in reports."""

    workflow: Any
    parts: tuple[str, str]

    @property
    def name(self) -> str:
        return "machine" if self.workflow is Machine else self.workflow.name

    @property
    def drawn(self) -> tuple[str, str]:
        """Two nodes of the graph of a flow: of a machine these are its places."""
        return ("a", "b") if self.workflow is Machine else self.parts

    @property
    def failed(self) -> str:
        """The state of a flow whose second part is broken: a machine stays where it is."""
        return "waiting" if self.workflow is Machine else "failed"


_KINDS = [
    Kind(make_graph(), ("first", "second")),
    Kind(make_graph(spread=True), ("first", "second")),
    Kind(pipeline, ("first", "second")),
    Kind(function, ("first@0", "second@1")),
    Kind(Machine, ("first@1", "second@2")),
]


@pytest.fixture(params=_KINDS, ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> Kind:
    did.clear()
    broken.clear()
    return request.param


@pytest.fixture
def serve(kind: Kind, environment: dict[str, str]) -> Act:
    """Run a coroutine function beside a worker, with its flows."""

    async def within(function: Callable[..., Any], *args: Any) -> Any:
        provider = EventProvider(
            environment["EVENTBUS_URL"], prefix=environment["EVENTBUS_PREFIX"], lease=0.5
        )
        flows = WorkflowProvider(provider)
        flows.register(kind.workflow)
        async with provider, provider.worker():
            return await function(flows, *args)

    return lambda function, *args: asyncio.run(within(function, *args))


async def until(flows: WorkflowProvider, flow_id: str, *states: str) -> FlowReport:
    async with asyncio.timeout(240):
        while (report := await flows.report(flow_id)).state not in states:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return report


def test_a_flow_is_started_listed_looked_at_and_resumed(kind: Kind, serve: Act, invoke: Invoke) -> None:
    async def fail(flows: WorkflowProvider) -> str:
        broken.add("second")
        flow = await flows.execute(kind.workflow, Given())
        report = await until(flows, flow.id, kind.failed)
        assert [report.steps[name].state for name in kind.parts] == ["completed", "failed"]
        assert "second is broken" in report.error
        assert [each.flow_id for each in await flows.flows(kind.name, state=kind.failed)] == [flow.id]
        assert (await flows.tree(flow.id)).report == report
        assert {each.name for each in (await flows.graph(flow.id)).nodes} >= {*kind.drawn}
        return flow.id

    flow_id = serve(fail)
    listed = invoke("flows", "list", "--workflow", kind.name, "--state", kind.failed)
    assert (listed.exit_code, flow_id in listed.stdout) == (0, True)
    shown = invoke("flows", "show", flow_id)
    assert (shown.exit_code, f"{kind.parts[1]}  failed" in shown.stdout) == (0, True)
    assert kind.drawn[0] in invoke("flows", "graph", "--id", flow_id).stdout
    broken.clear()
    assert invoke("flows", "retry", flow_id, "--resume").exit_code == 0

    async def end(flows: WorkflowProvider) -> FlowReport:
        return await until(flows, flow_id, "completed")

    assert [serve(end).steps[name].state for name in kind.parts] == ["completed", "completed"]
    assert did == ["first", "second", "second"], "what was recorded is not done again"
    assert f"flow {flow_id} runs again, for the " in invoke("flows", "retry", flow_id, "--from-start").stdout

    async def end_again(flows: WorkflowProvider) -> None:
        async with asyncio.timeout(240):
            while did[3:] != ["first", "second"]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await until(flows, flow_id, "completed")

    serve(end_again)


def test_a_flow_is_cancelled_run_again_and_removed(kind: Kind, serve: Act, invoke: Invoke) -> None:
    async def hold(flows: WorkflowProvider) -> str:
        broken.add("held")
        flow = await flows.execute(kind.workflow, Given())
        async with asyncio.timeout(240):
            while not did:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert not await flows.remove(flow.id)
        with pytest.raises(FlowNotEnded, match=f"flow {flow.id} is running"):
            await flows.retry(flow.id)
        kept = await asyncio.to_thread(invoke, "flows", "remove", flow.id)
        assert (kept.exit_code, kept.stderr) == (
            1,
            f"eventbus: flow {flow.id} is running, and is not removed; cancel it first\n",
        )
        cancelled = await asyncio.to_thread(invoke, "flows", "cancel", flow.id, "--reason", "enough")
        told = (
            f"flow {flow.id} is being cancelled\n"  # the worker of this process may write log lines around it
        )
        assert (cancelled.exit_code, told in cancelled.stdout) == (0, True)
        report = await until(flows, flow.id, "cancelled")
        assert "enough" in report.error
        with pytest.raises(UsageError, match="has ended and stands at no place"):
            await flows.retry(flow.id, target="a")
        return flow.id

    flow_id = serve(hold)
    twice = invoke("flows", "cancel", flow_id)
    assert (twice.exit_code, twice.stderr) == (
        1,
        f"eventbus: flow {flow_id} is cancelled, there is nothing to cancel\n",
    )
    broken.clear()

    async def again(flows: WorkflowProvider) -> None:
        await flows.retry(flow_id)
        await until(flows, flow_id, "completed")
        assert await flows.remove(flow_id)
        with pytest.raises(UnknownJob):
            await flows.report(flow_id)
        assert await flows.flows(kind.name) == []

    serve(again)
    for words in (["show"], ["cancel"], ["retry"], ["remove"]):
        gone = invoke("flows", *words, flow_id)
        assert (gone.exit_code, f"eventbus: no record of job '{flow_id}'" in gone.stderr) == (1, True), words


def test_only_a_flow_that_has_ended_begins_from_its_start(kind: Kind, serve: Act, invoke: Invoke) -> None:
    async def fail(flows: WorkflowProvider) -> str:
        broken.add("second")
        flow = await flows.execute(kind.workflow, Given())
        await until(flows, flow.id, kind.failed)
        return flow.id

    flow_id = serve(fail)
    again = invoke("flows", "retry", flow_id, "--from-start")
    if kind.workflow is not Machine:
        assert again.exit_code == 0
        return
    assert (again.exit_code, again.stderr) == (
        1,
        (
            f"eventbus: flow {flow_id} is waiting; only a flow that has ended begins from its start: "
            "cancel it first, or retry it where it stands\n"
        ),
    )


def test_what_no_kind_of_flow_is_is_refused(invoke: Invoke) -> None:
    for words in (["show"], ["cancel"], ["retry"], ["remove"], ["follow"]):
        wrong = invoke("flows", *words, "chair")
        assert (wrong.exit_code, "'chair' is no id of a flow; expected" in wrong.stderr) == (1, True), words
