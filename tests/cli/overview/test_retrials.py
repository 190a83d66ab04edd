"""`eventbus jobs retry`, `remove`, `retry-all`, `purge` and `failures`: jobs run again or go, after a
preview.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from typer.testing import Result

from eventbus import EventProvider, Retry

Invoke = Callable[..., Result]
MakeProvider = Callable[..., EventProvider]


def _fail(make_provider: MakeProvider, *numbers: int) -> list[str]:
    """Let orders fail, the odd ones with a ValueError, the others with a TypeError; return their jobs."""

    async def fail() -> list[str]:
        async with make_provider() as provider:

            @provider.on("order", retry=Retry(attempts=1))
            async def handle(n: Any) -> None:
                raise (ValueError if n % 2 else TypeError)(f"no {n}")

            emissions = [provider.emit("order", n) for n in numbers]
            async with provider.worker():
                await asyncio.gather(*emissions, return_exceptions=True)
            return [each.job_id for each in emissions]

    return asyncio.run(fail())


def _emit(make_provider: MakeProvider, count: int) -> list[str]:
    async def emit() -> list[str]:
        async with make_provider() as provider:
            emissions = [provider.emit("order", n, reply=False) for n in range(count)]
            await asyncio.gather(*(each.enqueued() for each in emissions))
            return [each.job_id for each in emissions]

    return asyncio.run(emit())


def _count(invoke: Invoke, state: str) -> int:
    words = [line.split() for line in invoke("jobs", "count", "order").stdout.splitlines()]
    return int(dict(words[1:])[state])


def test_a_failed_job_is_retried_once_and_a_waiting_one_removed(
    make_provider: MakeProvider, invoke: Invoke
) -> None:
    (job,) = _fail(make_provider, 1)
    assert invoke("jobs", "retry", job).stdout == f"job {job} waits for its turn again\n"
    refused = invoke("jobs", "retry", job)
    assert refused.exit_code == 1
    assert f"job {job} is waiting; only one that failed or was cancelled is retried" in refused.stderr
    assert invoke("jobs", "remove", job).stdout == f"job {job} is removed\n"
    assert invoke("jobs", "list", "order").stdout == "no job is waiting\n"
    unknown = invoke("jobs", "remove", "0-none-1")
    assert unknown.exit_code == 1


def test_a_completed_job_runs_again_only_with_rerun(make_provider: MakeProvider, invoke: Invoke) -> None:
    ran: list[int] = []

    async def work(job: str | None) -> str:
        """Let a worker run an emission, or the job that waits, to its end."""
        async with make_provider() as provider:

            @provider.on("order", retry=Retry(attempts=1))
            async def handle(n: int) -> int:
                ran.append(n)
                return n + len(ran)

            async with provider.worker() as worker:
                if job is None:
                    emission = provider.emit("order", 7)
                    await emission
                    return emission.job_id
                await worker.wait_drained(provider.flush)
                assert await provider.result(job) == 9
            return job

    job = asyncio.run(work(None))
    refused = invoke("jobs", "retry", job)
    assert refused.exit_code == 1
    assert f"job {job} is completed; only one that failed or was cancelled is retried" in refused.stderr
    assert "with --rerun one that completed" in refused.stderr
    again = invoke("jobs", "retry", job, "--rerun")
    assert (again.exit_code, again.stdout) == (0, f"job {job} waits for its turn again\n")
    assert _count(invoke, "waiting") == 1
    twice = invoke("jobs", "retry", job, "--rerun")
    assert twice.exit_code == 1
    assert f"job {job} is waiting" in twice.stderr
    asyncio.run(work(job))
    assert ran == [7, 7]
    assert invoke("jobs", "retry", "0-none-1", "--rerun").exit_code == 1


def test_all_failed_jobs_are_retried_after_their_count_was_said(
    make_provider: MakeProvider, invoke: Invoke
) -> None:
    _fail(make_provider, *range(5))
    told = invoke("jobs", "retry-all", "order", "--dry-run").stdout
    assert told == "5 failed jobs of event.order would be retried\n"
    asked = invoke("jobs", "retry-all", "order", "--error", "ValueError", said="n\n")
    assert asked.stdout.startswith("retry 2 failed jobs of event.order? [y/N]: ")
    assert _count(invoke, "failed") == 5
    done = invoke("jobs", "retry-all", "order", "--error", "ValueError", said="y\n").stdout
    assert done.endswith("2 failed jobs of event.order wait again\n")
    assert (_count(invoke, "failed"), _count(invoke, "waiting")) == (3, 2)
    assert invoke("jobs", "retry-all", "order", "--yes").stdout == "3 failed jobs of event.order wait again\n"
    assert invoke("jobs", "retry-all", "order").stdout == "0 failed jobs of event.order would be retried\n"


def test_all_jobs_of_a_state_are_purged_after_their_count_was_said(
    make_provider: MakeProvider, invoke: Invoke
) -> None:
    _emit(make_provider, 3)
    words = ("jobs", "purge", "order", "--state", "waiting")
    assert invoke(*words, "--dry-run").stdout == "3 waiting jobs of event.order would be removed\n"
    assert invoke(*words, said="n\n").stdout.startswith("remove 3 waiting jobs of event.order? [y/N]: ")
    assert invoke(*words, "--older-than", "1 hour", "--yes").stdout.startswith("0 waiting jobs")
    assert invoke(*words, "--yes").stdout == "3 waiting jobs of event.order removed\n"
    assert _count(invoke, "waiting") == 0


def test_a_state_that_makes_no_sense_is_refused(invoke: Invoke) -> None:
    result = invoke("jobs", "purge", "order", "--state", "active")
    assert result.exit_code == 2
    assert "expected a state, one of waiting, delayed" in result.stderr
    assert "is a queue of flows" in invoke("jobs", "retry-all", "workflow.checkout").stderr


def test_failed_jobs_are_listed_by_their_error(make_provider: MakeProvider, invoke: Invoke) -> None:
    assert invoke("jobs", "failures").stdout == "no job has failed\n"
    _fail(make_provider, *range(5))
    head, first, second = invoke("jobs", "failures").stdout.splitlines()
    assert head.split() == ["jobs", "queue", "newest", "oldest", "sample", "error"]
    assert first.split()[:2] == ["3", "event.order"]
    assert first.rstrip().endswith("TypeError: no #")
    assert second.endswith("ValueError: no #")
    lines = [json.loads(line) for line in invoke("jobs", "failures", "order", "--json").stdout.splitlines()]
    assert [(each["error"], each["count"]) for each in lines] == [
        ("TypeError: no #", 3),
        ("ValueError: no #", 2),
    ]


def test_without_an_answer_nothing_is_changed_and_the_command_says_so(
    make_provider: MakeProvider, invoke: Invoke
) -> None:
    _fail(make_provider, 1)
    refused = invoke("jobs", "retry-all", "order", said="n\n")
    assert (refused.exit_code, refused.stdout.splitlines()[-1]) == (0, "nothing was changed")
    alone = invoke("jobs", "retry-all", "order", said="")
    assert alone.exit_code == 2
    assert "nobody answered, so nothing was changed; with --yes it does not ask" in alone.stderr
    assert _count(invoke, "failed") == 1
