"""Compares what the server answered and stored with the job model.

Where a call has a choice (which queues a claim takes from, which finished jobs retention removes
first), the checker only checks the bounds of that choice. All other facts must equal the model,
job by job.
"""

from __future__ import annotations

from collections import Counter

from models.answers import Answers
from models.controls.lanes import list_claimable, split_lines
from models.floors import WINDOW, Floors
from models.job_model import JobModel
from models.job_model_values import Job, Turn
from models.job_places import worker_of
from models.journals import check_stories, check_told
from models.snapshots import ENDED, Finals, Snapshot, told_to
from models.stall_model import check_suspects

from eventbus.store.scripting.script_rows import ClaimRow, TurnAnswer

__all__ = ["JobChecker", "Wakes"]

_INLINE = 8192
_LIVE = 60_000


class JobChecker:
    """Checks one shard."""

    def __init__(self, model: JobModel) -> None:
        self.model = model
        self.finals = Finals()
        self._places: dict[str, int] = {}
        self._dead: dict[str, str] = {}
        """queue -> its tombstones after the last call."""
        self.answers = Answers()
        self.floors = Floors()

    # claims

    def check_claims(self, turn: Turn, answer: TurnAnswer) -> None:
        """Claims must be in order, within all bounds, and as many as the bounds allow.

        Call it after the model has settled and before it claims.
        """
        self.model.place_released()
        jobs = self.model.jobs
        chosen = [jobs[claim.id] for claim in answer.claims]
        for claim, job in zip(answer.claims, chosen, strict=True):
            told = (claim.body, claim.attempts, claim.stalls, claim.created, claim.due, claim.stop)
            due = -job.due if job.has_begun else job.due
            assert told == (job.body, job.attempts, job.stalls, job.created, due, "")
        assert len(chosen) <= turn.want, "no more than was wanted"
        left: dict[str, list[Job]] = {}
        for index, (name, quota) in enumerate(turn.queues, start=1):
            there = self.model.waiting(name)
            mine = [jobs[claim.id] for claim in answer.claims if claim.queue == index]
            lines = split_lines(there)
            for line, taken in split_lines(mine).items():
                assert taken == lines[line][: len(taken)], f"{name} is claimed in order"
            assert len(mine) <= quota, f"{name} gives no more than its quota"
            rest = [job for job in there if job not in mine]
            running = [job for job in jobs.values() if (job.queue, job.state) == (name, "active")]
            each = self.model.controls.each.get(name, 10**9)
            counts = Counter(job.lane for job in (*running, *mine) if job.lane)
            over = [lane for lane in {job.lane for job in mine if job.lane} if counts[lane] > each]
            assert not over, f"more jobs of {over} run in {name} than {each}"
            is_asked = turn.want > 0 and quota > 0
            free = list_claimable(rest, (*running, *mine), each)
            if is_asked:
                left[name] = [job for job in rest if job.is_suspect]
                if left[name] and left[name][0] not in free and index not in answer.lonely:
                    left[name] = []  # who is behind it waits, too
            is_said = index in answer.more
            if self.model.controls.is_filled(name, len(mine), jobs.values()):
                assert not is_said, f"{name} is full"
                continue
            has_more = is_asked and any(not job.is_suspect for job in free)
            assert is_said or not has_more or self._is_alone(chosen), f"{name} has more"
            # Of suspects as many are read as may be taken: whether there are more is not known then.
            may_say = (is_asked and rest) or self._dead.get(name) or any(job.is_suspect for job in mine)
            assert may_say or not is_said, f"{name} has no more"
        check_suspects(turn, answer, chosen, left, self.model.now)
        if turn.call * 40503 % 65536 >= 65536 / 8 and not turn.is_alone:  # as `turn.lua` has it
            last = [job.is_suspect for job in chosen]
            assert last == sorted(last), "suspects come last"
        self._check_share(turn, answer, chosen)
        check_told(self.model, answer)

    def _is_alone(self, chosen: list[Job]) -> bool:
        return any(job.is_suspect and job.crowd == 1 for job in chosen)

    def check_next_due(self, answer: TurnAnswer, *, is_repeat: bool) -> None:
        """It may be early, if an earlier job was taken out: the turn at that time looks again. Never late."""
        first = self.model.next_due()
        assert (answer.next_due < 0) == (first < 0), "whether anything is due"
        assert answer.next_due <= first, "when the next job is due"
        assert is_repeat or answer.next_due < 0 or answer.next_due > self.model.now, (
            "what is due was promoted"
        )

    def _check_share(self, turn: Turn, answer: TurnAnswer, chosen: list[Job]) -> None:
        """Unless a suspect is in the way, no job may be left that could have been claimed."""
        waiting = {name: self.model.waiting(name) for name, quota in turn.queues if quota > 0}
        controls, mine = (
            self.model.controls,
            {name: [each for each in chosen if each.queue == name] for name in waiting},
        )
        there: dict[str, list[Job]] = {}
        for name, jobs in waiting.items():
            running = [job for job in self.model.jobs.values() if (job.queue, job.state) == (name, "active")]
            suspects_of = [job for job in mine[name] if job.is_suspect]
            free = list_claimable(
                [job for job in jobs if not job.is_suspect],
                (*running, *suspects_of),
                controls.each.get(name, 10**9),
            )
            there[name] = free
        if self._is_alone(chosen):
            return
        suspects = Counter(job.queue for job in chosen if job.is_suspect)
        want = turn.want - suspects.total()
        if chosen and sum(len(job.body) + job.story.size for job in chosen) >= turn.max_bytes:
            return
        took = Counter(turn.queues[claim.queue - 1][0] for claim in answer.claims)
        has_lanes = any(job.lane for jobs in there.values() for job in jobs)
        if has_lanes:
            # They have a share in each second call, and what is left in the others; `more` names what stays.
            return
        for name, quota in turn.queues:
            part = want if len(chosen) < turn.want else want // max(len(there), 1)
            should = min(part, quota - suspects[name], len(there.get(name, [])))
            assert took[name] - suspects[name] >= should, f"{name} gives its share"

    def check_repeat(self, first: TurnAnswer, again: TurnAnswer) -> None:
        """A repeated call gets the same answer, except for claims that were lost meanwhile."""
        held: list[ClaimRow] = [each for each in first.claims if self.model.holds(each.id, first.token)]
        assert again.claims == held, "a repeat brings what is still held"
        names = {row.id for row in held}
        watches = [row for row in first.watches if row.id in names]
        assert sorted(again.watches) == sorted(watches), "and tells what is to be watched"
        assert (again.lost, again.woken) == (first.lost, first.woken)
        assert list(again.refusals) == list(first.refusals)
        check_told(self.model, again)

    # what lies in the server

    def check(self, now: Snapshot, *, may_forget: bool) -> None:
        """Check the whole shard after a call; `may_forget` says whether that call applies retention."""
        self.model.place_released()
        now.check()
        self.finals.check(now)
        self.answers.check(now)
        gone = [job for job in self.model.jobs.values() if job.id not in now.jobs]
        assert may_forget or not gone, f"lost: {gone}"
        self._check_forgotten(gone)
        self._note_completed(now)
        for job in gone:
            del self.model.jobs[job.id]
        assert set(now.jobs) == set(self.model.jobs)
        for job in self.model.jobs.values():
            self._check_record(job, now)
        for queue in {job.queue for job in self.model.jobs.values()}:
            line = [job.id for job in self.model.waiting(queue)]
            assert now.waiting(queue) == line, f"the order of {queue}"
            self._check_rests(queue, now)
        self._dead = dict(now.values["dead"].get("", {}))
        check_stories(self.model, now.values)
        self._check_pointers(now)
        self._check_told(now)
        assert now.zset("workers") == self.model.leases, "when the leases of workers end"
        assert now.zset("emitters") == self.floors.scores, "up to when emitters have got all outcomes"
        self._check_looks(now)
        messages = {worker: set(each) for worker, each in now.values["control"].items()}
        assert messages == self.model.messages, "what workers are to hear"

    def _check_record(self, job: Job, now: Snapshot) -> None:
        record = now.jobs[job.id]
        assert (record["state"], record["queue"]) == (job.state, job.queue), job
        assert record.get("limit", "") == job.lane, job
        counts = [
            int(record.get(name, 0)) for name in ("attempts", "stalls", "spared", "alone", "crowd", "fatal")
        ]
        assert counts == [job.attempts, job.stalls, job.spared, job.alone, job.crowd, job.fatal], job
        assert record.get("room", "") == job.room, job
        assert int(record.get("first", 0)) == job.first, job
        assert now.values["progress"].get(job.id, "") == job.progress
        if job.state == "active":
            assert (now.held[job.id], record["token"]) == (worker_of(job), job.token), job
        elif job.state == "delayed":
            after = (job.after.id, str(job.ripe)) if job.after else (None, None)
            assert (record.get("after"), record.get("ripe")) == after, job
            assert int(now.zset("delayed", job.queue)[job.id]) == job.due, job
        elif job.state in ENDED:
            if job.text is None:
                job.text = now.text_of(job.id)
                assert job.text.startswith('{"'), job
            assert now.text_of(job.id) == job.text, job
            assert job.ended == int(record["ended"]), job
            place = job.state if job.leaves is None else "leaving"
            assert now.zset(place, job.queue)[job.id] == (job.leaves or job.ended), job

    def _check_rests(self, queue: str, now: Snapshot) -> None:
        """A key rests only while so many of its jobs run as may: whoever frees a slot gives it turns
        again.
        """
        running = Counter(
            job.lane for job in self.model.jobs.values() if (job.queue, job.state) == (queue, "active")
        )
        each = self.model.controls.each.get(queue, 10**9)
        idle = [lane for lane in now.values["resting"].get(queue, []) if running[lane] < each]
        assert not idle, f"keys of {queue} rest and may start: {idle}"

    def _check_forgotten(self, gone: list[Job]) -> None:
        """Retention may only remove ended jobs outside the window, over the count or age, oldest first."""
        for job in gone:
            assert job.state in ENDED, f"lost: {job}"
            if job.leaves is not None:
                at = self.floors.limit("completed", self.model.now)
                assert job.leaves < at, f"forgotten before its time: {job}"
                continue
            limit = self.floors.limit(job.state, self.model.now)
            assert job.ended < limit, f"forgotten while it may be asked for: {job}"
            count, age = self._limits(job)
            line = self._line(job.queue, job.state)
            newer = len(line) - 1 - line.index(job)
            assert newer >= count or job.ended < self.model.now - age, f"forgotten too early: {job}"
            assert all(each in gone for each in line[: line.index(job)]), (
                f"forgotten before older ones: {job}"
            )

    def _check_looks(self, now: Snapshot) -> None:
        """Check that somebody looks at what goes by itself a second after its time, or a second from now, and
        no later.
        """
        self.model.looks = now.looks
        for queue, jobs in now.values["leaving"].items():
            first = max(min(jobs.values()), self.model.now) + 1000
            assert now.looks[queue] <= first, f"what goes by itself in {queue} is looked at late"

    def check_swept(self) -> None:
        """After a sweep without a limit, no job may be left that retention should have removed."""
        for job in self.model.jobs.values():
            if job.leaves is not None:
                assert job.leaves >= self.floors.limit("completed", self.model.now), (
                    f"kept beyond its time: {job}"
                )
            elif job.state in ENDED and job.ended < self.floors.limit(job.state, self.model.now):
                count, age = self._limits(job)
                age = age if job.state == "completed" else max(age, WINDOW)
                line = self._line(job.queue, job.state)
                newer = len(line) - 1 - line.index(job)
                assert newer < count, f"kept beyond the count: {job}"
                assert job.ended >= self.model.now - age, f"kept beyond the age: {job}"

    def _limits(self, job: Job) -> tuple[int, int]:
        kept = self.model.queues[job.queue.partition("@")[0]].kept
        if job.state == "completed":
            return kept.keep_completed, kept.age_completed
        return kept.keep_failed, kept.age_failed

    def _line(self, queue: str, state: str) -> list[Job]:
        """Return the jobs of a queue that ended in one state, the oldest first."""
        found = [each for each in self.model.jobs.values() if (each.queue, each.state) == (queue, state)]
        found = [each for each in found if each.leaves is None]
        return sorted(found, key=lambda job: (job.ended, self._places.get(job.id, 0), job.id))

    def _note_completed(self, now: Snapshot) -> None:
        """Note the places of jobs in the lists of those that completed: the oldest first."""
        for queue, jobs in now.values["completed"].items():
            assert list(jobs.values()) == sorted(jobs.values()), (
                f"the completed jobs of {queue} are not in order"
            )
            places = [self._places.setdefault(job, len(self._places) + 1) for job in jobs]
            assert places == sorted(places), f"the completed jobs of {queue} have changed places"

    def _check_pointers(self, now: Snapshot) -> None:
        model = self.model
        there = {
            name: (fields["job"], fields["print"], fields.get("state"), fields.get("next"))
            for name, fields in now.values["key"].items()
        }
        should = {
            f"{queue}:{key}": (
                pointer.job.id,
                pointer.print,
                None if pointer.job.is_open else pointer.job.state,
                pointer.following.id if pointer.following else None,
            )
            for (queue, key), pointer in model.pointers.items()
        }
        assert there == should, "keys point where they should"
        for (queue, key), pointer in model.pointers.items():
            left = -1 if pointer.expires is None else pointer.expires - model.unit
            assert now.lives["key"][f"{queue}:{key}"] == left, f"how long {key} of {queue} is kept"

    def _check_told(self, now: Snapshot) -> None:
        """Each emitter that waited for a job got its outcome once; no other emitter got it."""
        assert set(now.values["replies"]) == set(self.model.told), "the stream of an emitter that is gone"
        for emitter, jobs in self.model.told.items():
            should = Counter(
                (job.id, job.state, 1, text) if len(text) <= _INLINE else (job.id, job.state, 0, "")
                for job in jobs
                for text in [job.text or ""]
            )
            assert told_to(now.values["replies"][emitter]) == should, f"what {emitter} heard"


