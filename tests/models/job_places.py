"""Where jobs stand in the job model: who waits in which order, who holds what, and how a job ends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from models.controls.orders import Controls
from models.job_model_values import Job, Pointer, Queue
from models.snapshots import UNIT

__all__ = ["JobPlaces", "in_order", "worker_of"]


class JobPlaces:
    """The jobs of one shard, their keys, and what emitters and workers are told."""

    def __init__(self, now: int, queues: Iterable[Queue], *, emitters: Iterable[str]) -> None:
        """Only `emitters` have a reply stream."""
        self.now = now
        self.queues = {each.name: each for each in queues}
        self.jobs: dict[str, Job] = {}
        self.pointers: dict[tuple[str, str], Pointer] = {}
        self.told: dict[str, list[Job]] = {each: [] for each in emitters}
        self.messages: dict[str, set[str]] = {}
        """worker -> the messages that it has not received yet."""
        self.messages_expire: dict[str, int] = {}
        self.controls = Controls()
        self._placed = 0
        self.looks: dict[str, int] = {}
        """queue -> when somebody is to look at its jobs that go by themselves."""
        self._released: list[Job] = []
        """Jobs whose predecessor has ended in the call under way; they are placed behind all others of it."""

    @property
    def unit(self) -> int:
        return self.now // UNIT

    def all_queues(self) -> list[str]:
        return [each.name + suffix for each in self.queues.values() for suffix in self.suffixes(each)]

    def suffixes(self, queue: Queue) -> list[str]:
        """Return the suffixes of the queue names: of the default group, then of the other groups."""
        return ["", *(f"@{group}" for group in sorted(queue.groups))]

    def waiting(self, queue: str) -> list[Job]:
        """Return the waiting jobs in the order in which they must be claimed, suspects and then lanes
        behind.
        """
        found = [each for each in self.jobs.values() if (each.queue, each.state) == (queue, "waiting")]
        return sorted(found, key=_line_of)

    def place_released(self) -> None:
        """Place what the call under way has released: the last thing that it does before it claims."""
        for job in self._released:
            if job.state == "released":  # else the same call cancelled it
                self.place(job)
        self._released = []

    def holds(self, job: str, token: str) -> bool:
        return job in self.jobs and self.jobs[job].state == "active" and self.jobs[job].token == token

    def held_by(self, worker: str) -> list[Job]:
        """Return what a worker holds, the longest held first."""
        held = [each for each in self.jobs.values() if each.state == "active" and worker_of(each) == worker]
        return in_order(held)

    def place(self, job: Job, *, is_back: bool = False) -> None:
        """Put it behind the jobs of its priority, or in front of them; a suspect behind all suspects."""
        self._placed += 1
        job.state = "waiting"
        is_urgent = job.lane != "" and job.priority < 0
        is_first = (is_back or job.is_lifo or is_urgent) and not job.is_suspect
        is_ranked = not job.is_suspect and not job.lane
        job.place = (job.priority if is_ranked else 0, -self._placed if is_first else self._placed)

    def give_back(self, jobs: Sequence[Job]) -> None:
        """Put jobs before those of their priorities, the first one first; suspects behind all suspects."""
        suspects = [job for job in jobs if job.is_suspect]
        for job in [*(job for job in reversed(jobs) if job not in suspects), *suspects]:
            self.place(job, is_back=True)

    def base(self, job: Job) -> Queue:
        return self.queues[job.queue.partition("@")[0]]

    def finish(self, job: Job, state: str, text: str | None, key_ttl: int) -> None:
        """Bring the job to its final state; notify each waiting emitter once."""
        assert job.is_open, f"{job.id} ends twice"
        job.state, job.ended = state, self.now
        if not job.cancelled_by:  # otherwise the text of the call that cancelled it stays
            job.text = text
        for emitter in {job.emitter, *job.waiters}.intersection(self.told):
            self.told[emitter].append(job)
        pointer = self.pointers.get((job.queue, job.key))
        if pointer is not None and pointer.job is job and not self._succeed(pointer):
            pointer.expires = self.unit - -max(key_ttl, pointer.until - self.now) // UNIT
            if key_ttl == 0 and pointer.until <= self.now:
                del self.pointers[job.queue, job.key]

    def _succeed(self, pointer: Pointer) -> bool:
        """Let the next job of a key take the place of the one that ends."""
        job, pointer.following = pointer.following, None
        if job is None or not job.is_open:
            return False
        pointer.job, pointer.print, job.after = job, pointer.next_print, None
        if job.state == "delayed" and job.ripe <= self.now:
            job.due, job.state = self.now, "released"
            self._released.append(job)
        return True


def _line_of(job: Job) -> tuple[int, str, tuple[int, int]]:
    """Return where a waiting job stands among all of its queue; suspects have their line whatever their key
    is.
    """
    return (1, "", job.place) if job.is_suspect else (2 if job.lane else 0, job.lane, job.place)


def worker_of(job: Job) -> str:
    """Return the worker that holds an active job."""
    return job.token.partition(":")[0].rstrip("+")


def in_order(jobs: Iterable[Job]) -> list[Job]:
    """Return jobs as they were claimed, the first one first."""
    return sorted(jobs, key=lambda job: (job.claimed, job.id))
