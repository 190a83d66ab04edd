"""Compares what the server answered and stored with the tree model, and both with simple invariants."""

from __future__ import annotations

from collections.abc import Sequence

from drivers.tree_driver import ROOTS
from models.answers import Answers
from models.snapshots import Finals, Snapshot
from models.trees.tree_model import TreeModel
from models.trees.tree_model_values import Node, is_of

from eventbus.store.scripting.script_rows import SettleRow, TurnAnswer

__all__ = ["TreeChecker"]

_ON_HOLD = ("delayed", "waiting", "parked")


class TreeChecker:
    """Checks one shard."""

    def __init__(self, model: TreeModel) -> None:
        self.model = model
        self.finals = Finals()
        self.answers = Answers()
        self._activated: set[str] = set()
        """Roots that were started without a stop, and not postponed since."""

    def note_settles(self, settles: Sequence[SettleRow]) -> None:
        """Call it before the model settles these rows."""
        for row in settles:
            node = self.model.nodes.get(row.id)
            if node is not None and node.is_held(row.token) and row.state in _ON_HOLD:
                self.note_put_off(row.id)

    def note_put_off(self, job: str) -> None:
        """Remember that the job may start again, because it was retried, parked or rescued."""
        self._activated.discard(job)

    def check_claims(self, answer: TurnAnswer, want: int) -> None:
        """Call it after the model has settled and before it claims."""
        nodes = self.model.nodes
        waiting = {each.id for each in nodes.values() if each.state == "waiting"}
        claims = [each.id for each in answer.claims]
        assert len(set(claims)) == len(claims) <= want
        assert waiting.issuperset(claims), "claimed what may not run"
        is_free = not any(nodes[each].is_suspect for each in waiting)
        assert not is_free or len(claims) == min(want, len(waiting)), "left what may run"
        for claim in answer.claims:
            node = nodes[claim.id]
            assert (claim.stop, claim.attempts, claim.stalls) == (node.stop, node.attempts, node.stalls)
            self._check_start(node)

    def _check_start(self, node: Node) -> None:
        """Check what must hold at each start, whatever the model says."""
        nodes = self.model.nodes
        if node.root:
            assert not nodes[node.root].stop or node.stop, "nothing starts after the mark"
        if not node.is_root:
            self._check_needs(node)
        elif node.stop:
            running = [each for each in node.members if each in nodes and nodes[each].state == "active"]
            assert not running, "undone while members run"
        else:
            assert node.id not in self._activated, f"{node.id} is activated twice"
            self._activated.add(node.id)

    def _check_needs(self, node: Node) -> None:
        nodes = self.model.nodes
        feeders = [nodes[each] for each in node.graph if each in nodes]  # `remove` has deleted the others
        policies = {node.on, *(self.model.ups[each] for each in node.graph)}
        for each in feeders:
            may = (
                each.state == "completed" or "wake" in policies or ("ignore" in policies and not each.is_open)
            )
            assert may, f"{node.id} runs before {each.id} completed"

    # what lies in the server

    def check(self, now: Snapshot) -> None:
        """Check the whole shard after a call."""
        now.check()
        self.finals.check(now)
        self.answers.check(now)
        nodes = self.model.nodes
        assert set(now.jobs) == set(nodes)
        for node in nodes.values():
            self._check_node(node, now)
        assert now.zset("workers") == self.model.leases
        due = {name: score for name, score in now.zset("due").items() if not name.startswith("q:")}
        assert due == self.model.deadlines
        roots = {each.id for each in nodes.values() if each.is_root and not each.root and each.is_open}
        assert set(now.zset("roots", ROOTS)) == roots
        for node in nodes.values():
            if node.is_root and node.is_open:
                self._check_moves(node)

    def _check_node(self, node: Node, now: Snapshot) -> None:
        record = now.jobs[node.id]
        assert (record["state"], record.get("token", "")) == (node.state, node.token), node
        assert record.get("waited", "") == node.waited, node
        assert record.get("stop", "") == node.stop, node
        counts = [
            int(record.get(name, 0)) for name in ("attempts", "stalls", "spared", "alone", "crowd", "fatal")
        ]
        assert counts == [node.attempts, node.stalls, node.spared, node.alone, node.crowd, node.fatal], node
        assert set(now.values["needs"].get(node.id, [])) == node.needs, node
        assert now.values["done"].get(node.id, []) == node.done, node
        assert now.values["members"].get(node.id, []) == node.members, node
        if node.state == "active":
            assert is_of(node.token, now.held[node.id])
        elif node.state == "delayed":
            assert int(now.zset("delayed", record["queue"])[node.id]) == node.due

    def _check_moves(self, root: Node) -> None:
        """An open tree always has a job that will bring it further."""
        nodes = self.model.nodes
        tree = [root, *(nodes[each] for each in root.members if each in nodes)]
        moves = [each for each in tree if each.state in ("waiting", "active", "delayed", "parked")]
        nested = [each for each in tree[1:] if each.is_root and each.is_open]
        assert moves or nested or root.is_pending, f"nothing moves {root.id}: {tree}"
