"""A workflow as a step of another one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from drivers.runners import Runner, wait_states

from eventbus import HandlerError, Retry
from workflows.definition.context import StepContext
from workflows.definition.workflow import Workflow
from workflows.errors import FlowCancelled, FlowTimeout, StepError

pytestmark = pytest.mark.virtual

_ONCE = Retry(attempts=1)
Log = list[Any]


class Refused(Exception): ...


def _add(workflow: Workflow[Any, Any], name: str, log: Log) -> None:
    async def run(ctx: StepContext[Any]) -> str:
        log.append(name)
        return name

    async def undo(ctx: StepContext[Any], result: str) -> None:
        log.append(f"undo {result}")

    workflow.step(run, name=name).rollback(undo)


def _add_failing(
    workflow: Workflow[Any, Any], name: str = "fall", error: type[Exception] = ValueError
) -> None:
    async def run(ctx: StepContext[Any]) -> None:
        raise error("down")

    workflow.step(run, name=name)


def _payment(log: Log, **options: Any) -> Workflow[Any, Any]:
    """authorize, then charge."""
    options.setdefault("retry", _ONCE)
    workflow: Workflow[Any, Any] = Workflow("payment", **options)
    _add(workflow, "authorize", log)
    _add(workflow, "charge", log)

    @workflow.completed
    async def finish(ctx: StepContext[Any]) -> Any:
        return {"paid": ctx.input, "steps": list(ctx.results)}

    return workflow


async def test_its_output_is_the_steps_result(runner: Runner) -> None:
    log: Log = []
    payment = _payment(log)
    workflow = Workflow("shop", retry=_ONCE)
    _add(workflow, "pack", log)
    workflow.flow(payment, input=lambda ctx: [ctx.input, ctx.result("pack")])
    _add(workflow, "ship", log)

    @workflow.completed
    async def finish(ctx: StepContext[Any]) -> Any:
        return ctx.result(payment)

    handle = await runner.start(workflow, 5)
    expected = {"paid": [5, "pack"], "steps": ["authorize", "charge"]}
    assert await handle.result() == expected
    assert log == ["pack", "authorize", "charge", "ship"]
    report = await handle.report()
    assert report.order == ["pack", "payment", "ship"]
    assert report.steps["payment"].result == expected


async def test_without_an_input_function_it_gets_the_flows_own(runner: Runner) -> None:
    payment = _payment([])
    workflow = Workflow("shop")
    workflow.flow(payment, name="pay")

    @workflow.completed
    async def finish(ctx: StepContext[Any]) -> Any:
        return ctx.result("pay")["paid"]

    assert await (await runner.start(workflow, {"o": 1})).result() == {"o": 1}


async def test_its_failure_is_the_steps_and_it_has_undone_its_own(runner: Runner) -> None:
    log: Log = []
    payment = _payment(log, errors=[Refused])
    _add_failing(payment)
    workflow = Workflow("shop", errors=[Refused])  # 3 attempts, which are for its own steps
    _add(workflow, "pack", log)
    workflow.flow(payment)
    _add(workflow, "ship", log)
    handle = await runner.start(workflow, None)
    with pytest.raises(StepError) as caught:
        await handle.result()
    assert log == ["pack", "authorize", "charge", "undo charge", "undo authorize", "undo pack"]
    outer, inner = caught.value, caught.value.error
    assert isinstance(inner, StepError)
    assert (outer.workflow, outer.step, outer.rollback) == ("shop", "payment", "complete")
    assert (inner.workflow, inner.step, inner.rollback) == ("payment", "fall", "complete")
    assert isinstance(inner.error, HandlerError)
    assert inner.error.type_name == "ValueError"
    assert inner.flow_id.startswith(f"{handle.id}/1/payment/0/payment~")
    assert inner.error.job_id.startswith(inner.flow_id)


async def test_a_declared_error_comes_up_as_itself(runner: Runner) -> None:
    payment = _payment([], errors=[Refused])
    _add_failing(payment, error=Refused)
    workflow = Workflow("shop", errors=[Refused])
    workflow.flow(payment)
    handle = await runner.start(workflow, None)
    with pytest.raises(Refused, match="down") as caught:
        await handle.result()
    assert isinstance(caught.value.__cause__, StepError)
    assert caught.value.__cause__.step == "payment"


async def test_its_steps_are_undone_when_the_outer_flow_stops_later(runner: Runner) -> None:
    log: Log = []
    payment = _payment(log)
    workflow = Workflow("shop", retry=_ONCE)
    _add(workflow, "pack", log)
    workflow.flow(payment)
    _add(workflow, "ship", log)
    _add_failing(workflow)
    handle = await runner.start(workflow, None)
    with pytest.raises(StepError) as caught:
        await handle.result()
    assert log[4:] == ["undo ship", "undo charge", "undo authorize", "undo pack"]
    assert (caught.value.step, caught.value.rollback) == ("fall", "complete")
    rollbacks = (await handle.report()).rollbacks
    assert [each.step for each in rollbacks] == ["ship", "payment/charge", "payment/authorize", "pack"]


async def test_a_rollback_inside_that_fails_is_told_with_its_path(runner: Runner) -> None:
    log: Log = []
    payment = Workflow("payment", retry=_ONCE)
    _add(payment, "authorize", log)

    @payment.step()
    async def charge(ctx: StepContext[Any]) -> str:
        return "charge"

    @charge.rollback
    async def refund(ctx: StepContext[Any], result: str) -> None:
        raise ValueError("no money")

    workflow = Workflow("shop", retry=_ONCE)
    workflow.flow(payment)
    _add_failing(workflow)
    handle = await runner.start(workflow, None)
    with pytest.raises(StepError) as caught:
        await handle.result()
    assert (log, caught.value.rollback) == (["authorize", "undo authorize"], "incomplete")
    assert [each.step for each in caught.value.rollback_errors] == ["payment/charge"]
    assert "no money" in str(caught.value.rollback_errors[0])


async def test_what_a_failed_sub_workflow_could_not_undo_makes_the_whole_incomplete(runner: Runner) -> None:
    payment = Workflow("payment", retry=_ONCE)

    @payment.step()
    async def charge(ctx: StepContext[Any]) -> str:
        return "charge"

    @charge.rollback
    async def refund(ctx: StepContext[Any], result: str) -> None:
        raise ValueError("no money")

    _add_failing(payment)
    workflow = Workflow("shop", retry=_ONCE)
    workflow.flow(payment)
    handle = await runner.start(workflow, None)
    with pytest.raises(StepError) as caught:
        await handle.result()
    inner = caught.value.error
    assert isinstance(inner, StepError)
    assert (inner.rollback, caught.value.rollback) == ("incomplete", "incomplete")
    assert [each.step for each in caught.value.rollback_errors] == ["payment/charge"]


async def test_a_condition_skips_the_whole(runner: Runner) -> None:
    log: Log = []
    workflow = Workflow("shop")
    workflow.flow(_payment(log), when=lambda ctx: ctx.input > 0)
    _add(workflow, "ship", log)
    handle = await runner.start(workflow, 0)
    await handle.result()
    assert log == ["ship"]
    assert (await handle.report()).steps["payment"].state == "skipped"


async def test_an_input_that_does_not_fit_it_fails_the_step(runner: Runner) -> None:
    log: Log = []
    workflow = Workflow("shop", retry=_ONCE)
    _add(workflow, "pack", log)
    workflow.flow(_payment(log, input=int), input=lambda ctx: "no int")
    handle = await runner.start(workflow, None)
    with pytest.raises(StepError, match='payload of "payment"') as caught:
        await handle.result()
    assert (caught.value.step, log) == ("payment", ["pack", "undo pack"])


async def test_when_a_sibling_fails_an_open_sub_workflow_is_stopped_and_undone(runner: Runner) -> None:
    log: Log = []
    is_active, go_on = asyncio.Event(), asyncio.Event()
    inner = Workflow("inner", retry=_ONCE)
    _add(inner, "one", log)

    @inner.step()
    async def two(ctx: StepContext[Any]) -> str:
        is_active.set()
        await go_on.wait()
        return "two"

    @two.rollback
    async def undo(ctx: StepContext[Any], result: str) -> None:
        log.append(f"undo {result}")

    _add(inner, "three", log)
    workflow = Workflow("outer", retry=_ONCE)
    workflow.flow(inner, after=None)

    @workflow.step(after=None)
    async def fall(ctx: StepContext[Any]) -> None:
        await is_active.wait()
        raise ValueError("down")

    handle = await runner.start(workflow, None)
    await wait_states(handle, {"fall": "failed"})
    async with asyncio.timeout(240):  # a local flow records the failure, and then stops
        while (await handle.status()).state != "rolling_back":  # noqa: ASYNC110
            await asyncio.sleep(0.002)
    go_on.set()
    with pytest.raises(StepError) as caught:
        await handle.result()
    assert caught.value.step == "fall"
    assert log == ["one", "undo two", "undo one"]
    assert (await handle.report()).steps["inner"].state == "cancelled"


async def test_a_cancel_reaches_the_steps_of_a_sub_workflow(runner: Runner) -> None:
    log: Log = []
    is_active = asyncio.Event()
    inner = Workflow("inner", retry=_ONCE)
    _add(inner, "one", log)

    @inner.step()
    async def two(ctx: StepContext[Any]) -> None:
        is_active.set()
        try:
            await asyncio.Event().wait()
        finally:
            log.append("two cancelled")

    workflow = Workflow("outer", retry=_ONCE)
    _add(workflow, "zero", log)
    workflow.flow(inner)
    handle = await runner.start(workflow, None)
    await is_active.wait()
    assert await handle.cancel("enough")
    with pytest.raises(FlowCancelled, match="enough"):
        await handle.result()
    assert log == ["zero", "one", "two cancelled", "undo one", "undo zero"]


async def test_its_own_timeout_fails_the_step(runner: Runner) -> None:
    inner = Workflow("inner", retry=_ONCE, timeout=0.2)

    @inner.step()
    async def wait(ctx: StepContext[Any]) -> None:
        await asyncio.Event().wait()

    workflow = Workflow("outer", retry=_ONCE)
    workflow.flow(inner)
    handle = await runner.start(workflow, None)
    with pytest.raises(StepError) as caught:
        await handle.result()
    assert caught.value.step == "inner"
    assert isinstance(caught.value.error, FlowTimeout)


async def test_workflows_nest_deeper(runner: Runner) -> None:
    log: Log = []
    innermost, middle, outer = Workflow("c"), Workflow("b"), Workflow("a", retry=_ONCE)
    _add(innermost, "deep", log)
    middle.flow(innermost)
    outer.flow(middle)
    _add_failing(outer)
    handle = await runner.start(outer, None)
    with pytest.raises(StepError):
        await handle.result()
    assert log == ["deep", "undo deep"]
    assert [each.step for each in (await handle.report()).rollbacks] == ["b/c/deep"]
