"""Hooks for failed jobs hear of the jobs of other packages, which say what is told or leave it to the
engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from drivers.lowlevel import Hand, Mine, Reading

from eventbus import EventProvider, JobFailure
from eventbus.lowlevel import Consumer, Job, Member, Settle, Tree, WorkerServices, fail

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
Listen = Callable[[EventProvider], list[JobFailure]]


async def _fails(job: Job) -> Settle:
    return fail('{"type":"ValueError","message":"no luck","attempts":1}')


async def test_a_job_whose_consumer_says_nothing_is_told_with_its_queue_and_its_error(
    make_provider: MakeProvider, listen: Listen
) -> None:
    provider = make_provider()
    mine, told = Mine(provider), listen(provider)
    mine.answers["t"] = _fails
    async with provider, provider.worker():
        with pytest.raises(RuntimeError):
            await mine.jobs.add(Tree("t", "mine", "x", [], needs=[], on="fail"), Reading())
    (failure,) = told
    assert (failure.name, failure.queue, failure.job_id) == ("mine", "mine", "t")
    assert (failure.error, failure.correlation_id, failure.meta) == ("ValueError: no luck", "t", {})


async def test_a_root_that_undoes_its_tree_is_told_when_that_is_done_and_not_before(
    make_provider: MakeProvider, listen: Listen
) -> None:
    provider = make_provider()
    mine, told = Mine(provider), listen(provider)
    stops: list[tuple[str, int]] = []

    async def root(job: Job) -> Settle | None:
        stops.append((job.stop, len(told)))
        if job.stop:
            assert await mine.jobs.checkpoint(job, acknowledges=True)
        return await _fails(job)

    mine.answers["t"] = root
    async with provider, provider.worker():
        with pytest.raises(RuntimeError):
            await mine.jobs.add(Tree("t", "mine", "x", [Member("t/a", "mine")], needs=["t/a"]), Reading())
    assert stops == [("", 0), ("failed", 0)]
    assert [each.job_id for each in told] == ["t"]


class TellingHand(Hand):
    def failure(self, job: Job, text: str) -> JobFailure | None:
        if job.id == "broken":
            raise KeyError(job.id)
        if job.id == "t/a":
            return None
        return JobFailure(
            name="my tree",
            job_id=job.id,
            root_id=job.id,
            queue=job.queue,
            correlation_id="c",
            outcome="failed",
            error_type=text[:8],
        )


class Telling(Mine):
    def make_consumer(self, queue: str, services: WorkerServices) -> Consumer:
        return TellingHand(services, self._run, 1)


async def test_a_consumer_that_cannot_say_it_costs_nobody_a_word(
    make_provider: MakeProvider, listen: Listen
) -> None:
    provider, wrong = make_provider(), list[Any]()
    mine, told = Telling(provider), listen(provider)
    mine.answers["broken"] = _fails
    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: wrong.append(context["message"]))
    try:
        async with provider, provider.worker():
            with pytest.raises(RuntimeError):
                await mine.jobs.add(Tree("broken", "mine", "x", [], needs=[], on="fail"), Reading())
    finally:
        loop.set_exception_handler(before)
    assert [each.error for each in told] == ["ValueError: no luck"]
    assert wrong == ["its consumer cannot tell of the failed job broken"]


async def test_a_consumer_may_say_what_is_told_or_that_another_job_tells_it(
    make_provider: MakeProvider, listen: Listen
) -> None:
    provider = make_provider()
    mine, told = Telling(provider), listen(provider)
    mine.answers |= {"a": _fails, "t": _fails}
    async with provider, provider.worker():
        tree = Tree("t", "mine", "x", [Member("t/a", "mine", up="ignore")], needs=["t/a"], on="fail")
        with pytest.raises(RuntimeError):
            await mine.jobs.add(tree, Reading())
    assert [(each.name, each.correlation_id, each.error) for each in told] == [("my tree", "c", '{"type":')]
