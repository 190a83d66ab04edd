"""Graphs: of definitions and of flows, folded, and as Mermaid text."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from eventbus import EventProvider, Retry
from workflows import (
    FlowContext,
    Pipeline,
    PipelineContext,
    Signal,
    StepContext,
    Workflow,
    WorkflowProvider,
    durable,
    step,
    task,
)
from workflows.graphs.definitions import graph_of
from workflows.graphs.folding import fold, worst_of
from workflows.graphs.graph import Graph, GraphEdge, GraphNode, decode_graph, encode_graph
from workflows.graphs.mermaid import mermaid
from workflows.graphs.runs import graph_of_run
from workflows.records.report import FlowReport, FlowTree, RollbackReport, StepReport
from workflows.testing import start_inline

pytestmark = pytest.mark.virtual

Make = Callable[..., EventProvider]
ONCE = Retry(attempts=1)


async def _part(ctx: StepContext[int]) -> int:
    return 1


async def _fail(ctx: StepContext[int]) -> int:
    raise ValueError("no")


@task
async def charge(amount: int) -> int:
    return amount


@task
async def ship(amount: int) -> int:
    return amount


go = Signal("go", int)


@durable("order", signals=[go])
async def order(ctx: FlowContext[int]) -> int:
    paid = await ctx.step(charge, 1)
    if paid > 5:
        await ctx.step(ship, 9)
    await ctx.gather(ctx.step(charge, 2), ctx.sleep(0.01))
    await ctx.map(ship, [1, 2, 3])
    return await ctx.wait_for(go)


def _edges(graph: Graph) -> set[tuple[str, str]]:
    return {(edge.source, edge.target) for edge in graph.edges}


def _wide(name: str = "wide") -> Workflow[int, Any]:
    """One step, then fifty and a nested flow, then one that fails."""
    inner = Workflow("inner", input=int).then(step(_part, name="only"))
    many = [step(_part, name=f"part-{n}") for n in range(50)]
    workflow = Workflow(name, input=int, retry=ONCE)
    return workflow.then(step(_part, name="begin")).parallel(*many, inner).then(step(_fail, name="last"))


def test_a_step_graph_gives_its_steps_with_their_kinds_and_what_follows_what() -> None:
    workflow: Workflow[int, Any] = Workflow("mixed", input=int)
    workflow.then(step(_part, name="first"))
    workflow.sleep("1s", name="rest")
    workflow.wait(go, name="answer")
    workflow.flow(Workflow("inner", input=int).then(step(_part, name="only")), after=None)
    graph = graph_of(workflow)
    assert [(node.name, node.kind, node.about) for node in graph.nodes] == [
        ("first", "step", ""),
        ("rest", "sleep", ""),
        ("answer", "wait", "go"),
        ("inner", "flow", "inner"),
    ]
    assert _edges(graph) == {("first", "rest"), ("rest", "answer")}
    assert graph.version == workflow.version


def test_a_durable_function_gives_the_calls_of_its_code_with_conditions_side_by_side() -> None:
    graph = graph_of(order)
    assert [(node.name, node.kind) for node in graph.nodes] == [
        ("charge", "step"),
        ("ship", "step"),
        ("charge (2)", "step"),
        ("sleep", "sleep"),
        ("ship (2)", "each"),
        ("go", "wait"),
    ]
    assert _edges(graph) == {
        ("charge", "ship"),
        ("ship", "charge (2)"),
        ("charge", "charge (2)"),
        ("ship", "sleep"),
        ("charge", "sleep"),
        ("charge (2)", "ship (2)"),
        ("sleep", "ship (2)"),
        ("ship (2)", "go"),
    }


def test_a_definition_survives_its_json_and_what_is_too_large_is_not_kept() -> None:
    graph = graph_of(_wide())
    assert decode_graph(encode_graph(graph)) == graph
    assert decode_graph("{") is None
    nodes = [GraphNode(name=f"{'n' * 100}{n}") for n in range(4000)]
    assert encode_graph(Graph(workflow="huge", nodes=nodes)) == ""


def test_positions_become_lanes_and_calls_that_overlapped_stand_side_by_side() -> None:
    times = {
        "a@0": (100, 200),
        "b@1": (200, 300),
        "c@2": (210, 260),
        "d@4.0.0": (300, 310),
        "e@4.0.1": (310, 320),
        "f@4.1.0": (300, 330),
        "g@5": (340, 350),
    }
    steps = {
        name: StepReport(step=name, state="completed", started_ms=begin, ended_ms=end)
        for name, (begin, end) in times.items()
    }
    report = FlowReport(flow_id="order~1", workflow="order", state="completed", steps=steps)
    assert _edges(graph_of_run(FlowTree(report=report), None)) == {
        ("a@0", "b@1"),
        ("a@0", "c@2"),
        ("b@1", "d@4.0.0"),
        ("c@2", "d@4.0.0"),
        ("b@1", "f@4.1.0"),
        ("c@2", "f@4.1.0"),
        ("d@4.0.0", "e@4.0.1"),
        ("e@4.0.1", "g@5"),
        ("f@4.1.0", "g@5"),
    }


def test_a_rollback_is_the_state_of_its_step_also_of_an_item_and_of_a_nested_flow() -> None:
    steps = {name: StepReport(step=name, state="completed") for name in ("a", "items", "inner", "kept")}
    rollbacks = [
        RollbackReport(step="inner/x"),
        RollbackReport(step="items[0]"),
        RollbackReport(step="items[1]", error="ValueError: no"),
        RollbackReport(step="a"),
    ]
    report = FlowReport(flow_id="w~1", workflow="w", state="failed", steps=steps, rollbacks=rollbacks)
    states = {node.name: node.state for node in graph_of_run(FlowTree(report=report), None).nodes}
    assert states == {"a": "undone", "items": "undo_failed", "inner": "undone", "kept": "completed"}


@pytest.mark.parametrize("count", [12, 13, 50, 1000])
def test_siblings_are_folded_from_thirteen_on_and_no_part_is_lost(count: int) -> None:
    parts = [GraphNode(name=f"part-{n}", state="failed" if n == 7 else "completed") for n in range(count)]
    edges = [edge for node in parts for edge in (GraphEdge("a", node.name), GraphEdge(node.name, "z"))]
    ends = [GraphNode(name=name, state="completed") for name in "az"]
    folded = fold(Graph(workflow="w", nodes=[*ends, *parts], edges=edges))
    assert sum(node.count for node in folded.nodes) == folded.parts == count + 2
    if count == 12:
        assert len(folded.nodes) == 14
        return
    (one,) = (node for node in folded.nodes if node.count > 1)
    assert (one.name, one.state) == ("part-*", "failed")
    assert one.states == {"completed": count - 1, "failed": 1}
    assert _edges(folded) == {("a", "part-*"), ("part-*", "z")}


def test_a_long_row_is_folded_by_names_or_not_drawn_at_all() -> None:
    row = [GraphNode(name=f"{'charge' if n % 2 else 'ship'}@{n}", state="completed") for n in range(1000)]
    edges = [GraphEdge(one.name, two.name) for one, two in pairwise(row)]
    folded = fold(Graph(workflow="w", nodes=row, edges=edges))
    assert sorted((node.name, node.count) for node in folded.nodes) == [("charge@*", 500), ("ship@*", 500)]
    assert _edges(folded) == {("charge@*", "ship@*"), ("ship@*", "charge@*")}
    words = ["".join(chr(97 + int(digit)) for digit in str(n)) for n in range(1000)]
    other = fold(Graph(workflow="w", nodes=[GraphNode(name=f"step{word}") for word in words]))
    assert (other.nodes, other.edges, other.parts) == ([], [], 1000)


def test_the_state_of_several_parts_is_the_one_that_needs_attention() -> None:
    assert worst_of({"completed": 9, "active": 1}) == "active"
    assert worst_of({"undone": 1, "failed": 1}) == "failed"
    assert worst_of({}) == ""


def test_mermaid_text_has_a_line_for_each_node_and_no_name_breaks_out_of_its_label() -> None:
    nodes = [
        GraphNode(name='a"]; click n0 "javascript:x"', state="failed"),
        GraphNode(name="b\n%%{init}%%", kind="flow", about="inner"),
        GraphNode(name="c", count=3, states={"completed": 2, "undo_failed": 1}, state="undo_failed"),
    ]
    edge = GraphEdge(nodes[0].name, "c", 'on "paid"')
    text = mermaid(Graph(workflow="w", nodes=nodes, edges=[edge]))
    lines = text.splitlines()
    assert lines[0] == "flowchart TD"
    assert len(re.findall(r'^  n\d+[\[{(>]+"[^"\n]*"', text, re.MULTILINE)) == 3
    assert '  n2["c<br>2 completed, 1 undo failed"]' in lines
    assert '  n0 -->|"on #34;paid#34;"| n2' in lines
    assert "javascript:" not in text
    assert lines[-1] == "  class n0,n2 failed"


async def test_without_the_program_the_graph_is_the_one_that_a_worker_told_and_costs_nothing_for_each_flow(
    make_provider: Make, until: Callable[..., Any], admin: Callable[..., Any], store: Any
) -> None:
    provider, other = make_provider(), make_provider()
    flows, foreign = WorkflowProvider(provider), WorkflowProvider(other)
    flows.register(workflow := _wide())
    async with provider, other, provider.worker():
        key = store.keys.definition("workflow.wide", workflow.version)
        await until(lambda: admin("EXISTS", key) == 1, "the worker has told its definitions")
        assert 89 * 86_400_000 < admin("PTTL", key) <= 90 * 86_400_000
        flow = await flows.execute(workflow, 1)
        with pytest.raises(Exception, match="last"):
            await flow.result()
        own, told = await flows.graph(flow.id), await foreign.graph(flow.id)
        assert own == told
        assert {node.name: (node.count, node.state) for node in told.nodes} == {
            "begin": (1, "completed"),
            "part-*": (50, "completed"),
            "inner": (1, "completed"),
            "last": (1, "failed"),
        }
        (inner,) = (node for node in told.nodes if node.kind == "flow")
        assert (await foreign.graph(inner.flow_id)).workflow == "inner"
        assert len((await foreign.graph(flow.id, folded=False)).nodes) == 53
        admin("DEL", key)
        assert not (await WorkflowProvider(other).graph(flow.id)).has_edges


async def test_a_worker_starts_also_where_its_definitions_are_refused(
    make_provider: Make, until: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, logs: list[Any]
) -> None:
    from eventbus import StoreRefused
    from eventbus.store.calls.presence_store import PresenceStore

    async def refuse(*_: Any, **__: Any) -> None:
        raise StoreRefused("the server is full", code="OOM")

    monkeypatch.setattr(PresenceStore, "define", refuse)
    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(order)
    async with provider, provider.worker():
        flow = await flows.execute(order, 1)
        await until(lambda: any(each["event"] == "definitions not told" for each in logs), "it is logged")
        await flow.signal(go, 3)
        assert await flow.result() == 3


async def test_the_items_of_a_list_are_counted_by_their_states(make_provider: Make) -> None:
    provider = make_provider()
    flows, workflow = WorkflowProvider(provider), Workflow("lists", input=int, retry=ONCE)

    @workflow.each(over=lambda ctx: [1, 2, 3, 4], at_once=1)
    async def square(ctx: StepContext[int], item: int) -> int:
        if item == 3:
            raise ValueError("no")
        return item * item

    flows.register(workflow)
    async with provider, provider.worker():
        flow = await flows.execute(workflow, 1)
        with pytest.raises(Exception, match="square"):
            await flow.result()
        (node,) = (await flows.graph(flow.id)).nodes
    assert (node.kind, node.count) == ("each", 4)
    assert node.states == {"completed": 2, "failed": 1, "cancelled": 1}


def test_a_sibling_of_another_name_stays_a_node_of_its_own() -> None:
    parts = [GraphNode(name=f"part-{n}") for n in range(50)]
    nodes = [GraphNode(name="a"), *parts, GraphNode(name="risky", state="failed")]
    folded = fold(Graph(workflow="w", nodes=nodes, edges=[GraphEdge("a", node.name) for node in nodes[1:]]))
    assert [(node.name, node.count) for node in folded.nodes] == [("a", 1), ("part-*", 50), ("risky", 1)]


def _is_large(ctx: StepContext[int]) -> bool:
    return ctx.input > 100


async def test_a_step_with_a_condition_tells_it_in_a_definition_and_in_a_flow() -> None:
    workflow: Workflow[int, Any] = Workflow("picky", input=int)
    workflow.step(_part, name="check", when=_is_large)
    workflow.step(_part, name="hurry", when=lambda ctx: ctx.input < 5)
    workflow.step(_part, name="always")
    inner = Workflow("inner", input=int).then(step(_part, name="only"))
    workflow.flow(inner, when=_is_large)
    graph = graph_of(workflow)
    whens = {"check": "_is_large", "hurry": "a condition", "always": "", "inner": "_is_large"}
    assert {node.name: node.when for node in graph.nodes} == whens
    text = mermaid(graph)
    assert '["check<br>if #95;is#95;large"]' in text or '["check<br>if _is_large"]' in text
    assert '["hurry<br>if a condition"]' in text
    assert '["always"]' in text
    assert decode_graph(encode_graph(graph)) == graph
    handle = start_inline(workflow, 7)
    await handle.result()
    run = graph_of_run(FlowTree(report=await handle.report()), graph)
    assert {node.name: (node.state, node.when) for node in run.nodes} == {
        "check": ("skipped", "_is_large"),
        "hurry": ("skipped", "a condition"),
        "always": ("completed", ""),
        "inner": ("skipped", "_is_large"),
    }


def test_a_pipeline_tells_its_conditions_and_what_is_folded_only_one_that_all_share() -> None:
    async def some(ctx: PipelineContext[Any]) -> None: ...

    def is_asked(ctx: PipelineContext[Any]) -> bool:
        return True

    pipeline: Pipeline[dict[str, Any], Any] = Pipeline("asked", input=dict[str, Any], output=Any)
    graph = graph_of(pipeline.then(some, when=is_asked).returns())
    assert [node.when for node in graph.nodes] == ["is_asked"]
    for last, when in (("x", "x"), ("y", "")):
        nodes = [GraphNode(name=f"part-{n}", when=last if n == 19 else "x") for n in range(20)]
        start = GraphNode(name="start")
        edges = [GraphEdge("start", node.name) for node in nodes]
        folded = fold(Graph(workflow="w", nodes=[start, *nodes], edges=edges))
        assert [node.when for node in folded.nodes] == ["", when]
