"""The store compared with the job model: random calls, and all promises checked after each.

Calls go through `Store`, with times of the test's own. Small and the same each time; a long search:
`pytest tests/store/test_model.py --hypothesis-profile=long`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from models.bench import Bench
from models.controls.edits import EditRules
from models.controls.lanes import LaneRules
from models.controls.orders import ControlRules
from models.controls.shelves import HOME, SHELF, ShelfRules
from models.floors import EMITTERS, FloorRules
from models.hands import HandRules
from models.job_checker import JobChecker, Wakes
from models.job_model import JobModel
from models.job_model_values import Queue, Turn
from models.journals import JournalRules, append
from models.leases import LeaseRules
from models.merges import MergeRules
from models.snapshots import UNIT, Snapshot, pass_time
from models.strategies import DELAYS, LEASE, MANY, PLAIN, ROWS, START, STATES, TEXTS

from eventbus.errors import StoreRefused
from eventbus.store.calls.control_store import Edit
from eventbus.store.scripting.packing import AddRows, Append
from eventbus.store.scripting.script_rows import (
    AddQueue,
    AddRow,
    AnnounceQueue,
    CancelRow,
    Idle,
    SettleRow,
    SweepQueue,
)

_FAR, _DAY = 10.0**12, 86_400_000
_KEPT = {
    "a": SweepQueue("a", 2, 3_600_000, 1, 3_600_000),
    "b": SweepQueue("b", 1000, 200_000, 1000, 60_000),
    SHELF: SweepQueue(SHELF, 2, 3_600_000, 1, 3_600_000),
}
_SERVED = {"both": ["a", "b", "b@g"], "one": ["a"], "shelf": [SHELF]}
_POOLS = {"w": "both", "w+": "both", "x": "one", "y": "shelf"}
_RESCUE = {"lease_ms": LEASE, "key_ttl_ms": _DAY}
_WORKERS = ["w", "w+", "x"]
_PASSED = [1, 700, LEASE // 2 + 1, LEASE, 40_000, 130_000, 700_000]

_IS_LONG = settings.get_current_profile_name() == "long"
_SMALL = settings(max_examples=70, stateful_step_count=50, derandomize=True, database=None, deadline=None)
_SETTINGS = settings(
    settings.get_profile("long") if _IS_LONG else _SMALL, suppress_health_check=[HealthCheck.too_slow]
)


class Life(
    ControlRules,
    EditRules,
    FloorRules,
    HandRules,
    JournalRules,
    LaneRules,
    LeaseRules,
    MergeRules,
    ShelfRules,
    RuleBasedStateMachine,
):
    """Calls of emitters, workers and others, in any order."""

    def __init__(self, bench: Bench) -> None:
        super().__init__()
        self.bench = bench
        self.store = bench.store
        bench.client.flushall()
        for emitter in EMITTERS[:2]:
            name = self.store.keys.replies(emitter)
            bench.client.xadd(name, {"open": ""})
            bench.client.expire(name, 600)
        queues = [Queue(name, kept, 0 if name == "b" else 600_000) for name, kept in _KEPT.items()]
        self.model = JobModel(START, queues, emitters=EMITTERS[:2])
        self.checker = JobChecker(self.model)
        self.wakes = Wakes()
        self.snapshot = Snapshot(bench.client)
        self.steps = self.count = 0
        self.leases: list[tuple[str, str]] = []
        self.rows: list[Append] = []
        self.calls: dict[str, int] = dict.fromkeys(_POOLS, 0)
        self.turns: dict[str, Turn] = {}
        self.cancels: list[CancelRow] = []
        self.edits: list[Edit] = []
        self.added: tuple[str, list[AddRow], bool] | None = None

    def check(self, *, may_forget: bool = False) -> None:
        self.steps += 1
        self.snapshot = Snapshot(self.bench.client)
        self.checker.check(self.snapshot, may_forget=may_forget)
        self.wakes.check(self.snapshot, self.model)

    # emitters

    @initialize(emitter=st.sampled_from(EMITTERS), rows=ROWS)
    def add_first(self, emitter: str, rows: list[AddRow]) -> None:
        self.add(emitter, rows)

    @rule(emitter=st.sampled_from(EMITTERS), rows=ROWS | PLAIN | MANY, is_limited=st.booleans())
    def add(self, emitter: str, rows: list[AddRow], is_limited: bool = False) -> None:
        named = [row._replace(id=f"j{self.count + n}") for n, row in enumerate(rows)]
        self.count += len(named)
        self._add(emitter, named, is_limited)

    @rule()
    def add_again(self) -> None:
        """The same emissions: their answer was lost."""
        if self.added is not None:
            self._add(*self.added)

    def _add(self, emitter: str, rows: list[AddRow], is_limited: bool) -> None:
        self.added = (emitter, rows, is_limited)
        names = ["a", "b"] if any(row.queue == 2 for row in rows) else ["a"]
        self.model.queues["a"].max_waiting = 2 if is_limited else ""
        queues = [AddQueue(name, 1, self.model.queues[name].max_waiting) for name in names]
        said = self.checker.floors.say(emitter, now := self.model.now, always=is_limited)
        added = self.bench.run(
            self.store.add, emitter, queues, AddRows(rows), deadline=_FAR, attendance=said, now=now
        )
        told = [each._replace(state="") if each.word == "full" else each for each in added.verdicts]
        assert told == self.model.add(emitter, names, rows)
        self.note_handed(rows)
        self.check()

    def some_jobs(self, draw: Callable[..., Any]) -> list[str]:
        running = [each.id for each in self.model.jobs.values() if each.state == "active"]
        known = ["none", *list(self.model.jobs)[-8:], *running]
        return draw(st.lists(st.sampled_from(known), min_size=1, max_size=3, unique=True))

    @rule(data=st.data(), reason=st.sampled_from(["no", "x" * 100]), is_again=st.booleans())
    def cancel(self, data: st.DataObject, reason: str, is_again: bool) -> None:
        """Send a new request, or repeat the last one, as if its answer was lost."""
        if is_again and self.cancels:
            self._cancel()
        else:
            self.cancel_these(self.some_jobs(data.draw), reason)

    def cancel_these(self, jobs: Sequence[str], reason: str = "no") -> None:
        text = f'{{"type":"JobCancelled","message":"{reason}"}}'
        self.count, call = self.count + 1, f"c{self.count}"
        self.cancels = [CancelRow(each, "", call, text) for each in jobs]
        self._cancel()

    def _cancel(self) -> None:
        rows, (first, *_) = self.cancels, self.cancels
        words = self.bench.run(self.store.cancel, rows, key_ttl_ms=600_000, now=self.model.now)
        self.checker.answers.note(rows, words, Snapshot(self.bench.client))
        assert words == self.model.cancel([row.id for row in rows], first.call, first.text, 600_000)
        self.check()

    # workers

    @rule(
        data=st.data(),
        worker=st.sampled_from(_WORKERS),
        want=st.sampled_from([0, 1, 2, 50]),
        room=st.sampled_from([(0, 0, False), (2, 1, False), (1000, 0, False), (1000, 0, True)]),
        quotas=st.tuples(*[st.sampled_from([0, 1, 3, 50])] * 3),
        max_bytes=st.sampled_from([1, 150, 1 << 20]),
        skips=st.sampled_from([0, 0, 0, 1]),
    )
    def turn(
        self,
        data: st.DataObject,
        worker: str,
        want: int,
        room: tuple[int, int, bool],
        quotas: tuple[int, ...],
        max_bytes: int,
        skips: int,
    ) -> None:
        """The worker's next turn; `skips` the number of one that it does not know the end of."""
        self.calls[worker] += skips
        settles = self._draw_settles(data.draw) if self.leases else []
        self._next_turn(worker, settles, want, room, quotas, max_bytes)

    @rule(
        worker=st.sampled_from(_WORKERS),
        quota=st.sampled_from([1000, 1000, 2, 1]),
        idle=st.sampled_from([0, 1, 2, 3]),
    )
    def claim_all(self, worker: str, quota: int = 1000, idle: Idle = 0) -> None:
        self._next_turn(worker, quotas=(quota, quota, quota), idle=idle)

    @precondition(lambda self: any(job.state == "active" for job in self.model.jobs.values()))
    @rule(worker=st.sampled_from(["w", "w", "x"]), state=STATES, text=TEXTS, delay=DELAYS)
    def settle_all(self, worker: str, state: str, text: str, delay: int) -> None:
        self._next_turn(worker, self._settle_all(worker, state, text, delay), want=0)

    def _settle_all(self, worker: str, state: str, text: str, delay: int = 0) -> list[SettleRow]:
        held = self.model.held_by(worker)
        return [self._settle(job.id, job.token, state, text, delay) for job in held]

    def _settle(self, job: str, token: str, state: str, text: str, delay: int) -> SettleRow:
        attempts = self.model.jobs[job].attempts + 1 if job in self.model.jobs else 1
        counts = state in ("failed", "delayed")
        return SettleRow(job, token, state, attempts if counts else "", text, delay)

    def _next_turn(
        self,
        worker: str,
        settles: Sequence[SettleRow] = (),
        want: int = 1000,
        room: tuple[int, int, bool] = (1000, 0, True),
        quotas: Sequence[int] = (1000, 1000, 1000),
        max_bytes: int = 1 << 20,
        idle: Idle = 0,
        appends: Sequence[Append] = (),
    ) -> None:
        """One that the worker did not take before."""
        self.calls[worker] += 1
        pool = _POOLS[worker]
        queues = list(zip(_SERVED[pool], quotas, strict=False))
        others = {self.model.jobs[row.id].queue for row in settles if row.id in self.model.jobs}
        queues += [(name, 0) for name in sorted(others.difference(_SERVED[pool]))]
        call = self.calls[worker]
        rest = (max_bytes, queues, list(settles), idle, list(appends))
        self.turns[worker] = Turn(worker, call, pool, want, *room, *rest)
        self._turn(self.turns[worker])

    @precondition(lambda self: self.turns)
    @rule(data=st.data(), is_late=st.booleans())
    def turn_again(self, data: st.DataObject, is_late: bool) -> None:
        """The last turn with the same number: its answer was lost. Or a late copy of one before."""
        turn = self.turns[data.draw(st.sampled_from(sorted(self.turns)))]
        if self.model.recalls(turn) is None:
            return  # the worker was rescued since: its calls are new ones
        if is_late:
            with pytest.raises(StoreRefused, match="STALE"):
                self.bench.turn(self.model, replace(turn, call=turn.call - 1))
        else:
            self._turn(turn)

    def _draw_settles(self, draw: Callable[..., Any]) -> list[SettleRow]:
        held = [each for each in self.leases if self.model.holds(*each)]
        some = st.lists(
            st.sampled_from(self.leases[-8:] + held * 2), max_size=4, unique_by=lambda each: each[0]
        )
        leases: list[tuple[str, str]] = draw(some)
        return [self._settle(*lease, draw(STATES), draw(TEXTS), draw(DELAYS)) for lease in leases]

    def _turn(self, turn: Turn) -> None:
        answer = self.bench.turn(self.model, turn)
        first = self.model.recalls(turn)
        assert answer.now == self.model.now
        if first is not None:
            self.checker.check_repeat(first, answer)
        else:
            refused = append(self.model, turn.worker.rstrip("+"), turn.appends)
            assert list(answer.refusals) == refused
            assert answer.lost == self.model.settle(turn)
            self.checker.check_claims(self.model.controls.bound(turn, self.model.jobs.values()), answer)
            self.wakes.turn(turn, answer, self.model)
            self.model.claim(turn, answer)
            self.leases += [(claim.id, answer.token) for claim in answer.claims]
        self.check(may_forget=first is None)
        self.checker.check_next_due(answer, is_repeat=first is not None)

    def some_leases(self, draw: Callable[..., Any]) -> list[tuple[str, str]]:
        return draw(st.lists(st.sampled_from(self.leases[-8:]), max_size=4, unique_by=lambda each: each[0]))

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), lag=st.sampled_from([0, 1500]), worker=st.sampled_from(["w", "x"]))
    def renew(self, data: st.DataObject, lag: int, worker: str) -> None:
        self._renew(worker, lag, self.some_leases(data.draw))

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), worker=st.sampled_from(["w", "x"]), behind=st.sampled_from([0, 0, 1]))
    def renew_some(self, data: st.DataObject, worker: str, behind: int) -> None:
        """A worker names some of what it holds, and has heard of all its calls, or not of the last ones."""
        held = [(job.id, job.token) for job in self.model.held_by(worker)]
        named = data.draw(st.lists(st.sampled_from(held), unique=True)) if held else []
        first, second = (max(0, self.calls.get(lane, 0) - behind) for lane in (worker, f"{worker}+"))
        self._renew(worker, 0, named, (first, second))

    def _renew(
        self, worker: str, lag: int, leases: Sequence[tuple[str, str]], calls: tuple[int, int] = (0, 0)
    ) -> None:
        flat: list[Any] = [self.model.now, worker, lag, LEASE, *calls, len(leases)]
        for lease in leases:
            flat.extend(lease)
        answer = self.bench.script("renew", flat)
        assert tuple(answer) == self.model.renew(worker, lag, leases, calls)
        self.check()

    # duties of any worker, and time

    @rule(limit=st.sampled_from([1, 2, 100]), max_stalls=st.sampled_from([0, 1, 3, 3]))
    def rescue(self, limit: int, max_stalls: int) -> None:
        self._rescue(limit, max_stalls)

    def _rescue(self, limit: int, max_stalls: int) -> None:
        pause, rows = self.bench.run(
            self.store.rescue, **_RESCUE, limit=limit, max_stalls=max_stalls, now=self.model.now
        )
        assert (pause, [tuple(row) for row in rows]) == self.model.rescue(limit, max_stalls, _DAY)
        self.check()

    @rule(pool=st.sampled_from(["both", "one"]), unpark=st.booleans(), leaves=st.booleans())
    def announce(self, pool: str, unpark: bool, leaves: bool = False) -> None:
        full, worker = _SERVED[pool], "y" if pool == "shelf" else "w"
        names = [(base, group) for base, _, group in (each.partition("@") for each in full)]
        rows = [AnnounceQueue(queue, *name) for queue, name in zip(full, names, strict=True)]
        taken, _, _ = self.bench.run(
            self.store.announce, pool=pool, worker=worker, queues=rows, unpark=unpark, now=self.model.now
        )
        if HOME in full:
            self.clear_shelf()
        assert taken == self.model.announce(names, unpark=unpark)
        self.wakes.announce(pool, full, self.model.now)
        self.model.hands.keep(pool, worker, self.model.now)
        if leaves:
            assert self.bench.run(self.store.presence.leave, worker, pool, full, now=self.model.now) == 0
            self.wakes.leave(pool)
            self.model.leave(worker, pool)
        self.check()

    @rule(limit=st.sampled_from([1, 1000]))
    def sweep(self, limit: int) -> None:
        rows = [*_KEPT.values(), _KEPT["b"]._replace(queue="b@g")]
        before = len(self.model.jobs)
        removed = self.bench.run(self.store.sweep, rows, limit=limit, now=self.model.now)
        self.checker.floors.sweep(self.model.now)
        self.check(may_forget=True)
        assert removed == before - len(self.model.jobs)
        if limit > 1:
            self.checker.check_swept()

    @rule(ms=st.sampled_from(_PASSED))
    def pass_time(self, ms: int) -> None:
        units = (self.model.now + ms) // UNIT - self.model.unit
        if units:
            self.wakes.forget(self.snapshot)
            pass_time(self.bench.client, units)
            self.added = None  # an emitter repeats for seconds
        self.model.pass_time(ms)
        self.check()

    @precondition(lambda self: self.steps > 30)
    @rule()
    def finish_all(self) -> None:
        """Whatever happened, every open job can be run to its end."""
        self.steps = 0
        self.take_orders_back()
        self.pass_time(70_000)
        self._wait_heard(5 * LEASE // 4)
        self._rescue(1000, 3)
        self.empty_shelf()
        self.announce("both", unpark=True)
        self.wake_all()
        while before := sum(job.is_open for job in self.model.jobs.values()):
            self._next_turn("w", ends := self._settle_all("w", "completed", "1"))
            after = sum(job.is_open for job in self.model.jobs.values())
            assert after < before or not ends, "it goes on"


@pytest.mark.once
@pytest.mark.slow
@pytest.mark.timeout(0 if _IS_LONG else 3600)
def test_the_store_keeps_every_promise_about_the_life_of_jobs(bench: Bench) -> None:
    HandRules.handed = LaneRules.rested = JournalRules.woken = JournalRules.appended = MergeRules.merged = 0
    ShelfRules.shelved = ShelfRules.returned = 0
    run_state_machine_as_test(cast("Any", lambda: Life(bench)), settings=_SETTINGS)
    assert HandRules.handed > 8
    assert LaneRules.rested > 8
    assert min(JournalRules.woken, JournalRules.appended, MergeRules.merged) > 8
    assert min(ShelfRules.shelved, ShelfRules.returned) > 8
