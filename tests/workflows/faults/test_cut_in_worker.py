"""A flow in a worker that is stopped at any of its waits: at each call to the server, and at each wait of
its functions.

At the n-th wait the flow is cancelled, or its worker stops, and the wait goes on only once its worker has
cancelled the job. So
whatever that wait is for is cut, unless it is seen through. After it each body that took effect is recorded,
and undone if the
flow was cancelled; the outcome tells it. Of a worker that stopped another one goes on, and does nothing
twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from drivers.machines.cut import KINDS, child, effects, forget, meet_with, undone

from eventbus import EventProvider
from eventbus.engine.executor import Executor
from eventbus.lowlevel import JobClient
from workflows import FlowCancelled, FlowHandle, WorkflowProvider

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]

pytestmark = [pytest.mark.slow, pytest.mark.virtual]

_MOST = 100
"""Waits that no flow here needs."""

_CALLS = ("append", "checkpoint", "hear", "lives", "live", "look", "outcomes", "read_journal", "spawn")


class Waits:
    """Counts the waits of the flow that runs, and makes a call at one of them."""

    def __init__(self) -> None:
        self._left = 0
        self._then: Callable[[], Awaitable[Any]] | None = None
        self.jobs: JobClient | None = None
        """Whose calls count."""

    def at(self, number: int, then: Callable[[], Awaitable[Any]]) -> None:
        self._left, self._then = number, then

    @property
    def was_met(self) -> bool:
        return self._then is None

    async def meet(self) -> None:
        await asyncio.sleep(0)
        if self._then is None:
            return
        self._left -= 1
        if self._left == 0:
            then, self._then = self._then, None
            await then()


@pytest.fixture
def struck(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Set once the worker has cancelled a job."""
    event, strike = asyncio.Event(), Executor.strike

    def note(self: Executor, run: Any, cause: Any) -> None:
        strike(self, run, cause)
        event.set()

    monkeypatch.setattr(Executor, "strike", note)
    return event


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[Waits]:
    forget()
    made = Waits()
    meet_with(made.meet)
    for name in _CALLS:
        monkeypatch.setattr(JobClient, name, _counted(made, getattr(JobClient, name)))
    yield made
    forget()


def _counted(waits: Waits, call: Callable[..., Awaitable[Any]]) -> Any:
    async def counted(self: JobClient, *args: Any, **kwargs: Any) -> Any:
        if self is waits.jobs:
            await waits.meet()
        found = await call(self, *args, **kwargs)
        if (
            self is waits.jobs and call.__name__ != "spawn"
        ):  # behind that the job may be no longer this worker's
            await waits.meet()
        return found

    return counted


def _open(provider: EventProvider, kind: str) -> WorkflowProvider:
    flows = WorkflowProvider(provider)
    flows.register(KINDS[kind])
    if kind == "machine-children":
        flows.register(child)
    return flows


def _given(kind: str) -> Any:
    return {} if kind.startswith("pipeline") else 1


@pytest.mark.parametrize("kind", KINDS)
async def test_what_took_effect_is_undone_whenever_the_flow_is_cancelled(
    kind: str, make_provider: MakeProvider, waits: Waits, struck: asyncio.Event
) -> None:
    caller, worker = _open(make_provider(), kind), _open(make_provider(lease="1s"), kind)
    waits.jobs = worker.provider.jobs
    async with caller.provider, worker.provider, worker.provider.worker():
        for number in range(1, _MOST):
            forget()
            struck.clear()
            flow: FlowHandle[Any] | None = None
            is_started = asyncio.Event()

            async def stop() -> None:
                await is_started.wait()  # noqa: B023
                assert flow is not None  # noqa: B023
                await flow.cancel("enough")  # noqa: B023
                await struck.wait()

            waits.at(number, stop)
            flow = await caller.execute(KINDS[kind], _given(kind))
            is_started.set()
            (ended,) = await asyncio.gather(flow.result(), return_exceptions=True)
            if isinstance(ended, FlowCancelled):
                assert undone == effects[::-1], f"stopped at wait {number}"
                assert ended.rollback == ("complete" if effects else "none"), f"stopped at wait {number}"
            else:
                assert not isinstance(ended, BaseException), f"stopped at wait {number}"
                assert (effects, undone) == (["one", "two", "three"], [])
            if not waits.was_met:
                break
        else:
            pytest.fail("the flow never ends")
    assert number > 5


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "-" in kind])
async def test_what_took_effect_does_so_once_whenever_its_worker_stops(
    kind: str, make_provider: MakeProvider, waits: Waits, struck: asyncio.Event
) -> None:
    caller = _open(make_provider(), kind)
    async with caller.provider:
        for number in range(1, _MOST):
            forget()
            struck.clear()
            first, heir = _open(make_provider(grace=0), kind), _open(make_provider(), kind)
            waits.jobs = first.provider.jobs
            async with heir.provider:
                async with first.provider, first.provider.worker() as worker:
                    stopping: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

                    async def stop() -> None:
                        stopping.set_result(asyncio.create_task(worker.stop()))  # noqa: B023
                        await struck.wait()

                    waits.at(number, stop)
                    flow: FlowHandle[Any] = await caller.execute(KINDS[kind], _given(kind))
                    ending = asyncio.create_task(flow.result())
                    await asyncio.wait({stopping, ending}, return_when=asyncio.FIRST_COMPLETED)
                    if stopping.done():
                        await stopping.result()
                async with heir.provider.worker():
                    await ending
            assert (effects, undone) == (["one", "two", "three"], []), f"stopped at wait {number}"
            if not waits.was_met:
                break
        else:
            pytest.fail("the flow never ends")
