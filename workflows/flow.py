"""The plan of a flow: in which order the steps of a definition can run, and who waits for whom.

Pure: no job, no server, no input. The plan of a definition is the same for each of its flows.
Always holds: a plan names each step once, after all that it needs; walks are loops and not
recursion, so a row of thousands of steps has a plan too; the same definition has the same plan
in every process.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Collection, Container, Iterator, Mapping
from typing import NamedTuple, Protocol

from eventbus import DefinitionError
from eventbus.lowlevel import shown

__all__ = ["Before", "FlowBuilder", "FlowPlan", "Node", "build", "listed"]


class _HasAfter(Protocol):
    @property
    def after(self) -> tuple[str, ...]: ...


class _HasSteps(Protocol):
    """As much of a Workflow as a plan needs."""

    @property
    def name(self) -> str: ...
    @property
    def steps(self) -> Mapping[str, _HasAfter]: ...


class Node(NamedTuple):
    """One step in a plan, and the steps it waits for."""

    step: str
    needs: tuple[str, ...]


class FlowPlan:
    """The steps of one workflow in an order in which they can run.

    `nodes` has every step once, after the steps it needs; where the graph leaves it open, in
    the order of definition. `last` are the steps that nobody waits for: what the flow itself
    waits for.
    """

    __slots__ = ("_needs", "last", "nodes")

    def __init__(self, nodes: list[Node]) -> None:
        followed = {need for node in nodes for need in node.needs}
        self.nodes = nodes
        self.last = tuple(node.step for node in nodes if node.step not in followed)
        self._needs = {node.step: node.needs for node in nodes}

    def needs(self, step: str) -> tuple[str, ...]:
        """Return the steps that `step` waits for. Raises KeyError if it is not of this plan."""
        return self._needs[step]

    def ancestors(self, step: str, most: int | None = None) -> list[str]:
        """Return the steps that run before `step`, each once, the nearest first, at most `most`.

        Near is how few steps lie between; among equals, those that come first in `after`. The
        cost follows the number of steps that are returned. Raises KeyError if `step` is not of
        this plan.
        """
        found: dict[str, None] = {}
        ahead = deque(self._needs[step])
        while ahead and (most is None or len(found) < most):
            each = ahead.popleft()
            if each not in found:
                found[each] = None
                ahead.extend(self._needs[each])
        return list(found)

    def without(self, kept: Container[str]) -> FlowPlan:
        """Return the plan of what is left to run when the steps in `kept` are done already.

        Who waits for one of them waits instead for what that one waits for.
        """
        nodes: list[Node] = []
        ahead: dict[str, tuple[str, ...]] = {}
        for step, needs in self.nodes:
            left = dict.fromkeys(each for need in needs for each in ahead.get(need, (need,)))
            if step in kept:
                ahead[step] = tuple(left)
            else:
                nodes.append(Node(step, tuple(left)))
        return FlowPlan(nodes)


class Before(Collection[str]):
    """The steps that run before one of a plan; worked out when somebody asks, for most steps never do."""

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
    """Makes the plan of one workflow; `build` may be called again after steps were added."""

    def __init__(self, workflow: _HasSteps) -> None:
        self._workflow = workflow

    def build(self) -> FlowPlan:
        """Return the plan. Raises DefinitionError for an unknown step in `after`, and for a circle."""
        needs = {name: step.after for name, step in self._workflow.steps.items()}
        self._check_known(needs)
        nodes = _in_order(needs)
        if len(nodes) < len(needs):
            raise DefinitionError(
                f"steps of workflow {self._workflow.name!r} wait for each other, so none can start: "
                f"{_told(_circle(needs, nodes))}; take one of these out of `after`"
            )
        return FlowPlan(nodes)

    def _check_known(self, needs: Mapping[str, tuple[str, ...]]) -> None:
        for step, after in needs.items():
            unknown = next((each for each in after if each not in needs), None)
            if unknown is not None:
                raise DefinitionError(
                    f"step {step!r} of workflow {self._workflow.name!r} comes after {shown(unknown)}, "
                    f"which is no step of it; its steps are: {listed(list(needs))}"
                )


def build(workflow: _HasSteps) -> FlowPlan:
    """Return the plan of a workflow. Raises DefinitionError as `FlowBuilder.build` does."""
    return FlowBuilder(workflow).build()


def _in_order(needs: Mapping[str, tuple[str, ...]]) -> list[Node]:
    """Return the steps, each after what it needs; those on a circle, and after one, are missing."""
    names = list(needs)
    place = {name: index for index, name in enumerate(names)}
    followers: dict[str, list[str]] = {name: [] for name in names}
    for name, after in needs.items():
        for need in after:
            followers[need].append(name)
    open_needs = {name: len(after) for name, after in needs.items()}
    free = [place[name] for name in names if not open_needs[name]]  # sorted, so a heap
    nodes: list[Node] = []
    while free:
        name = names[heapq.heappop(free)]
        nodes.append(Node(name, needs[name]))
        for follower in followers[name]:
            open_needs[follower] -= 1
            if not open_needs[follower]:
                heapq.heappush(free, place[follower])
    return nodes


def _circle(needs: Mapping[str, tuple[str, ...]], nodes: list[Node]) -> list[str]:
    """Return the steps of one circle, each waiting for the next, the last for the first.

    A step without a place in the order waits for another one without; so the walk never ends
    at a free step, and comes back to one that it has seen.
    """
    free = {node.step for node in nodes}
    step = next(name for name in needs if name not in free)
    seen: dict[str, int] = {}
    walk: list[str] = []
    while step not in seen:
        seen[step] = len(walk)
        walk.append(step)
        step = next(need for need in needs[step] if need not in free)
    return walk[seen[step] :]


def _told(circle: list[str]) -> str:
    names = [repr(each) for each in [*circle, circle[0]]]
    if len(names) > 12:
        names[6:-4] = [f"... {len(names) - 10} more ..."]
    return " after ".join(names)


def listed(names: list[str], most: int = 10) -> str:
    """Return names as a message lists them, at most `most`; `none` for an empty list."""
    told = ", ".join(map(repr, names[:most]))
    return f"{told} and {len(names) - most} more" if len(names) > most else told or "none"
