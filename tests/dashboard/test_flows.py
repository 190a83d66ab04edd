"""Flows on the dashboard: the checks 10 to 12 of its acceptance, as far as they need no browser."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest

from eventbus import EventProvider, Retry, UsageError
from eventbus.dashboard.flow_source import FlowSource, find_flow_source
from eventbus.dashboard.pages.gantt import draw
from workflows import FlowNotEnded, StepContext, Workflow, WorkflowProvider, step
from workflows.records.report import FlowPage

Open = Callable[..., Any]
Make = Callable[..., EventProvider]
ONCE = Retry(attempts=1)


def _checkout(ran: list[str], fate: dict[str, bool]) -> Workflow[dict[str, str], str]:
    """Reserve, charge, ship; `fate` says which of charge, ship and the rollback of reserve fails."""
    workflow = Workflow("checkout", input=dict[str, str], output=str, retry=ONCE)

    def fail_if(name: str, card: str = "") -> None:
        ran.append(name)
        if fate.get(name):
            raise ValueError(f"{name} failed with {card}")

    @workflow.step()
    async def reserve(ctx: StepContext[dict[str, str]]) -> str:
        fail_if("reserve")
        return "r-1"

    @reserve.rollback
    async def release(ctx: StepContext[dict[str, str]], reserved: str) -> None:
        fail_if("release")

    @workflow.step(after=reserve)
    async def charge(ctx: StepContext[dict[str, str]]) -> str:
        fail_if("charge")
        return "c-1"

    @workflow.step(after=charge)
    async def ship(ctx: StepContext[dict[str, str]]) -> str:
        fail_if("ship", ctx.input["card"])
        return "s-1"

    @workflow.completed
    async def done(ctx: StepContext[dict[str, str]]) -> str:
        return "done"

    return workflow


async def _end(flows: WorkflowProvider, flow_id: str) -> None:
    while (await flows.status(flow_id)).state not in ("completed", "failed", "cancelled"):
        pass


async def test_check_12_a_retry_says_before_what_runs_again_and_two_clicks_begin_one_run(
    make_provider: Make, open_dashboard: Open
) -> None:
    provider, ran, fate = make_provider(), list[str](), {"ship": True, "release": True}
    flows = WorkflowProvider(provider)
    flows.register(workflow := _checkout(ran, fate))
    async with provider, provider.worker():
        flow = await flows.execute(workflow, {"card": "4111111111111111"})
        await _end(flows, flow.id)
        client = open_dashboard(provider, flows=flows)
        page = (await client.get(f"/flows/{flow.id}")).text
        view = (await client.get(f"/api/v1/flows/{flow.id}")).json()
        assert view["keeps"] == ["reserve", "charge"]
        assert view["again"] == ["ship"]
        assert "<b>reserve, charge</b> keep their results" in page
        assert "<b>ship</b> runs again" in page
        assert "4111111111111111" not in page
        assert "ship failed with •••" in page

        ran.clear()
        fate.clear()
        path = f"/flows/{flow.id}/retry"
        clicks = [client.act(path, run=1), client.act(path, run=1), client.post(path, data={"run": "1"})]
        answers = await asyncio.gather(*clicks)
        assert (
            sorted(each.status_code for each in answers).count(409)
            + [each.status_code for each in answers].count(412)
            == 2
        )
        await _end(flows, flow.id)
        assert ran == ["ship"]
        assert (await client.act(path, run=1)).status_code == 412
        assert (await flows.report(flow.id)).run == 2


async def test_a_retry_of_a_run_that_is_not_the_last_one_is_refused(make_provider: Make) -> None:
    provider, ran = make_provider(), list[str]()
    flows = WorkflowProvider(provider)
    flows.register(workflow := _checkout(ran, {}))
    async with provider, provider.worker():
        flow = await flows.execute(workflow, {"card": "1"})
        await flow.result()
        await (await flows.retry(flow.id, run=1)).result()
        assert ran == ["reserve", "charge", "ship"] * 2
        for run in (1, 3):
            with pytest.raises(FlowNotEnded, match=f"at run 2 and not at run {run}"):
                await flows.retry(flow.id, run=run)


async def test_check_11_a_page_shows_rollbacks_in_their_order_and_the_one_that_failed(
    make_provider: Make, open_dashboard: Open
) -> None:
    provider = make_provider()
    flows, workflow = WorkflowProvider(provider), Workflow("trip", input=int, retry=ONCE)

    async def book(ctx: StepContext[int]) -> int:
        return 1

    async def drop(ctx: StepContext[int], booked: int) -> None: ...

    async def refuse(ctx: StepContext[int], booked: int) -> None:
        raise ValueError("the hotel does not answer")

    async def fail(ctx: StepContext[int]) -> int:
        raise ValueError("no car")

    flight, hotel = step(book, name="flight", rollback=drop), step(book, name="hotel", rollback=refuse)
    workflow.then(flight, hotel, step(fail, name="car"))
    flows.register(workflow)
    async with provider, provider.worker():
        flow = await flows.execute(workflow, 1)
        await _end(flows, flow.id)
        client = open_dashboard(provider, flows=flows)
        page = (await client.get(f"/flows/{flow.id}")).text
        listed = (await client.get("/flows?state=failed")).text
    rollbacks = page.partition('class="rollbacks"')[2].partition("</ol>")[0]
    assert re.findall(r">(\w+)</span> (\w+)", rollbacks) == [("failed", "hotel"), ("undone", "flight")]
    assert "the hotel does not answer" in rollbacks
    assert "Its rollback is incomplete" in page
    assert "incomplete" in listed


async def test_check_10_table_and_drawing_of_a_flow_agree(make_provider: Make, open_dashboard: Open) -> None:
    provider = make_provider()
    flows, inner = WorkflowProvider(provider), Workflow("inner", input=int)
    outer = Workflow("outer", input=int, retry=ONCE)

    @inner.step()
    async def work(ctx: StepContext[int]) -> int:
        return ctx.input

    async def part(ctx: StepContext[int]) -> int:
        return 2

    many = [step(part, name=f"part-{n}") for n in range(50)]
    outer.then(step(part, name="begin")).parallel(*many, inner).then(step(_fail, name="last"))
    flows.register(outer)
    async with provider, provider.worker():
        flow = await flows.execute(outer, 1)
        await _end(flows, flow.id)
        client = open_dashboard(provider, flows=flows)
        path = f"/flows/{flow.id}"
        page, view = (await client.get(path)).text, (await client.get(f"/api/v1{path}")).json()
    steps = view["tree"]["report"]["steps"]
    own = page.partition('class="nested"')[0]
    assert set(re.findall(r'<th scope="row">([^<]+)</th>', own)) == set(steps)
    bars = dict(re.findall(r"<title>([^:]+): (\w+),", page))
    assert {
        "begin": "completed",
        "part-0": "completed",
        "part-49": "completed",
        "last": "failed",
    }.items() <= bars.items()
    assert {name for name, step in steps.items() if step["started_ms"]} == set(bars)
    assert "inner" in page


async def _fail(ctx: StepContext[int]) -> int:
    raise ValueError("no")


async def test_a_flow_is_cancelled_with_its_reason(make_provider: Make, open_dashboard: Open) -> None:
    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(workflow := _checkout([], {}))
    async with provider:
        flow = await flows.execute(workflow, {"card": "1"})
        client = open_dashboard(provider, flows=flows)
        path = f"/flows/{flow.id}"
        assert (await client.get("/find", params={"q": flow.id})).headers["location"] == path
        assert "Cancel…" in (await client.get(path)).text
        done = await client.post(f"{path}/cancel", data={"reason": "changed my mind"})
        assert done.headers["location"] == f"{path}?done=changed"
        assert (await client.act(f"{path}/retry", run=1)).status_code in (200, 409)
    async with provider, provider.worker():
        await _end(flows, flow.id)
        assert "changed my mind" in (await flows.report(flow.id)).error


async def test_flows_are_refused_where_the_dashboard_is_read_only(
    make_provider: Make, open_dashboard: Open
) -> None:
    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(workflow := _checkout([], {}))
    async with provider:
        flow = await flows.execute(workflow, {"card": "1"})
        client = open_dashboard(provider, flows=flows, read_only=True)
        path = f"/flows/{flow.id}"
        for order, given in (("cancel", {"reason": "x"}), ("retry", {"run": 1})):
            assert (await client.act(f"{path}/{order}", **given)).status_code == 403
            assert (await client.post(f"{path}/{order}", data=given)).status_code == 403


async def test_the_command_finds_the_flows_of_the_installed_package(make_provider: Make) -> None:
    found = find_flow_source(make_provider())
    assert isinstance(found, WorkflowProvider)
    _: FlowSource = found


def test_a_drawing_has_two_hundred_rows_and_says_how_many_are_left_out() -> None:
    step = {"state": "completed", "started_ms": 1000, "ended_ms": 2000}
    report = {"steps": {f"s{n}": step for n in range(230)}, "rollbacks": [], "ended_ms": 2000}
    drawing = draw(report)
    assert drawing is not None
    assert (len(drawing.bars), drawing.left_out) == (200, 30)
    assert {bar.width for bar in drawing.bars} == {800.0}
    assert draw({"steps": {}, "rollbacks": [], "ended_ms": 0}) is None


async def test_a_flow_that_cannot_be_retried_says_why(make_provider: Make, open_dashboard: Open) -> None:
    class Refusing:
        async def flow_page(self, *_: Any, **__: Any) -> FlowPage:
            return FlowPage(flows=[])

        async def versions(self, **_: Any) -> list[Any]:
            return []

        async def graph(self, *_: Any, **__: Any) -> Any: ...

        async def waits(self, *_: Any, **__: Any) -> list[Any]:
            return []

        async def signal(self, *_: Any, **__: Any) -> None: ...

        async def tree(self, *_: Any, **__: Any) -> Any:
            raise UsageError("flow f is a part of another one")

        async def retry(self, *_: Any, **__: Any) -> Any: ...

    async with make_provider() as provider:
        client = open_dashboard(provider, flows=Refusing())
        assert (await client.get("/api/v1/flows")).json() == {"flows": [], "cursor": None, "seen": 0}
        answer = await client.act("/flows/f/retry", run=1)
        assert (answer.status_code, answer.json()["detail"]) == (409, "flow f is a part of another one")
