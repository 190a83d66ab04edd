"""The plan of a flow: an order in which the steps of a definition can run, and which step waits for which.

Pure: no job, no server, no input. All flows of a definition have the same plan.

What must always hold: a plan names each step once, after all steps that it needs; the same definition has the
same plan in every process; walks are loops, not recursion, so that a chain of thousands of steps has a plan
too.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Collection, Container, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple, Protocol

from eventbus import DefinitionError
from eventbus.lowlevel import shown


class _HasAfter(Protocol):
    @property
    def after(self) -> tuple[str, ...]: ...


class _HasSteps(Protocol):
    """The part of a Workflow that a plan needs."""

    @property
    def name(self) -> str: ...
    @property
    def steps(self) -> Mapping[str, _HasAfter]: ...


class PlanStep(NamedTuple):
    """One step in a plan, and the steps that it waits for."""

    step: str
    needs: tuple[str, ...]


class FlowPlan:
    """The steps of one workflow in an order in which they can run.

    `nodes` has every step once, after the steps that it needs; steps that do not depend on each other are
    in the order of definition. `last` are the steps that no other step waits for; the flow waits for them.
    `followers` are the steps that wait for each step.
    """

    __slots__ = ("_needs", "followers", "last", "nodes")

    def __init__(self, nodes: list[PlanStep]) -> None:
        self.nodes: list[PlanStep] = nodes
        self.followers: dict[str, list[str]] = {}
        for node in nodes:
            for need in node.needs:
                self.followers.setdefault(need, []).append(node.step)
        self.last: tuple[str, ...] = tuple(node.step for node in nodes if node.step not in self.followers)
        self._needs = {node.step: node.needs for node in nodes}

    def needs(self, step: str) -> tuple[str, ...]:
        """Return the steps that `step` waits for. Raises KeyError if it is not in this plan."""
        return self._needs[step]

    def ancestors(self, step: str, most: int | None = None) -> list[str]:
        """Return the steps that run before `step`, each once, the nearest first, at most `most`.

        The nearest steps are those with the fewest steps in between; ties are in the order of `after`. The
        cost grows with the number of steps that are returned, not with the plan. Raises KeyError if `step` is
        not in this plan.
        """
        found: dict[str, None] = {}
        ahead = deque(self._needs[step])
        while ahead and (most is None or len(found) < most):
            near = ahead.popleft()
            if near not in found:
                found[near] = None
                ahead.extend(self._needs[near])
        return list(found)

    def without(self, kept: Container[str]) -> FlowPlan:
        """Return the plan of the steps that are left to run if the steps in `kept` are done already.

        A step that waited for a kept step waits for that step's needs instead.
        """
        nodes: list[PlanStep] = []
        ahead: dict[str, tuple[str, ...]] = {}
        for step, needs in self.nodes:
            left = dict.fromkeys(other for need in needs for other in ahead.get(need, (need,)))
            if step in kept:
                ahead[step] = tuple(left)
            else:
                nodes.append(PlanStep(step, tuple(left)))
        return FlowPlan(nodes)


class Before(Collection[str]):
    """The steps that run before one step of a plan; computed on first use, because most steps never ask."""

    __slots__ = ("_found", "_plan", "_step")

    def __init__(self, plan: FlowPlan, step: str) -> None:
        self._plan = plan
        self._step = step
        self._found: dict[str, None] | None = None

    def __contains__(self, step: object) -> bool:
        return step in self._all

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    @property
    def _all(self) -> dict[str, None]:
        if self._found is None:
            self._found = dict.fromkeys(self._plan.ancestors(self._step))
        return self._found


class FlowBuilder:
    """Makes the plan of one workflow; call `build` again after adding steps."""

    def __init__(self, workflow: _HasSteps) -> None:
        self._workflow = workflow

    def build(self) -> FlowPlan:
        """Return the plan. Raises DefinitionError for an unknown step in `after`, and for a circle."""
        needs = {name: step.after for name, step in self._workflow.steps.items()}
        self._check_known(needs)
        try:
            return FlowPlan(_in_order(needs))
        except CycleError:
            raise DefinitionError(
                f"steps of workflow {self._workflow.name!r} wait for each other, so none can start: "
                f"{_told(_circle(needs))}; take one of these out of `after`"
            ) from None

    def _check_known(self, needs: Mapping[str, tuple[str, ...]]) -> None:
        for step, after in needs.items():
            unknown = next((need for need in after if need not in needs), None)
            if unknown is not None:
                raise DefinitionError(
                    f"step {step!r} of workflow {self._workflow.name!r} comes after {shown(unknown)}, "
                    f"which is no step of it; its steps are: {listed(list(needs))}"
                )


def build(workflow: _HasSteps) -> FlowPlan:
    """Return the plan of a workflow. Raises DefinitionError as `FlowBuilder.build` does."""
    return FlowBuilder(workflow).build()


def _in_order(needs: Mapping[str, tuple[str, ...]]) -> list[PlanStep]:
    """Return the steps, each after all it needs, otherwise in order of definition. Raises CycleError."""
    names = list(needs)
    place = {name: index for index, name in enumerate(names)}
    sorter = TopologicalSorter(needs)
    sorter.prepare()
    free: list[int] = []
    nodes: list[PlanStep] = []
    while sorter.is_active():
        for name in sorter.get_ready():
            heapq.heappush(free, place[name])
        # One at a time: a step that this one frees may be defined before the other free steps.
        name = names[heapq.heappop(free)]
        nodes.append(PlanStep(name, needs[name]))
        sorter.done(name)
    return nodes


def _circle(needs: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Return the steps of one circle, each waiting for the next, with the first one again at the end.

    Empty if there is no circle. The edges are added in reverse, because the sorter reports a circle in the
    direction of its edges.
    """
    sorter = TopologicalSorter(dict.fromkeys(needs, ()))
    for step, after in needs.items():
        for need in after:
            sorter.add(need, step)
    try:
        sorter.prepare()
    except CycleError as error:
        return error.args[1]
    return []


def _told(circle: list[str]) -> str:
    names = [repr(step) for step in circle]
    if len(names) > 12:
        names[6:-4] = [f"... {len(names) - 10} more ..."]
    return " after ".join(names)


def listed(names: list[str], most: int = 10) -> str:
    """Return a list of names for a message, at most `most` of them; `none` for an empty list."""
    told = ", ".join(map(repr, names[:most]))
    return f"{told} and {len(names) - most} more" if len(names) > most else told or "none"
