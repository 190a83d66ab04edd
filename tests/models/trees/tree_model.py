"""A model of trees of jobs, without a server: what each call must do to every job.

The trees are so small that a single call notifies all dependents, sweeps all members and opens all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from models.snapshots import ENDED
from models.stall_model import is_spent, note_stall, take_stalled
from models.trees.tree_model_values import LEASE, Node
from models.trees.tree_stops import TreeStops

from eventbus.store.calls.tree_store import Chunk
from eventbus.store.scripting.script_rows import EdgeRow, MemberRow, SettleRow, TurnAnswer

__all__ = ["TreeModel"]

_PLACED = ("waiting", "delayed", "parked")
_UNOPENED = 60_000
_MOST_DUE = 20
"""Deadlines and chores that one turn meets; here all that are due are met by one."""


class TreeModel(TreeStops):
    """All trees of one shard."""

    def __init__(self, now: int) -> None:
        self.now = now
        self.nodes: dict[str, Node] = {}
        self.ups: dict[str, str] = {}
        """job -> its failure effect, also for jobs that the policy `remove` has deleted."""
        self.deadlines: dict[str, int] = {}
        """`kind:root` -> when."""
        self.leases: dict[str, int] = {}  # worker -> when they end
        self._tells: list[Node] = []
        self._broken: list[tuple[Node, Node]] = []
        self._released: list[str] = []
        self._removed: list[str] = []

    @property
    def is_crowded(self) -> bool:
        """Whether further deadlines could be more than one turn of a worker meets."""
        return len(self.deadlines) > _MOST_DUE - 6

    # adding

    def add(self, chunk: Chunk) -> str:
        head = chunk.head
        root, is_known = self.nodes.get(head.id), bool(chunk.rows) and chunk.rows[0].id in self.nodes
        is_open = root is not None and root.is_pending
        if is_known or (not head.is_first and not is_open):
            if is_known and is_open and not head.is_last:
                self.deadlines[f"unopened:{head.id}"] = self.now + _UNOPENED
            return "new" if is_known else "gone"
        self._add_members(chunk.rows, chunk.edges, adder=head.id)
        root = self.nodes[head.id]
        if not head.is_last:
            root.is_pending = True
            self.deadlines[f"unopened:{root.id}"] = self.now + _UNOPENED
        if head.is_last:
            root.is_pending = False
            self.deadlines.pop(f"unopened:{root.id}", None)
            self._open(root)
            if not root.needs:
                self._begin(root) if head.is_first else self._release(root.id)
        self._flush()
        return "new"

    def _add_members(self, rows: Sequence[MemberRow], edges: Sequence[EdgeRow], adder: str) -> None:
        fresh = [row for row in rows if row.id not in self.nodes]
        for row in fresh:
            node = Node(row.id, row.root, row.tree == 1, row.on, row.up, int(row.delay or 0))
            node.due = self.now + node.delay
            self.nodes[row.id] = node
            self.ups[row.id] = row.up
            if row.root:
                self.nodes[row.root].members.append(row.id)
                self.nodes[adder].noted.append(row.id)
            if row.timeout != "":
                self.deadlines[f"timeout:{row.id}"] = node.due + int(row.timeout)
        known = {row.id for row in fresh}
        for place, job, needed in edges:
            if rows[place - 1].id in known:
                self._tie(self.nodes[job], self.nodes[needed])
                if job == rows[place - 1].id:
                    self.nodes[job].graph.add(needed)

    def _tie(self, node: Node, needed: Node) -> None:
        """Make `node` depend on `needed`. If `needed` has ended already, `node` learns the outcome at
        once.
        """
        if needed.state != "completed":
            node.needs.add(needed.id)
        if needed.state in ("failed", "cancelled"):
            self._broken.append((node, needed))
        needed.feeds.append(node.id)

    def _open(self, adder: Node) -> None:
        for node in [self.nodes[each] for each in adder.noted if each in self.nodes]:
            if node.state == "waiting-children" and not node.needs:
                self._begin(node)
        adder.noted = []

    def _begin(self, node: Node) -> None:
        node.state = "delayed" if node.due > self.now else "waiting"

    def checkpoint(
        self, job: str, token: str, rows: Sequence[MemberRow], edges: Sequence[EdgeRow], **given: bool
    ) -> str:
        opens, waits, acknowledges = (given[each] for each in ("opens", "waits", "acknowledges"))
        node = self.nodes.get(job)
        if node is None or not node.is_held(token):
            return "waiting" if node and waits and node.waited == token else "lost"
        adds = bool(rows) or waits
        if acknowledges and node.stop and not node.knows:
            return "stopping"
        if adds and (node.stop or node.is_cancelled or self._mark(node.root)):
            return "stopping"
        if acknowledges and node.stop:
            node.is_acked = True
        if not adds:
            return "ok"
        self._add_members(rows, edges, adder=job)
        if opens:
            self._open(node)
        if waits:
            node.state, node.token, node.waited = "waiting-children", "", token
            if node.broken:
                child, node.broken = self.nodes[node.broken], ""
                self._tell_failure(node, child)
            elif not node.needs:
                self._release(job)
        self._flush()
        return "waiting" if waits else "ok"

    # ends

    def _finish(self, node: Node, state: str) -> None:
        assert node.is_open, f"{node.id} ends twice"
        node.state, node.token = state, ""
        if node.root:
            if state == "completed":
                self.nodes[node.root].done.append(node.id)
            self._tells.append(node)
        if node.is_root:
            self.deadlines.pop(f"timeout:{node.id}", None)

    def _release(self, job: str) -> None:
        node = self.nodes[job]
        if node.state != "waiting-children":
            return
        if node.stop and node.on != "wake":
            is_removed = node.on == "remove" and node.stop == "failed"
            self._finish(node, "failed" if node.stop == "failed" and not is_removed else "cancelled")
            if is_removed:
                self._removed.append(job)
            return
        if node.due > self.now and not node.waited and not node.stop:
            node.state = "delayed"  # it never began
            return
        self._released.append(job)

    def _satisfy(self, job: str, child: str) -> None:
        node = self.nodes.get(job)
        if node is None or child not in node.needs:
            return
        node.needs.discard(child)
        if not node.needs:
            self._release(job)

    def _tell_failure(self, node: Node, child: Node) -> None:
        if not node.is_open or not node.awaits(child.id):
            return
        policy = child.up or node.on or "fail"
        top = node if node.is_root else self.nodes[node.root]
        stops = node.is_root or (policy == "fail" and top.on == "wake")
        if policy == "ignore":
            self._satisfy(node.id, child.id)
        elif not stops and node.state != "waiting-children":
            node.broken = child.id
        elif policy == "wake" and not node.is_root:
            node.needs.clear()
            self._release(node.id)
        elif stops:
            if node.is_root and child.up in ("remove", "wake"):
                top.on = child.up
            self._stop(top, "failed")
        else:
            node.needs.clear()
            self._withdraw(node.id)
            self._finish(node, "cancelled" if policy == "remove" else "failed")
            if policy == "remove":
                self._removed.append(node.id)

    def _withdraw(self, job: str) -> None:
        self._released = [each for each in self._released if each != job]

    def _flush(self) -> None:
        broken, self._broken = self._broken, []
        for node, child in broken:
            self._tell_failure(node, child)
        while self._tells:
            ended = self._tells.pop(0)
            if self.nodes[ended.root].stop:
                self._satisfy(ended.root, ended.id)
                continue
            for each in list(ended.feeds):
                if each not in self.nodes:
                    continue
                if ended.state == "completed":
                    self._satisfy(each, ended.id)
                else:
                    self._tell_failure(self.nodes[each], ended)
        for each in self._released:
            self.nodes[each].state = "waiting"
        for each in self._removed:
            self._forget(each)
        self._released, self._removed = [], []

    def _forget(self, job: str) -> None:
        node = self.nodes.pop(job)
        for each in node.members:
            if each in self.nodes:
                self._forget(each)

    # workers

    def settle(self, lane: str, rows: Sequence[SettleRow]) -> list[str]:
        """Do the first half of a turn; return the ids that are not held by their tokens."""
        self.leases.setdefault(lane.rstrip("+"), self.now + LEASE)  # nothing else registers a worker here
        mine = {each.id: each.token for each in self.nodes.values() if each.is_held_by(lane)}
        lost = [row.id for row in rows if mine.get(row.id) != row.token]
        for row in rows:
            if row.id not in lost:
                self._settle(self.nodes[row.id], row)
        for node in self.nodes.values():
            if node.state == "delayed" and node.due <= self.now:
                node.state = "waiting"
        due = [entry for entry, when in self.deadlines.items() if when <= self.now]
        for entry in sorted(due, key=lambda each: (self.deadlines[each], each)):
            if self.deadlines.pop(entry, None) is not None:
                self._fire(*entry.split(":", 1))
        self._flush()
        return lost

    def _fire(self, kind: str, job: str) -> None:
        if kind == "timeout":
            self._stop(self.nodes[job], "timeout")
            return
        self.nodes[job].needs.clear()
        self._finish(self.nodes[job], "cancelled")
        self._removed.append(job)

    def _settle(self, node: Node, row: SettleRow) -> None:
        state = self._decide(node, row.state)
        if state is None:
            return
        if state in ENDED:
            if row.attempts != "" and not node.is_cancelled:
                node.attempts = int(row.attempts)
            self._finish(node, state)
            return
        if state == "delayed":
            node.attempts = int(row.attempts)
            node.due = self.now + row.delay
        node.state, node.token = "waiting" if state == "delayed" and row.delay == 0 else state, ""

    def _decide(self, node: Node, state: str) -> str | None:
        if node.is_cancelled:
            node.stalls = 1 if state == "waiting" else node.stalls
            return "cancelled"
        if node.is_root and not node.is_acked:
            if not node.stop and state in ("failed", "cancelled") and node.on == "wake":
                self._stop(node, "failed")
            if node.stop:
                if node.knows and state in _PLACED:
                    return state
                self._go_on(node)
                return None
        elif node.is_root and node.stop == "cancelled":
            return state if state in _PLACED else "cancelled"
        elif node.root and not node.is_root and self.nodes[node.root].stop:
            return {"delayed": "failed", "waiting": "failed", "parked": "cancelled"}.get(state, state)
        return state

    def _go_on(self, node: Node) -> None:
        node.state, node.token = "waiting-children", ""
        node.forget_counts()
        if not node.needs:
            self._release(node.id)

    def claim(self, answer: TurnAnswer) -> None:
        for place, claim in enumerate(answer.claims):
            self.leases[answer.token.partition(":")[0].rstrip("+")] = self.now + LEASE
            node = self.nodes[claim.id]
            node.state, node.token, node.waited, node.claimed = "active", answer.token, "", (self.now, place)
            node.knows = node.knows or bool(node.stop)

    def rescue(self, max_stalls: int) -> list[tuple[str, str]]:
        """Return each stalled job with its verdict."""
        verdicts: list[tuple[str, str]] = []
        for node, blame in take_stalled(self.leases, self.now, LEASE, self.nodes.values()):
            is_over = note_stall(node, blame) and is_spent(node, blame, max_stalls)
            verdicts.append((node.id, self._judge(node, is_over=is_over)))
        self._flush()
        return verdicts

    def _judge(self, node: Node, *, is_over: bool) -> str:
        if node.is_cancelled:
            self._finish(node, "cancelled")
            return "cancelled"
        if node.root and not node.is_root and self.nodes[node.root].stop:
            self._finish(node, "failed")
            return "failed"
        if node.is_root and node.stop and not node.is_acked and not node.knows:
            self._go_on(node)
        elif is_over and node.stop == "cancelled":
            self._finish(node, "cancelled")
            return "cancelled"
        elif is_over:
            if not (node.is_root and node.on == "wake" and self._stop(node, "failed")):
                self._finish(node, "failed")
                return "failed"
            self._go_on(node)
        else:
            node.state = "waiting"
        return "rescued"

    def unpark(self) -> None:
        for node in self.nodes.values():
            node.state = "waiting" if node.state == "parked" else node.state
