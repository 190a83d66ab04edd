"""`inspector.jobs.retry`, `remove`, `retry_all` and `purge`: jobs of events run again or go, one or many."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from eventbus import DefinitionError, EventProvider, JobCancelled, Retry, UnknownJob, UsageError
from eventbus.store.bounds import HEAVY_ROWS
from workflows import FlowContext, WorkflowProvider, durable

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]
_ONCE = Retry(attempts=1)


class _Bank:
    """A handler that fails until the bank is up, and says with which error."""

    def __init__(self, provider: EventProvider, **options: Any) -> None:
        self.is_up = False
        self.runs: list[int] = []
        provider.on("charge", retry=options.pop("retry", _ONCE), **options)(self.charge)

    async def charge(self, n: int) -> int:
        self.runs.append(n)
        if not self.is_up:
            raise (ValueError if n % 2 else TypeError)(f"no {n}")
        return n


async def _fail(provider: EventProvider, *numbers: int, **options: Any) -> list[str]:
    emissions = [provider.emit("charge", n, **options) for n in numbers]
    await asyncio.gather(*emissions, return_exceptions=True)
    return [each.job_id for each in emissions]


async def test_a_failed_job_runs_again_with_all_its_attempts_and_who_asks_gets_the_new_outcome(
    make_provider: MakeProvider,
) -> None:
    provider = make_provider()
    bank = _Bank(provider, retry=Retry(attempts=2, delay=0))
    async with provider, provider.worker():
        (job,) = await _fail(provider, 1)
        assert bank.runs == [1, 1]
        bank.is_up = True
        assert await provider.inspector.jobs.retry(job) is True
        assert await provider.result(job) == 1
        report = await provider.inspector.jobs.get(job)
        assert (report.state, report.result, report.attempts) == ("completed", 1, 0)
        assert report.errors == ["ValueError: no 1", "ValueError: no 1"]
        assert await provider.inspector.jobs.retry(job) is False, "it has completed"


async def test_an_expired_and_a_cancelled_job_run_again(make_provider: MakeProvider) -> None:
    provider = make_provider()
    bank = _Bank(provider)
    bank.is_up = True
    async with provider:
        late = provider.emit("charge", 1, ttl="0.001s", reply=False)
        gone = provider.emit("charge", 2, reply=False)
        await asyncio.gather(late.enqueued(), gone.enqueued())
        await provider.cancel(gone.job_id)
        while (await provider.inspector.jobs.get(late.job_id)).created_ms + 1 >= await _now(provider):
            pass
        async with provider.worker():
            with pytest.raises(Exception, match="was not started within its ttl"):
                await provider.result(late.job_id)
        assert bank.runs == []
        assert await provider.inspector.jobs.retry(gone.job_id)
        async with provider.worker():
            assert await provider.result(gone.job_id) == 2


async def _now(provider: EventProvider) -> int:
    """The server's time, ms."""
    return await provider._life.running("ask").store.inspection.roster.now()


async def test_two_retries_at_once_start_one_run(make_provider: MakeProvider) -> None:
    provider, other = make_provider(), make_provider()
    bank = _Bank(provider)
    async with provider, other:
        async with provider.worker():
            (job,) = await _fail(provider, 1)
        done = await asyncio.gather(*(each.inspector.jobs.retry(job) for each in (provider, other) * 3))
        assert sorted(done) == [False] * 5 + [True]
        bank.is_up = True
        async with provider.worker():
            assert await other.result(job) == 1
        assert bank.runs == [1, 1]


@durable("checkout")
async def checkout(ctx: FlowContext[int]) -> int:
    return ctx.input


async def test_a_retry_or_a_removal_of_what_is_no_job_of_an_event_is_refused(
    make_provider: MakeProvider,
) -> None:
    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(checkout)
    async with provider, provider.worker():
        handle = await flows.execute(checkout, 1)
        assert await handle.result() == 1
        for act in (provider.inspector.jobs.retry, provider.inspector.jobs.remove):
            with pytest.raises(UsageError, match="is a flow, which is not"):
                await act(handle.id)
            with pytest.raises(UnknownJob):
                await act("0-none-1")
        for each in (provider.inspector.queues.retry_all, provider.inspector.queues.purge):
            with pytest.raises(UsageError, match="is a queue of flows"):
                await each("workflow.checkout")


async def test_a_job_that_waits_is_removed_and_who_awaits_it_is_told(make_provider: MakeProvider) -> None:
    async with make_provider() as provider:
        emission = provider.emit("charge", 1, delay="1 hour")
        await emission.enqueued()
        assert await provider.inspector.jobs.remove(emission.job_id) is True
        with pytest.raises(JobCancelled, match="it was removed"):
            await emission
        with pytest.raises(UnknownJob):
            await provider.inspector.jobs.remove(emission.job_id)
        for state in ("delayed", "cancelled"):
            assert (await provider.inspector.jobs.list("charge", state=state)).jobs == []


