"""Bulk operations: `inspector.operations.begin` and what workers make of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from eventbus import CountChanged, DefinitionError, EventProvider, JobCancelled, Retry, UsageError
from eventbus.admin.operations import OperationReport
from eventbus.engine import operation_runner
from eventbus.engine.operation_runner import OperationRunner
from eventbus.store.store import Store

MakeProvider = Callable[..., EventProvider]


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers look for operations all the time."""
    monkeypatch.setattr(
        operation_runner.OperationRunner.__init__, "__kwdefaults__", {"interval": 0.05, "teller": None}
    )


class _Bank:
    """A handler that fails until the bank is up, with one of two errors."""

    def __init__(self, provider: EventProvider) -> None:
        self.is_up = False
        self.runs: list[int] = []
        provider.on("charge", retry=Retry(attempts=1))(self.charge)

    async def charge(self, n: int) -> int:
        self.runs.append(n)
        if not self.is_up:
            raise (ValueError if n % 2 else TypeError)(f"no {n}")
        return n


async def _fail(provider: EventProvider, count: int) -> list[str]:
    emissions = [provider.emit("charge", n) for n in range(count)]
    await asyncio.gather(*emissions, return_exceptions=True)
    return [each.job_id for each in emissions]


async def _delay(provider: EventProvider, count: int) -> list[str]:
    emissions = [provider.emit("charge", n, delay="1h", reply=False) for n in range(count)]
    await asyncio.gather(*(each.enqueued() for each in emissions))
    return [each.job_id for each in emissions]


def _store(provider: EventProvider) -> Store:
    return provider._life.running("look").store


def _runner(provider: EventProvider) -> OperationRunner:
    return OperationRunner(_store(provider), key_ttl_ms=60_000)


async def _ended(provider: EventProvider, operation: str) -> OperationReport:
    """Wait until workers have done it; as long as the test may take."""
    while (report := await provider.inspector.operations.get(operation)).state == "running":  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    return report


async def test_workers_retry_all_failed_jobs_with_one_error_whichever_queues_they_serve(
    make_provider: MakeProvider,
) -> None:
    provider, other = make_provider(), make_provider()
    bank = _Bank(provider)

    @other.on("elsewhere")
    async def elsewhere(_: int) -> None: ...

    async with provider, other:
        async with provider.worker():
            await _fail(provider, 250)
        bank.is_up, asked = True, provider.inspector
        preview = await asked.operations.preview("retry", "charge", error="ValueError")
        assert (preview.count, preview.is_exact, len(preview.samples)) == (125, True, 20)
        begun = await asked.operations.begin(
            "retry", "charge", error="ValueError", by="ann", reason="the bank is up"
        )
        assert (begun.state, begun.total, begun.done, begun.failed) == ("running", 125, 0, 0)
        async with other.worker():
            report = await _ended(provider, begun.id)
        assert (report.state, report.done, report.failed) == ("completed", 125, 0)
        assert (report.by, report.reason, report.job_state) == ("ann", "the bank is up", "failed")
        assert report.began_ms <= report.ended_ms
        assert await asked.queues.count("charge", states=["waiting", "failed"]) == {
            "waiting": 125,
            "failed": 125,
        }
        assert [each.id for each in await asked.operations.list()] == [begun.id]


async def test_a_job_that_fails_after_the_beginning_is_not_retried_again(make_provider: MakeProvider) -> None:
    provider = make_provider()
    bank = _Bank(provider)
    async with provider:
        async with provider.worker():
            await _fail(provider, 120)
        begun = await provider.inspector.operations.begin("retry", "charge")
        async with provider.worker() as worker:  # each fails again at once
            report = await _ended(provider, begun.id)
            await worker.wait_drained(provider.flush)
        assert (report.done, report.failed, report.total) == (120, 0, 120)
        assert len(bank.runs) == 240


@pytest.mark.parametrize("is_done", [False, True], ids=["dies-before-doing", "dies-after-doing"])
async def test_a_batch_whose_runner_is_lost_is_done_once_and_counted_once(
    make_provider: MakeProvider, monkeypatch: pytest.MonkeyPatch, is_done: bool
) -> None:
    provider = make_provider()
    bank = _Bank(provider)
    async with provider:
        async with provider.worker():
            await _fail(provider, 250)
        bank.is_up = True
        begun = await provider.inspector.operations.begin("retry", "charge")
        retrials = _store(provider).controls.retrials
        real, calls = retrials.retry, list[str]()

        async def lose(jobs: Any, **given: Any) -> list[str]:
            calls.append(given["call"])
            if len(calls) == 2 and not is_done:
                raise asyncio.CancelledError
            words = await real(jobs, **given)
            if len(calls) == 2:
                raise asyncio.CancelledError
            return words

        monkeypatch.setattr(retrials, "retry", lose)
        with pytest.raises(asyncio.CancelledError):
            await _runner(provider).run_once(lease_ms=0)
        if is_done:  # some of them run before anybody goes on
            async with provider.worker() as worker:
                await worker.wait_drained(provider.flush)
        while (await provider.inspector.operations.get(begun.id)).state == "running":
            await _runner(provider).run_once()
        report = await provider.inspector.operations.get(begun.id)
        assert (report.state, report.done, report.failed) == ("completed", 250, 0)
        assert calls[1] == calls[2], "the batch keeps its name"
        async with provider.worker() as worker:
            await worker.wait_drained(provider.flush)
        assert len(bank.runs) == 500, "each ran once more"


