"""Trees of jobs compared with the tree model: random graphs, calls and losses, all promises checked after
each.

Every call goes through `Store` to the scripts, with times of the test's own. Small by default and
the same each time; for a long search with new calls: `pytest tests/store/test_tree_model.py
--hypothesis-profile=long`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
from drivers.tree_driver import ROOTS, STEPS, make_tree, pieces_of
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule, run_state_machine_as_test
from models.bench import Bench
from models.snapshots import Snapshot
from models.trees.lone_roots import LoneRoots
from models.trees.tree_checker import TreeChecker
from models.trees.tree_model import TreeModel
from models.trees.tree_model_values import LEASE

from eventbus.emit.job_tree import Member, Policy, Tree, rows_of
from eventbus.store.calls.tree_store import Chunk
from eventbus.store.scripting.packing import TurnRequest
from eventbus.store.scripting.script_rows import AnnounceQueue, CancelRow, SettleRow, TurnAnswer, TurnQueue

_FAR = 10.0**12
_DAY = 86_400_000
_START = 1_800_000_000_000
_QUEUES = [TurnQueue(name, 1000, 10_000, _DAY, 10_000, _DAY, _DAY) for name in (ROOTS, STEPS)]
_WORKERS = ["w", "x"]
_POLICIES: list[Policy] = ["", "", "", "", "fail", "ignore", "remove", "wake"]

_IS_LONG = settings.get_current_profile_name() == "long"
pytestmark = [pytest.mark.once, pytest.mark.slow, pytest.mark.timeout(0 if _IS_LONG else 3600)]
_SMALL = settings(max_examples=25, stateful_step_count=40, derandomize=True, database=None, deadline=None)
SETTINGS = settings(
    settings.get_profile("long") if _IS_LONG else _SMALL, suppress_health_check=[HealthCheck.too_slow]
)


@st.composite
def _trees(draw: Callable[[Any], Any]) -> tuple[dict[str, str], dict[str, Any]]:
    """Members with what they need among those before them, and the rest of the tree."""
    names = "abcdefg"[: draw(st.integers(0, 7))]
    needs = {
        name: " ".join(
            draw(st.lists(st.sampled_from(names[:place]), max_size=3, unique=True)) if place else []
        )
        for place, name in enumerate(names)
    }
    given = {
        "on": draw(st.sampled_from(["wake", "wake", "wake", "fail", "remove", "ignore"])),
        "timeout": draw(st.sampled_from([0.0, 0.0, 5.0, 70.0])),
        "ups": {name: draw(st.sampled_from(_POLICIES)) for name in names},
        "ons": {name: draw(st.sampled_from(_POLICIES)) for name in names},
        "delays": {name: draw(st.sampled_from([0.0, 0.0, 0.0, 0.5])) for name in names},
    }
    return needs, given


class Trees(LoneRoots):
    """Calls of emitters, workers and others on a few trees, in any order."""

    make_model: Any = TreeModel
    make_checker: Any = TreeChecker

    def __init__(self, bench: Bench) -> None:
        super().__init__()
        self.bench = bench
        self.store = bench.store
        bench.client.flushall()
        self.model = self.make_model(_START)
        self.checker = self.make_checker(self.model)
        self.count = 0
        self.steps = 0
        self.growing: list[list[Chunk]] = []
        """For each incomplete tree, the chunks that are still to be sent."""
        self.sent: list[Chunk] = []
        self.leases: list[tuple[str, str]] = []
        self.calls = dict.fromkeys(_WORKERS, 0)
        self.last: dict[str, tuple[int, int, list[SettleRow], TurnAnswer]] = {}

    # emitters

    @initialize(tree=_trees(), size=st.sampled_from([1, 2, 3, 100]))
    def plant_first(self, tree: tuple[dict[str, str], dict[str, Any]], size: int) -> None:
        self.plant(tree, size)

    @rule(tree=_trees(), size=st.sampled_from([1, 2, 3, 100, 100]))
    def plant(self, tree: tuple[dict[str, str], dict[str, Any]], size: int) -> None:
        self.count += 1
        needs, given = tree
        if self.model.is_crowded:
            given["timeout"], size = 0.0, 100
        made: Tree = make_tree(needs, root=f"t{self.count}", **given)
        self.growing.append(pieces_of(made, size))
        self._send(self.growing[-1].pop(0))

    @precondition(lambda self: any(self.growing))
    @rule(whole=st.booleans())
    def send(self, whole: bool) -> None:
        """The next piece of a tree, or all that are left."""
        chunks = next(each for each in self.growing if each)
        self._send(chunks.pop(0))
        while whole and chunks:
            self._send(chunks.pop(0))

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def send_again(self, data: st.DataObject) -> None:
        """A piece whose answer was lost, or a late copy of one."""
        chunk = data.draw(st.sampled_from(self.sent[-6:]))
        if chunk.head.id in self.model.nodes:  # one that was removed is out of reach of late copies
            self._send(chunk)

    def _send(self, chunk: Chunk) -> None:
        self.sent.append(chunk)
        (verdict,) = self.bench.run(self.store.trees.add, "em", [chunk], deadline=_FAR, now=self.model.now)
        assert verdict.word == self.model.add(chunk)
        self.check()

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        known = list(self.model.nodes)
        roots = [each for each in known if self.model.nodes[each].is_root]
        self._cancel_one(data.draw(st.sampled_from(["none", *known[-6:], *roots[-3:], *roots[-3:]])))

    def _cancel_one(self, job: str) -> None:
        self.count += 1
        rows = [CancelRow(job, "", f"c{self.count}", '{"type":"JobCancelled"}')]
        words = self._cancel(rows)
        assert words == [self.model.cancel(job)]
        self.check()
        again = self._cancel(rows)
        assert again in (words, ["ended"] if job in self.model.nodes else ["unknown"])
        self.check()

    @precondition(lambda self: self.checker.answers.rows)
    @rule(data=st.data())
    def cancel_again(self, data: st.DataObject) -> None:
        """A request whose answer was lost, whatever happened since; it changes nothing."""
        self._cancel([data.draw(st.sampled_from(self.checker.answers.rows[-8:]))])
        self.check()

    def _cancel(self, rows: list[CancelRow]) -> list[str]:
        words = self.bench.run(self.store.cancel, rows, key_ttl_ms=_DAY, now=self.model.now)
        self.checker.answers.note(rows, words, Snapshot(self.bench.client))
        return words

    # workers

    @rule(data=st.data(), worker=st.sampled_from(_WORKERS), want=st.sampled_from([0, 1, 2, 50]))
    def turn(self, data: st.DataObject, worker: str, want: int) -> None:
        self._turn(worker, self._draw_settles(data.draw, worker), want)

    @rule(worker=st.sampled_from(_WORKERS))
    def claim_all(self, worker: str) -> None:
        self._turn(worker, [], 1000)

    @precondition(lambda self: self._held())
    @rule(worker=st.sampled_from(_WORKERS), want=st.sampled_from([0, 1000]))
    def complete_all(self, worker: str, want: int) -> None:
        """Also without a claim, so that roots are found waiting."""
        held = self._held(worker)
        self._turn(worker, [SettleRow(*lease, "completed", "", "1", 0) for lease in held], want)

    @precondition(lambda self: self.last)
    @rule(data=st.data())
    def turn_again(self, data: st.DataObject) -> None:
        """The last turn of a worker with the same number: its answer was lost."""
        worker = data.draw(st.sampled_from(sorted(self.last)))
        call, want, settles, first = self.last[worker]
        answer = self._call(worker, call, want, settles)
        held = [each for each in first.claims if self._holds(each.id, first.token)]
        assert (answer.claims, answer.lost) == (held, first.lost)
        self.check()

    def _holds(self, job: str, token: str) -> bool:
        node = self.model.nodes.get(job)
        return node is not None and node.is_held(token)

    def _held(self, worker: str = "") -> list[tuple[str, str]]:
        """Return what the workers hold, or only one of them."""
        return [each for each in self.leases if each[1].startswith(worker) and self._holds(*each)]

    def _draw_settles(self, draw: Callable[[Any], Any], worker: str) -> list[SettleRow]:
        some = [*self._held(worker), *self._held(worker), *self.leases[-3:]]
        if not some:
            return []
        leases = draw(st.lists(st.sampled_from(some), max_size=4, unique_by=lambda each: each[0]))
        return [self._settle(draw, *lease) for lease in leases]

    def _settle(self, draw: Callable[[Any], Any], job: str, token: str) -> SettleRow:
        states = [
            "completed",
            "completed",
            "completed",
            "failed",
            "failed",
            "cancelled",
            "delayed",
            "waiting",
            "parked",
        ]
        state = draw(st.sampled_from(states))
        delay = draw(st.sampled_from([0, 500])) if state == "delayed" else 0
        node = self.model.nodes.get(job)
        attempts = (node.attempts if node else 0) + 1 if state in ("delayed", "failed") else ""
        return SettleRow(
            job, token, state, attempts, draw(st.sampled_from(["{}", '"' + "x" * 90 + '"'])), delay
        )

    def _call(self, worker: str, call: int, want: int, settles: Sequence[SettleRow]) -> TurnAnswer:
        request = TurnRequest(
            lane=worker, call=call, lease_ms=LEASE, pool="p", want=want, suspects=1000,
            is_alone=True, max_bytes=1 << 20, queues=_QUEUES, settles=settles,
        )  # fmt: skip
        return self.bench.run(self.store.turn, request, now=self.model.now)

    def _turn(self, worker: str, settles: list[SettleRow], want: int) -> None:
        self.calls[worker] += 1
        want = want and (1000 if self.model.orphans else want)
        answer = self._call(worker, self.calls[worker], want, settles)
        self.last[worker] = (self.calls[worker], want, settles, answer)
        self.checker.note_settles(settles)
        assert answer.lost == self.model.settle(worker, settles)
        if want > 50:
            self.model.cancel_orphans()
        self.checker.check_claims(answer, want)
        self.model.claim(answer)
        self.leases += [(claim.id, answer.token) for claim in answer.claims]
        self.check()

    # running jobs

    @precondition(lambda self: self._held())
    @rule(
        data=st.data(),
        waits=st.booleans(),
        nests=st.sampled_from(["", "", "wake", "fail"]),
        repeats=st.booleans(),
    )
    def spawn(self, data: st.DataObject, waits: bool, nests: str, repeats: bool) -> None:
        """A running job adds children, and waits for them or not."""
        lease = data.draw(st.sampled_from(self._held()))
        node = self.model.nodes[lease[0]]
        self.count += 1
        tree = node.id if node.is_root else node.root
        ended = [each for each in self.model.nodes[tree].members if each in self.model.nodes]
        others = [each for each in ended if not self.model.nodes[each].is_open]
        children = [
            Member(
                f"{node.id}.{self.count}.{i}", STEPS,
                needs=data.draw(st.lists(st.sampled_from(others), max_size=1)) if others else (),
                up=data.draw(st.sampled_from(_POLICIES)), delay=data.draw(st.sampled_from([0.0, 0.5])),
            )
            for i in range(data.draw(st.integers(0, 3)))
        ]  # fmt: skip
        if nests:
            children.append(Member(f"n{self.count}", ROOTS, body="{}", is_root=True, on=cast("Any", nests)))
        rows, edges = rows_of(children, root=tree, parent=node.id, awaited=[each.id for each in children])
        for _ in range(2 if repeats else 1):
            self._checkpoint(lease, rows, edges, waits=waits)

    @precondition(lambda self: self._held())
    @rule(data=st.data(), acknowledges=st.booleans())
    def save(self, data: st.DataObject, acknowledges: bool) -> None:
        stopped = [each for each in self._held() if self.model.nodes[each[0]].stop]
        lease = data.draw(st.sampled_from([*self._held(), *stopped * 3]))
        self._checkpoint(lease, [], [], acknowledges=acknowledges)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def save_late(self, data: st.DataObject) -> None:
        """Under a lease that may be over."""
        lease = data.draw(st.sampled_from(self.leases[-6:]))
        self._checkpoint(lease, [], [], waits=data.draw(st.booleans()))

    def _checkpoint(self, lease: tuple[str, str], rows: Any, edges: Any, **given: bool) -> None:
        flags = {"acknowledges": False, "opens": True, "waits": False, **given}
        word = self.bench.run(
            self.store.trees.checkpoint, *lease, rows=rows, edges=edges, **flags, now=self.model.now
        )
        assert word == self.model.checkpoint(*lease, rows, edges, **flags)
        if word == "waiting":
            self.checker.note_put_off(lease[0])
        self.check()

    # duties of any worker, and time

    @rule(ms=st.sampled_from([1, 500, 5000, LEASE, 61_000]))
    def pass_time(self, ms: int) -> None:
        self.model.now += ms

    @rule(max_stalls=st.sampled_from([0, 1, 3]))
    def rescue(self, max_stalls: int) -> None:
        self.bench.client.hset(
            self.store.keys.shard_key("clock"), mapping={"heard": self.model.now, "grace": 0}
        )
        _, rows = self.bench.run(
            self.store.rescue,
            lease_ms=LEASE,
            limit=100,
            max_stalls=max_stalls,
            key_ttl_ms=_DAY,
            now=self.model.now,
        )
        expected = self.model.rescue(max_stalls)
        assert [(row.id, row.verdict) for row in rows] == expected
        for job, _ in expected:
            self.checker.note_put_off(job)
        self.check()

    @precondition(lambda self: self._held())
    @rule()
    def lose_leases(self) -> None:
        self.model.now += LEASE
        self.rescue(3)

    @rule()
    def unpark(self) -> None:
        rows = [AnnounceQueue(name, name, "") for name in (ROOTS, STEPS)]
        self.bench.run(
            self.store.announce, pool="p", worker="w", queues=rows, unpark=True, now=self.model.now
        )
        self.model.unpark()
        self.check()

    @precondition(lambda self: self.steps > 25)
    @rule()
    def finish_all(self) -> None:
        """Whatever happened, every tree can be run to its end."""
        self.steps = 0
        for chunks in self.growing:
            while chunks:
                self._send(chunks.pop(0))
        self.model.now += 70_001
        self.rescue(3)
        self.unpark()
        for _ in range(40):
            self._turn("w", [], 1000)
            held = self._held()
            for lease in held:
                if self.model.nodes[lease[0]].stop:
                    self._checkpoint(lease, [], [], acknowledges=True)
            self._turn("w", [SettleRow(*lease, "completed", "", "1", 0) for lease in held], 0)
            if not any(each.is_open for each in self.model.nodes.values()):
                break
        left = [each.id for each in self.model.nodes.values() if each.is_root and each.is_open]
        assert left == [], "trees that nothing moves"

    def check(self) -> None:
        self.steps += 1
        self.checker.check(Snapshot(self.bench.client))


class Cancelled(Trees):
    """The same, mostly about trees that run, fail and are cancelled meanwhile."""

    @precondition(lambda self: self.model.nodes)
    @rule(data=st.data(), stops=st.booleans())
    def cancel_what_runs(self, data: st.DataObject, stops: bool) -> None:
        """A job that is open, or an open root that stops."""
        nodes = self.model.nodes.values()
        open_ones = [each.id for each in nodes if each.is_open and (bool(each.stop) or not stops)]
        if open_ones:
            self._cancel_one(data.draw(st.sampled_from(open_ones)))

    @precondition(lambda self: self._held())
    @rule(data=st.data(), want=st.sampled_from([0, 1, 50]))
    def end_one(self, data: st.DataObject, want: int) -> None:
        """A job that runs fails, or ends in another way."""
        lease = data.draw(st.sampled_from(self._held()))
        row = self._settle(data.draw, *lease)
        is_failure = data.draw(st.booleans())
        self._turn(
            lease[1].partition(":")[0],
            [row._replace(state="failed", attempts=1) if is_failure else row],
            want,
        )

    @precondition(lambda self: any(not each[1].is_open for each in self.model.nodes.items()))
    @rule()
    def plant_and_run(self) -> None:
        self.plant(({"a": "", "b": "", "c": "a"}, {"on": "wake", "timeout": 5.0}), 100)
        self.claim_all("w")


def test_what_a_cancel_is_answered_is_what_becomes_of_the_job(bench: Bench) -> None:
    run_state_machine_as_test(cast("Any", lambda: Cancelled(bench)), settings=SETTINGS)


def test_the_store_keeps_every_promise_about_trees(bench: Bench) -> None:
    run_state_machine_as_test(cast("Any", lambda: Trees(bench)), settings=SETTINGS)
