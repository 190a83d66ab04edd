"""Plans: every step after what it needs, circles found and named, large graphs at once."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

import pytest
from drivers.counting import count_lines
from hypothesis import given
from hypothesis import strategies as st

from eventbus import DefinitionError
from workflows.definition.plan import FlowBuilder, FlowPlan, PlanStep, build


class _Step(NamedTuple):
    after: tuple[str, ...]


class _Graph(NamedTuple):
    name: str
    steps: Mapping[str, _Step]


def _graph(**after: str) -> _Graph:
    """Make a graph of steps with one letter each: `_graph(a="", b="a", c="ab")`."""
    return _Graph("shop", {name: _Step(tuple(needs)) for name, needs in after.items()})


@st.composite
def _orders(draw: st.DrawFn) -> _Graph:
    """Draw graphs without circles, whose steps are defined in any order."""
    names = [f"s{i}" for i in range(draw(st.integers(0, 12)))]
    steps = {
        name: _Step(tuple(draw(st.lists(st.sampled_from(names[:i]), unique=True, max_size=5)) if i else []))
        for i, name in enumerate(names)
    }
    return _Graph("shop", {name: steps[name] for name in draw(st.permutations(names))})


@st.composite
def _any_graphs(draw: st.DrawFn) -> _Graph:
    names = [f"s{i}" for i in range(draw(st.integers(1, 8)))]
    needs = st.lists(st.sampled_from(names), unique=True, max_size=2)
    return _Graph("shop", {name: _Step(tuple(draw(needs))) for name in names})


def _before(graph: _Graph, step: str) -> dict[str, int]:
    """Return all steps before one, with their distance, by breadth."""
    found: dict[str, int] = {}
    level, distance = list(graph.steps[step].after), 1
    while level:
        fresh = [name for name in dict.fromkeys(level) if name not in found]
        found.update(dict.fromkeys(fresh, distance))
        level = [need for name in fresh for need in graph.steps[name].after]
        distance += 1
    return found


@given(_orders())
def test_every_step_comes_once_and_after_all_that_it_needs(graph: _Graph) -> None:
    plan = build(graph)
    place = {node.step: index for index, node in enumerate(plan.nodes)}
    assert len(plan.nodes) == len(graph.steps)
    assert set(place) == set(graph.steps)
    for node in plan.nodes:
        assert node.needs == graph.steps[node.step].after == plan.needs(node.step)
        assert all(place[need] < place[node.step] for need in node.needs)


@given(_orders())
def test_the_last_steps_are_those_that_nobody_waits_for(graph: _Graph) -> None:
    plan = build(graph)
    followed = {need for step in graph.steps.values() for need in step.after}
    assert len(plan.last) == len(set(plan.last))
    assert set(plan.last) == set(graph.steps) - followed
    # The flow waits for these steps alone, so they and their predecessors must be all steps.
    assert {*plan.last, *(each for step in plan.last for each in plan.ancestors(step))} == set(graph.steps)


@pytest.mark.slow
@given(_orders())
def test_ancestors_are_all_steps_before_the_nearest_first(graph: _Graph) -> None:
    plan = build(graph)
    for step in graph.steps:
        distances = _before(graph, step)
        ancestors = plan.ancestors(step)
        assert len(ancestors) == len(set(ancestors))
        assert set(ancestors) == set(distances)
        assert [distances[each] for each in ancestors] == sorted(distances.values())
        assert [plan.ancestors(step, most) for most in (0, 1, 3)] == [ancestors[:most] for most in (0, 1, 3)]


@given(_orders())
def test_one_definition_has_one_plan(graph: _Graph) -> None:
    assert build(graph).nodes == FlowBuilder(graph).build().nodes


@given(_any_graphs())
def test_a_circle_is_found_and_named_just_when_there_is_one(graph: _Graph) -> None:
    has_circle = any(step in _before(graph, step) for step in graph.steps)
    if not has_circle:
        assert len(build(graph).nodes) == len(graph.steps)
        return
    with pytest.raises(DefinitionError, match="steps of workflow 'shop' wait for each other") as raised:
        build(graph)
    told = str(raised.value).split(": ")[1].split(";")[0]
    circle = [name.strip("'") for name in told.split(" after ")]
    assert circle[0] == circle[-1]
    assert len(set(circle)) == len(circle) - 1
    assert all(need in graph.steps[step].after for step, need in itertools.pairwise(circle))


def test_a_row_is_planned_in_its_order() -> None:
    plan = build(_graph(a="", b="a", c="b"))
    assert plan.nodes == [PlanStep("a", ()), PlanStep("b", ("a",)), PlanStep("c", ("b",))]
    assert (plan.last, plan.ancestors("c")) == (("c",), ["b", "a"])


def test_what_the_graph_leaves_open_follows_the_order_of_definition() -> None:
    plan = build(_graph(late="c", b="", c="", a="bc"))
    assert [node.step for node in plan.nodes] == ["b", "c", "late", "a"]
    assert plan.last == ("late", "a")


def test_a_diamond_names_the_common_step_once() -> None:
    plan = build(_graph(a="", b="a", c="a", d="bc"))
    assert (plan.last, plan.ancestors("d"), plan.ancestors("a")) == (("d",), ["b", "c", "a"], [])


def test_a_workflow_without_steps_has_an_empty_plan() -> None:
    plan = build(_graph())
    assert (plan.nodes, plan.last) == ([], ())


def test_a_step_after_itself_is_a_circle() -> None:
    with pytest.raises(
        DefinitionError, match="wait for each other, so none can start: 'a' after 'a'; take one"
    ):
        build(_graph(a="a"))


def test_steps_around_a_circle_are_not_named_as_part_of_it() -> None:
    with pytest.raises(DefinitionError, match=re.escape(": 'b' after 'c' after 'b'; ")):
        build(_graph(f="", e="b", b="cf", c="b"))


def test_an_unknown_step_is_named_with_who_waits_for_it() -> None:
    with pytest.raises(
        DefinitionError,
        match=r"step 'b' of workflow 'shop' comes after 'x', which is no step of it; .*: 'a', 'b'$",
    ):
        build(_graph(a="", b="ax"))


def test_a_long_list_of_known_steps_is_cut() -> None:
    steps = {f"s{i}": _Step(()) for i in range(500)}
    with pytest.raises(DefinitionError, match=r"'s9' and 491 more$"):
        build(_Graph("shop", {**steps, "z": _Step(("nothing",))}))


def _row(count: int) -> _Graph:
    return _Graph("shop", {f"s{i}": _Step((f"s{i - 1}",) if i else ()) for i in range(count)})


def _fan(count: int) -> _Graph:
    members = {f"s{i}": _Step(("first",)) for i in range(count)}
    return _Graph("shop", {"first": _Step(()), **members, "end": _Step(tuple(members))})


@pytest.mark.parametrize("make", [_row, _fan])
def test_to_plan_ten_times_as_many_steps_costs_ten_times_as_much(make: Callable[[int], _Graph]) -> None:
    few, many = _cost(make(100)), _cost(make(1000))
    assert many < 12 * few, (few, many)
    assert many < 200_000, "some 100 lines of Python for each step"


def _cost(graph: _Graph) -> int:
    with count_lines() as lines:
        plan = build(graph)
        plan.ancestors(plan.last[0])
    assert len(plan.nodes) == len(graph.steps)
    return lines.count


def test_a_circle_of_ten_thousand_steps_needs_no_recursion() -> None:
    graph = _row(10_000)
    closed = _Graph("shop", {**graph.steps, "s0": _Step(("s9999",))})
    with pytest.raises(
        DefinitionError, match=r"'s9998' .* after \.\.\. 9991 more \.\.\. after .* after 's0';"
    ):
        build(closed)


def test_ancestors_of_a_graph_with_very_many_paths_are_each_visited_once() -> None:
    names = [(f"l{i}", f"r{i}") for i in range(60)]  # 2**60 paths from the last pair to the first
    steps = {name: _Step(names[i - 1] if i else ()) for i, pair in enumerate(names) for name in pair}
    assert len(build(_Graph("shop", steps)).ancestors("l59")) == 118


def test_asking_for_the_nearest_costs_no_walk_to_the_start() -> None:
    plan: FlowPlan = build(_row(10_000))
    assert plan.ancestors("s9999", most=64) == [f"s{i}" for i in range(9998, 9934, -1)]


def test_a_step_that_is_not_of_the_plan_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        build(_graph(a="")).ancestors("b")


def test_who_waited_for_a_step_that_is_done_waits_for_what_that_one_waited_for() -> None:
    plan = build(_graph(a="", b="a", c="b", d="bc", e="d"))
    assert plan.without({"b", "c"}).nodes == [PlanStep("a", ()), PlanStep("d", ("a",)), PlanStep("e", ("d",))]
    assert plan.without({"d", "e"}).last == ("c",)
    assert plan.without({"a"}).nodes[0] == PlanStep("b", ())
    assert plan.without({"a", "b", "c", "d", "e"}).nodes == []
    assert plan.without(()).nodes == plan.nodes


@given(_orders(), st.data())
def test_what_is_left_of_a_plan_keeps_its_order(graph: _Graph, data: st.DataObject) -> None:
    kept = data.draw(st.sets(st.sampled_from(sorted(graph.steps)))) if graph.steps else set[str]()
    plan = build(graph).without(kept)
    assert [node.step for node in plan.nodes] == [n.step for n in build(graph).nodes if n.step not in kept]
    for node in plan.nodes:
        before = set(_before(graph, node.step)) - kept
        assert set(plan.ancestors(node.step)) == before
        assert not set(node.needs) & kept
    followed = {need for node in plan.nodes for need in node.needs}
    assert set(plan.last) == {node.step for node in plan.nodes} - followed
