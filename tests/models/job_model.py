"""A model of the life of jobs, without a server: what each call must do and answer.

It uses lists and dicts instead of scores and keys. Each method takes the arguments of a call, changes
the model and returns the answer that the server must give. Where the promise leaves a choice (which
queues a claim takes from, what retention removes first), the method is given what the server chose,
and `job_checker` checks that choice.
"""

from __future__ import annotations

from collections.abc import Sequence

from models.controls.shelves import shelve
from models.hands import describe_handed
from models.job_model_values import Job, Memory, Pointer, Queue, Turn
from models.job_places import in_order, worker_of
from models.journals import fall_asleep
from models.leases import MESSAGES, Leases
from models.snapshots import ENDED
from models.stall_model import note_rooms
from models.strategies import LEASE

from eventbus.store.scripting.script_rows import SUPERSEDE, AddRow, AddVerdict, SettleRow, TurnAnswer

__all__ = ["JobModel"]


class JobModel(Leases):
    """One shard."""

    def next_due(self) -> int:
        delayed = [each.due for each in self.jobs.values() if each.state == "delayed"]
        return min([*delayed, *self.hands.open.values(), *self.looks.values()], default=-1)

    # emitters

    def add(self, emitter: str, names: Sequence[str], rows: Sequence[AddRow]) -> list[AddVerdict]:
        """A row names its queue by its place in `names`."""
        verdicts: list[AddVerdict] = []
        waiting = {name: len(self.waiting(name)) for name in self.all_queues()}
        superseded: list[Job] = []
        rows, later = self.taken(rows)
        for index, row in enumerate(rows):
            if row.meeting > SUPERSEDE:
                continue
            queue = self.queues[names[row.queue - 1]]
            plan = [each for suffix in self.suffixes(queue) if (each := self._meet(row, queue, suffix))]
            new = [name for name, met in plan if met is None and not self._supersedes(row, name)]
            is_delayed = self.due_of(row) > self.now
            most = 10**9 if queue.max_waiting == "" or is_delayed else int(queue.max_waiting)
            if full := [name for name in new if waiting[name] >= most]:
                verdicts.append(AddVerdict(index, "full", row.id, "", full[0]))
                continue
            for name, met in plan:
                if met is None:
                    superseded += self._accept(row, name, emitter)
                    waiting[name] += not is_delayed
                    continue
                if met.job.is_open and row.reply and "@" not in name:
                    met.job.waiters.add(emitter)
                if "@" not in name:
                    verdicts.append(met.verdict(index, row))
        verdicts += later + self.merge(emitter, names, rows, waiting)
        for job in superseded:
            self.cancel_one(job.id, "an add", None, 0)
        return verdicts

    def _meet(self, row: AddRow, queue: Queue, suffix: str) -> tuple[str, Pointer | None] | None:
        """Return None for a repeat; otherwise the queue name, with the pointer to join if there is one."""
        name = queue.name + suffix
        if row.id + suffix in self.jobs:
            return None
        pointer = self.pointers.get((name, row.key)) if row.key else None
        if pointer is None or row.meeting == SUPERSEDE:
            return name, None
        return name, pointer if pointer.stands(row) else None

    def _supersedes(self, row: AddRow, name: str) -> bool:
        """Tell whether it replaces another job; then even a full queue accepts it."""
        pointer = self.pointers.get((name, row.key)) if row.key else None
        return row.meeting == SUPERSEDE and pointer is not None and pointer.stands(row)

    def _accept(self, row: AddRow, name: str, emitter: str) -> list[Job]:
        """Add the job; return the jobs that it supersedes."""
        suffix = name[name.find("@") :] if "@" in name else ""
        due = max(self.due_of(row), self.now)
        told = emitter if row.reply and not suffix else ""
        job = Job(row.id + suffix, name, row.body, row.priority, bool(row.lifo), self.now, due, row.key, told)
        self.jobs[job.id], job.lane, job.keep = job, row.limit, row.keep
        if due > self.now:
            job.state = "delayed"
        else:
            self.place(job)
        if not row.key:
            return []
        old = self.pointers.get((name, row.key))
        self.pointers[name, row.key] = Pointer(job, row.print)
        return [old.job, *filter(None, [old.following])] if old and row.meeting == SUPERSEDE else []

    def look(self, emitter: str, ids: Sequence[str], *, join: bool) -> list[tuple[str, str, str | None]]:
        answer: list[tuple[str, str, str | None]] = []
        for each in ids:
            job = self.jobs.get(each)
            if job is None:
                answer.append((each, "unknown", ""))
            elif job.is_open:
                is_asked = job.state != "active" or not join  # who joins a job is not told who runs it
                answer.append((each, job.state if is_asked else "waiting", ""))
                if join:
                    job.waiters.add(emitter)
            else:
                answer.append((each, job.state, job.text))
        return answer

    def cancel(self, ids: Sequence[str], call: str, text: str, key_ttl: int) -> list[str]:
        ranks = ["unknown", "over", "asked", "ended"]
        words: list[str] = []
        for each in ids:
            job = self.jobs.get(each)
            suffixes = self.suffixes(self.base(job)) if job and "@" not in each else [""]
            said = [self.cancel_one(each + suffix, call, text, key_ttl) for suffix in suffixes]
            words.append(max(said, key=ranks.index))
        return words

    def cancel_one(self, job_id: str, call: str, text: str | None, key_ttl: int) -> str:
        """The first call wins; if the same call is repeated, its answer is the same."""
        job = self.jobs.get(job_id)
        if job is None:
            return "unknown"
        if not job.is_open:
            return "ended" if (job.state, job.cancelled_by) == ("cancelled", call) else "over"
        if not job.cancelled_by:
            job.cancelled_by, job.text = call, text
        if job.state != "active":
            self.finish(job, "cancelled", text, key_ttl)
            return "ended"
        worker = worker_of(job)
        self.messages.setdefault(worker, set()).add(f"cancel:{job.id}")
        self.messages_expire[worker] = self.unit + MESSAGES
        return "asked"

    def is_stale(self, turn: Turn) -> bool:
        kept = self.memories.get(turn.worker)
        return kept is not None and kept.turn.call > turn.call

    def recalls(self, turn: Turn) -> TurnAnswer | None:
        """Return the answer that the server gave to this very call before, if it did."""
        kept = self.memories.get(turn.worker)
        return kept.answer if kept is not None and kept.turn.call == turn.call else None

    def settle(self, turn: Turn) -> list[str]:
        """Do the first half of a turn: settle jobs and promote due ones. Return the ids whose lease
        is lost.
        """
        self.register(turn.worker.rstrip("+"))
        worker = turn.worker.rstrip("+")
        rows = [
            row
            for row in turn.settles
            if self.holds(row.id, row.token) and worker_of(self.jobs[row.id]) == worker
        ]
        lost = [row.id for row in turn.settles if row not in rows and not self._has_ended_short(row)]
        retried = [job for row in rows if (job := self._settle(row))]
        due = [each for each in self.jobs.values() if each.state == "delayed" and each.due <= self.now]
        back = [job for row in rows if (job := self.jobs[row.id]).state == "waiting" and job not in retried]
        due = self.put_off(due)
        for job in retried + sorted(due, key=lambda job: (job.due, job.moment)):
            self.place(job)
        due = self.hands.take_due(self.now)
        for who, job in due:
            self.withdraw(who, job)
        late = [self.jobs[job] for who, job in due if self.holds(job, f"{who}:h")]
        self.give_back([*in_order(back), *self.take_back(late)])
        return lost

    def _has_ended_short(self, row: SettleRow) -> bool:
        """Return whether a job that was handed over has completed by this worker, or is gone."""
        job = self.jobs.get(row.id)
        is_over = job is None or (job.state, job.ended_by) == ("completed", row.token.removesuffix(":h"))
        return row.token.endswith(":h") and is_over

    def hand_over(self, job: Job, worker: str) -> None:
        """Do the rest of an add whose job the server has handed to `worker`."""
        assert self.waiting(job.queue) == [job], "only a job that is alone in its queue is handed over"
        assert worker in self.registered
        self.hands.give(job.id, worker, self.now)
        job.state, job.token, job.claimed = "active", f"{worker}:h", (self.now, 0)
        self.messages.setdefault(worker, set()).add(describe_handed(job))
        self.messages_expire[worker] = self.unit + MESSAGES

    def settle_one(self, job: Job, worker: str, text: str, pool: str) -> str:
        """Settle a job that was handed over, in the short way."""
        if not self.holds(job.id, f"{worker}:h"):
            return "done" if (job.state, job.ended_by) == ("completed", worker) else "lost"
        if job.cancelled_by or job.waiters or job.story.heard:
            return "long"
        job.ended_by = worker
        self.finish(job, "completed", text, 0)
        if pool and worker in self.registered:
            self.hands.note_idle(pool, worker, self.now)
        return "done"

    def claim(self, turn: Turn, answer: TurnAnswer) -> None:
        """Do the second half: take over the claims of the answer, also of jobs that were just put back."""
        if answer.claims:
            self.leases[turn.worker.rstrip("+")] = self.now + LEASE
        for place, claim in enumerate(answer.claims):
            job = self.jobs[claim.id]
            job.state, job.token, job.claimed = "active", answer.token, (self.now, place)
            job.story.listens = False
        note_rooms(turn, answer, self.jobs, self.waiting, self.now + LEASE)
        self.hands.turn(turn, answer, self.now)
        self.memories[turn.worker] = Memory(turn, answer)

    def _settle(self, row: SettleRow) -> Job | None:
        """Settle one job; return it if it must be retried at once."""
        job = self.jobs[row.id]
        is_over = job.cancelled_by or row.state in ENDED
        if not is_over and (row.state == "delayed" or row.text == "begun"):
            job.note_first()
        if row.attempts != "" and not job.cancelled_by:
            job.attempts = int(row.attempts)
        if is_over:
            state = "cancelled" if job.cancelled_by else row.state
            job.ended_by = worker_of(job)
            self.finish(job, state, row.text, self.base(job).key_ttl)
        elif row.state == "suspended":
            return job if fall_asleep(job, row, self.now) else None
        elif row.state == "shelved":
            return shelve(self, job, row.text)
        elif row.state == "delayed" and row.delay == 0:
            job.state = "waiting"
            return job
        else:
            job.state = row.state
            job.due = self.now + row.delay if row.state == "delayed" else job.due
            job.parked = self.now
            job.has_begun = job.has_begun or row.state != "waiting" or row.text == "begun"
        return None

    def note(self, notes: Sequence[tuple[str, str, str]]) -> list[str]:
        lost = [job for job, token, _ in notes if not self.holds(job, token)]
        for job, _, progress in notes:
            if job not in lost:
                self.jobs[job].progress = progress
        return lost

    def announce(self, names: Sequence[tuple[str, str]], *, unpark: bool) -> int:
        """`names` are queues with their groups, `''` for the default group."""
        back = 0
        for name, group in names:
            full = f"{name}@{group}" if group else name
            parked = [each for each in self.jobs.values() if (each.queue, each.state) == (full, "parked")]
            if unpark:
                self.give_back(sorted(parked, key=lambda job: (job.parked, job.moment)))
                back += len(parked)
        for name, group in names:
            self.queues[name].groups.update({group} - {""})
        return back

    def pass_time(self, ms: int) -> None:
        """Move the time forward and drop what expires."""
        self.now += ms
        keys = [
            key for key, pointer in self.pointers.items() if (pointer.expires or self.unit + 1) <= self.unit
        ]
        for key in keys:
            del self.pointers[key]
        gone = [lane for lane, each in self.memories.items() if (each.expires or self.unit + 1) <= self.unit]
        for lane in gone:
            del self.memories[lane]
        for worker in [each for each, end in self.messages_expire.items() if end <= self.unit]:
            self.messages.pop(worker, None)
        self.lags = {name: each for name, each in self.lags.items() if each[1] > self.unit}
