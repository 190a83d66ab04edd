"""Holds what the server answered and kept against the model of trees, and both against plain truths."""

from __future__ import annotations

from collections.abc import Sequence

from forest import Forest
from groves import ROOTS
from nodes import Node
from snapshots import Finals, Snapshot

from eventbus.store.rows import SettleRow, TurnAnswer

__all__ = ["Ranger"]

_ON_HOLD = ("delayed", "waiting", "parked")
_SUSPECT = 2


class Ranger:
    """Judges one shard."""

    def __init__(self, forest: Forest) -> None:
        self.forest = forest
        self.finals = Finals()
        self._activated: set[str] = set()
        """Roots that run or ran without a stop, and were not put off since."""

    def note_settles(self, settles: Sequence[SettleRow]) -> None:
        """Before the model settles them."""
        for row in settles:
            node = self.forest.nodes.get(row.id)
            if node is not None and node.is_held(row.token) and row.state in _ON_HOLD:
                self.note_put_off(row.id)

    def note_put_off(self, job: str) -> None:
        """It is to run again, for a reason."""
        self._activated.discard(job)

    def check_claims(self, answer: TurnAnswer, want: int) -> None:
        """After the model has settled, before it claims."""
        nodes = self.forest.nodes
        waiting = {each.id for each in nodes.values() if each.state == "waiting"}
        claims = [each.id for each in answer.claims]
        assert len(set(claims)) == len(claims) <= want
        assert waiting.issuperset(claims), "claimed what may not run"
        is_free = all(nodes[each].stalls < _SUSPECT for each in waiting)
        assert not is_free or len(claims) == min(want, len(waiting)), "left what may run"
        for claim in answer.claims:
            node = nodes[claim.id]
            assert (claim.stop, claim.attempts, claim.stalls) == (node.stop, node.attempts, node.stalls)
            self._check_start(node)

    def _check_start(self, node: Node) -> None:
        """What the model need not be believed for."""
        nodes = self.forest.nodes
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
        nodes = self.forest.nodes
        feeders = [nodes[each] for each in node.graph if each in nodes]  # what `remove` took away is no more
        policies = {node.on, *(self.forest.ups[each] for each in node.graph)}
        for each in feeders:
            may = (
                each.state == "completed" or "wake" in policies or ("ignore" in policies and not each.is_open)
            )
            assert may, f"{node.id} runs before {each.id} completed"

    # what lies in the server

    def check(self, now: Snapshot) -> None:
        """After each call."""
        now.check()
        self.finals.check(now)
        nodes = self.forest.nodes
        assert set(now.jobs) == set(nodes)
        for node in nodes.values():
            self._check_node(node, now)
        assert now.zset("deadlines") == self.forest.deadlines
        roots = {each.id for each in nodes.values() if each.is_root and not each.root and each.is_open}
        assert set(now.zset("roots", ROOTS)) == roots
        for node in nodes.values():
            if node.is_root and node.is_open:
                self._check_moves(node)

    def _check_node(self, node: Node, now: Snapshot) -> None:
        record = now.jobs[node.id]
        assert (record["state"], record.get("token") or "") == (node.state, node.token), node
        assert record.get("stop", "") == node.stop, node
        counts = (int(record.get("attempts", 0)), int(record.get("stalls", 0)))
        assert counts == (node.attempts, node.stalls), node
        assert set(now.values["needs"].get(node.id, [])) == node.needs, node
        assert now.values["done"].get(node.id, []) == node.done, node
        assert now.values["members"].get(node.id, []) == node.members, node
        if node.state == "active":
            assert now.zset("active")[node.id] == node.lease_end
        elif node.state == "delayed":
            assert now.zset("delayed")[node.id] == node.due

    def _check_moves(self, root: Node) -> None:
        """An open tree always has something that will move it."""
        nodes = self.forest.nodes
        tree = [root, *(nodes[each] for each in root.members if each in nodes)]
        moves = [each for each in tree if each.state in ("waiting", "active", "delayed", "parked")]
        nested = [each for each in tree[1:] if each.is_root and each.is_open]
        assert moves or nested or root.is_pending, f"nothing moves {root.id}: {tree}"