@pytest.mark.parametrize("fails", [False, True], ids=["completed", "failed"])
async def test_a_job_that_ended_is_unknown_and_told_as_removed_at_once(
    make_provider: MakeProvider, fails: bool
) -> None:
    provider = make_provider()

    @provider.on("charge", retry=Retry(attempts=1))
    async def charge(n: int) -> int:
        if fails:
            raise ValueError("no money")
        return n

    async with provider, provider.worker(), provider.watch("charge") as changes:
        emission = provider.emit("charge", 1, idempotency_key="k", correlation_id="chain")
        await asyncio.gather(emission, return_exceptions=True)
        assert await provider.inspector.jobs.remove(emission.job_id) is True
        async with asyncio.timeout(240):
            told = [(await anext(changes)).what]
            while told[-1] != "removed":
                told.append((await anext(changes)).what)
        for look in (provider.inspector.jobs.get, provider.inspector.jobs.why):
            with pytest.raises(UnknownJob):
                await look(emission.job_id)
        assert (await provider.inspector.jobs.find("charge", idempotency_key="k")).jobs == []
        assert (await provider.inspector.jobs.find("charge", correlation_id="chain")).jobs == []
        state: Any = "failed" if fails else "completed"
        assert (await provider.inspector.jobs.list("charge", state=state)).jobs == []


async def test_a_job_that_runs_is_not_removed(make_provider: MakeProvider) -> None:
    provider = make_provider()
    began, go_on = asyncio.Event(), asyncio.Event()

    @provider.on("charge")
    async def charge(n: int) -> int:
        began.set()
        await go_on.wait()
        return n

    async with provider, provider.worker():
        emission = provider.emit("charge", 1)
        await emission.enqueued()
        await asyncio.wait_for(began.wait(), 240)
        assert await provider.inspector.jobs.remove(emission.job_id) is False
        go_on.set()
        assert await emission == 1
        assert await provider.inspector.jobs.remove(emission.job_id) is True


