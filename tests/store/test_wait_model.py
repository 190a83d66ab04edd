"""Mixed waits compared with a model: random trees whose jobs wait for children, times and signals together.

It has all rules of `test_tree_model`, and waits beside them; `--hypothesis-profile=long` searches with new
calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest
from drivers.tree_driver import STEPS
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test
from models.bench import Bench
from models.trees.tree_checker import TreeChecker
from models.trees.tree_model import TreeModel
from models.trees.tree_model_values import Node
from store.test_tree_model import SETTINGS, Trees

from eventbus.emit.job_tree import Member, rows_of
from eventbus.store.scripting.script_rows import EdgeRow, MemberRow, SettleRow, TurnAnswer, Wait

pytestmark = [pytest.mark.once, pytest.mark.slow, pytest.mark.timeout(3600)]
_FAILED = ("failed", "cancelled")


class WaitingTrees(TreeModel):
    """Trees whose jobs also wait for a time and a signal, and for the first of several children."""

    def __init__(self, now: int) -> None:
        super().__init__(now)
        self.signals: dict[str, int] = {}
        """job -> how many signals it was ever sent."""
        self.listening: set[str] = set()
        self.gathers: dict[str, str] = {}
        """job -> the name of the wait that it has begun to say."""

    def is_woken(self, job: str) -> bool:
        """Return whether a time or a signal will release a job, whatever its children do."""
        return job in self.listening or f"wake:{job}" in self.deadlines

    def is_stopping(self, job: str) -> bool:
        """Return whether the tree of a job stops, or one around it."""
        node = self.nodes[job]
        return bool(node.stop or node.is_cancelled or self._mark(node.root))

    def wait(
        self,
        job: str,
        token: str,
        rows: Sequence[MemberRow],
        edges: Sequence[EdgeRow],
        *,
        wait: Wait,
        awaited: Sequence[str],
        waits: bool,
    ) -> str:
        """Do one call of a wait."""
        node = self.nodes.get(job)
        if node is None or not node.is_held(token):
            return "waiting" if node and waits and node.waited == token else "lost"
        if self.is_stopping(job):
            return "stopping"
        ended = {each: self.nodes[each].state if each in self.nodes else "" for each in awaited}
        self._add_members(rows, edges, adder=job)
        if waits:
            self._open(node)
        if not wait.call or self.gathers.get(job) != wait.call:
            node.needs.clear()
        if wait.call:
            self.gathers[job] = wait.call
        for child in (self.nodes[each] for each in awaited if each in self.nodes):
            if ended[child.id] == "completed":
                continue
            node.needs.add(f"#{child.id}" if wait.first else child.id)
            if ended[child.id] in _FAILED:
                self._broken.append((node, child))
            elif job not in child.feeds:
                child.feeds.append(job)
        if waits:
            self._begin_to_wait(node, token, wait)
        self._flush()
        return "waiting" if waits else "ok"

    def _begin_to_wait(self, node: Node, token: str, wait: Wait) -> None:
        node.state, node.token, node.waited = "waiting-children", "", token
        node.forget_counts()
        self.gathers.pop(node.id, None)
        sleeps = not wait.total and (wait.delay != "" or wait.heard != "")
        if (
            (wait.heard != "" and self.signals.get(node.id, 0) != wait.heard)
            or wait.delay == 0
            or (wait.first and len(node.needs) < wait.total)
            or not (sleeps or node.needs)
        ):
            self._end_wait(node)
        else:
            if wait.heard != "":
                self.listening.add(node.id)
            if wait.delay != "":
                self.deadlines[f"wake:{node.id}"] = self.now + int(wait.delay)
        if node.broken:
            child, node.broken = self.nodes.get(node.broken), ""
            if child:
                self._tell_failure(node, child)

    def checkpoint(self, job: str, token: str, rows: Any, edges: Any, **given: bool) -> str:
        node = self.nodes.get(job)
        adds = bool(rows) or given["waits"]
        if node and node.is_held(token) and adds and not self.is_stopping(job):
            self._forget_half(job)
        return super().checkpoint(job, token, rows, edges, **given)

    def _forget_half(self, job: str) -> None:
        if self.gathers.pop(job, ""):
            self.nodes[job].needs.clear()

    def _end_wait(self, node: Node) -> None:
        node.needs.clear()
        self._release(node.id)

    def _release(self, job: str) -> None:
        if self.nodes[job].state == "waiting-children":
            self._forget_wakes(job)
        super()._release(job)

    def _forget_wakes(self, job: str) -> None:
        self.deadlines.pop(f"wake:{job}", None)
        self.listening.discard(job)

    def _finish(self, node: Node, state: str) -> None:
        self._forget_wakes(node.id)
        super()._finish(node, state)

    def _satisfy(self, job: str, child: str) -> None:
        node = self.nodes.get(job)
        if node and f"#{child}" in node.needs and child not in node.needs:
            self._end_wait(node)
        else:
            super()._satisfy(job, child)

    def _stop(self, top: Node, cause: str, *, is_gentle: bool = False) -> bool:
        if top.is_open and not top.stop:
            self._forget_wakes(top.id)
        return super()._stop(top, cause, is_gentle=is_gentle)

    def _sweep(self, top: Node) -> None:
        super()._sweep(top)
        for each in top.members:
            if each in self.nodes and not self.nodes[each].is_open:
                self._forget_wakes(each)

    def _fire(self, kind: str, job: str) -> None:
        if kind == "wake":
            self._end_wait(self.nodes[job])
        else:
            super()._fire(kind, job)

    def claim(self, answer: TurnAnswer) -> None:
        super().claim(answer)
        for each in answer.claims:
            self._forget_half(each.id)

    def signal(self, job: str) -> str:
        node = self.nodes.get(job)
        if node is None:
            return "unknown"
        if not node.is_open:
            return "ended"
        if (node.stop and not node.knows) or self._mark(node.root):
            return "stopping"
        self.signals[job] = self.signals.get(job, 0) + 1
        if job in self.listening:
            self._end_wait(node)
            self._flush()
        return "sent"


class WaitChecker(TreeChecker):
    """The same checks; but a job that waits for a time or a signal moves its tree, too."""

    model: WaitingTrees

    def _check_moves(self, root: Node) -> None:
        if not any(self.model.is_woken(each) for each in [root.id, *root.members]):
            super()._check_moves(root)


class Waits(Trees):
    """Calls of jobs that wait, beside all others."""

    make_model = WaitingTrees
    make_checker = WaitChecker
    model: WaitingTrees

    @precondition(lambda self: self._held())
    @rule(data=st.data(), repeats=st.booleans(), dies=st.sampled_from([False, False, False, True]))
    def wait(self, data: st.DataObject, repeats: bool, dies: bool) -> None:
        """A running job waits for new children and others, in one call or several; it may die between
        them.
        """
        self.count += 1
        held = self._held()
        running = [each for each in held if not self.model.is_stopping(each[0])]
        lease = data.draw(st.sampled_from([*held, *running * 4]))
        node = self.model.nodes[lease[0]]
        tree = node.id if node.is_root else node.root
        fresh = [
            Member(
                f"{node.id}.{self.count}.{i}", STEPS, up=data.draw(st.sampled_from(["ignore", "ignore", ""]))
            )
            for i in range(data.draw(st.integers(0, 2)))
        ]
        others = [each for each in self.model.nodes[tree].members if not self._needs(each, node.id)]
        awaited = [each.id for each in fresh]
        if others:
            awaited += data.draw(st.lists(st.sampled_from([*others, "gone"]), max_size=4, unique=True))
        heard = self.model.signals.get(node.id, 0)
        wait = Wait(
            1,
            data.draw(st.sampled_from(["", "", 0] if self.model.is_crowded else ["", "", 0, 500, 5000])),
            data.draw(st.sampled_from(["", "", heard, heard, heard + 1])),
            data.draw(st.sampled_from([0, 1])),
            total=len(awaited),
        )
        rows, edges = rows_of(fresh, root=tree, parent=node.id, awaited=())
        cut = data.draw(st.integers(0, len(awaited)))
        parts = [awaited[:cut], awaited[cut:]] if cut else [awaited]
        if len(parts) > 1:
            wait = wait._replace(call=f"call{self.count}")
        for index, part in enumerate(parts):
            is_last = index == len(parts) - 1
            for _ in range(2 if repeats else 1):
                self._wait(lease, ([], []) if index else (rows, edges), wait, part, waits=is_last)
            if dies:
                return

    @rule(data=st.data(), on=st.sampled_from(["wake", "fail", "remove"]), timeout=st.sampled_from([0.0, 5.0]))
    def plant_and_wait(self, data: st.DataObject, on: str, timeout: float) -> None:
        """A small tree of which all runs that can run, and of which two jobs begin to wait."""
        self.plant(({"a": "", "b": "", "c": "a"}, {"on": on, "timeout": timeout}), 100)
        self.claim_all("w")
        for _ in range(2):
            if self._held():
                self.wait(data, repeats=False, dies=False)
        self.claim_all("x")

    @precondition(lambda self: self._awaited())
    @rule(
        data=st.data(),
        state=st.sampled_from(["completed", "completed", "failed"]),
        want=st.sampled_from([0, 50]),
    )
    def end_awaited(self, data: st.DataObject, state: str, want: int) -> None:
        """A job ends that others wait for."""
        lease = data.draw(st.sampled_from(self._awaited()))
        row = SettleRow(*lease, state, 1 if state == "failed" else "", "{}", 0)
        self._turn(lease[1].partition(":")[0], [row], want)

    @precondition(lambda self: any(self.model.is_woken(each) for each in self.model.nodes))
    @rule(data=st.data(), root=st.booleans())
    def cancel_what_waits(self, data: st.DataObject, root: bool) -> None:
        job = data.draw(st.sampled_from([each for each in self.model.nodes if self.model.is_woken(each)]))
        self._cancel_one((root and self.model.nodes[job].root) or job)

    def _awaited(self) -> list[tuple[str, str]]:
        nodes = self.model.nodes.values()
        return [each for each in self._held() if any(node.awaits(each[0]) for node in nodes)]

    def _needs(self, job: str, other: str) -> bool:
        """Return whether a job needs another one, or waits for one that does."""
        node = self.model.nodes.get(job)
        return job == other or (
            node is not None
            and any(self._needs(each.removeprefix("#"), other) for each in node.needs if each)
        )

    def _wait(
        self, lease: tuple[str, str], rows: tuple[Any, Any], wait: Wait, part: list[str], *, waits: bool
    ) -> None:
        word = self.bench.run(
            self.store.trees.checkpoint, *lease, rows=rows[0], edges=rows[1], wait=wait, awaited=part,
            opens=waits, waits=waits, now=self.model.now,
        )  # fmt: skip
        assert word == self.model.wait(*lease, *rows, wait=wait, awaited=part, waits=waits)
        if word == "waiting":
            self.checker.note_put_off(lease[0])
        self.check()

    @precondition(lambda self: self.model.nodes)
    @rule(data=st.data())
    def signal(self, data: st.DataObject) -> None:
        known = list(self.model.nodes)
        listening = [each for each in known if each in self.model.listening]
        self._signal(data.draw(st.sampled_from(["none", *known[-4:], *listening, *listening])))

    def _signal(self, job: str) -> None:
        self.count += 1
        word = self.bench.run(
            self.store.journals.signal, job, signal=f"s{self.count}", name="go", payload="1",
            deadline=10.0**12, now=self.model.now,
        )  # fmt: skip
        assert word == self.model.signal(job)
        self.check()

    @precondition(lambda self: any(each.startswith("wake:") for each in self.model.deadlines))
    @rule(early=st.integers(0, 1), want=st.sampled_from([0, 1000]), ends=st.booleans())
    def meet_the_time(self, early: int, want: int, ends: bool) -> None:
        """At the very time at which a wait ends, or just before it; children may end in the same call."""
        self.model.now = max(
            self.model.now,
            min(at for each, at in self.model.deadlines.items() if each.startswith("wake:")) - early,
        )
        if ends and self._held("w"):
            self.complete_all("w", want)
        else:
            self._turn("w", [], want)

    @precondition(lambda self: self.steps > 25)
    @rule()
    def finish_all(self) -> None:
        for job in list(self.model.listening):
            self._signal(job)
        super().finish_all()


def test_a_wait_ends_once_and_leaves_nothing(bench: Bench) -> None:
    run_state_machine_as_test(
        cast("Any", lambda: Waits(bench)),
        settings=settings(SETTINGS, max_examples=max(40, SETTINGS.max_examples)),
    )
