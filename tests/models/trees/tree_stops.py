"""The model of stops: what becomes of the jobs of a tree that is stopped."""

from __future__ import annotations

from models.trees.tree_model_values import Node

__all__ = ["TreeStops"]


class TreeStops:
    """The part of `TreeModel` that stops trees."""

    nodes: dict[str, Node]
    deadlines: dict[str, int]

    def _mark(self, root: str) -> str:
        while root:
            node = self.nodes[root]
            if node.stop:
                return node.stop
            root = node.root
        return ""

    def _stop(self, top: Node, cause: str, *, is_gentle: bool = False) -> bool:
        is_gentle = is_gentle or cause == "failed"
        if not top.is_open:
            return False
        if top.stop:
            if not is_gentle:
                self._harden(top)
            return False
        top.stop, top.is_gentle = cause, is_gentle
        top.is_pending = False
        self.deadlines.pop(f"unopened:{top.id}", None)
        if top.state != "active":
            self._withdraw(top.id)
            top.state = "waiting-children"
            top.forget_counts()
        top.needs = {""}
        self._sweep(top)
        return True

    def _harden(self, top: Node) -> None:
        """Turn a graceful stop into a forced one, because a second stop asked for that."""
        if top.knows or top.state not in ("waiting-children", "active") or not top.is_gentle:
            return
        top.is_gentle = False
        top.needs.add("")
        self._sweep(top)

    def _sweep(self, top: Node) -> None:
        for each in [self.nodes[each] for each in top.members if each in self.nodes]:
            if not each.is_open:
                continue
            if each.is_root:
                top.needs.add(each.id)
                self._stop(each, "cancelled", is_gentle=top.is_gentle)
            elif each.state != "active":
                self._withdraw(each.id)
                each.needs.clear()
                each.state, each.token = "cancelled", ""
            else:
                top.needs.add(each.id)
        self._satisfy(top.id, "")

    def cancel(self, job: str) -> str:
        node = self.nodes.get(job)
        if node is None:
            return "unknown"
        if not node.is_open:
            return "over"
        if node.is_root:
            word = "asked" if self._stop(node, "cancelled") else "over"
            self._flush()
            return word
        if self.nodes[node.root].is_pending:
            self._stop(self.nodes[node.root], "failed")
            self._flush()
            return "ended"
        if node.state == "active":
            node.is_cancelled = node.is_cancelled or not self.nodes[node.root].stop
            return "asked" if node.is_cancelled else "over"
        node.needs.clear()
        self._finish(node, "cancelled")
        self._flush()
        return "ended"

    @property
    def orphans(self) -> list[Node]:
        """The open jobs whose own root ended before them, so that no sweep of a tree around that one meets
        them.
        """
        nodes = self.nodes
        return [
            each for each in nodes.values() if each.is_open and each.root and not nodes[each.root].is_open
        ]

    def cancel_orphans(self) -> None:
        """Do what a claim of all that waits does to the jobs without a root whose tree stops."""
        for each in self.orphans:
            if each.state == "waiting" and not each.stop and self._mark(each.root):
                self._finish(each, "cancelled")
        self._flush()

    def _finish(self, node: Node, state: str) -> None:
        raise NotImplementedError

    def _satisfy(self, job: str, child: str) -> None:
        raise NotImplementedError

    def _withdraw(self, job: str) -> None:
        raise NotImplementedError

    def _flush(self) -> None:
        raise NotImplementedError
