"""A state machine as a part of a flow of another kind: a step of a graph, local and spread, and a call of a
durable function.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from drivers.machines.acting import Open, Until, act, broken, did
from drivers.machines.outer import KINDS, ORDER, Approval, make_outer

from eventbus import DefinitionError, Retry, UsageError
from workflows import (
    END,
    FlowCancelled,
    FlowContext,
    FlowHandle,
    FlowTimeout,
    MachineContext,
    Pipeline,
    StateMachine,
    StepContext,
    StepError,
    Workflow,
    WorkflowProvider,
    durable,
    task,
    transition,
)
from workflows.testing import run_inline

pytestmark = pytest.mark.virtual

SHORT: dict[str, Any] = {"lease": 1, "grace": 1}
"""A flow's timeout has the lease added."""


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


async def machine_in(
    flows: WorkflowProvider, flow: FlowHandle[Any], until: Until, *, place: str = "waiting"
) -> FlowHandle[Any]:
    """Return the handle of the machine inside a flow, once it rests at a place."""
    found: list[str] = []

    async def rests() -> bool:
        nested = (await flows.tree(flow.id)).nested
        inner = [tree.report for trees in nested.values() for tree in trees]
        found[:] = [
            each.flow_id
            for each in inner
            if each.machine is not None and each.machine.place == place and each.state == "waiting"
        ]
        return bool(found)

    await until(rests, f"the machine rests at {place}")
    return flows.handle(found[-1], Approval)


async def start(
    kind: str, open_flows: Open, until: Until, **options: Any
) -> tuple[WorkflowProvider, FlowHandle[Any], FlowHandle[Any]]:
    """Start a flow of a kind; return it, and the machine in it that waits."""
    outer = make_outer(kind, **options)
    flows = await open_flows(outer, Approval, **SHORT)
    flow = await flows.execute(outer, 40)
    return flows, flow, await machine_in(flows, flow, until)


async def test_the_flow_gets_the_result_of_the_machine_and_its_place_is_in_the_tree(
    kind: str, open_flows: Open, until: Until
) -> None:
    _, flow, machine = await start(kind, open_flows, until)
    assert (await flow.status()).state in ("running", "waiting")
    await machine.trigger(Approval.finish, 2)
    assert await flow.result(240) == 42
    assert did == ["open", "prepare", "finish", "close", "completed"]


async def test_what_follows_the_machine_undoes_it_in_its_place_when_it_fails(
    kind: str, open_flows: Open, until: Until
) -> None:
    broken.add("completed")
    _, flow, machine = await start(kind, open_flows, until)
    await machine.trigger(Approval.finish, 2)
    with pytest.raises(StepError, match="completed is broken") as caught:
        await flow.result(240)
    assert did[5:] == ORDER
    assert caught.value.rollback == "complete"
    told = [each.step for each in (await flow.report()).rollbacks]
    assert [each.rpartition("/")[2] for each in told[1:3]] == ["finish@2", "prepare@1"]
    assert told[1].startswith("approval"), "behind the step, or the call, that ran the machine"


async def test_a_rollback_of_the_machine_that_fails_is_one_of_the_flow(
    kind: str, open_flows: Open, until: Until
) -> None:
    broken.update(("completed", "undo finish"))
    _, flow, machine = await start(kind, open_flows, until)
    await machine.trigger(Approval.finish, 2)
    with pytest.raises(StepError) as caught:
        await flow.result(240)
    assert caught.value.rollback == "incomplete"
    (failed,) = caught.value.rollback_errors
    assert failed.step.startswith("approval")
    assert failed.step.endswith("/finish@2")
    assert did[5:] == ["undo close", *["undo finish"] * 3, "undo prepare", "undo open"]


async def test_a_cancel_of_the_flow_undoes_the_machine_and_then_its_own_steps(
    kind: str, open_flows: Open, until: Until
) -> None:
    _, flow, machine = await start(kind, open_flows, until)
    assert await flow.cancel("enough")
    with pytest.raises(FlowCancelled, match="enough"):
        await flow.result(240)
    assert did == ["open", "prepare", "undo prepare", "undo open"]
    assert (await machine.status()).state == "cancelled"


