"""A cancel that comes late: its job has ended, was retried at once, and runs again in the same worker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from eventbus import EventProvider, JobCancelled
from eventbus.engine.executor import Executor
from workflows import FlowCancelled, FlowContext, StepContext, Workflow, WorkflowProvider, durable, task

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]


class Bench:
    """A worker that runs jobs of the event `hold`, each until its gate is open, and the messages that it is
    sent.
    """

    def __init__(self, provider: EventProvider, admin: Callable[..., Any], prefix: str) -> None:
        self.provider = provider
        self.gates: dict[str, asyncio.Event] = {}
        self.began: list[str] = []
        self.worker: Any = None
        self._admin = admin
        self._prefix = prefix

        @provider.on("hold")
        async def hold(name: str) -> str:
            self.began.append(name)
            await self.gates.setdefault(name, asyncio.Event()).wait()
            return name

    @property
    def executor(self) -> Executor:
        return self.worker._worker.claimer.executor

    def token(self, job_id: str) -> str:
        return self.executor.running[job_id].job.token

    async def hear(self, until: Until, *messages: str) -> None:
        """Have the worker read these messages, and a last one that cancels a job, so that all have had their
        effect.
        """
        last = self.provider.emit("hold", "last")
        await until(lambda: "last" in self.began, "the last one runs")
        for number, message in enumerate(messages):
            self._admin("ZADD", f"{self._prefix}:2:{{0}}:control:{self.worker.id}", number, message)
        assert await last.cancel("enough")
        with pytest.raises(JobCancelled):
            await last


@pytest.fixture
def bench(make_provider: MakeProvider, admin: Callable[..., Any], prefix: str) -> Bench:
    # The lease is so long that no renewal tells of a cancel.
    return Bench(make_provider(lease=300, grace=0), admin, prefix)


async def test_a_late_message_of_a_cancel_does_not_reach_the_next_run(bench: Bench, until: Until) -> None:
    async with bench.provider as provider, provider.worker() as bench.worker:
        emission = provider.emit("hold", "a")
        await until(lambda: bench.began == ["a"], "it runs")
        first = bench.token(emission.job_id)
        assert await emission.cancel("enough")
        with pytest.raises(JobCancelled):
            await emission
        assert await provider.inspector.jobs.retry(emission.job_id)
        await until(lambda: bench.began == ["a", "a"], "it runs again")
        assert bench.token(emission.job_id) != first
        await bench.hear(until, f"cancel:{emission.job_id}")
        bench.executor.cancel([(emission.job_id, first)])  # what a late answer to a renewal says
        assert bench.executor.running[emission.job_id].cause is None
        bench.gates["a"].set()
        await until(lambda: _state(provider, emission.job_id, "completed"), "the second run completes")


async def test_a_message_about_a_job_that_does_not_run_here_changes_nothing(
    bench: Bench, until: Until
) -> None:
    async with bench.provider as provider, provider.worker() as bench.worker:
        emission = provider.emit("hold", "a")
        await until(lambda: bench.began == ["a"], "it runs")
        await bench.hear(until, "cancel:", "cancel:nobody", "cancel:#", f"cancel:{emission.job_id} ")
        bench.gates["a"].set()
        assert await emission == "a"


@pytest.mark.parametrize("kind", ["function", "local", "spread"])
async def test_a_late_message_of_a_cancelled_flow_does_not_reach_its_next_run(
    bench: Bench, until: Until, kind: str
) -> None:
    gate, ran = asyncio.Event(), list[int]()

    @task
    async def work() -> None:
        ran.append(1)
        await gate.wait()

    @durable("f")
    async def function(ctx: FlowContext[None]) -> str:
        await ctx.step(work)
        return "done"

    graph = Workflow[Any, Any]("f", spread=kind == "spread")

    @graph.step
    async def only(ctx: StepContext[Any]) -> None:
        ran.append(1)
        await gate.wait()

    @graph.completed
    async def said(ctx: StepContext[Any]) -> str:
        return "done"

    flows = WorkflowProvider(bench.provider)
    definition: Any = function if kind == "function" else graph
    flows.register(definition)
    async with bench.provider as provider, provider.worker() as bench.worker:
        flow = await flows.execute(definition, None)
        await until(lambda: len(ran) == 1, "it runs")
        before = list(bench.executor.running)
        assert await flow.cancel("enough")
        with pytest.raises(FlowCancelled):
            await flow.result()
        again = await flows.retry(flow.id)
        await until(lambda: len(ran) == 2, "it runs again")
        running = list(bench.executor.running)
        await bench.hear(until, *(f"cancel:{job}" for job in {*before, *running}))
        assert [bench.executor.running[job].cause for job in running] == [None] * len(running)
        gate.set()
        assert await again.result(240) == "done"


async def _state(provider: EventProvider, job_id: str, state: str) -> bool:
    return (await provider.inspector.jobs.get(job_id)).state == state
