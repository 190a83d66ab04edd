"""The history of queues: each end counts once, whatever way it takes; what is asked for, and what is not
kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from eventbus import Batch, DefinitionError, Event, EventProvider, Retry, Unrecoverable
from eventbus.admin.history import Minute
from eventbus.model.histogram import Histogram
from workflows import StepContext, StepError, Workflow, WorkflowProvider

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]
Admin = Callable[..., Any]

ask = Event("ask", payload=str, result=str)


def _sums(found: Sequence[Minute]) -> dict[str, int]:
    names = ("completed", "failed", "retried", "cancelled", "expired", "stalled")
    sums = {name: sum(getattr(each, name) for each in found) for name in names}
    sums["waits"] = Histogram.total(each.waits for each in found).count
    sums["runs"] = Histogram.total(each.runs for each in found).count
    return {name: count for name, count in sums.items() if count}


async def test_every_end_is_told_when_the_worker_has_stopped(make_provider: MakeProvider) -> None:
    provider = make_provider(retry=Retry(2, delay=0.001))

    @provider.on(ask)
    async def answer(payload: str) -> str:
        if payload == "bad":
            raise ValueError(payload)
        return payload

    async with provider:
        expired = provider.emit(ask, "late", ttl="1ms")
        gone = provider.emit(ask, "gone", delay="1 hour")
        await expired.enqueued()
        await gone.enqueued()
        await asyncio.sleep(0.005)  # until its ttl is over
        async with provider.worker():
            many = provider.emit_many(ask, ["good"] * 40)
            bad = [provider.emit(ask, "bad") for _ in range(3)]
            assert await asyncio.gather(*many) == ["good"] * 40
            await asyncio.gather(*bad, expired, return_exceptions=True)
            for _ in range(5):
                assert (
                    await provider.emit(ask, "alone") == "alone"
                )  # handed over, and settled by a call of its own
            assert await provider.cancel(gone.job_id)
        found = await provider.inspector.queues.history(ask)
    assert _sums(found) == {
        "completed": 45, "failed": 3, "retried": 3, "cancelled": 1, "expired": 1, "waits": 48, "runs": 51,
    }  # fmt: skip


async def test_jobs_of_a_batch_count_one_by_one(make_provider: MakeProvider) -> None:
    provider = make_provider()

    @provider.on(ask, batch=Batch(size=8, wait="20ms"))
    async def answer(payloads: list[str]) -> list[str]:
        return payloads

    async with provider:
        async with provider.worker():
            await asyncio.gather(*provider.emit_many(ask, ["a"] * 30))
        assert _sums(await provider.inspector.queues.history("ask")) == {
            "completed": 30,
            "waits": 30,
            "runs": 30,
        }


async def test_groups_have_histories_of_their_own(make_provider: MakeProvider, until: Until) -> None:
    provider, done = make_provider(), list[str]()

    @provider.on(ask)
    async def answer(payload: str) -> str:
        done.append(payload)
        return payload

    @provider.on(ask, group="audit")
    async def audit(payload: str) -> None:
        done.append(payload)

    async with provider:
        async with provider.worker():
            await asyncio.gather(*provider.emit_many(ask, ["a"] * 3))
            await until(lambda: len(done) == 6, "both groups have run")
        for queue, group in (("ask", None), ("ask", "audit"), ("ask@audit", None)):
            assert _sums(await provider.inspector.queues.history(queue, group))["completed"] == 3


@pytest.mark.parametrize("spread", [False, True])
async def test_a_flow_counts_once_when_it_has_ended_also_if_it_was_undone(
    make_provider: MakeProvider, *, spread: bool
) -> None:
    provider = make_provider()
    flows = WorkflowProvider(provider)
    workflow: Workflow[int, int] = Workflow("sum", input=int, output=int, spread=spread)

    @workflow.step
    async def add(ctx: StepContext[int]) -> int:
        return ctx.input + 1

    @workflow.step(after=add)
    async def check(ctx: StepContext[int]) -> int:
        if ctx.input < 0:
            raise Unrecoverable("below 0")
        return ctx.result(add)

    @workflow.completed
    async def end(ctx: StepContext[int]) -> int:
        return ctx.result(check)

    flows.register(workflow)
    async with provider:
        async with provider.worker():
            good, bad = await flows.execute(workflow, 1), await flows.execute(workflow, -5)
            assert await good.result() == 2
            with pytest.raises(StepError):
                await bad.result()
        found = _sums(await provider.inspector.queues.history("workflow.sum"))
    assert (found["completed"], found["failed"]) == (1, 1)
    assert "cancelled" not in found


async def test_with_history_none_nothing_is_counted(
    make_provider: MakeProvider, admin: Admin, prefix: str
) -> None:
    provider = make_provider(history=None)

    @provider.on(ask)
    async def answer(payload: str) -> str:
        return payload

    async with provider:
        gone = provider.emit(ask, "gone", delay="1 hour")
        async with provider.worker():
            await asyncio.gather(*provider.emit_many(ask, ["a"] * 3))
            await provider.cancel(gone.job_id)
        assert _sums(await provider.inspector.queues.history(ask)) == {}
    kinds = ("minutes", "hours", "history", "tally")
    assert [key for kind in kinds for key in admin("KEYS", f"{prefix}:2:{{0}}:{kind}*")] == []


async def test_a_worker_that_is_killed_loses_what_it_had_not_told_and_no_job(
    make_provider: MakeProvider,
) -> None:
    """`tallies-lost`: a worker that ends at once, without a server, is as one that was killed."""
    provider = make_provider()

    @provider.on(ask)
    async def answer(payload: str) -> str:
        return payload

    async with provider:
        async with provider.worker() as worker:
            await asyncio.gather(*provider.emit_many(ask, ["a"] * 3))
            worker._worker._recorder._windows = None  # pyright: ignore[reportPrivateUsage]  # it tells nothing more
        assert _sums(await provider.inspector.queues.history(ask)) == {}
        assert await provider.inspector.queues.count(ask, states=["completed"]) == {"completed": 3}


async def test_the_minutes_are_a_whole_row_and_the_step_follows_from_the_time(
    make_provider: MakeProvider,
) -> None:
    async with make_provider() as provider:
        for last, step, count, width in (
            ("1 hour", None, 60, 60_000), ("6h", None, 360, 60_000), ("7h", None, 7, 3_600_000),
            ("90s", None, 2, 60_000), ("1h", "1h", 1, 3_600_000), ("90d", None, 2160, 3_600_000),
        ):  # fmt: skip
            found = await provider.inspector.queues.history("ask", last=last, step=step)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
            assert len(found) == count
            assert [each.at_ms - found[0].at_ms for each in found] == [width * n for n in range(count)]
            assert found[-1] == Minute(at_ms=found[-1].at_ms)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"last": 0}, "expected last to be above 0 and at most 7 days with a step of 1m, got: 0"),
        ({"last": "8d", "step": "1m"}, "at most 7 days with a step of 1m"),
        ({"last": "367d"}, "at most 366 days with a step of 1h"),
        ({"step": "5m"}, 'expected step to be "1m" or "1h", got: \'5m\''),
    ],
)
async def test_what_is_not_kept_is_refused(
    make_provider: MakeProvider, asked: dict[str, Any], message: str
) -> None:
    async with make_provider() as provider:
        with pytest.raises(DefinitionError, match=message):
            await provider.inspector.queues.history("ask", **asked)