async def test_all_failed_jobs_of_one_error_run_again_after_a_preview(
    make_provider: MakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eventbus.admin.jobs.retrials.HEAVY_ROWS", 3)
    monkeypatch.setattr("eventbus.admin.jobs.retrials._PAGE", 4)
    provider = make_provider()
    bank = _Bank(provider)
    async with provider, provider.worker():
        jobs = await _fail(provider, *range(20))
        inspector = provider.inspector
        assert await inspector.queues.retry_all("charge", dry_run=True) == 20
        assert await inspector.queues.retry_all("charge", error="ValueError: no #", dry_run=True) == 10
        assert await inspector.queues.retry_all("charge", error="ValueError", dry_run=True) == 10
        assert await inspector.queues.retry_all("charge", error="KeyError", dry_run=True) == 0
        bank.is_up = True
        bank.runs.clear()
        assert await inspector.queues.retry_all("charge", error="ValueError") == 10
        assert await asyncio.gather(*(provider.result(job) for job in jobs[1::2])) == list(range(1, 20, 2))
        assert sorted(bank.runs) == list(range(1, 20, 2))
        assert await inspector.queues.retry_all("charge") == 10
        await asyncio.gather(*(provider.result(job) for job in jobs))
        assert await inspector.queues.retry_all("charge") == 0


async def test_what_fails_again_meanwhile_is_not_retried_for_ever(
    make_provider: MakeProvider, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eventbus.admin.jobs.retrials._PAGE", 2)
    provider = make_provider()
    bank = _Bank(provider)
    async with provider, provider.worker():
        await _fail(provider, *range(1, 9))
        assert await provider.inspector.queues.retry_all("charge") == 8
        await until(lambda: len(bank.runs) == 16, "each has run once more")
    assert len(bank.runs) == 16


@pytest.mark.parametrize("state", ["failed", "waiting", "delayed", "completed"])
async def test_all_jobs_of_a_state_are_purged_after_a_preview(
    make_provider: MakeProvider, monkeypatch: pytest.MonkeyPatch, state: Any
) -> None:
    monkeypatch.setattr("eventbus.admin.jobs.retrials.HEAVY_ROWS", 3)
    monkeypatch.setattr("eventbus.admin.jobs.retrials._PAGE", 4)
    provider = make_provider()
    bank = _Bank(provider)
    bank.is_up = state == "completed"
    async with provider:
        if state in ("failed", "completed"):
            async with provider.worker():
                await _fail(provider, *range(1, 12))
        else:
            for n in range(11):
                delay = "1 hour" if state == "delayed" else None
                await provider.emit("charge", n, reply=False, delay=delay)
        purge = provider.inspector.queues.purge
        assert await purge("charge", state, older_than="1 hour", dry_run=True) == 0
        assert await purge("charge", state, dry_run=True) == 11
        assert (await provider.inspector.queues.count("charge"))[state] == 11
        assert await purge("charge", state) == 11
        assert await purge("charge", state) == 0
        assert (await provider.inspector.queues.count("charge"))[state] == 0
        assert (await provider.inspector.jobs.list("charge", state=state)).jobs == []


async def test_a_purge_of_one_error_leaves_the_others(make_provider: MakeProvider) -> None:
    provider = make_provider()
    _Bank(provider)
    async with provider, provider.worker():
        await _fail(provider, *range(6))
        assert await provider.inspector.queues.purge("charge", error="TypeError") == 3
        left = await provider.inspector.jobs.list("charge", state="failed")
        assert {each.error.partition(":")[0] for each in left.jobs} == {"ValueError"}


async def test_states_that_make_no_sense_are_refused(make_provider: MakeProvider) -> None:
    async with make_provider() as provider:
        inspector = provider.inspector
        with pytest.raises(
            DefinitionError, match="expected a state, one of failed, cancelled, got: 'waiting'"
        ):
            await inspector.queues.retry_all("charge", cast("Any", "waiting"))
        with pytest.raises(DefinitionError, match=r"one of waiting, delayed, .* got: 'active'"):
            await inspector.queues.purge("charge", cast("Any", "active"))
        with pytest.raises(DefinitionError, match="expected error with state failed or cancelled"):
            await inspector.queues.purge("charge", "waiting", "ValueError")


def test_a_call_to_the_server_has_few_jobs() -> None:
    assert HEAVY_ROWS <= 100


async def test_a_preview_counts_also_what_goes_at_a_time_of_its_own(make_provider: MakeProvider) -> None:
    provider = make_provider()
    _Bank(provider)
    async with provider, provider.worker():
        await _fail(provider, 1, 2, keep_failed="1 hour")
        await _fail(provider, 3)
        for act in (provider.inspector.queues.retry_all, provider.inspector.queues.purge):
            assert await act("charge", dry_run=True) == 3
        assert await provider.inspector.queues.retry_all("charge") == 3


async def test_a_completed_job_runs_again_if_that_is_asked_for_and_its_key_joins_the_new_run(
    make_provider: MakeProvider,
) -> None:
    provider = make_provider()
    bank = _Bank(provider)
    bank.is_up = True
    async with provider:
        async with provider.worker():
            first = provider.emit("charge", 2, idempotency_key="k")
            assert await first == 2
        job = first.job_id
        inspector = provider.inspector
        assert await inspector.jobs.retry(job) is False
        assert await inspector.jobs.retry(job, rerun=True) is True
        report = await inspector.jobs.get(job)
        assert (report.state, report.result, report.errors, report.key) == ("waiting", None, [], "k")
        assert await inspector.queues.count("charge", states=["completed", "waiting"]) == {
            "completed": 0,
            "waiting": 1,
        }
        again = provider.emit("charge", 2, idempotency_key="k")
        await again.enqueued()
        assert (again.job_id, again.joined) == (job, True)
        async with provider.worker():
            assert await again == 2
        assert bank.runs == [2, 2]
        listed = await inspector.jobs.list("charge", state="completed")
        assert [each.id for each in listed.jobs] == [job]
        assert await inspector.jobs.retry(job, rerun=True) is True
        assert await inspector.jobs.retry(job, rerun=True) is False, "it waits"


async def test_a_completed_job_whose_key_stands_for_a_later_one_does_not_run_again(
    make_provider: MakeProvider,
) -> None:
    provider = make_provider(key_ttl=0.001)
    bank = _Bank(provider)
    bank.is_up = True
    async with provider, provider.worker():
        first = provider.emit("charge", 2, idempotency_key="k")
        await first
        second = first
        while second.job_id == first.job_id:  # until the key has expired
            second = provider.emit("charge", 2, idempotency_key="k", delay="1 hour")
            await second.enqueued()
        with pytest.raises(UsageError, match="key of job"):
            await provider.inspector.jobs.retry(first.job_id, rerun=True)


async def test_flows_and_steps_are_not_run_again_as_jobs(make_provider: MakeProvider) -> None:
    @durable("plain")
    async def plain(ctx: FlowContext[int]) -> int:
        return ctx.input

    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(plain)
    async with provider, provider.worker():
        flow = await flows.execute(plain, 1)
        await flow.result(240)
        with pytest.raises(UsageError, match="eventbus flows retry"):
            await provider.inspector.jobs.retry(flow.id, rerun=True)