async def test_a_runner_that_lost_its_lease_does_no_further_batch(
    make_provider: MakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = make_provider()
    _Bank(provider)
    async with provider:
        async with provider.worker():
            await _fail(provider, 350)
        begun = await provider.inspector.operations.begin("retry", "charge")
        retrials = _store(provider).controls.retrials
        real, calls = retrials.retry, list[str]()

        async def overtake(jobs: Any, **given: Any) -> list[str]:
            calls.append(given["call"])
            words = await real(jobs, **given)
            if len(calls) == 1:  # meanwhile somebody else takes it and does it to its end
                assert await _runner(provider).run_once()
            return words

        monkeypatch.setattr(retrials, "retry", overtake)
        assert await _runner(provider).run_once(lease_ms=0)
        report = await provider.inspector.operations.get(begun.id)
        assert (report.state, report.done, report.failed) == ("completed", 350, 0)
        assert len(calls) == 1 + 4, "the first one did its batch alone, and the other one all"


async def test_stop_leaves_the_rest_and_counts_what_was_under_way(
    make_provider: MakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = make_provider()
    async with provider:
        await _delay(provider, 300)
        asked = provider.inspector
        begun = await asked.operations.begin("remove", "charge", "delayed")
        retrials = _store(provider).controls.retrials
        real = retrials.remove

        async def stop(jobs: Any, **given: Any) -> list[str]:
            words = await real(jobs, **given)
            assert await asked.operations.stop(begun.id, by="bob")
            return words

        monkeypatch.setattr(retrials, "remove", stop)
        assert await _runner(provider).run_once()
        report = await asked.operations.get(begun.id)
        assert (report.state, report.stopped_by, report.done) == ("stopped", "bob", 100)
        assert await asked.queues.count("charge", states=["delayed"]) == {"delayed": 200}
        assert await _runner(provider).run_once() is False, "nobody takes it up"
        assert await asked.operations.stop(begun.id), "it is stopped already"


@pytest.mark.parametrize("is_done", [False, True])
async def test_what_was_under_way_is_counted_when_it_is_stopped_and_its_runner_is_lost(
    make_provider: MakeProvider, monkeypatch: pytest.MonkeyPatch, is_done: bool
) -> None:
    async with make_provider() as provider:
        await _delay(provider, 300)
        asked = provider.inspector
        begun = await asked.operations.begin("remove", "charge", "delayed")
        retrials = _store(provider).controls.retrials
        real = retrials.remove

        async def lose(jobs: Any, **given: Any) -> list[str]:
            if is_done:
                await real(jobs, **given)
            assert await asked.operations.stop(begun.id, by="bob")
            raise asyncio.CancelledError

        monkeypatch.setattr(retrials, "remove", lose)
        with pytest.raises(asyncio.CancelledError):
            await _runner(provider).run_once(lease_ms=0)
        monkeypatch.setattr(retrials, "remove", real)
        assert (await asked.operations.get(begun.id)).done == 0, "nobody knows yet"
        assert await _runner(provider).run_once(), "the next one looks after it"
        report = await asked.operations.get(begun.id)
        assert (report.state, report.stopped_by, report.done, report.failed) == ("stopped", "bob", 100, 0)
        assert await asked.queues.count("charge", states=["delayed"]) == {"delayed": 200}
        assert await _runner(provider).run_once() is False


async def test_a_stopped_operation_over_which_runners_are_lost_stays_stopped(
    make_provider: MakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with make_provider() as provider:
        await _delay(provider, 3)
        asked = provider.inspector
        begun = await asked.operations.begin("remove", "charge", "delayed")

        async def lose(*_: Any, **__: Any) -> list[str]:
            await asked.operations.stop(begun.id)
            raise asyncio.CancelledError

        monkeypatch.setattr(_store(provider).controls.retrials, "remove", lose)
        for _ in range(1 + 5):  # the first one saved the batch before it was lost
            with pytest.raises(asyncio.CancelledError):
                await _runner(provider).run_once(lease_ms=0)
        assert await _runner(provider).run_once() is False, "nobody takes it any more"
        report = await asked.operations.get(begun.id)
        assert (report.state, report.problem, report.done) == ("stopped", "", 0)


async def test_an_operation_that_has_ended_is_not_stopped(make_provider: MakeProvider) -> None:
    provider = make_provider()
    async with provider:
        begun = await provider.inspector.operations.begin("retry", "charge")
        await provider.inspector.operations.run()
        report = await provider.inspector.operations.get(begun.id)
        assert (report.state, report.total, report.done) == ("completed", 0, 0)
        assert await provider.inspector.operations.stop(begun.id) is False


async def test_cancel_promote_and_named_jobs(make_provider: MakeProvider) -> None:
    provider = make_provider()
    _Bank(provider)
    async with provider:
        jobs, asked = await _delay(provider, 6), provider.inspector
        one = provider.emit("charge", 7, delay="1h")
        await one.enqueued()
        await asked.jobs.remove(jobs[5])
        by_name = await asked.operations.begin("promote", "charge", jobs=[jobs[0], jobs[5]])
        await asked.operations.run()
        report = await asked.operations.get(by_name.id)
        assert (report.total, report.done, report.failed) == (2, 1, 1), "the removed one is delayed no more"
        assert (await asked.jobs.get(jobs[0])).state == "waiting"
        rest = await asked.operations.begin("cancel", "charge", "delayed", reason="not today")
        await asked.operations.run()
        assert (await asked.operations.get(rest.id)).done == 5
        with pytest.raises(JobCancelled, match="not today"):
            await one


async def test_one_id_begins_one_operation(make_provider: MakeProvider) -> None:
    provider = make_provider()
    async with provider:
        asked = provider.inspector
        await _delay(provider, 3)
        first, second = await asyncio.gather(
            *(asked.operations.begin("remove", "charge", "delayed", operation_id="mine") for _ in range(2))
        )
        assert first == second
        await asked.operations.run()
        again = await asked.operations.begin("remove", "charge", "delayed", operation_id="mine")
        assert (again.state, again.done) == ("completed", 3)
        assert len(await asked.operations.list()) == 1
        with pytest.raises(UsageError, match="'mine' is another one; give an id of its own"):
            await asked.operations.begin("remove", "refund", "delayed", operation_id="mine")


async def test_another_count_than_the_expected_one_begins_nothing_but_what_was_begun_is_told(
    make_provider: MakeProvider,
) -> None:
    async with make_provider() as provider:
        asked = provider.inspector
        await _delay(provider, 20)
        begin = partial(asked.operations.begin, "remove", "charge", "delayed")
        for expected in (0, 17, 23):
            with pytest.raises(CountChanged, match=f"20 jobs are meant by now, and not {expected}") as caught:
                await begin(expected=expected)
            assert (caught.value.count, caught.value.expected) == (20, expected)
        assert await asked.operations.list() == []
        begun = await begin(expected=19, operation_id="mine")
        await asked.operations.run()
        again = await begin(expected=19, operation_id="mine")  # there are none by now
        assert (begun.total, again.id, again.done) == (20, "mine", 20)


async def test_what_cannot_be_begun_is_refused(make_provider: MakeProvider) -> None:
    provider = make_provider()
    async with provider:
        (job,) = await _delay(provider, 1)
        asked = provider.inspector
        begin: Any = asked.operations.begin
        for arguments, options, error, told in [
            (
                ("burn", "charge"),
                {},
                DefinitionError,
                "expected an action, one of retry, remove, cancel, promote",
            ),
            (("remove", "charge"), {}, DefinitionError, "expected a state for remove, one of waiting"),
            (
                ("retry", "charge", "active"),
                {},
                DefinitionError,
                "expected a state for retry, one of failed, cancelled",
            ),
            (("retry", "workflow.order"), {}, UsageError, "workflow.order is a queue of flows"),
            (
                ("remove", "charge", "delayed"),
                {"error": "x"},
                DefinitionError,
                "expected error with state failed",
            ),
            (
                ("remove", "charge", "failed"),
                {"jobs": [job]},
                DefinitionError,
                "expected jobs alone, or a state",
            ),
            (("remove", "refund"), {"jobs": [job]}, UsageError, "is none of event.refund"),
            (("remove", "charge"), {"jobs": []}, DefinitionError, "expected 1 to 1000 jobs, got: 0"),
            (("retry", "charge"), {"operation_id": "a b"}, DefinitionError, "expected an operation's id"),
            (
                ("retry", "charge"),
                {"reason": "x" * 513},
                DefinitionError,
                "expected reason to have at most 512",
            ),
        ]:
            with pytest.raises(error, match=told):
                await begin(*arguments, **options)
        for ask in (asked.operations.get, asked.operations.stop):
            with pytest.raises(UsageError, match="there is no operation 'none'"):
                await ask("none")
        assert await asked.operations.list() == []


async def test_what_nobody_can_do_ends_with_its_problem(
    make_provider: MakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = make_provider()
    async with provider:
        await _delay(provider, 1)
        asked = provider.inspector
        lost = await asked.operations.begin("remove", "charge", "delayed")
        for _ in range(5):
            assert await _store(provider).controls.operations.take("token", lease_ms=0) is not None
        assert await _runner(provider).run_once() is False
        report = await asked.operations.get(lost.id)
        assert (report.state, report.problem[:24]) == ("failed", "5 processes in a row too")

        damaged = await asked.operations.begin("remove", "charge", "delayed")
        store = _store(provider)
        await store._caller.command("HSET", store.keys.of("operation", damaged.id), "cursor", "[")
        assert await _runner(provider).run_once()
        report = await asked.operations.get(damaged.id)
        assert (report.state, report.problem[:11]) == ("failed", "DecodeError")
