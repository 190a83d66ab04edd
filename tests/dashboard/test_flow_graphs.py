"""The graph, the times as a file, the signals and the versions of flows, over the API and without a
browser.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from eventbus import EventProvider, Retry
from eventbus.dashboard import Actor, Target
from eventbus.dashboard.links import Links
from workflows import (
    END,
    FlowContext,
    MachineContext,
    Signal,
    StateMachine,
    StepContext,
    Workflow,
    WorkflowProvider,
    durable,
    step,
    transition,
)

Open = Callable[..., Any]
Make = Callable[..., EventProvider]
ONCE = Retry(attempts=1)
go = Signal("go", int)


async def _part(ctx: StepContext[int]) -> int:
    return 1


async def _fail(ctx: StepContext[int]) -> int:
    raise ValueError("no")


@durable("asks", signals=[go])
async def asks(ctx: FlowContext[int]) -> int:
    return await ctx.wait_for(go)


class Asking(StateMachine[int], name="asking", start="open"):
    @transition("open", to=END, wait=int)
    async def answer(self, ctx: MachineContext[int], number: int) -> int:
        if ctx.state < 0:
            raise ValueError("no answer")
        return number


def _outer() -> Workflow[int, Any]:
    inner = Workflow("inner", input=int).then(step(_part, name="only"))
    outer = Workflow("outer", input=int, retry=ONCE)
    many = [step(_part, name=f"part-{n}") for n in range(20)]
    return outer.then(step(_part, name="begin")).parallel(*many, inner).then(step(_fail, name="last"))


async def _ended(flows: WorkflowProvider, flow_id: str) -> None:
    while (await flows.status(flow_id)).state not in ("completed", "failed", "cancelled"):
        pass


async def test_check_10_the_graph_of_the_api_has_the_states_of_the_steps_and_hides_what_is_hidden(
    make_provider: Make, open_dashboard: Open
) -> None:
    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(outer := _outer())

    def may(_actor: Actor, _action: str, target: Target) -> bool:
        return target.event != "workflow.inner"

    async with provider, provider.worker():
        flow = await flows.execute(outer, 1)
        await _ended(flows, flow.id)
        client, narrow = open_dashboard(provider, flows=flows), open_dashboard(provider, flows=flows, may=may)
        path = f"/api/v1/flows/{flow.id}"
        view, graph = (await client.get(path)).json(), (await client.get(f"{path}/graph")).json()
        whole = (await client.get(f"{path}/graph?fold=false")).json()
        steps = view["tree"]["report"]["steps"]
        assert {node["name"]: node["state"] for node in whole["nodes"]} == {
            name: each["state"] for name, each in steps.items()
        }
        assert {node["name"]: node["count"] for node in graph["nodes"]} == {
            "begin": 1, "part-*": 20, "inner": 1, "last": 1,
        }  # fmt: skip
        assert (graph["parts"], graph["has_edges"], len(graph["edges"])) == (23, True, 4)
        (inner,) = (node for node in graph["nodes"] if node["kind"] == "flow")
        assert (await client.get(f"/flows/{inner['flow_id'].replace('/', '!1')}")).status_code == 200
        hidden = (await narrow.get(f"{path}/graph")).json()
        assert [node["flow_id"] for node in hidden["nodes"]] == [""] * 4
        assert inner["flow_id"].replace("/", "!1") not in (await narrow.get(f"/flows/{flow.id}")).text


async def test_the_times_of_a_flow_are_a_file_that_stands_alone(
    make_provider: Make, open_dashboard: Open
) -> None:
    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(outer := _outer())
    async with provider:
        client = open_dashboard(provider, flows=flows)
        flow = await flows.execute(outer, 1)
        assert (await client.get(f"/api/v1/flows/{flow.id}/timeline.svg")).status_code == 409
        async with provider.worker():
            await _ended(flows, flow.id)
        for base in ("", "/api/v1"):
            answer = await client.get(f"{base}/flows/{flow.id}/timeline.svg")
            assert answer.headers["content-type"].startswith("image/svg+xml")
            assert answer.headers["content-disposition"] == 'attachment; filename="timeline.svg"'
            assert answer.text.startswith("<svg xmlns=")
            assert answer.text.count("<rect") == 1 + 23
        assert (await client.get("/flows/outer~0/timeline.svg")).status_code == 404


async def test_a_signal_is_sent_by_those_who_may_and_refused_with_the_field_that_does_not_fit(
    make_provider: Make, open_dashboard: Open
) -> None:
    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(asks)
    async with provider, provider.worker():
        flow = await flows.execute(asks, 1)
        while not await flows.waits(flow.id):
            pass
        client = open_dashboard(provider, flows=flows)
        closed = open_dashboard(provider, flows=flows, actions={"*": {"flow.signal": False}})
        path = f"/flows/{flow.id}/signals/go"
        assert "Signal go…" in (await client.get(f"/flows/{flow.id}")).text
        assert "Signal go…" not in (await closed.get(f"/flows/{flow.id}")).text
        assert (await closed.act(path, payload=1)).status_code == 403
        refused = await client.act(path, payload="x")
        assert (refused.status_code, "Expected `int`" in refused.json()["detail"]) == (422, True)
        assert (await client.post(path, data={"text": "{"})).status_code == 422
        other = await client.act(f"/flows/{flow.id}/signals/other", payload=1)
        assert (other.status_code, "declares no signal" in other.json()["detail"]) == (422, True)
        (wait,) = (await client.get(f"/api/v1/flows/{flow.id}")).json()["waits"]
        assert (wait["place"], wait["signal"]) == ("0", "go")
        done = await client.post(path, data={"text": "7"})
        assert done.headers["location"] == f"/flows/{flow.id}?done=changed"
        assert await flow.result() == 7
        late = await client.act(path, payload=7)
        assert (late.status_code, "has ended" in late.json()["detail"]) == (409, True)


async def test_a_signal_of_a_state_machine_is_a_trigger_which_its_place_takes_or_refuses(
    make_provider: Make, open_dashboard: Open
) -> None:
    provider, away = make_provider(), make_provider()
    flows, unknown = WorkflowProvider(provider), WorkflowProvider(away)
    flows.register(Asking)
    async with provider, away, provider.worker():
        flow = await flows.execute(Asking, 1)
        while not await flows.waits(flow.id):
            pass
        client = open_dashboard(away, flows=unknown)
        assert "Trigger answer…" in (await client.get(f"/flows/{flow.id}")).text
        wrong = await client.act(f"/flows/{flow.id}/signals/other", payload=7)
        assert (wrong.status_code, "which accepts answer" in wrong.json()["detail"]) == (409, True)
        assert (await client.act(f"/flows/{flow.id}/signals/answer", payload=7)).status_code == 200
        assert await flow.result() == 7


async def test_a_state_machine_that_stands_with_an_error_is_retried_in_its_run(
    make_provider: Make, open_dashboard: Open
) -> None:
    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(Asking)
    async with provider, provider.worker():
        flow = await flows.execute(Asking, -1)
        while not await flows.waits(flow.id):
            pass
        client = open_dashboard(provider, flows=flows)
        early = await client.act(f"/flows/{flow.id}/retry", run=1)
        assert (early.status_code, "nothing failed at its place" in early.json()["detail"]) == (409, True)
        await flow.trigger(Asking.answer, 7)
        while not (await flow.report()).error:
            pass
        done = (await client.act(f"/flows/{flow.id}/retry", run=1)).json()
        assert (done["changed"], done["note"], done["run"]) == (True, "it goes on at its place", 1)


@pytest.mark.parametrize("size", [1, 3, 50])
async def test_a_page_of_flows_is_full_whatever_the_caller_may_not_see(
    make_provider: Make, open_dashboard: Open, size: int
) -> None:
    provider = make_provider()
    flows = WorkflowProvider(provider)
    secret = Workflow("secret", input=int).then(step(_part, name="only"))
    shown = Workflow("shown", input=int).then(step(_part, name="only"))
    flows.register(secret)
    flows.register(shown)

    def may(_actor: Actor, _action: str, target: Target) -> bool:
        return target.event != "workflow.secret"

    async with provider, provider.worker():
        wanted = [(await flows.execute(shown, 1)) for _ in range(4)]
        hidden = [(await flows.execute(secret, 1)) for _ in range(10)]
        for flow in (*wanted, *hidden):
            await flow.result()
        client = open_dashboard(provider, flows=flows, may=may)
        found: list[str] = []
        url = f"/api/v1/flows?limit={size}"
        while url:
            answer = await client.get(url)
            found += [line["flow_id"] for line in answer.json()["flows"]]
            link = answer.headers.get("link", "")
            assert bool(link) == (answer.json()["cursor"] is not None)
            url = link.partition("<")[2].partition(">")[0]
        assert len(found) == 4
        assert set(found) == {flow.id for flow in wanted}
        assert (await client.get("/api/v1/flows?cursor=x")).status_code == 422
        versions = (await client.get("/api/v1/workflows")).json()["versions"]
        assert [line["workflow"] for line in versions] == ["shown"]


async def test_the_page_of_flows_says_which_versions_may_go(
    make_provider: Make, open_dashboard: Open
) -> None:
    old = Workflow("shop", input=int, version="1").then(step(_part, name="only"))
    new = Workflow("shop", input=int, version="2").then(step(_part, name="only"))
    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(old)
    flows.register(new)
    async with provider:
        await flows.execute(old, 1, delay="1 hour")
        client = open_dashboard(provider, flows=flows)
        page = (await client.get("/flows")).text
        assert "no worker can run its open flows" in page
        async with provider.worker():
            versions = (await open_dashboard(provider, flows=flows).get("/api/v1/workflows")).json()[
                "versions"
            ]
            told = [(line["version"], line["open"], line["workers"], line["is_safe"]) for line in versions]
            assert told == [("1", 1, 1, False), ("2", 0, 1, False)]
            for line in (await flows.flows("shop"))[:1]:
                await provider.jobs.cancel(line.flow_id, "")
                await _ended(flows, line.flow_id)
            page = (await open_dashboard(provider, flows=flows).get("/flows")).text
            table = page.partition("<h2>Versions</h2>")[2]
            rows = re.findall(
                r"<td>(\d)</td>\n  <td class=\"number\">(\d)</td>.*?<td>([^<]+)</td>", table, re.DOTALL
            )
            assert rows == [("1", "0", "safe to remove"), ("2", "0", "new flows use it")]


async def test_a_long_table_of_steps_has_pages_and_states_to_choose(
    make_provider: Make, open_dashboard: Open
) -> None:
    provider = make_provider()
    flows, workflow = WorkflowProvider(provider), Workflow("row", input=int, retry=ONCE)
    workflow.then(
        *(step(_part, name=f"s{n}") for n in range(230)), step(_fail, name="bad"), step(_part, name="z")
    )
    flows.register(workflow)
    async with provider, provider.worker():
        flow = await flows.execute(workflow, 1)
        await _ended(flows, flow.id)
        client = open_dashboard(provider, flows=flows)

        async def names(query: str = "") -> list[str]:
            text = (await client.get(f"/flows/{flow.id}{query}")).text
            return re.findall(r'<th scope="row">([^<]+)</th>', text)

        assert await names() == [f"s{n}" for n in range(100)]
        assert await names("?steps=3") == [*(f"s{n}" for n in range(200, 230)), "bad", "z"]
        assert await names("?steps=99") == await names("?steps=3")
        assert await names("?state=failed") == ["bad"]


async def test_check_11_a_nested_flow_shows_its_rollback_on_its_own_page_and_in_the_flow_around_it(
    make_provider: Make, open_dashboard: Open
) -> None:
    provider = make_provider()
    flows = WorkflowProvider(provider)

    async def undo(ctx: StepContext[int], result: int) -> None: ...

    inner: Workflow[int, int] = Workflow("packing", input=int, retry=ONCE)
    inner.then(step(_part, name="pick", rollback=undo)).then(step(_part, name="wrap", rollback=undo))
    outer: Workflow[int, int] = Workflow("delivery", input=int, retry=ONCE)
    outer.then(inner).then(step(_fail, name="ship"))
    flows.register(outer)
    async with provider, provider.worker():
        flow = await flows.execute(outer, 1)
        while (await flow.status()).state != "failed":
            pass
        client = open_dashboard(provider, flows=flows)
        tree = (await client.get(f"/api/v1/flows/{flow.id}")).json()["tree"]
        (packing,) = tree["nested"]["packing"]
        own_path = Links("")("flows", packing["report"]["flow_id"])
        own = (await client.get(f"/api/v1{own_path}")).json()["tree"]
        graph = (await client.get(f"/api/v1{own_path}/graph")).json()
        pages = [(await client.get(path)).text for path in (f"/flows/{flow.id}", own_path)]
    undone = [{"step": "wrap", "error": ""}, {"step": "pick", "error": ""}]
    assert own["report"]["rollbacks"] == packing["report"]["rollbacks"] == undone
    assert {node["name"]: node["state"] for node in graph["nodes"]} == {"pick": "undone", "wrap": "undone"}
    assert [page.count("The flow around it has undone it.") for page in pages] == [1, 1]
    assert [page.count('class="rollbacks"') for page in pages] == [1, 1], "each rollback is listed once"
