"""Throttled, debounced and kept emissions in the job model, and the rules that emit them in the state
machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from models.job_model_values import Job, Pointer
from models.job_places import JobPlaces
from models.strategies import KEEPS, LEASE, PLAIN

from eventbus.store.scripting.script_rows import DEBOUNCE, KEEP_LAST, SUPERSEDE, THROTTLE, AddRow, AddVerdict

__all__ = ["PUT_OFF", "MergeRules", "Merges"]

PUT_OFF = 60_000
"""Until a job that comes after another one looks again, ms."""


class Merges(JobPlaces):
    """The part of the model that decides about rows which merge."""

    def due_of(self, row: AddRow) -> int:
        if row.delay != "":
            return self.now + int(row.delay)
        return int(row.due) if row.due != "" else self.now

    def taken(self, rows: Sequence[AddRow]) -> tuple[Sequence[AddRow], list[AddVerdict]]:
        """Return the rows that a call takes, up to the first one behind a row that merges with its key, and
        what the others hear.
        """
        merged: set[tuple[int, str]] = set()
        for index, row in enumerate(rows):
            if row.meeting > SUPERSEDE:
                merged.add((row.queue, row.key))
            elif row.key and (row.queue, row.key) in merged:
                later = [
                    AddVerdict(place, "later", rows[place].id, "", "") for place in range(index, len(rows))
                ]
                return rows[:index], later
        return rows, []

    def merge(
        self, emitter: str, names: Sequence[str], rows: Sequence[AddRow], waiting: dict[str, int]
    ) -> list[AddVerdict]:
        """Do what rows that merge do, in their order; they meet all others that their call takes."""
        verdicts: list[AddVerdict] = []
        for index, row in enumerate(rows):
            if row.meeting > SUPERSEDE:
                self._merge_row(index, row, emitter, names[row.queue - 1], waiting, verdicts)
        return verdicts

    def _merge_row(
        self,
        index: int,
        row: AddRow,
        emitter: str,
        base: str,
        waiting: dict[str, int],
        verdicts: list[AddVerdict],
    ) -> None:
        queue = self.queues[base]
        plan = [
            (base + suffix, suffix, *self._meet_merging(row, base + suffix))
            for suffix in self.suffixes(queue)
            if row.id + suffix not in self.jobs
        ]
        most = 10**9 if queue.max_waiting == "" or self.due_of(row) > self.now else int(queue.max_waiting)
        full = [name for name, _, met, after in plan if not met and not after and waiting[name] >= most]
        if full:
            verdicts.append(AddVerdict(index, "full", row.id, "", full[0]))
            return
        for name, suffix, met, after in plan:
            if met is None:
                waiting[name] += not after and self.due_of(row) <= self.now
                self._add_merging(row, name, suffix, "" if suffix or not row.reply else emitter, after)
                continue
            if met.is_open:
                self._replace(row, self.pointers[name, row.key], met)
                met.waiters.update({emitter} if row.reply and not suffix else ())
            if not suffix:
                state = "open" if met.is_open else met.state
                verdicts.append(
                    AddVerdict(index, "joined", met.id, state, "" if met.is_open else met.text or "")
                )

    def _meet_merging(self, row: AddRow, name: str) -> tuple[Job | None, Job | None]:
        """Return the job to join, or the job that the new one comes after."""
        pointer = self.pointers.get((name, row.key))
        if pointer is None:
            return None, None
        if row.meeting == THROTTLE:
            return (pointer.job if pointer.job.is_open or pointer.until > self.now else None), None
        following = pointer.following if pointer.following and pointer.following.is_open else None
        if row.id in pointer.seen:
            return following or pointer.job, None
        if following and following.state == "delayed":
            return following, None
        job = following or pointer.job  # somebody made the next one go on by hand
        if not job.is_open:
            return None, None
        return (None, job) if _may_have_begun(job) else (job, None)

    def _replace(self, row: AddRow, pointer: Pointer, job: Job) -> None:
        if row.meeting == THROTTLE or row.id in pointer.seen:
            return
        pointer.seen.append(row.id)
        job.body = row.body
        if row.limit and row.limit != job.lane:
            job.lane = row.limit
            if job.state == "waiting":
                self.place(job)
        if job is pointer.following:
            pointer.next_print = row.print
        else:
            pointer.print = row.print
        if row.meeting == DEBOUNCE and job.state == "delayed":
            due = self.due_of(row)
            due = due if row.span == "" else max(self.now, min(due, job.created + int(row.span)))
            job.due = due
            job.ripe = due if job.after else job.ripe

    def _add_merging(self, row: AddRow, name: str, suffix: str, emitter: str, after: Job | None) -> None:
        due = self.due_of(row)
        job = Job(
            row.id + suffix, name, row.body, row.priority, bool(row.lifo), self.now, due, row.key, emitter
        )
        self.jobs[job.id], job.lane, job.keep = job, row.limit, row.keep
        if after:
            job.after, job.ripe, job.state = after, due, "delayed"
            job.due = due if row.meeting == DEBOUNCE else self.now + PUT_OFF
            pointer = self.pointers[name, row.key]
            pointer.job, pointer.following, pointer.next_print = after, job, row.print
            pointer.seen.append(row.id)
            return
        if due > self.now:
            job.state = "delayed"
        else:
            self.place(job)
        old = self.pointers.get((name, row.key))
        pointer = self.pointers[name, row.key] = Pointer(job, row.print)
        if row.meeting == THROTTLE:
            pointer.until = self.now + int(row.span)
        else:
            pointer.seen = [*(old.seen if old else []), row.id]

    def put_off(self, due: list[Job]) -> list[Job]:
        """Return those whose time has come, without those that have to wait for another job."""
        late: list[Job] = []
        for job in due:
            if job.after and job.after.is_open:
                job.due = self.now + PUT_OFF
                continue
            late.append(job)
            pointer = self.pointers.get((job.queue, job.key)) if job.after else None
            job.after = None
            if pointer and pointer.following is job:
                pointer.job, pointer.print, pointer.following = job, pointer.next_print, None
        return late


def _may_have_begun(job: Job) -> bool:
    """Return whether somebody may have begun a job: then no emission gives it another body."""
    is_idle = job.state in ("delayed", "waiting")
    return not is_idle or job.has_begun or job.attempts > 0 or job.stalls > 0


_MERGING = st.builds(
    AddRow,
    id=st.just(""),
    queue=st.sampled_from([1, 1, 1, 2]),
    body=st.sampled_from(['{"d":1}', '{"d":2}', "x" * 100, "y" * 400]),
    key=st.sampled_from(["k", "k", "k", "m"]),
    print=st.sampled_from(["p", "q"]),
    delay=st.just(""),
    due=st.just(""),
    priority=st.sampled_from([0, 0, 0, 1]),
    lifo=st.sampled_from([0, 0, 1]),
    reply=st.sampled_from([1, 1, 0]),
    meeting=st.sampled_from([THROTTLE, DEBOUNCE, KEEP_LAST, KEEP_LAST]),
    span=st.just(""),
    limit=st.sampled_from(["", "", "p", "q"]),
    keep=KEEPS,
)


def _with_times(row: AddRow, time: int, factor: int) -> AddRow:
    if row.meeting == THROTTLE:
        return row._replace(queue=1, span=min(time * factor, 500_000))  # no longer than keys are kept
    return row._replace(delay=time, span=time * factor) if row.meeting == DEBOUNCE else row


MERGING = st.lists(
    st.builds(_with_times, _MERGING, st.sampled_from([500, LEASE, 70_000]), st.sampled_from([1, 2, 20])),
    min_size=1,
    max_size=3,
)
"""Emissions without ids that merge."""


class MergeRules:
    """The calls around rows that come again or merge, for the state machine of jobs."""

    model: Any
    merged: ClassVar[int] = 0
    """How many jobs came after another one, in all examples."""

    @rule(rows=PLAIN)
    def add_twice(self: Any, rows: list[AddRow]) -> None:
        self.add("em", rows)
        self.add_again()

    @rule(
        emitter=st.sampled_from(["em", "other"]),
        rows=MERGING,
        is_limited=st.sampled_from([False, False, True]),
        between=MERGING,
        ms=st.sampled_from([0, 0, 300]),
    )
    def add_merging(
        self: Any, emitter: str, rows: list[AddRow], is_limited: bool, between: list[AddRow], ms: int
    ) -> None:
        """Rows, and perhaps the same ones again when others have come: the first answer was lost."""
        self.add(emitter, rows, is_limited)
        if not between:
            return
        first = self.added
        self.model.pass_time(ms)
        self.add("other", between)
        self._add(*first)

    @rule(
        row=_MERGING,
        rows=MERGING,
        worker=st.sampled_from(["w", "w", "x"]),
        state=st.sampled_from(["completed", "failed", "delayed", "waiting"]),
        text=st.sampled_from(["1", "begun"]),
        is_held_back=st.sampled_from([False, False, True]),
        is_met=st.sampled_from([True, True, False]),
    )
    def run_and_merge(
        self: Any,
        row: AddRow,
        rows: list[AddRow],
        worker: str,
        state: str,
        text: str,
        is_held_back: bool,
        is_met: bool,
    ) -> None:
        """Rows come while a worker has what it could claim, mostly one that merges with it, and it settles
        then.
        """
        if not is_held_back:  # by a pause or a limit
            self.take_orders_back()
        kept = row._replace(meeting=KEEP_LAST, queue=1, key="k")
        self.add("em", [kept])
        self._next_turn(worker)
        self.add("em", [kept._replace(body="later"), *rows] if is_met else rows)
        MergeRules.merged += any(job.after for job in self.model.jobs.values())
        self.settle_all(worker, state, text, 500)

    @precondition(lambda self: any(job.after for job in self.model.jobs.values()))
    @rule(offset=st.sampled_from([-1, 0]))
    def wait_for_next(self: Any, offset: int) -> None:
        """The time of a job that comes after another one, and the moment before."""
        left = [job.due + offset - self.model.now for job in self.model.jobs.values() if job.after]
        if min(left) > 0:
            self._wait_heard(min(left))
        self._next_turn("w")
