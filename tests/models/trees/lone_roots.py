"""Rules of the tree model for trees that begin as roots alone, which are added as emissions are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from drivers.tree_driver import ROOTS, add_roots, pieces_of
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from models.bench import Bench
from models.trees.tree_model import TreeModel

from eventbus.emit.job_tree import Tree

__all__ = ["LoneRoots"]


@st.composite
def _trees(draw: Callable[[Any], Any]) -> dict[str, Any]:
    """What a lone root is given beside its id."""
    return {
        "body": draw(st.sampled_from(['{"d":1}', "x" * 300])),
        "delay": draw(st.sampled_from([0.0, 0.0, 0.0, 0.5])),
        "timeout": draw(st.sampled_from([0.0, 0.0, 5.0, 70.0])),
        "priority": draw(st.sampled_from([0, 0, 0, 1])),
    }


class LoneRoots(RuleBasedStateMachine):
    """What emitters do with lone roots. A machine of trees does the rest: to them as to all others."""

    bench: Bench
    model: TreeModel
    count: int

    def __init__(self) -> None:
        super().__init__()
        self.lone: list[list[Tree]] = []
        """The calls that added such roots."""

    @rule(given=st.lists(_trees(), min_size=1, max_size=3))
    def plant_alone(self, given: list[dict[str, Any]]) -> None:
        """Several in one call."""
        self.count += 1
        if self.model.is_crowded:
            given = [{**each, "timeout": 0.0} for each in given]
        self.lone.append([Tree(f"l{self.count}.{i}", ROOTS, **each) for i, each in enumerate(given)])
        self._add(self.lone[-1])

    @precondition(lambda self: self.lone)
    @rule(data=st.data())
    def plant_alone_again(self, data: st.DataObject) -> None:
        """A call whose answer was lost, or a late copy of one."""
        trees = data.draw(st.sampled_from(self.lone[-3:]))
        if all(each.id in self.model.nodes for each in trees):
            self._add(trees)

    def _add(self, trees: list[Tree]) -> None:
        assert self.bench.run(add_roots, self.bench.store, trees, now=self.model.now) == []
        for tree in trees:
            (chunk,) = pieces_of(tree)
            assert self.model.add(chunk) == "new"
        self.check()

    def check(self) -> None:
        raise NotImplementedError
