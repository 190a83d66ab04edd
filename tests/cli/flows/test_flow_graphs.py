"""`eventbus flows graph`: a definition of a program, and a flow with its states, as Mermaid text."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

from importable.review_program import Review
from typer.testing import Result

from eventbus import EventProvider
from workflows import StepContext, Workflow, WorkflowProvider

Invoke = Callable[..., Result]

_DEMO = ("workflows.cli.demo_app:provider", "checkout")


def test_a_definition_is_drawn_without_a_server(invoke: Invoke) -> None:
    ran = invoke("flows", "graph", *_DEMO)
    assert ran.exit_code == 0, ran.output
    lines = ran.stdout.splitlines()
    assert lines[0] == "flowchart TD"
    assert '  n0["reserve"]' in lines
    assert "  n0 --> n1" in lines
    graph = json.loads(invoke("flows", "graph", *_DEMO, "--json").stdout)
    assert [node["name"] for node in graph["nodes"]] == ["reserve", "charge", "ship"]


def test_a_state_machine_is_drawn_with_its_places(invoke: Invoke) -> None:
    ran = invoke("flows", "graph", "importable.review_program:provider", "review")
    assert ran.exit_code == 0, ran.output
    assert '  n0("draft<br>start")' in ran.stdout
    assert '  n4 -->|"approve (trigger, guard, priority 1)"| n3' in ran.stdout
    unknown = invoke("flows", "graph", "importable.review_program:provider", "other")
    assert "it has: 'part' and 'review'" in unknown.stderr or "it has: 'part', 'review'" in unknown.stderr


def test_a_name_that_is_not_there_is_told_with_those_that_are(invoke: Invoke) -> None:
    ran = invoke("flows", "graph", _DEMO[0], "nothing")
    assert ran.exit_code == 2
    assert "it has: 'checkout'" in ran.stderr
    assert invoke("flows", "graph").exit_code == 2
    assert invoke("flows", "graph", *_DEMO, "--id", "checkout~0").exit_code == 2


async def test_a_flow_is_drawn_with_its_states_without_its_program(
    invoke: Invoke, make_provider: Callable[..., EventProvider]
) -> None:
    provider = make_provider()
    flows, workflow = WorkflowProvider(provider), Workflow("drawn", input=int)

    @workflow.step()
    async def reserve(ctx: StepContext[int]) -> int:
        return 1

    @workflow.step(after=reserve)
    async def charge(ctx: StepContext[int]) -> int:
        return 2

    flows.register(workflow)
    async with provider, provider.worker():
        handle = await flows.execute(workflow, 1)
        await handle.result()
        while not await provider.jobs.definition("workflow.drawn", workflow.version):
            pass
        ran = await asyncio.to_thread(invoke, "flows", "graph", "--id", handle.id)
    assert ran.exit_code == 0, ran.output
    assert '  n0["reserve<br>completed"]' in ran.stdout
    assert "  n0 --> n1" in ran.stdout
    assert "  class n0,n1 completed" in ran.stdout


async def test_a_flow_of_a_machine_is_drawn_where_it_stands(
    invoke: Invoke, make_provider: Callable[..., EventProvider]
) -> None:
    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(Review)
    async with provider, provider.worker():
        flow = await flows.execute(Review, 1)
        while (await flow.status()).state != "waiting":
            pass
        while not await provider.jobs.definition("workflow.review", Review.definition.version):
            pass
        ran = await asyncio.to_thread(invoke, "flows", "graph", "--id", flow.id)
        await flow.cancel()
    assert ran.exit_code == 0, ran.output
    assert '  n4("waiting<br>stands here")' in ran.stdout
    assert "  class n4 active" in ran.stdout
