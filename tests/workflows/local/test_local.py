"""Local flows: one job, whose worker runs the steps; what they do that spread ones do not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from eventbus import EventProvider, Retry, StoreUnavailable
from eventbus.lowlevel import Job, JobClient
from workflows import StepContext, StepError, Workflow, WorkflowProvider
from workflows.records.entries import read_entries

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]


def _serve(make_provider: MakeProvider, workflow: Workflow[Any, Any], **settings: Any) -> WorkflowProvider:
    flows = WorkflowProvider(make_provider(**settings))
    flows.register(workflow)
    return flows


async def _kinds(flows: WorkflowProvider, flow_id: str) -> list[str]:
    entries = read_entries(flow_id, await flows.provider.jobs.journal(flow_id))
    return [f"{entry.kind} {entry.place}".strip() for entry in entries]


async def _wait_state(flows: WorkflowProvider, flow_id: str, state: str) -> None:
    async with asyncio.timeout(240):
        while (await flows.provider.inspector.jobs.get(flow_id)).state != state:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_a_flow_is_one_job_and_its_journal_says_what_happened(make_provider: MakeProvider) -> None:
    workflow = Workflow[Any, Any]("one", retry=Retry(attempts=2, delay=0.01))

    async def act(ctx: StepContext[Any]) -> str:
        if ctx.step == "first" and ctx.attempt == 1:
            raise ConnectionError("not yet")
        return ctx.step

    workflow.step(act, name="first")
    for side in ("left", "right"):
        workflow.step(act, name=side, after="first")
    flows = _serve(make_provider, workflow)
    async with flows.provider, flows.provider.worker():
        handle = await flows.execute(workflow, None)
        await handle.result()
        kinds = await _kinds(flows, handle.id)
        assert (kinds[:3], sorted(kinds[3:])) == (
            ["run", "try first", "step first"],
            ["step left", "step right"],
        )
        assert (await flows.provider.jobs.look(handle.id)).total == 0, "it has members"
        tree = await flows.tree(handle.id)
        (summary,) = await flows.flows("one")
    assert tree.errors == {"first": ["ConnectionError: not yet"]}
    assert tree.report.steps["first"].attempts == 1
    assert (summary.state, summary.completed) == ("completed", 3)


async def test_before_a_late_attempt_the_flow_sleeps_and_holds_no_place(make_provider: MakeProvider) -> None:
    workflow = Workflow[Any, Any]("patient", retry=Retry(attempts=3, delay=1.2, jitter=0))
    attempts: list[int] = []

    @workflow.step()
    async def first(ctx: StepContext[Any]) -> None:
        attempts.append(0)

    @workflow.step()
    async def late(ctx: StepContext[Any]) -> None:
        attempts.append(ctx.attempt)
        if ctx.attempt == 1:
            raise ConnectionError("not yet")

    flows = _serve(make_provider, workflow)
    async with flows.provider, flows.provider.worker() as worker:
        handle = await flows.execute(workflow, None)
        await _wait_state(flows, handle.id, "delayed")
        assert worker.is_idle
        report = await handle.report()
        assert (report.state, report.steps["late"].state) == ("waiting", "delayed")
        assert (report.steps["late"].attempts, report.steps["late"].error) == (1, "ConnectionError: not yet")
        await handle.result()
        assert await _kinds(flows, handle.id) == ["run", "step first", "try late", "step late"]
    assert attempts == [0, 1, 2]


async def test_while_others_run_a_late_attempt_is_waited_for_here(make_provider: MakeProvider) -> None:
    workflow = Workflow[Any, Any]("both", retry=Retry(attempts=2, delay=1.1, jitter=0))
    again, log = asyncio.Event(), list[str]()

    @workflow.step(after=None)
    async def long(ctx: StepContext[Any]) -> None:
        await again.wait()
        log.append("long")

    @workflow.step(after=None)
    async def late(ctx: StepContext[Any]) -> None:
        if ctx.attempt == 1:
            raise ConnectionError
        log.append("late")
        again.set()

    flows = _serve(make_provider, workflow)
    async with flows.provider, flows.provider.worker():
        await (await flows.execute(workflow, None)).result()
    assert log == ["late", "long"]


async def test_a_worker_that_stops_begins_no_further_step_and_another_one_goes_on(
    make_provider: MakeProvider,
) -> None:
    workflow = Workflow[Any, Any]("handed-on")
    began, may_end, did = asyncio.Event(), asyncio.Event(), list[str]()

    async def act(ctx: StepContext[Any]) -> str:
        did.append(ctx.step)
        if ctx.step == "second":
            began.set()
            await may_end.wait()
        return ctx.step

    for name in ("first", "second", "third"):
        workflow.step(act, name=name)
    first, caller = _serve(make_provider, workflow), _serve(make_provider, workflow)
    async with caller.provider:
        handle = await caller.execute(workflow, None)
        async with first.provider, first.provider.worker() as worker:
            await began.wait()
            stopping = asyncio.create_task(worker.stop())
            await asyncio.sleep(0)  # it is asked to stop by then
            may_end.set()
            await stopping
        assert did == ["first", "second"]
        assert (await handle.status()).state == "running"
        async with caller.provider.worker():
            await handle.result()
    assert did == ["first", "second", "third"]


async def test_no_more_steps_run_at_a_time_than_the_worker_has_places(make_provider: MakeProvider) -> None:
    workflow = Workflow[Any, Any]("wide")
    running, most = 0, 0

    async def act(ctx: StepContext[Any]) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.002)
        running -= 1

    for number in range(40):
        workflow.step(act, name=f"s{number}", after=None)
    flows = _serve(make_provider, workflow, concurrency=3)
    async with flows.provider, flows.provider.worker():
        handles = [await flows.execute(workflow, None) for _ in range(2)]
        for handle in handles:
            await handle.result()
    assert most == 3


async def test_a_flow_keeps_its_mode_whatever_later_releases_say(make_provider: MakeProvider) -> None:
    def make(*, spread: bool, gate: asyncio.Event, did: list[str]) -> Workflow[Any, Any]:
        workflow = Workflow[Any, Any]("kept", version="1", spread=spread)

        async def act(ctx: StepContext[Any]) -> None:
            did.append(ctx.step)
            if ctx.step == "second":
                await gate.wait()

        for name in ("first", "second", "third"):
            workflow.step(act, name=name)
        return workflow

    did: list[str] = []
    closed, opened = asyncio.Event(), asyncio.Event()
    opened.set()
    old = _serve(make_provider, made := make(spread=False, gate=closed, did=did), grace=0.1)
    new = _serve(make_provider, make(spread=True, gate=opened, did=did))
    async with new.provider:
        async with old.provider, old.provider.worker():
            handle = await old.execute(made, None)
            async with asyncio.timeout(240):
                while did != ["first", "second"]:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
        async with new.provider.worker():
            await new.handle(handle.id).result()
        assert (await new.provider.jobs.look(handle.id)).total == 0
    assert did == ["first", "second", "second", "third"]


async def test_a_worker_whose_version_has_other_steps_parks_the_flow(make_provider: MakeProvider) -> None:
    did: list[str] = []

    def make(*steps: str) -> Workflow[Any, Any]:
        workflow = Workflow[Any, Any]("same", version="1", retry=Retry(attempts=2, delay=1.5, jitter=0))

        async def act(ctx: StepContext[Any]) -> None:
            did.append(ctx.step)
            if did == ["first", "second"]:
                raise ConnectionError

        for name in steps:
            workflow.step(act, name=name)
        return workflow

    made = make("first", "second", "third")
    whole, short = _serve(make_provider, made), _serve(make_provider, make("first", "second"))
    async with whole.provider:
        async with whole.provider.worker():
            handle = await whole.execute(made, None)
            await _wait_state(whole, handle.id, "delayed")
        async with short.provider, short.provider.worker():
            await _wait_state(whole, handle.id, "parked")
        async with whole.provider.worker():
            await handle.result()
    assert did == ["first", "second", "second", "third"]


@pytest.mark.parametrize("spread", [False, True])
async def test_a_retry_keeps_the_mode_in_which_the_last_run_recorded(
    make_provider: MakeProvider, *, spread: bool
) -> None:
    did: list[str] = []
    broken = [True]

    def make(*, spread: bool) -> Workflow[Any, Any]:
        workflow = Workflow[Any, Any]("moved", version="1", spread=spread, retry=Retry(attempts=1))

        @workflow.step()
        async def first(ctx: StepContext[Any]) -> str:
            did.append("first")
            return "kept"

        @workflow.step()
        async def second(ctx: StepContext[Any]) -> str:
            did.append(ctx.result(first))
            if broken[0]:
                raise ValueError
            return "done"

        return workflow

    made = make(spread=spread)
    old, new = _serve(make_provider, made), _serve(make_provider, make(spread=not spread))
    async with old.provider, old.provider.worker():
        handle = await old.execute(made, None)
        with pytest.raises(StepError):
            await handle.result()
    broken[0] = False
    async with new.provider, new.provider.worker():
        await (await new.retry(handle.id)).result()
        report = await new.report(handle.id)
    assert did == ["first", "kept", "kept"]
    assert {name: step.state for name, step in report.steps.items()} == dict.fromkeys(
        ("first", "second"), "completed"
    )


async def test_a_late_attempt_is_due_when_it_was_recorded_not_when_the_others_have_ended(
    make_provider: MakeProvider, until: Until
) -> None:
    workflow = Workflow[Any, Any]("punctual", retry=Retry(attempts=2, delay=1.5, jitter=0))
    times: list[float] = []
    may_end = asyncio.Event()

    @workflow.step(after=None)
    async def late(ctx: StepContext[Any]) -> None:
        times.append(asyncio.get_running_loop().time())
        if ctx.attempt == 1:
            raise ConnectionError

    @workflow.step(after=None)
    async def long(ctx: StepContext[Any]) -> None:
        await may_end.wait()

    flows = _serve(make_provider, workflow)
    async with flows.provider, flows.provider.worker():
        handle = await flows.execute(workflow, None)
        await until(lambda: times, "the first attempt")
        asyncio.get_running_loop().call_later(1.2, may_end.set)
        await handle.result()
    assert times[1] - times[0] < 2.4


async def test_no_step_that_waits_for_a_place_begins_in_a_worker_that_stops(
    make_provider: MakeProvider,
) -> None:
    workflow = Workflow[Any, Any]("queue")
    began, may_end, did = asyncio.Event(), asyncio.Event(), list[str]()

    async def act(ctx: StepContext[Any]) -> None:
        did.append(ctx.step)
        began.set()
        await may_end.wait()

    for number in range(5):
        workflow.step(act, name=f"s{number}", after=None)
    first = _serve(make_provider, workflow, concurrency=1)
    second = _serve(make_provider, workflow)
    async with second.provider:
        handle = await second.execute(workflow, None)
        async with first.provider, first.provider.worker() as worker:
            await began.wait()
            stopping = asyncio.create_task(worker.stop())
            await asyncio.sleep(0)  # it is asked to stop by then
            may_end.set()
            await stopping
        assert len(did) == 1
        async with second.provider.worker():
            await handle.result()
    assert sorted(did) == [f"s{number}" for number in range(5)]


async def test_a_journal_that_is_gone_makes_the_outer_flow_incomplete(
    make_provider: MakeProvider, admin: Callable[..., Any], prefix: str
) -> None:
    inner, outer = Workflow[Any, Any]("inner"), Workflow[Any, Any]("outer", retry=Retry(attempts=1))
    undone: list[str] = []

    async def act(ctx: StepContext[Any]) -> None:
        if ctx.step == "bad":
            (name,) = admin("KEYS", f"{prefix}:*:journal:*inner*")
            admin("DEL", name)
            raise ValueError

    async def undo(ctx: StepContext[Any], result: None) -> None:
        undone.append(ctx.step)

    inner.step(act, name="within").rollback(undo)
    outer.step(act, name="first").rollback(undo)
    outer.flow(inner)
    outer.step(act, name="bad")
    flows = _serve(make_provider, outer)
    async with flows.provider, flows.provider.worker():
        with pytest.raises(StepError) as caught:
            await (await flows.execute(outer, None)).result()
    assert (caught.value.rollback, undone) == ("incomplete", ["first"])
    assert "is gone" in str(caught.value.rollback_errors[0].error)


async def test_after_an_append_that_failed_the_next_entry_brings_what_begins_the_run(
    make_provider: MakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    workflow = Workflow[Any, Any]("away", version="1")
    appended: list[list[str]] = []
    append = JobClient.append

    async def lose_the_first(self: JobClient, job: Job, entries: Sequence[str], **given: Any) -> str:
        appended.append([entry.kind for entry in read_entries(job.id, entries)])
        if len(appended) == 1:
            raise StoreUnavailable("gone", address="here")
        return await append(self, job, entries, **given)

    @workflow.step(after=None)
    async def quick(ctx: StepContext[Any]) -> None: ...

    @workflow.step(after=None)
    async def cut(ctx: StepContext[Any]) -> None:
        if len(appended) < 2:
            await asyncio.Event().wait()

    monkeypatch.setattr(JobClient, "append", lose_the_first)
    flows = _serve(make_provider, workflow)
    async with flows.provider, flows.provider.worker():
        handle = await flows.execute(workflow, None)
        await handle.result()
        kinds = await _kinds(flows, handle.id)
    assert appended[:2] == [["run", "step"], ["run", "cut"]]
    assert kinds[0] == "run"
    assert sorted(kinds[2:]) == ["step cut", "step quick"]
