"""The inspector: what it reports about jobs, lists and trees, and that no stored data makes it fail."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, get_args

import pytest
from drivers.records import make_record

from eventbus import (
    DefinitionError,
    Event,
    EventContext,
    EventProvider,
    HandlerError,
    JobCancelled,
    ProviderStopped,
    Retry,
    UnknownJob,
)
from eventbus.admin.jobs.jobs import JobList
from eventbus.model.states import JobState
from workflows import StepContext, StepError, Workflow, WorkflowProvider

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]
Admin = Callable[..., Any]


@pytest.fixture
async def provider(make_provider: MakeProvider) -> AsyncIterator[EventProvider]:
    """A started provider without a worker."""
    async with make_provider() as provider:
        yield provider


async def test_a_waiting_job_is_told_with_its_payload_and_times(provider: EventProvider) -> None:
    emission = provider.emit("order.placed", {"id": 7}, reply=False)
    await emission.enqueued()
    job = await provider.inspector.jobs.get(emission.job_id)
    assert (job.id, job.state, job.queue, job.payload) == (
        emission.job_id,
        "waiting",
        "event.order.placed",
        {"id": 7},
    )
    assert (job.stalls, job.errors, job.worker, job.ended_ms, job.tree, job.run) == (0, [], "", 0, "", 1)
    assert abs(job.created_ms - time.time() * 1000) < 60_000


async def test_a_running_job_tells_its_worker_lease_and_progress(make_provider: MakeProvider) -> None:
    provider = make_provider()
    began, gate = asyncio.Event(), asyncio.Event()

    @provider.on("slow")
    async def slow(payload: Any, ctx: EventContext) -> None:
        await ctx.progress(40)
        began.set()
        await gate.wait()

    async with provider, provider.worker() as worker:
        emission = provider.emit("slow", "x" * 500)
        await began.wait()
        job = await provider.inspector.jobs.get(emission.job_id)
        assert (job.state, job.payload, job.progress) == ("active", "x" * 500, 40)
        assert job.lease_ms > job.created_ms
        assert len(job.worker) == 12
        assert job.worker == worker.id
        assert await provider.inspector.queues.count("slow", states=["active", "waiting"]) == {
            "active": 1,
            "waiting": 0,
        }
        gate.set()
        await emission
        job = await provider.inspector.jobs.get(emission.job_id)
    assert (job.state, job.worker, job.lease_ms) == ("completed", worker.id, 0)


async def test_a_failed_job_tells_the_error_of_each_attempt(make_provider: MakeProvider) -> None:
    provider = make_provider()
    numbers = iter(range(1, 9))

    @provider.on("wrong", retry=Retry(attempts=3, delay=0.001))
    async def wrong(payload: Any) -> None:
        raise ValueError(f"wrong for the time number {next(numbers)}, " + "x" * 100) from KeyError("why")

    async with provider, provider.worker() as worker:
        emission = provider.emit("wrong", None)
        with pytest.raises(HandlerError):
            await emission
        job = await provider.inspector.jobs.get(emission.job_id)
        (listed,) = (await provider.inspector.jobs.list("wrong", state="failed")).jobs
    assert (job.state, job.attempts, listed.attempts, listed.id) == ("failed", 3, 3, job.id)
    told = [f"ValueError: wrong for the time number {number}" for number in (1, 2, 3)]
    assert [each.split(",")[0] for each in job.errors] == told
    assert [(each.kind, each.attempt, each.type) for each in job.failures] == [
        ("failed", number, "ValueError") for number in (1, 2, 3)
    ]
    for failure in job.failures:
        assert f"{failure.type}: {failure.message}" == str(failure)
        assert "in wrong\n" in failure.traceback
        assert failure.causes == [("KeyError", "'why'")]
        assert failure.worker == worker.id
    assert job.error == listed.error
    assert job.error.startswith("ValueError: wrong for the time number 3, ")
    assert job.ended_ms == listed.ended_ms > 0


async def test_a_result_is_told(make_provider: MakeProvider) -> None:
    provider = make_provider()

    @provider.on("double")
    async def double(number: int) -> list[int]:
        return [number] * 2

    async with provider, provider.worker():
        emission = provider.emit("double", 4)
        await emission
        assert (await provider.inspector.jobs.get(emission.job_id)).result == [4, 4]


async def test_what_is_not_there_or_no_id_is_refused(provider: EventProvider) -> None:
    inspector = provider.inspector
    for look in (inspector.jobs.get, inspector.trees.get):
        with pytest.raises(UnknownJob):
            await look("nowhere")
        with pytest.raises(UnknownJob, match="'' is no id of a job; expected a job id"):
            await look("")
        with pytest.raises(DefinitionError, match="expected a job id"):
            await look(5)  # type: ignore[arg-type]
    with pytest.raises(UnknownJob):
        await inspector.jobs.cancel("nowhere")


async def test_a_provider_that_is_not_started_says_so(make_provider: MakeProvider) -> None:
    inspector = make_provider().inspector
    with pytest.raises(ProviderStopped, match="cannot look at a job"):
        await inspector.jobs.get("a")
    with pytest.raises(ProviderStopped, match="cannot list jobs"):
        await inspector.jobs.list("a", state="waiting")
    with pytest.raises(ProviderStopped, match="cannot count jobs"):
        await inspector.queues.count("a")


async def test_a_job_is_cancelled_and_told_so(provider: EventProvider) -> None:
    emission = provider.emit("order.placed", 1)
    await emission.enqueued()
    assert await provider.inspector.jobs.cancel(emission.job_id, "not wanted")
    with pytest.raises(JobCancelled):
        await emission
    job = await provider.inspector.jobs.get(emission.job_id)
    assert (job.state, job.error) == ("cancelled", "JobCancelled: not wanted")
    assert not await provider.inspector.jobs.cancel(emission.job_id)


async def _emit(provider: EventProvider, event: str, count: int, **options: Any) -> list[str]:
    emissions = provider.emit_many(event, list(range(count)), reply=False, **options)
    await provider.flush()
    return [each.job_id for each in emissions]


async def _pages(provider: EventProvider, event: str, state: JobState, limit: int) -> list[JobList]:
    pages = [await provider.inspector.jobs.list(event, state=state, limit=limit)]
    while pages[-1].cursor is not None:
        pages.append(
            await provider.inspector.jobs.list(event, state=state, limit=limit, cursor=pages[-1].cursor)
        )
    return pages


def _ids(pages: list[JobList]) -> list[str]:
    return [job.id for page in pages for job in page.jobs]


async def test_waiting_jobs_come_in_the_order_of_claims_page_by_page(provider: EventProvider) -> None:
    ids = await _emit(provider, "a", 25)
    urgent = await _emit(provider, "a", 2, priority=-1)
    await _emit(provider, "b", 3)
    pages = await _pages(provider, "a", "waiting", 10)
    assert [len(page.jobs) for page in pages] == [10, 10, 7]
    assert _ids(pages) == urgent + ids


async def test_active_jobs_come_page_by_page(make_provider: MakeProvider, until: Until) -> None:
    provider, running, release = make_provider(concurrency=7), list[str](), asyncio.Event()

    @provider.on("held")
    async def hold(n: int, ctx: EventContext) -> None:
        running.append(ctx.job_id)
        await release.wait()

    async with provider, provider.worker():
        ids = await _emit(provider, "held", 7)
        await until(lambda: len(running) == 7, "all run")
        pages = await _pages(provider, "held", "active", 2)
        release.set()
        assert [len(page.jobs) for page in pages] == [2, 2, 2, 1]
        assert sorted(_ids(pages)) == sorted(ids)


async def test_delayed_jobs_of_other_queues_are_passed_over(provider: EventProvider) -> None:
    others = await _emit(provider, "other", 1100, delay=60)
    ids = await _emit(provider, "a", 3, delay=120)
    assert _ids(await _pages(provider, "a", "delayed", 2)) == ids
    assert _ids(await _pages(provider, "other", "delayed", 500)) == others
    counts = await provider.inspector.queues.count("other")
    assert {state: count for state, count in counts.items() if count} == {"delayed": 1100}
    assert set(counts) == set(get_args(JobState))
    assert (await provider.inspector.queues.count("a"))["delayed"] == 3


async def test_ended_jobs_come_the_newest_first_also_while_some_of_them_go(
    provider: EventProvider, admin: Admin, prefix: str
) -> None:
    ids = await _emit(provider, "a", 12)
    for each in ids:
        await provider.inspector.jobs.cancel(each)
    first = await provider.inspector.jobs.list("a", state="cancelled", limit=5)
    assert first.cursor is not None
    ended = admin("ZREVRANGE", f"{prefix}:2:{{0}}:cancelled:event.a", 0, -1)
    assert [job.id for job in first.jobs] == ended[:5]
    rest = await provider.inspector.jobs.list("a", state="cancelled", limit=20, cursor=first.cursor)
    assert [job.id for job in rest.jobs] == ended[5:]
    admin("ZREM", f"{prefix}:2:{{0}}:cancelled:event.a", ended[4])  # where the page ended
    rest = await provider.inspector.jobs.list("a", state="cancelled", limit=20, cursor=first.cursor)
    assert set(ended[5:]) <= {job.id for job in rest.jobs}  # those of the same instant may come again


async def test_a_queue_is_named_by_event_name_group_or_itself(provider: EventProvider) -> None:
    event = Event("event.of.mine", payload=int)
    await provider.add_group(event, "audit")
    emission = provider.emit(event, 1)
    await emission.enqueued()
    for given, ids in (
        (event, [emission.job_id]),
        ("event.event.of.mine", [emission.job_id]),
        ("event.event.of.mine@audit", [f"{emission.job_id}@audit"]),
        ("of.mine", []),
    ):
        assert _ids([await provider.inspector.jobs.list(given, state="waiting")]) == ids
    other = provider.emit("plain", 1)
    await other.enqueued()
    assert _ids([await provider.inspector.jobs.list("plain", state="waiting")]) == [other.job_id]
    assert _ids([await provider.inspector.jobs.list("plain@audit", state="waiting")]) == []


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"state": "running"}, "expected a state of jobs, one of waiting, active"),
        ({"state": "waiting", "limit": 0}, "expected limit to be 1 to 1000, got: 0"),
        ({"state": "waiting", "cursor": "x"}, "expected the cursor of an earlier list of jobs, got: 'x'"),
        ({"state": "waiting", "cursor": "é"}, "expected the cursor"),
        *(
            ({"state": "waiting", "cursor": base64.urlsafe_b64encode(text).decode()}, "expected the cursor")
            for text in (b"", b"x:y", b"5:x:y", b"0::y", b"1:x:", b"\xff:x:y")
        ),
    ],
)
async def test_wrong_questions_are_refused(provider: EventProvider, given: Any, told: str) -> None:
    with pytest.raises(DefinitionError, match=told):
        await provider.inspector.jobs.list("a", **given)


async def test_damaged_and_foreign_records_are_told_as_far_as_they_can_be_read(
    provider: EventProvider, admin: Admin, prefix: str, planted: set[str]
) -> None:
    names = {
        name: f"{prefix}:2:{{0}}:{name}"
        for name in ("job:bad", "more:bad", "log:bad", "job:foreign", "failed:event.a")
    }
    planted.update(names.values())
    bad = names["job:bad"]
    fields = {"body": "@{", "ended": 1, "result": "no JSON", "stalls": "x"}
    admin(*make_record(bad, queue="event.a", state="failed", **fields))
    admin("SETRANGE", bad, admin("STRLEN", bad) - 2, b"\xff{")
    admin("RPUSH", names["log:bad"], "[1]")
    admin("SET", names["job:foreign"], "x")
    admin("ZADD", names["failed:event.a"], 5, "bad", 6, "foreign", 7, "gone")
    job = await provider.inspector.jobs.get("bad")
    assert (job.stalls, job.error, job.errors, job.payload) == (0, "no JSON", ["[1]", "no JSON"], "?{")
    assert [(each.kind, each.attempt, each.type) for each in job.failures] == [
        ("failed", 0, "[1]"),
        ("failed", 0, "no JSON"),
    ]
    with pytest.raises(UnknownJob):
        await provider.inspector.jobs.get("foreign")
    (listed,) = (await provider.inspector.jobs.list("a", state="failed")).jobs
    assert (listed.id, listed.error) == ("bad", "no JSON")


async def test_a_tree_is_told_with_its_members_and_who_needs_whom(make_provider: MakeProvider) -> None:
    provider = make_provider()
    flows = WorkflowProvider(provider)
    flow = Workflow[Any, Any]("pair", retry=Retry(attempts=2, delay=0), spread=True)

    @flow.step()
    async def first(ctx: StepContext[Any]) -> int:
        return 1

    @flow.step()
    async def second(ctx: StepContext[Any]) -> None:
        raise KeyError("at first") if ctx.attempt == 1 else ValueError("no")

    flows.register(flow)
    async with provider, provider.worker():
        handle = await flows.execute(flow, {"a": 1})
        with pytest.raises(StepError):
            await handle.result()
        tree = await provider.inspector.trees.get(handle.id)
        job = await provider.inspector.jobs.get(f"{handle.id}/1/first/0")
        (listed,) = (await provider.inspector.jobs.list("workflow.pair", state="failed")).jobs
    assert (tree.root.id, tree.root.state, tree.root.is_root, tree.root.stop) == (
        handle.id,
        "failed",
        True,
        "failed",
    )
    assert [each.id for each in tree.members] == [f"{handle.id}/1/first/0", f"{handle.id}/1/second/0"]
    one, two = tree.members
    assert (one.state, one.error, one.needed_by) == ("completed", "", [two.id])
    assert (two.state, two.error, two.needed_by) == ("failed", "ValueError: no", [handle.id])
    assert one.failures == []
    assert [(each.attempt, str(each)) for each in two.failures] == [
        (1, "KeyError: 'at first'"),
        (2, "ValueError: no"),
    ]
    assert "in second" in two.failures[0].traceback
    assert [each.type for each in tree.root.failures] == ["StepError"]
    assert 0 < one.created_ms <= one.claimed_ms <= one.ended_ms <= two.claimed_ms <= two.ended_ms
    assert (job.tree, job.is_root, job.payload) == (handle.id, False, tree.root.payload)
    assert listed.id == handle.id


async def test_roots_that_wait_for_their_members_are_listed_and_counted(provider: EventProvider) -> None:
    flows = WorkflowProvider(provider)
    flow = Workflow[Any, Any]("never", spread=True)

    @flow.step()
    async def first(ctx: StepContext[Any]) -> int:
        return 1

    flows.register(flow)
    handles = [await flows.execute(flow, None) for _ in range(3)]
    await provider.flush()
    listed = await provider.inspector.jobs.list("workflow.never", state="waiting-children", limit=2)
    assert len(listed.jobs) == 2
    assert (await provider.inspector.queues.count("workflow.never"))["waiting-children"] == 3
    assert (await provider.inspector.queues.count("workflow.never.steps"))["waiting"] == 3
    assert await provider.inspector.jobs.cancel(handles[0].id)
