"""Errors of odd classes, and odd ends of listeners: nobody else is held up by them."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from eventbus import Change, EventProvider, HandlerError, Retry
from workflows import FlowContext, StepContext, Workflow, WorkflowProvider, durable

MakeProvider = Callable[..., EventProvider]


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    code: int


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Asked(Exception):
    def __getattr__(self, name: str) -> Any:
        raise KeyError(name)


@pytest.mark.parametrize("kind", [Frozen, Mute, Asked], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("spread", [False, True], ids=["local", "spread"])
async def test_the_caller_of_a_flow_hears_of_an_error_of_any_class(
    make_provider: MakeProvider, kind: Any, spread: bool
) -> None:
    workflow: Any = Workflow("odd", input=None, errors=[kind], spread=spread, retry=Retry(attempts=1))

    @workflow.step()
    async def fail(_: StepContext[None]) -> None:
        raise kind(3)

    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(workflow)
    async with provider, provider.worker():
        with pytest.raises(kind):
            await (await flows.execute(workflow, None)).result(timeout=240)


async def test_a_handler_with_an_error_that_cannot_be_asked_fails_and_the_next_job_runs(
    make_provider: MakeProvider,
) -> None:
    provider = make_provider()

    @provider.on("odd", retry=Retry(attempts=1))
    async def odd(n: int) -> int:
        if n == 0:
            raise Asked("x")
        return n

    async with provider.worker():
        with pytest.raises(HandlerError, match="Asked"):
            await provider.emit("odd", 0)
        assert await provider.emit("odd", 1) == 1


@pytest.mark.parametrize("how", ["cancelled", "stop"])
async def test_a_listener_of_any_end_holds_up_no_job(make_provider: MakeProvider, how: str) -> None:
    provider, heard = make_provider(), asyncio.Semaphore(0)
    loop = asyncio.get_running_loop()

    @provider.on("work")
    async def work(n: int) -> int:
        return n

    if how == "cancelled":

        @provider.watching("completed")
        async def other(change: Change) -> None:
            heard.release()
            raise asyncio.CancelledError

    else:

        @provider.watching("completed")
        def listen(change: Change) -> None:
            loop.call_soon_threadsafe(heard.release)
            next(iter(()))

    async with provider.worker():
        for n in range(3):
            assert await provider.emit("work", n) == n
            await heard.acquire()


async def test_an_error_that_a_durable_function_gets_from_an_event_keeps_its_places(
    make_provider: MakeProvider,
) -> None:
    provider = make_provider()

    @provider.on("inner", retry=Retry(attempts=1))
    async def inner(given: Any) -> None:
        raise ValueError(f"no {given['password']}\nline two of {given['password']}")

    @durable("outer")
    async def outer(ctx: FlowContext[None]) -> None:
        await ctx.emit("inner", {"password": "hunter-22"})

    flows = WorkflowProvider(provider)
    flows.register(outer)
    async with provider, provider.worker():
        flow = await flows.execute(outer, None)
        with pytest.raises(Exception, match="hunter-22"):
            await flow.result(timeout=240)
        report = await flow.report()
    assert "hunter-22" not in str(report)
    assert "•••" in report.error


class _NoMembers(ExceptionGroup[Exception]):
    @property
    def exceptions(self) -> Any:
        raise SystemExit("none for you")


class _Itself(ExceptionGroup[Exception]):
    @property
    def exceptions(self) -> Any:
        return (self,)


class _NoCause(Exception):
    @property
    def __cause__(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        raise SystemExit("no cause for you")


class _NoClass(Exception):
    @property
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        raise SystemExit("no class for you")


def _doubled() -> Exception:
    error: Exception = ValueError("twice")
    for _ in range(60):
        members: list[Exception] = [error, error]
        error = ExceptionGroup("both", members)
    return error


@pytest.mark.parametrize(
    "make",
    [
        lambda: _NoMembers("a", [ValueError("x")]),
        lambda: _Itself("a", [ValueError("x")]),
        lambda: _NoCause("x"),
        lambda: _NoClass("x"),
        lambda: ExceptionGroup("a", [_NoCause("x"), _NoClass("y")]),
        _doubled,
    ],
    ids=["members", "itself", "cause", "class", "leaves", "doubled"],
)
async def test_an_error_that_cannot_be_asked_ends_its_job_and_nothing_else(
    make_provider: Callable[..., EventProvider], make: Callable[[], Exception]
) -> None:
    provider = make_provider(concurrency=1)

    @provider.on("odd", retry=Retry(attempts=1))
    async def fail(_: int) -> None:
        raise make()

    @provider.on("plain")
    async def answer(n: int) -> int:
        return n

    async with provider, provider.worker():
        with pytest.raises(HandlerError):
            await provider.emit("odd", 1)
        assert await provider.emit("plain", 2) == 2
