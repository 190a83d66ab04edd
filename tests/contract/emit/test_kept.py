"""How long finished jobs are kept, by emission, event and workflow: the nearest one decides."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from eventbus import DefinitionError, Event, EventProvider, HandlerError, Keep, Retry, UnknownJob
from workflows import FlowContext, StepContext, Workflow, WorkflowProvider, durable

MakeProvider = Callable[..., EventProvider]


async def _is_gone(provider: EventProvider, job_id: str) -> bool:
    try:
        await provider.inspector.job(job_id)
    except UnknownJob:
        return True
    return False


async def _gone(provider: EventProvider, *job_ids: str) -> None:
    async with asyncio.timeout(20):
        for job_id in job_ids:
            while not await _is_gone(provider, job_id):  # noqa: ASYNC110  (the server says it)
                await asyncio.sleep(0.05)


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@durable("kept", keep_completed=0)
async def _kept(ctx: FlowContext[int]) -> int:
    return ctx.input


@pytest.mark.slow
async def test_a_durable_function_says_it_too(make_provider: MakeProvider) -> None:
    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(_kept)
    async with provider.worker():
        handle = await flows.execute(_kept, 3)
        assert await handle.result() == 3
        await _gone(provider, handle.id)


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
        (5, 'expected keep_completed of one job to be 0 or an age such as "1 hour", got: 5; a count is for'),
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
        page = await provider.inspector.jobs("plain", state="completed")
        assert ([job.id for job in page.jobs], page.cursor) == ([kept.job_id], None)
