"""A user's own system on the low-level API: one queue, and a consumer that does what a test says."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from eventbus import EventProvider
from eventbus.lowlevel import (
    Consumer,
    Job,
    JobClient,
    Settle,
    WorkerServices,
    complete,
    describe,
    fail,
    is_final,
    retry,
)

__all__ = ["Hand", "Mine", "Reading", "Work"]

Work = Callable[[Job], Awaitable[Settle | None]]


class Reading:
    """Outcomes of these jobs are their texts."""

    name = "mine"
    queue = "mine"

    def decode_result(self, text: str) -> Any:
        return text

    def revive(self, state: str, text: str, job_id: str) -> Exception:
        return RuntimeError(f"{job_id} {state}: {text}")


class Hand:
    """A consumer that does what the test says."""

    base = queue = "mine"
    group = ""
    concurrency = 100
    follows: Sequence[str] = ("mine",)

    def __init__(self, host: WorkerServices, work: Work, attempts: int) -> None:
        self.retention = host.retention
        self._work = work
        self._attempts = attempts

    def settled(self, job_id: str, state: str, text: str) -> None:
        pass

    def surround(self) -> None:
        pass

    def facts(self, job: Job) -> dict[str, Any]:
        return {}

    def failed(self, job: Job, settle: Settle) -> None:
        pass

    def timeout_of(self, job: Job) -> float | None:
        return None

    async def run(self, job: Job) -> Settle | None:
        return await self._work(job)

    def decide(self, job: Job, error: BaseException) -> Settle:
        text = describe(error, attempts=job.attempts + 1)
        is_last = is_final(error) or job.attempts + 1 >= self._attempts
        return fail(text) if is_last else retry(text, 10)


class Mine:
    """An extension with one queue, and what it saw."""

    queues = ("mine",)

    def __init__(self, provider: EventProvider, *, attempts: int = 1) -> None:
        self.jobs: JobClient = provider.jobs
        self.ran: list[str] = []
        self.answers: dict[str, Work] = {}
        self._attempts = attempts
        provider.jobs.attach(self)

    def make_consumer(self, queue: str, services: WorkerServices) -> Consumer:
        return Hand(services, self._run, self._attempts)

    async def _run(self, job: Job) -> Settle | None:
        self.ran.append(job.id)
        work = self.answers.get(job.id.rpartition("/")[2])
        return complete(f'"{job.body}"') if work is None else await work(job)
