"""The graph of a state machine: its places and transitions, and the place where a flow stands."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

from importable.review_program import Part, Review

from eventbus import EventProvider
from workflows import END, MachineContext, StateMachine, WorkflowProvider, transition
from workflows.graphs.definitions import graph_of
from workflows.graphs.folding import fold
from workflows.graphs.graph import decode_graph, encode_graph
from workflows.graphs.mermaid import mermaid
from workflows.graphs.runs import graph_of_run
from workflows.records.report import FlowReport, FlowTree, MachineReport, MoveReport

Make = Callable[..., EventProvider]
Until = Callable[..., Any]

DRAWN = """\
flowchart TD
  n0("draft<br>start")
  n1[/"broken"\\]
  n2("checking")
  n3("done")
  n4("waiting")
  n5((("__end__")))
  n0 -->|"write"| n2
  n2 -->|"note (children)"| n4
  n4 -->|"approve (trigger, guard, priority 1)"| n3
  n4 -->|"send_back (trigger)"| n0
  n1 -->|"send_back (trigger)"| n0
  n3 -->|"publish"| n5
  n0 -.->|"write, on error"| n1
"""


def test_the_places_are_nodes_and_the_transitions_edges_with_what_makes_them_fire() -> None:
    graph = graph_of(Review.definition)
    assert mermaid(graph) == DRAWN
    assert (graph.version, graph_of(Part.definition).version) == (Review.definition.version, "7")
    assert decode_graph(encode_graph(graph)) == graph


def test_a_transition_with_a_delay_says_how_long_it_is() -> None:
    class Renewing(StateMachine[int], name="renewing", start="a"):
        @transition("a", to="b", delay="30 days", when=lambda ctx: ctx.state > 0)
        async def renew(self, ctx: MachineContext[int]) -> None: ...

        @transition("b", to="a", delay="90 s")
        async def remind(self, ctx: MachineContext[int]) -> None: ...

    labels = [edge.label for edge in graph_of(Renewing.definition).edges]
    assert labels == ["renew (after 30 d, guard)", "remind (after 90 s)"]


def _report(place: str, state: Any, *, error: str = "", moves: list[MoveReport] | None = None) -> FlowTree:
    machine = MachineReport(place=place, moves=moves or [])
    return FlowTree(
        report=FlowReport(flow_id="review~1", workflow="review", state=state, error=error, machine=machine)
    )


def test_a_flow_stands_at_one_place_with_its_error_or_with_the_state_in_which_it_ended() -> None:
    definition = graph_of(Review.definition)
    for place, state, error, shown in [
        ("waiting", "waiting", "", "stands_here"),
        ("draft", "running", "", "stands_here"),
        ("checking", "waiting", "ValueError: no", "failed"),
        (END, "completed", "", "completed"),
        ("waiting", "cancelled", "JobCancelled: enough", "cancelled"),
        ("waiting", "failed", "timed out", "failed"),
    ]:
        graph = graph_of_run(_report(place, state, error=error), definition)
        assert {node.name: node.state for node in graph.nodes if node.state} == {place: shown}
        assert (graph.edges, graph.parts, graph.state) == (definition.edges, 6, state)


def test_the_text_of_a_flow_marks_where_it_stands() -> None:
    drawn = mermaid(graph_of_run(_report("waiting", "waiting"), graph_of(Review.definition)))
    assert '  n4("waiting<br>stands here")' in drawn.splitlines()
    assert drawn.splitlines()[-1] == "  class n4 active"
    broken = mermaid(
        graph_of_run(_report("broken", "waiting", error="ValueError: no"), graph_of(Review.definition))
    )
    assert '  n1[/"broken<br>failed"\\]' in broken.splitlines()


def test_a_place_of_another_release_is_drawn_with_the_moves_of_the_history() -> None:
    moves = [
        MoveReport(kind="move", transition="", source="", target="draft", version=0),
        MoveReport(kind="move", transition="write", source="draft", target="checking", version=1),
        MoveReport(kind="move", transition="judge", source="checking", target="judged", version=2),
        MoveReport(kind="refused", transition="note", source="judged", target="waiting", version=2),
        MoveReport(kind="move", transition="", source="judged", target="waiting", version=3),
    ]
    graph = graph_of_run(_report("judged", "waiting", moves=moves), graph_of(Review.definition))
    assert [node.name for node in graph.nodes][6:] == ["judged"]
    known = len(graph_of(Review.definition).edges)
    assert [(edge.source, edge.target, edge.label) for edge in graph.edges[known:]] == [
        ("checking", "judged", "judge"),
        ("judged", "waiting", "by hand"),
    ]
    alone = graph_of_run(_report("judged", "waiting", moves=moves), None)
    assert [node.name for node in alone.nodes] == ["draft", "checking", "judged", "waiting"]
    assert [edge.label for edge in alone.edges] == ["write", "judge", "by hand"]
    assert [node.state for node in alone.nodes] == ["", "", "stands_here", ""]


def test_many_places_alike_are_one_node() -> None:
    names = [f"room-{number}" for number in range(20)]
    space: dict[str, Any] = {"__orig_bases__": (StateMachine[int],)}
    for name in names:
        for way, source, target in (("to", "hall", name), ("from", name, "hall")):

            async def move(self: Any, ctx: MachineContext[int], payload: None) -> None: ...

            move.__name__ = f"{way}-{name}"
            space[move.__name__] = transition(source, to=target, wait=None)(move)
    machine: Any = type("House", (StateMachine,), space, start="hall", name="house")
    folded = fold(graph_of(machine.definition))
    assert [(node.name, node.count) for node in folded.nodes] == [("hall", 1), ("room-*", 20)]
    assert folded.parts == 21


async def test_a_flow_is_drawn_where_it_stands_also_by_a_program_that_does_not_know_it(
    make_provider: Make, until: Until, admin: Callable[..., Any], store: Any
) -> None:
    provider, other = make_provider(), make_provider()
    flows, foreign = WorkflowProvider(provider), WorkflowProvider(other)
    flows.register(Review)
    flows.register(Part)
    async with provider, other, provider.worker():
        places = [("workflow.review", Review.definition.version), ("workflow.part", "7")]
        keys = [store.keys.definition(*place) for place in places]
        await until(lambda: admin("EXISTS", *keys) == 2, "the worker has told its definitions")
        flow = await flows.execute(Review, -1)

        async def stands() -> bool:
            return any(node.state for node in (await flows.graph(flow.id)).nodes)

        await until(stands, "it has begun")

        async def rests(place: str) -> bool:
            graph = await foreign.graph(flow.id)
            return [node.name for node in graph.nodes if node.state == "stands_here"] == [place]

        async def failed() -> bool:
            graph = await foreign.graph(flow.id)
            return [(node.name, node.state) for node in graph.nodes if node.state] == [("broken", "failed")]

        await until(failed, "it stands at its error place")
        await flow.trigger(Review.send_back, 5)
        await until(lambda: rests("waiting"), "it stands where it waits")
        own, told = await flows.graph(flow.id), await foreign.graph(flow.id)
        assert own == told
        assert (told.version, len(told.edges), told.has_edges) == (Review.definition.version, 7, True)
        await flow.trigger(Review.approve, True)
        assert await flow.result(240) == "published 5"
        ended = {node.name: node.state for node in (await foreign.graph(flow.id)).nodes if node.state}
        assert ended == {END: "completed"}
        part = await flows.execute(Part, 1)
        await part.result(240)
        assert [edge.label for edge in (await foreign.graph(part.id)).edges] == ["go"]


def test_the_page_on_machines_shows_the_drawing_of_its_example() -> None:
    root = Path(__file__).resolve().parents[3]
    example: Any = runpy.run_path(str(root / "examples" / "review.py"))
    drawn = mermaid(graph_of(example["Review"].definition))
    assert f"```mermaid\n{drawn}```" in (root / "docs" / "machines.md").read_text()