async def test_a_cancel_of_the_machine_fails_the_flow_that_runs_it(
    kind: str, open_flows: Open, until: Until
) -> None:
    _, flow, machine = await start(kind, open_flows, until)
    assert await machine.cancel("not this one")
    with pytest.raises((StepError, FlowCancelled)) as caught:
        await flow.result(240)
    assert "not this one" in str(caught.value)
    assert did == ["open", "prepare", "undo prepare", "undo open"]
    assert (await flow.status()).state == "failed"


async def test_the_timeout_of_the_flow_undoes_the_machine(kind: str, open_flows: Open, until: Until) -> None:
    _, flow, machine = await start(kind, open_flows, until, timeout=2)
    with pytest.raises(FlowTimeout):
        await flow.result(240)
    assert did == ["open", "prepare", "undo prepare", "undo open"]
    assert (await machine.status()).state == "cancelled"


async def test_a_retry_of_the_flow_runs_a_new_machine(kind: str, open_flows: Open, until: Until) -> None:
    broken.add("completed")
    flows, flow, machine = await start(kind, open_flows, until)
    await machine.trigger(Approval.finish, 2)
    with pytest.raises(StepError):
        await flow.result(240)
    broken.clear()
    did.clear()
    await flow.retry()
    second = await machine_in(flows, flow, until)
    assert second.id != machine.id
    await second.trigger(Approval.finish, 3)
    assert await flow.result(240) == 43
    assert did == ["open", "prepare", "finish", "close", "completed"]


async def test_a_machine_that_stands_with_its_error_keeps_the_flow_waiting_until_somebody_helps(
    kind: str, open_flows: Open, until: Until
) -> None:
    broken.add("finish")
    flows, flow, machine = await start(kind, open_flows, until)
    await machine.trigger(Approval.finish, 2)

    async def stands() -> bool:
        return "finish is broken" in (await machine.report()).error

    await until(stands, "it stands with its error")
    assert (await flow.status()).state in ("running", "waiting")
    broken.clear()
    await machine.retry()
    assert await flow.result(240) == 42
    with pytest.raises(UsageError, match="is a part of flow"):
        await machine.retry()
    assert (await flows.tree(flow.id)).report.state == "completed"


async def test_a_second_worker_goes_on_behind_the_machine(kind: str, open_flows: Open, until: Until) -> None:
    outer = make_outer(kind)
    flows = await open_flows(outer, Approval, worker=False)
    async with flows.provider.worker():
        flow = await flows.execute(outer, 40)
        machine = await machine_in(flows, flow, until)
    await machine.trigger(Approval.finish, 2)
    async with flows.provider.worker():
        assert await flow.result(240) == 42
    assert did == ["open", "prepare", "finish", "close", "completed"]


async def test_in_this_process_the_machine_gets_the_triggers_of_its_class(kind: str) -> None:
    triggers = [(Approval.finish, 2)]
    assert await run_inline(make_outer(kind), 40, triggers=triggers) == 42
    assert did == ["open", "prepare", "finish", "close", "completed"]


async def test_in_this_process_it_is_undone_in_its_place(kind: str) -> None:
    broken.add("completed")
    with pytest.raises(StepError, match="completed is broken") as caught:
        await run_inline(make_outer(kind), 40, triggers=[(Approval.finish, 2)])
    assert did[5:] == ORDER
    assert caught.value.rollback == "complete"


async def test_in_this_process_a_timeout_of_the_flow_undoes_the_machine(kind: str) -> None:
    class Endless(StateMachine[int], name="approval", start="a"):
        @transition("a", to="b")
        async def prepare(self, ctx: MachineContext[int]) -> None:
            act("prepare")

        @prepare.rollback
        async def undo_prepare(self, ctx: MachineContext[int]) -> None:
            act("undo prepare")

        @transition("b", to=END, timeout=0)
        async def hold(self, ctx: MachineContext[int]) -> None:
            await asyncio.Event().wait()

    outer: Any
    if kind == "function":

        @durable("outer")
        async def function(ctx: FlowContext[int]) -> None:
            await ctx.flow(Endless, ctx.input)

        outer = function
    else:
        outer = Workflow("outer", input=int, spread=kind == "spread").then(Endless)
    with pytest.raises(FlowTimeout) as caught:
        await run_inline(outer, 1, timeout=0.2)
    assert did == ["prepare", "undo prepare"]
    assert caught.value.rollback in ("none", "complete")


