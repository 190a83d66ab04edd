"""How long finished jobs are kept, by emission, event and workflow: the nearest one decides."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from eventbus import DefinitionError, Event, EventProvider, HandlerError, Keep, Retry, UnknownJob
from eventbus.lowlevel import Member, Tree
from workflows import FlowContext, StepContext, StepError, Workflow, WorkflowProvider, durable

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]


async def _is_gone(provider: EventProvider, job_id: str) -> bool:
    try:
        await provider.inspector.jobs.get(job_id)
    except UnknownJob:
        return True
    return False


async def _gone(provider: EventProvider, *job_ids: str) -> None:
    async with asyncio.timeout(240):
        for job_id in job_ids:
            while not await _is_gone(provider, job_id):  # noqa: ASYNC110  (the server says it)
                await asyncio.sleep(0.05)


async def test_an_event_that_keeps_nothing_gives_each_outcome_and_then_forgets_it(
    make_provider: MakeProvider,
) -> None:
    provider = make_provider()
    quick = Event("quick", payload=int, result=str, keep_completed=0)
    provider.on(quick)(lambda n: "x" * n)
    provider.on("plain")(lambda n: n)
    async with provider.worker():
        kept = provider.emit("plain", 1)
        emissions = [provider.emit(quick, n) for n in (1, 300, 50_000)]
        assert [len(await each) for each in emissions] == [1, 300, 50_000]
        again = provider.emit(quick, 3, idempotency_key="k")
        assert await again == "xxx"
        assert await kept == 1
        await _gone(provider, *(each.job_id for each in emissions), again.job_id)
        assert not await _is_gone(provider, kept.job_id)
        assert await provider.emit(quick, 3, idempotency_key="k") == "xxx", "the key has the outcome"
        with pytest.raises(UnknownJob):
            await provider.result(again.job_id)


@pytest.mark.parametrize("nothing", [0, "0s", timedelta(0), Keep(count=9, age=0)])
async def test_an_age_of_nothing_keeps_nothing_as_a_count_does(
    make_provider: MakeProvider, nothing: Any
) -> None:
    provider = make_provider()
    quick = Event("quick", payload=int, result=int, keep_completed=nothing)
    provider.on(quick)(lambda n: n)
    async with provider.worker():
        emission = provider.emit(quick, 1)
        assert await emission == 1
        await _gone(provider, emission.job_id)


async def test_an_emission_goes_before_its_event_and_its_event_before_the_provider(
    make_provider: MakeProvider,
) -> None:
    provider = make_provider(keep_completed="1 hour", retry=Retry(attempts=1))
    own = Event("own", payload=int, result=int, keep_completed=0)
    provider.on(own)(lambda n: 1 // n)
    provider.on("plain")(lambda n: n)
    async with provider.worker():
        kept = [provider.emit(own, 1, keep_completed="1 hour"), provider.emit("plain", 1)]
        short = [provider.emit(own, 1), provider.emit("plain", 1, keep_completed=timedelta(0))]
        failed = provider.emit(own, 0, keep_failed=0)
        with pytest.raises(HandlerError):
            await failed
        assert [await each for each in kept + short] == [1] * 4
        await _gone(provider, *(each.job_id for each in short))
        assert [await _is_gone(provider, each.job_id) for each in kept] == [False, False]
        assert not await _is_gone(provider, failed.job_id), "it stays for two minutes, whatever is said"


@pytest.mark.parametrize("spread", [False, True])
async def test_a_workflow_says_how_long_its_flows_are_kept_with_all_that_belongs_to_them(
    make_provider: MakeProvider, admin: Callable[..., Any], prefix: str, *, spread: bool
) -> None:
    provider = make_provider()
    flows = WorkflowProvider(provider)
    workflow: Workflow[int, int] = Workflow("sum", input=int, output=int, spread=spread, keep_completed=0)

    @workflow.step
    async def add(ctx: StepContext[int]) -> int:
        return ctx.input + 1

    @workflow.completed
    async def end(ctx: StepContext[int]) -> int:
        return ctx.result(add)

    flows.register(workflow)
    async with provider.worker():
        handle = await flows.execute(workflow, 1)
        assert await handle.result() == 2
        await _gone(provider, handle.id)
        kinds = ("job", "more", "members", "done", "journal", "result", "body")
        left = [key for kind in kinds for key in admin("KEYS", f"{prefix}:2:{{0}}:{kind}:*{handle.id}*")]
        assert left == []


async def test_what_events_and_workflows_keep_is_told_with_what_is_ordered(
    make_provider: MakeProvider,
) -> None:
    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(_kept)
    provider.on(Event("bill", payload=int, keep_failed=(5, "1 day")))(lambda _: None)
    async with provider.worker():
        found = await provider.inspector.queues.controls()
    assert [(each.queue, each.keep_completed, each.keep_failed, each.limit) for each in found] == [
        ("event.bill", None, Keep(5, "1 day"), None),
        ("workflow.kept", Keep(0), None, None),
    ]


@durable("kept", keep_completed=0)
async def _kept(ctx: FlowContext[int]) -> int:
    return ctx.input


async def test_a_durable_function_says_it_too(make_provider: MakeProvider) -> None:
    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(_kept)
    async with provider.worker():
        handle = await flows.execute(_kept, 3)
        assert await handle.result() == 3
        await _gone(provider, handle.id)


@pytest.mark.parametrize("spread", [False, True])
async def test_a_single_flow_goes_before_its_workflow(make_provider: MakeProvider, *, spread: bool) -> None:
    provider = make_provider(retry=Retry(attempts=1))
    flows = WorkflowProvider(provider)
    workflow: Workflow[int, None] = Workflow("ratio", input=int, spread=spread, keep_completed=0)
    own: Workflow[int, None] = Workflow("own", input=int, spread=spread)

    async def divide(ctx: StepContext[int]) -> int:
        return 1 // ctx.input

    for each in (workflow, own):
        each.step(divide)
        flows.register(each)
    flows.register(_kept)
    async with provider.worker():
        kept = [
            await flows.execute(workflow, 1, keep_completed="1 hour"),
            await flows.execute(own, 1, keep_failed=0),
            await flows.execute(_kept, 1, keep_completed=timedelta(hours=1)),
        ]
        short = [
            await flows.execute(own, 1, keep_completed=0),
            await flows.execute(_kept, 1, keep_completed=0),
        ]
        assert [await each.result() for each in kept + short] == [None, None, 1, None, 1]
        failed = await flows.execute(own, 0, keep_completed=0)
        with pytest.raises(StepError):
            await failed.result()
        await _gone(provider, *(each.id for each in short))
        assert [await _is_gone(provider, each.id) for each in [*kept, failed]] == [False] * 4


async def test_a_retry_by_hand_leaves_the_time_of_a_flow(make_provider: MakeProvider) -> None:
    provider, may_divide = make_provider(), list[int]()
    flows = WorkflowProvider(provider)

    @durable("divide", version="1")
    async def divide(ctx: FlowContext[int]) -> int:
        return ctx.input // len(may_divide)

    flows.register(divide)
    async with provider.worker():
        handle = await flows.execute(divide, 3, keep_completed=0)
        with pytest.raises(StepError):
            await handle.result()
        may_divide.append(1)
        assert await (await flows.retry(handle.id, workflow=divide)).result() == 3
        await _gone(provider, handle.id)


@pytest.mark.parametrize("spread", [False, True])
async def test_a_flow_takes_an_age_alone(make_provider: MakeProvider, *, spread: bool) -> None:
    provider = make_provider()
    flows = WorkflowProvider(provider)
    workflow: Workflow[int, None] = Workflow("look", input=int, spread=spread)

    @workflow.step
    async def look(ctx: StepContext[int]) -> int:
        return ctx.input

    flows.register(workflow)
    wrong: Any
    async with provider:
        for wrong in (5, False, "3 fortnights", Keep(count=1)):
            with pytest.raises(DefinitionError, match=r"keep_failed.*got"):
                await flows.execute(workflow, 1, keep_failed=wrong)
        assert await flows.flows() == [], "nothing was started"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (-1, r"keep_completed of event 'a': expected count to be an integer of 0 or more, got: -1"),
        (float("nan"), r"expected keep_completed of event 'a' to be a Keep, a count, an age .*got: nan"),
        ("3 fortnights", r"keep_completed of event 'a'.*'3 fortnights'"),
        (True, r"expected keep_completed of event 'a' to be .*got: True"),
        ((1, 2, 3), r"expected keep_completed of event 'a' to be \(count, age\), got: \(1, 2, 3\)"),
        ((None, None), r"keep_completed of event 'a': expected a count, an age or both"),
    ],
)
def test_what_cannot_be_kept_is_refused_where_it_is_defined(given: Any, message: str) -> None:
    with pytest.raises(DefinitionError, match=message):
        Event("a", keep_completed=given)
    with pytest.raises(DefinitionError, match=message.replace("event 'a'", "workflow 'a'")):
        Workflow("a", keep_completed=given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            5,
            (
                'expected keep_completed of one job or flow to be 0 or an age such as "1 hour", got: 5; '
                "a count is for"
            ),
        ),
        (False, "got: False"),
        (Keep(count=1), r"got: Keep\(count=1"),
        ("-1s", "keep_completed"),
        ("3 fortnights", "keep_completed to be .*'3 fortnights'"),
        (float("nan"), "got: nan"),
        (timedelta(days=-1), "keep_completed to be from 0 s"),
    ],
)
async def test_an_emission_takes_an_age_alone(make_provider: MakeProvider, given: Any, message: str) -> None:
    provider = make_provider()
    async with provider:
        with pytest.raises(DefinitionError, match=message):
            provider.emit("a", 1, keep_completed=given)


def test_a_tree_whose_members_are_added_with_it_has_no_time_of_its_own() -> None:
    assert Tree("t", "mine", "x", keep_completed=0, keep_failed="1 hour").keep == "0,3600000"
    with pytest.raises(
        DefinitionError, match="keep_completed or keep_failed is for a root that adds its members"
    ):
        Tree("t", "mine", "x", [Member("t/a", "mine")], keep_failed=0)


def test_what_is_kept_may_be_said_in_each_form() -> None:
    event = Event("a", keep_completed=(100, "1 hour"), keep_failed="7 days")
    assert (event.keep_completed, event.keep_failed) == (Keep(100, "1 hour"), Keep(age="7 days"))
    assert Event("b").keep_completed is None


async def test_a_list_of_jobs_begins_with_those_that_have_a_time_of_their_own_if_there_are_no_others(
    make_provider: MakeProvider,
) -> None:
    provider = make_provider()
    provider.on("plain")(lambda n: n)
    async with provider.worker():
        kept = provider.emit("plain", 1, keep_completed="1 hour")
        assert await kept == 1
        page = await provider.inspector.jobs.list("plain", state="completed")
        assert ([job.id for job in page.jobs], page.cursor) == ([kept.job_id], None)