class Wakes:
    """No wake is lost: if jobs wait, each live pool has an armed wake or a worker that knows of them."""

    def __init__(self) -> None:
        self.pools: dict[str, dict[str, int]] = {}
        """pool -> queue -> when it was announced."""
        self.known: dict[str, set[str]] = {}
        """pool -> the queues that a worker of it is going to poll."""

    def announce(self, pool: str, queues: list[str], now: int) -> None:
        served = self.pools.setdefault(pool, {})
        for queue in queues:
            if served.get(queue, 0) < now - _LIVE:
                self.known.setdefault(pool, set()).add(queue)  # a starting worker polls all its queues
            served[queue] = now

    def leave(self, pool: str) -> None:
        """Forget a pool whose last worker has left: no worker can be woken."""
        self.pools.pop(pool, None)

    def turn(self, turn: Turn, answer: TurnAnswer, model: JobModel) -> None:
        """A worker polled these queues. That uses up its wakes, unless suspects wait that it may not
        claim.
        """
        known = self.known.setdefault(turn.pool, set())
        for name, quota in turn.queues:
            has_suspects = any(job.is_suspect for job in model.waiting(name))
            if turn.want > 0 and quota > 0 and not has_suspects:
                known.discard(name)
        known.update(answer.woken)

    def check(self, now: Snapshot, model: JobModel) -> None:
        for pool, served in self.pools.items():
            armed = self.known.get(pool, set()).union(now.zset("wake", pool))
            for queue, announced in served.items():
                is_open = model.controls.is_open(queue, model.jobs.values())
                if announced >= model.now - _LIVE and is_open:
                    assert queue in armed, f"jobs wait in {queue}, and nobody of {pool} knows"

    def forget(self, now: Snapshot) -> None:
        """Call it before a time in which wakes may expire: workers poll by themselves meanwhile."""
        for pool in self.pools:
            self.known.setdefault(pool, set()).update(now.zset("wake", pool))
