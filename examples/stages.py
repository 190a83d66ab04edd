"""A report in five stages. Its job records each stage in its journal, and sleeps until somebody approves.

python stages.py                       one process, one report
eventbus worker stages:provider        in as many processes as you like
"""

import asyncio
import json
import secrets
from collections.abc import Mapping
from typing import Any

from eventbus import EventProvider
from eventbus.lowlevel import (
    Consumer,
    Job,
    Settle,
    Tree,
    WorkerServices,
    complete,
    describe,
    fail,
    give_back,
    is_final,
    read_failure,
    retry,
    suspend,
)

STAGES = ("collect", "render", "approve", "print", "mail")
provider = EventProvider()


def say(text: str) -> None:
    print(text, flush=True)


async def work(stage: str, job: Job) -> Any:
    # A stage whose process dies before its entry is recorded runs again.
    # So give others a key: f"{job.id} {stage}".
    say(f"{job.id}: {stage}")
    if stage == "print" and job.attempts == 0:
        raise ConnectionError("no paper")
    return f"{stage} of {job.body}"


class Reports:
    """The consumer: it runs the jobs of its queue."""

    group, follows, concurrency = "", (), 10

    def __init__(self, queue: str, services: WorkerServices) -> None:
        self.base = self.queue = queue
        self.retention = services.retention

    async def run(self, job: Job) -> Settle | None:
        approvals = [each for each in job.signals if each.name == "approved"]
        await provider.jobs.read_journal(job)  # the claim has brought its first 500 entries already
        for stage in STAGES[len(job.journal) :]:
            if stage != "approve":
                result = await work(stage, job)
            elif approvals:
                result = json.loads(approvals[0].payload)
            else:
                say(f"{job.id}: sleeps")
                return suspend(heard=job.heard)  # a later signal wakes it; it has looked at all earlier ones
            word = await provider.jobs.append(
                job,
                [json.dumps({"stage": stage, "result": result})],
                live={"done": f"{len(job.journal) + 1} of {len(STAGES)}"},
                taken=[each.id for each in approvals] if stage == "approve" else [],
            )
            if word != "ok":  # the job was cancelled, or another worker has it
                return give_back()
        return complete(json.dumps([json.loads(entry)["result"] for entry in job.journal]))

    def decide(self, job: Job, error: BaseException) -> Settle:
        text = describe(error, attempts=job.attempts + 1)
        return fail(text) if is_final(error) or job.attempts >= 4 else retry(text, 200)

    def failed(self, job: Job, settle: Settle) -> None:
        say(f"{job.id}: {read_failure(settle.text).message}, so it is {settle.state}")

    def facts(self, job: Job) -> Mapping[str, Any]:
        return {"job_id": job.id}

    def timeout_of(self, job: Job) -> float | None:  # noqa: ARG002
        return 60.0  # of one run; what it sleeps does not count

    def surround(self) -> None: ...

    def settled(self, job_id: str, state: str, text: str) -> None: ...


class ReportsExtension:
    """What the workers of the provider run beside its handlers."""

    queues = ("reports",)

    def make_consumer(self, queue: str, services: WorkerServices) -> Consumer:
        return Reports(queue, services)


class ReportOutcome:
    """What the outcome of a report means to those who await it."""

    name = queue = "reports"

    def decode_result(self, text: str) -> Any:
        return json.loads(text)

    def revive(self, state: str, text: str, job_id: str) -> Exception:
        return RuntimeError(f"{job_id} {state}: {read_failure(text).message}")


provider.jobs.attach(ReportsExtension())


async def main() -> None:
    jobs = provider.jobs
    async with provider, provider.worker():
        job_id = f"report-{secrets.token_hex(3)}"
        report = jobs.add(Tree(job_id, "reports", "May", on="fail"), ReportOutcome())
        await report.enqueued()
        while await jobs.live(job_id, "done") != "2 of 5":  # noqa: ASYNC110  (the server notifies nobody)
            await asyncio.sleep(0.05)
        await jobs.signal(job_id, "approved", json.dumps("by Ada"))
        say(f"-> {await report}")
        for entry in await jobs.journal(job_id):
            say(f"   {entry}")


if __name__ == "__main__":
    asyncio.run(main())
