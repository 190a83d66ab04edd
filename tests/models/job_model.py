"""A model of the life of jobs, without a server: what each call must do and answer.

It uses lists and dicts instead of scores and keys. Each method takes the arguments of a call, changes
the model and returns the answer that the server must give. Where the promise leaves a choice (which
queues a claim takes from, what retention removes first), the method is given what the server chose,
and `job_checker` checks that choice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from models.job_model_values import Job, Memory, Pointer, Queue, Turn
from models.snapshots import ENDED, UNIT
from models.stall_model import Blame, Blames, is_spent, note_rooms, note_stall

from eventbus.store.script_rows import AddRow, AddVerdict, SettleRow, TurnAnswer

__all__ = ["LEASE", "JobModel"]

LEASE = 10_000

_MEMORY = 600_000 // UNIT
_MESSAGES = 120_000 // UNIT
_DAY = 86_400_000
_REUSE, _SUPERSEDE = 1, 2


class JobModel:
    """One shard."""

    def __init__(self, now: int, queues: Iterable[Queue], *, emitters: Iterable[str]) -> None:
        """Only `emitters` have a reply stream."""
        self.now = now
        self.queues = {each.name: each for each in queues}
        self.jobs: dict[str, Job] = {}
        self.pointers: dict[tuple[str, str], Pointer] = {}
        self.told: dict[str, list[Job]] = {each: [] for each in emitters}
        self.memories: dict[str, Memory] = {}
        self.messages: dict[str, set[str]] = {}
        """worker -> the messages that it has not received yet."""
        self.messages_expire: dict[str, int] = {}
        self._placed = 0
        self.heard: int | None = None
        self.grace = 0
        self.lags: dict[str, tuple[int, int]] = {}
        self.leases: dict[str, int] = {}
        """worker -> when its leases end."""
        self.registered: set[str] = set()
        """The workers that took a turn and were not rescued since."""
        self._blames = Blames()

    # looks

    @property
    def unit(self) -> int:
        return self.now // UNIT

    def waiting(self, queue: str) -> list[Job]:
        """Return the waiting jobs in the order in which they must be claimed, the suspects last."""
        found = [each for each in self.jobs.values() if (each.queue, each.state) == (queue, "waiting")]
        return sorted(found, key=lambda job: (job.is_suspect, job.place))

    def next_due(self) -> int:
        return min((each.due for each in self.jobs.values() if each.state == "delayed"), default=-1)

    def holds(self, job: str, token: str) -> bool:
        return job in self.jobs and self.jobs[job].state == "active" and self.jobs[job].token == token

    # emitters

    def add(self, emitter: str, names: Sequence[str], rows: Sequence[AddRow]) -> list[AddVerdict]:
        """A row names its queue by its place in `names`."""
        verdicts: list[AddVerdict] = []
        waiting = {name: len(self.waiting(name)) for name in self._all_queues()}
        superseded: list[Job] = []
        for index, row in enumerate(rows):
            queue = self.queues[names[row.queue - 1]]
            plan = [each for suffix in self._suffixes(queue) if (each := self._meet(row, queue, suffix))]
            new = [name for name, met in plan if met is None and not self._supersedes(row, name)]
            is_delayed = self._due(row) > self.now
            most = 10**9 if queue.max_waiting == "" or is_delayed else int(queue.max_waiting)
            if full := [name for name in new if waiting[name] >= most]:
                verdicts.append(AddVerdict(index, "full", row.id, "", full[0]))
                continue
            for name, met in plan:
                if met is None:
                    old = self._accept(row, name, emitter)
                    superseded += [old] if old else []
                    waiting[name] += not is_delayed
                    continue
                if met.job.is_open and row.reply and "@" not in name:
                    met.job.waiters.add(emitter)
                if "@" not in name:
                    verdicts.append(_verdict(index, met, row))
        for job in superseded:
            self.cancel_one(job.id, "an add", None, 0)
        return verdicts

    def _due(self, row: AddRow) -> int:
        if row.delay != "":
            return self.now + int(row.delay)
        return int(row.due) if row.due != "" else self.now

    def _all_queues(self) -> list[str]:
        return [each.name + suffix for each in self.queues.values() for suffix in self._suffixes(each)]

    def _suffixes(self, queue: Queue) -> list[str]:
        """Return the suffixes of the queue names: of the default group, then of the other groups."""
        return ["", *(f"@{group}" for group in sorted(queue.groups))]

    def _meet(self, row: AddRow, queue: Queue, suffix: str) -> tuple[str, Pointer | None] | None:
        """Return None for a repeat; otherwise the queue name, with the pointer to join if there is one."""
        name = queue.name + suffix
        if row.id + suffix in self.jobs:
            return None
        pointer = self.pointers.get((name, row.key)) if row.key else None
        if pointer is None or row.meeting == _SUPERSEDE:
            return name, None
        return name, pointer if self._stands(pointer.job, row) else None

    def _stands(self, job: Job, row: AddRow) -> bool:
        """Tell whether the key still stands for `job`, so that another emission is not simply a new job."""
        return job.is_open or job.state == "completed" or row.meeting == _REUSE

    def _supersedes(self, row: AddRow, name: str) -> bool:
        """Tell whether it replaces another job; then even a full queue accepts it."""
        pointer = self.pointers.get((name, row.key)) if row.key else None
        return row.meeting == _SUPERSEDE and pointer is not None and self._stands(pointer.job, row)

    def _accept(self, row: AddRow, name: str, emitter: str) -> Job | None:
        """Add the job; return the job that it supersedes, if any."""
        suffix = name[name.find("@") :] if "@" in name else ""
        due = max(self._due(row), self.now)
        told = emitter if row.reply and not suffix else ""
        job = Job(row.id + suffix, name, row.body, row.priority, bool(row.lifo), self.now, due, row.key, told)
        self.jobs[job.id] = job
        if due > self.now:
            job.state = "delayed"
        else:
            self._place(job)
        if not row.key:
            return None
        old = self.pointers.get((name, row.key))
        self.pointers[name, row.key] = Pointer(job, row.print)
        return old.job if old and row.meeting == _SUPERSEDE else None

    def _place(self, job: Job, *, is_back: bool = False) -> None:
        """Put it behind the jobs of its priority, or in front of them; a suspect behind all suspects."""
        self._placed += 1
        job.state = "waiting"
        is_first = (is_back or job.is_lifo) and not job.is_suspect
        job.place = (0 if job.is_suspect else job.priority, -self._placed if is_first else self._placed)

    def _give_back(self, jobs: Sequence[Job]) -> None:
        """Put jobs before those of their priorities, the first one first; suspects behind all suspects."""
        suspects = [job for job in jobs if job.is_suspect]
        for job in [*(job for job in reversed(jobs) if job not in suspects), *suspects]:
            self._place(job, is_back=True)

    def _base(self, job: Job) -> Queue:
        return self.queues[job.queue.partition("@")[0]]

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
            suffixes = self._suffixes(self._base(job)) if job and "@" not in each else [""]
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
            self._finish(job, "cancelled", text, key_ttl)
            return "ended"
        worker = worker_of(job)
        self.messages.setdefault(worker, set()).add(f"cancel:{job.id}")
        self.messages_expire[worker] = self.unit + _MESSAGES
        return "asked"

    def _finish(self, job: Job, state: str, text: str | None, key_ttl: int) -> None:
        """Bring the job to its final state; notify each waiting emitter once."""
        assert job.is_open, f"{job.id} ends twice"
        job.state, job.ended = state, self.now
        if not job.cancelled_by:  # otherwise the text of the call that cancelled it stays
            job.text = text
        for emitter in {job.emitter, *job.waiters}.intersection(self.told):
            self.told[emitter].append(job)
        pointer = self.pointers.get((job.queue, job.key))
        if pointer is not None and pointer.job is job:
            pointer.expires = self.unit + key_ttl // UNIT
            if key_ttl == 0:
                del self.pointers[job.queue, job.key]

    def is_stale(self, turn: Turn) -> bool:
        kept = self.memories.get(turn.worker)
        return kept is not None and kept.turn.call > turn.call

    def recalls(self, turn: Turn) -> TurnAnswer | None:
        """Return the answer that the server gave to this very call before, if it did."""
        kept = self.memories.get(turn.worker)
        return kept.answer if kept is not None and kept.turn.call == turn.call else None

    def settle(self, turn: Turn) -> list[str]:
        """Do the first half of a turn: settle jobs and promote due ones. Return the ids whose lease is lost."""
        self._register(turn.worker.rstrip("+"))
        worker = turn.worker.rstrip("+")
        lost = [
            row.id
            for row in turn.settles
            if not self.holds(row.id, row.token) or worker_of(self.jobs[row.id]) != worker
        ]
        retried = [job for row in turn.settles if row.id not in lost and (job := self._settle(row))]
        due = [each for each in self.jobs.values() if each.state == "delayed" and each.due <= self.now]
        for job in retried + sorted(due, key=lambda job: (job.due, job.id)):
            self._place(job)
        back = [self.jobs[row.id] for row in turn.settles if row.id not in lost]
        back = [job for job in back if job.state == "waiting" and job not in retried]
        self._give_back(sorted(back, key=lambda job: (job.claimed, job.id)))
        return lost

    def claim(self, turn: Turn, answer: TurnAnswer) -> None:
        """Do the second half: take over the claims of the answer, also of jobs that were just put back."""
        if answer.claims:
            self.leases[turn.worker.rstrip("+")] = self.now + LEASE
        for place, claim in enumerate(answer.claims):
            job = self.jobs[claim.id]
            job.state, job.token, job.claimed = "active", answer.token, (self.now, place)
        note_rooms(turn, answer, self.jobs, self.waiting, self.now + LEASE)
        self.memories[turn.worker] = Memory(turn, answer)

    def _register(self, worker: str) -> None:
        if worker in self.registered:
            return
        self.registered.add(worker)
        self.leases[worker] = self.now + LEASE
        for lane in {worker, f"{worker}+"}.intersection(self.memories):
            self.memories[lane].expires = None

    def _unregister(self, worker: str) -> None:
        self.registered.discard(worker)
        del self.leases[worker]
        for lane in {worker, f"{worker}+"}.intersection(self.memories):
            self.memories[lane].expires = self.unit + _MEMORY

    def _settle(self, row: SettleRow) -> Job | None:
        """Settle one job; return it if it must be retried at once."""
        job = self.jobs[row.id]
        if row.attempts != "" and not job.cancelled_by:
            job.attempts = int(row.attempts)
        if job.cancelled_by or row.state in ENDED:
            state = "cancelled" if job.cancelled_by else row.state
            self._finish(job, state, row.text, self._base(job).key_ttl)
        elif row.state == "delayed" and row.delay == 0:
            job.state = "waiting"
            return job
        else:
            job.state = row.state
            job.due = self.now + row.delay if row.state == "delayed" else job.due
            job.parked = self.now
        return None

    def held_by(self, worker: str) -> list[Job]:
        """Return what a worker holds, the longest held first."""
        held = [each for each in self.jobs.values() if each.state == "active" and worker_of(each) == worker]
        return sorted(held, key=lambda job: (job.claimed, job.id))

    def renew(
        self, worker: str, lag: int, leases: Sequence[tuple[str, str]], calls: tuple[int, int]
    ) -> tuple[list[str], list[str], list[str]]:
        """`calls` are the last turns of both lanes whose answers the worker knows; it gives back what it does not name."""
        self._hear()
        self.lags[worker] = (lag, self.unit + _MEMORY)
        if worker in self.registered:
            self.leases[worker] = self.now + LEASE
        lost = [each for each in leases if not self.holds(*each) or worker_of(self.jobs[each[0]]) != worker]
        held = [self.jobs[each[0]] for each in leases if each not in lost]
        cancelled = [job.id for job in held if job.cancelled_by]
        returned: list[Job] = []
        for job in self.held_by(worker):
            lane, _, call = job.token.partition(":")
            if job not in held and int(call) <= calls[lane.endswith("+")]:
                returned.append(job)
                note_stall(job, None)
                if job.cancelled_by:
                    self._finish(job, "cancelled", None, _DAY)
                else:
                    job.state = "waiting"
        self._give_back([job for job in returned if job.is_open])
        return [job for job, _ in lost], cancelled, [job.id for job in returned]

    def note(self, notes: Sequence[tuple[str, str, str]]) -> list[str]:
        lost = [job for job, token, _ in notes if not self.holds(job, token)]
        for job, _, progress in notes:
            if job not in lost:
                self.jobs[job].progress = progress
        return lost

    def _hear(self) -> None:
        if self.heard is not None and self.now - self.heard > LEASE / 2:
            self.grace = self.now + LEASE
        self.heard = self.now

    def rescue(
        self, limit: int, max_stalls: int, key_ttl: int
    ) -> tuple[int, list[tuple[str, str, str, int, int]]]:
        self._hear()
        if self.now < self.grace:
            return self.grace - self.now, []
        over = sorted((end, worker) for worker, end in self.leases.items() if end <= self.now)
        rows: list[tuple[str, str, str, int, int]] = []
        for end, worker in over:
            held = self.held_by(worker)
            lag, _ = self.lags.get(worker, (0, 0))
            blame = self._blames.find(worker, end, LEASE, held)
            for job in held[-(limit - len(rows)) :]:
                verdict = self._judge(job, blame, max_stalls, key_ttl)
                rows.append((job.id, verdict, worker, self.now - end + LEASE, lag))
            if self.held_by(worker):
                break  # the next call goes on
            self._unregister(worker)
            if len(rows) >= limit:
                break
        back = [self.jobs[row[0]] for row in rows if row[1] == "rescued"]
        self._give_back(sorted(back, key=lambda job: (job.claimed, job.id)))
        left = min(self.leases.values(), default=None)
        return -1 if left is None else max(0, left - self.now), rows

    def _judge(self, job: Job, blame: Blame, max_stalls: int, key_ttl: int) -> str:
        is_blamed = note_stall(job, blame)
        if job.cancelled_by or (is_blamed and is_spent(job, blame, max_stalls)):
            self._finish(job, "cancelled" if job.cancelled_by else "failed", None, key_ttl)
            return job.state
        job.state = "waiting"
        return "rescued"

    def announce(self, names: Sequence[tuple[str, str]], *, unpark: bool) -> int:
        """`names` are queues with their groups, `''` for the default group."""
        back = 0
        for name, group in names:
            full = f"{name}@{group}" if group else name
            parked = [each for each in self.jobs.values() if (each.queue, each.state) == (full, "parked")]
            if unpark:
                self._give_back(sorted(parked, key=lambda job: (job.parked, job.id)))
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


def worker_of(job: Job) -> str:
    """Return the worker that holds an active job."""
    return job.token.partition(":")[0].rstrip("+")


def _verdict(index: int, met: Pointer, row: AddRow) -> AddVerdict:
    word = "joined" if met.print == row.print else "other"
    if met.job.is_open:
        return AddVerdict(index, word, met.job.id, "open", "")
    return AddVerdict(index, word, met.job.id, met.job.state, met.job.text or "")