async def test_in_this_process_a_machine_that_waits_for_a_trigger_that_nobody_gave_is_named(
    kind: str,
) -> None:
    with pytest.raises(UsageError, match=r"flow outer~.*/approval~0 waits at place 'waiting' for a trigger"):
        await run_inline(make_outer(kind), 40)


class Short(StateMachine[int], name="short", start="a", timeout=1):
    @transition("a", to=END, wait=None)
    async def go(self, ctx: MachineContext[int], payload: None) -> int:
        return ctx.state


@pytest.mark.parametrize("spread", [False, True])
async def test_a_step_that_ignores_failures_goes_on_behind_a_machine_whose_time_is_over(
    open_flows: Open, spread: bool
) -> None:
    workflow: Workflow[int, Any] = Workflow("patient", input=int, output=Any, spread=spread)
    step = workflow.flow(Short, name="inner", input=lambda ctx: ctx.input + 1, on_failure="ignore")

    @workflow.completed
    async def completed(ctx: StepContext[int]) -> Any:
        return ctx.result(step, default="nothing")

    flows = await open_flows(workflow, **SHORT)
    flow = await flows.execute(workflow, 1)
    assert await flow.result(240) == "nothing"
    report = await flow.report()
    assert "timed out" in report.steps["inner"].error


async def test_a_call_with_a_timeout_of_its_own_raises_it_in_the_code(open_flows: Open) -> None:
    @durable("patient", output=str)
    async def patient(ctx: FlowContext[int]) -> str:
        try:
            await ctx.flow(Approval, ctx.input, timeout=1)
        except FlowTimeout as error:
            return error.workflow
        return "nothing"

    flows = await open_flows(patient, Approval, **SHORT)
    assert await (await flows.execute(patient, 1)).result(240) == "approval"
    assert did == ["prepare", "undo prepare"]


async def test_a_machine_is_registered_with_the_graph_that_runs_it(open_flows: Open) -> None:
    workflow: Workflow[int, Any] = Workflow("outer", input=int).then(Short)
    flows = await open_flows(workflow, worker=False)
    await flows.execute(Short, 1)

    other: Workflow[int, Any] = Workflow("short", input=int)
    outer: Workflow[int, Any] = Workflow("both", input=int).then(other)
    outer.flow(Short, name="again")
    with pytest.raises(DefinitionError, match="two workflows of different kinds"):
        flows.register(outer)


def test_types_of_input_and_output_are_checked_where_the_graph_is_defined() -> None:
    workflow: Workflow[str, Any] = Workflow("outer", input=str)
    with pytest.raises(
        DefinitionError, match="runs workflow 'short', whose input is int, but the input is str"
    ):
        workflow.then(Short)
    assert workflow.flow(Short, input=_count).result is int
    assert workflow.find(Short).workflow is Short.definition

    with pytest.raises(DefinitionError, match="which undoes its own steps"):

        @workflow.find(Short).rollback
        async def undo(ctx: StepContext[str], result: Any) -> None: ...


def _count(ctx: StepContext[str]) -> int:
    return len(ctx.input)


def test_the_steps_of_a_pipeline_are_functions_and_no_machines() -> None:
    with pytest.raises(DefinitionError, match="the steps of a pipeline are functions"):
        Pipeline("outer", input=dict[str, int]).then(Short)


@task
async def undone(number: int) -> None:
    act(f"undone {number}")


@pytest.mark.parametrize("spread", [False, True])
async def test_a_durable_function_is_a_step_of_a_graph_too(open_flows: Open, spread: bool) -> None:
    @durable("inner", output=int, retry=Retry(attempts=1))
    async def inner(ctx: FlowContext[int]) -> int:
        ctx.rollback(undone, ctx.input)
        act("inner")
        return ctx.input * 2

    workflow: Workflow[int, Any] = Workflow("outer", input=int, output=int, spread=spread)
    step = workflow.flow(inner)

    @workflow.completed
    async def completed(ctx: StepContext[int]) -> int:
        act("completed")
        return ctx.result(step)

    flows = await open_flows(workflow)
    assert await (await flows.execute(workflow, 21)).result(240) == 42
    assert await run_inline(workflow, 21) == 42
    broken.add("completed")
    workflow.retry = Retry(attempts=1)
    did.clear()
    with pytest.raises(StepError):
        await (await flows.execute(workflow, 1)).result(240)
    assert did == ["inner", "completed", "undone 1"]
