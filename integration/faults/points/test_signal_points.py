"""What becomes of signals and cancels whose answers are lost, and that are sent again: each counts once, for
the run it was for.

    signal-not-answered        the job has it, and the sender does not hear so: it is sent again, and no
    second wait gets it signal-ended-its-job       by the time of the repeat that very signal has ended the
    flow: it is `sent`, and not refused signal-then-restarted      by then the flow has ended and runs again:
    its next run does not get it cancel-heard-late          its worker hears of it when the job has ended and
    runs again (`wake_reader.ask_cancelled`) cancel-then-retried        its answer is lost, the job has ended
    and runs again: the repeat does not end that run

The worker runs in this process, and is connected without a proxy.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from checks.audit import Audit
from harness.backends import Backend
from harness.conditions import until
from harness.proxy import Proxy, When

from eventbus import EventProvider, JobCancelled, SignalRefused
from workflows import (
    FlowCancelled,
    FlowContext,
    Signal,
    StepContext,
    Workflow,
    WorkflowProvider,
    durable,
    task,
)

pytestmark = pytest.mark.servers("one")

GO = Signal("go", int)
MOST = 6
SHAPES = ("function", "local", "spread")


@durable("takes")
async def takes(ctx: FlowContext[int]) -> list[int]:
    return [await ctx.wait_for(GO) for _ in range(ctx.input)]


def graph_of(waits: int, *, spread: bool) -> Workflow[Any, list[int]]:
    graph: Workflow[Any, list[int]] = Workflow(
        f"takes-{waits}-{spread}".lower(), output=list[int], spread=spread
    )
    names = [graph.wait(GO, name=f"wait{number}") for number in range(waits)]

    @graph.completed
    async def done(ctx: StepContext[Any]) -> list[int]:
        return [ctx.result(each) for each in names]

    return graph


class Hold:
    """An event and flows whose work waits for a gate; what began is counted."""

    def __init__(self, provider: EventProvider) -> None:
        self.gate = asyncio.Event()
        self.began = 0
        self.flows = WorkflowProvider(provider)

        @provider.on("hold")
        async def hold(number: int) -> int:
            await self.wait()
            return number

        @task
        async def work() -> int:
            await self.wait()
            return 1

        @durable("holds")
        async def function(ctx: FlowContext[None]) -> int:
            return await ctx.step(work)

        self.shapes: dict[str, Any] = {"function": function}
        for shape in ("local", "spread"):
            graph = self.shapes[shape] = Workflow[Any, Any](f"holds-{shape}", spread=shape == "spread")

            @graph.step
            async def only(ctx: StepContext[Any]) -> int:
                await self.wait()
                return 1

            @graph.completed
            async def done(ctx: StepContext[Any]) -> int:
                return 1

        for each in self.shapes.values():
            self.flows.register(each)

    async def wait(self) -> None:
        self.began += 1
        await self.gate.wait()


def in_loop(make: Callable[[], Coroutine[Any, Any, Any]]) -> Callable[[], None]:
    """Return a fault that holds the answer back, in the thread of the proxy, until the test's loop has done
    something.
    """
    loop = asyncio.get_running_loop()
    return lambda: asyncio.run_coroutine_threadsafe(make(), loop).result(300)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", range(3))
async def test_each_signal_is_taken_once_however_often_its_connection_is_cut(
    shape: str, seed: int, server: Backend, proxy: Proxy
) -> None:
    dice = random.Random(f"{shape} {seed}")
    async with EventProvider(server.url) as near, EventProvider(proxy.url) as far:
        flows, sender = WorkflowProvider(near), WorkflowProvider(far)
        graphs = {number: graph_of(number, spread=shape == "spread") for number in range(1, MOST + 1)}
        for each in (takes, *graphs.values()):
            flows.register(each)
            sender.register(each)
        async with near.worker():
            for _ in range(5):
                waits = dice.randint(1, MOST)
                definition: Any = takes if shape == "function" else graphs[waits]
                flow = await flows.execute(definition, waits)
                handle = sender.handle(flow.id, definition)
                for number in range(waits):
                    own = dice.choice([None, f"own id {number}", f"own-{number}" + "x" * 100])
                    whens: list[When | None] = ["after", "after", "before", None]
                    for _ in range(1 if own is None else dice.randint(1, 3)):
                        if (when := dice.choice(whens)) is not None:
                            proxy.strike("signal", when, "break")
                        await handle.signal(GO, number, signal_id=own)
                        proxy.spare()
                assert await flow.result(300) == list(range(waits))
                with pytest.raises(SignalRefused, match="has ended"):
                    await handle.signal(GO, waits)
        assert proxy.cuts["signal"] > 0


@pytest.mark.parametrize("shape", SHAPES)
async def test_the_repeat_of_the_signal_that_ended_its_flow_is_no_refusal(
    shape: str, server: Backend, proxy: Proxy
) -> None:
    async with EventProvider(server.url) as near, EventProvider(proxy.url) as far:
        flows, sender = WorkflowProvider(near), WorkflowProvider(far)
        definition: Any = takes if shape == "function" else graph_of(1, spread=shape == "spread")
        flows.register(definition)
        async with near.worker():
            for own in (None, "mine"):
                flow = await flows.execute(definition, 1)
                proxy.strike("signal", "after", in_loop(lambda flow=flow: flow.result(300)))
                await sender.handle(flow.id, definition).signal(GO, 7, signal_id=own)
                assert await flow.result() == [7]
                if own is not None:
                    await flow.signal(GO, 7, signal_id=own)
    assert proxy.cuts["signal"] == 2


async def test_the_repeat_of_a_signal_does_not_reach_the_next_run_of_its_flow(
    server: Backend, proxy: Proxy
) -> None:
    async with EventProvider(server.url) as near, EventProvider(proxy.url) as far:
        flows, sender = WorkflowProvider(near), WorkflowProvider(far)
        flows.register(takes)

        async def end_and_begin() -> None:
            assert await flow.result(300) == [7]
            await flows.retry(flow.id)

        async with near.worker():
            flow = await flows.execute(takes, 1)
            proxy.strike("signal", "after", in_loop(end_and_begin))
            await sender.handle(flow.id, takes).signal(GO, 7)
            assert await near.jobs.inbox(flow.id) == []
            await flow.signal(GO, 8)
            assert await flows.handle(flow.id, takes).result(300) == [8]


@pytest.mark.parametrize("shape", ["event", *SHAPES])
async def test_a_cancel_that_is_heard_late_does_not_end_the_next_run(shape: str, server: Backend) -> None:
    """Cancel, hear it, retry at once: the message is perhaps still on its way to the worker. So it is sent
    once more, too.
    """
    async with EventProvider(server.url, lease=300) as provider:
        hold = Hold(provider)
        async with provider.worker() as worker:
            for number in range(15):
                hold.gate.clear()
                began = hold.began
                job_id = await begin(provider, hold, shape)
                await until("it runs", lambda began=began: hold.began == began + 1)
                await cancel_and_hear(provider, hold, job_id)
                await retry(provider, hold, job_id)
                await until("it runs again", lambda began=began: hold.began == began + 2)
                control = f"eb:2:{{0}}:control:{worker.id}"
                server.command("ZADD", control, 0, f"cancel:{job_id}")
                await until(
                    "the message is read", lambda control=control: not server.command("EXISTS", control)
                )
                hold.gate.set()
                await until(
                    f"run 2 of {number} completes", lambda job_id=job_id: has_completed(server, job_id)
                )


@pytest.mark.parametrize("shape", ["event", *SHAPES])
async def test_a_cancel_that_is_sent_again_does_not_end_the_next_run(
    shape: str, server: Backend, proxy: Proxy
) -> None:
    async with EventProvider(server.url) as provider, EventProvider(proxy.url) as far:
        hold = Hold(provider)

        async def hear_and_retry() -> None:
            await hear(provider, job_id)
            await retry(provider, hold, job_id)
            await until("it runs again", lambda: hold.began == 2)

        async with provider.worker():
            job_id = await begin(provider, hold, shape)
            await until("it runs", lambda: hold.began == 1)
            proxy.strike("cancel", "after", in_loop(hear_and_retry))
            assert await far.inspector.jobs.cancel(job_id, "enough"), (
                "the repeat is answered as its first try was"
            )
            assert proxy.cuts["cancel"] == 1
            hold.gate.set()
            await until("the next run completes", lambda: has_completed(server, job_id))


def has_completed(server: Backend, job_id: str) -> bool:
    state = Audit(server).jobs[job_id].state
    assert state in ("waiting", "active", "waiting-children", "completed"), state
    return state == "completed"


async def begin(provider: EventProvider, hold: Hold, shape: str) -> str:
    """Begin a job or a flow; return its id."""
    if shape == "event":
        emission = provider.emit("hold", 1, reply=False)
        await emission.enqueued()
        return emission.job_id
    return (await hold.flows.execute(hold.shapes[shape], None)).id


async def hear(provider: EventProvider, job_id: str) -> None:
    """Wait until a job has ended as cancelled."""
    if "~" in job_id:
        with pytest.raises(FlowCancelled):
            await WorkflowProvider(provider).handle(job_id).result(300)
    else:
        with pytest.raises(JobCancelled):
            await provider.result(job_id, reply_timeout=300)


async def cancel_and_hear(provider: EventProvider, hold: Hold, job_id: str) -> None:
    assert await provider.inspector.jobs.cancel(job_id, "enough")
    await hear(provider, job_id)


async def retry(provider: EventProvider, hold: Hold, job_id: str) -> None:
    if "~" in job_id:
        await hold.flows.retry(job_id)
    else:
        assert await provider.inspector.jobs.retry(job_id)
