"""Declared errors are answers: they fail the job at once, unless the event says to retry them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from importable import refusing
from importable.refusing import Busy, Order, Refused, SoldOut, ordered

from eventbus import CallNext, Event, EventContext, EventProvider, HandlerError, Retry
from eventbus.telemetry.failure import describe, revive
from workflows import FlowContext, StepContext, Workflow, WorkflowProvider, durable, task

MakeProvider = Callable[..., EventProvider]

_ATTEMPTS = 2
_PATIENT = 240.0
"""Seconds: interpreters start slowly on a machine that has other things to do."""

_ENDS = [
    ("sold out", Refused, 1),  # a subclass arrives as the declared class
    ("refused", Refused, 1),
    ("late", TimeoutError, 1),
    ("busy", Refused, _ATTEMPTS),
    ("broken", HandlerError, _ATTEMPTS),
]


async def _refuse_in_the_loop(order: Order) -> int:
    return refusing.refuse(order)


def _refuse_in_a_thread(order: Order) -> int:
    return refusing.refuse(order)


@pytest.fixture
def provider(make_provider: MakeProvider) -> EventProvider:
    return make_provider(retry=Retry(attempts=_ATTEMPTS, delay=0), reply_timeout=_PATIENT)


def _attempts(notes: Path) -> int:
    return len(notes.read_text().splitlines()) if notes.exists() else 0


def _serve(provider: EventProvider, where: Literal["loop", "thread", "process"], **options: Any) -> None:
    if where == "loop":
        provider.on(ordered, **options)(_refuse_in_the_loop)
    elif where == "thread":
        provider.on(ordered, **options)(_refuse_in_a_thread)
    else:
        provider.on(ordered, pool="process", **options)(refusing.refuse)


@pytest.mark.parametrize("where", ["loop", "thread", "process"])
async def test_a_declared_error_is_the_answer_and_what_it_is_declared_to_be(
    provider: EventProvider, where: Literal["loop", "thread", "process"], tmp_path: Path
) -> None:
    _serve(provider, where)
    async with provider.worker():
        for how, kind, attempts in _ENDS:
            notes = tmp_path / how
            with pytest.raises(kind) as caught:
                await provider.emit(ordered, Order(how, str(notes)))
            assert _attempts(notes) == attempts, how
            cause = caught.value if isinstance(caught.value, HandlerError) else caught.value.__cause__
            assert isinstance(cause, HandlerError)
            assert cause.attempts == attempts


@pytest.mark.parametrize("where", ["loop", "thread", "process"])
async def test_it_is_so_in_every_group(
    provider: EventProvider, where: Literal["loop", "thread", "process"], tmp_path: Path
) -> None:
    provider.on(ordered)(lambda order: 1)
    _serve(provider, where, group="mail")
    async with provider.worker():
        for how, kind, attempts in _ENDS:
            emission = provider.emit(ordered, Order(how, str(tmp_path / how)))
            assert await emission == 1
            with pytest.raises(kind):
                await provider.result(f"{emission.job_id}@mail", event=ordered, reply_timeout=_PATIENT)
            assert _attempts(tmp_path / how) == attempts, how


async def test_a_timeout_of_an_attempt_is_no_answer_though_its_class_is_declared(
    provider: EventProvider,
) -> None:
    attempts: list[int] = []

    @provider.on(ordered, timeout="50ms")
    async def hang(order: Order, ctx: EventContext) -> int:
        attempts.append(ctx.attempt)
        await asyncio.Event().wait()
        return 1

    async with provider.worker():
        with pytest.raises(TimeoutError, match=r"ran longer than its timeout of 0\.05 s"):
            await provider.emit(ordered, Order("", ""))
    assert attempts == [1, 2]


async def test_a_middleware_may_answer_with_a_declared_error(provider: EventProvider, tmp_path: Path) -> None:
    tried: list[str] = []

    @provider.use
    async def refuse(payload: Any, ctx: EventContext, call: CallNext) -> Any:
        tried.append(payload.how)
        raise SoldOut("here") if payload.how == "sold out" else Busy("here")

    provider.on(ordered)(_refuse_in_the_loop)
    async with provider.worker():
        for how in ("sold out", "busy"):
            with pytest.raises(Refused, match="here"):
                await provider.emit(ordered, Order(how, ""))
    assert tried == ["sold out", "busy", "busy"]


async def test_a_refusal_that_a_handler_only_hears_of_is_an_error_of_its_own_event(
    provider: EventProvider, tmp_path: Path
) -> None:
    attempts: list[int] = []
    outer = Event("outer", payload=Order, result=int)

    @provider.on(outer)
    async def ask(order: Order, ctx: EventContext) -> int:
        attempts.append(ctx.attempt)
        return await ctx.emit(ordered, order)

    provider.on(ordered)(_refuse_in_the_loop)
    async with provider.worker():
        with pytest.raises(HandlerError, match="Refused: refused"):
            await provider.emit(outer, Order("refused", str(tmp_path / "notes")))
    assert attempts == [1]  # it is final for whoever awaits it, too
    assert _attempts(tmp_path / "notes") == 1


class Near(Refused):
    pass


class Nearest(Near):
    pass


class Odd(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, Exception)


class Everything(Exception, metaclass=Odd):
    """Says of each error that it is one."""


@pytest.mark.parametrize("order", [[Refused, Near], [Near, Refused], [Everything, Refused, Near]])
@pytest.mark.parametrize(("raised", "arrives"), [(Nearest, Near), (Near, Near), (SoldOut, Refused)])
async def test_of_several_declared_classes_the_nearest_one_arrives(
    provider: EventProvider, order: list[type[Exception]], raised: type[Exception], arrives: type[Exception]
) -> None:
    @provider.on(event := Event("near", payload=int, errors=order))
    async def near(_: int) -> None:
        raise raised("no")

    flow = Workflow[Any, Any]("near", errors=order)

    @flow.step
    async def fail(ctx: StepContext[Any]) -> None:
        raise raised("no")

    @durable("nearly", errors=order)
    async def function(ctx: FlowContext[None]) -> None:
        await ctx.step(task(near_task))

    async def near_task() -> None:
        raise raised("no")

    flows = WorkflowProvider(provider)
    flows.register(flow)
    flows.register(function)
    async with provider, provider.worker():
        for awaited in (
            provider.emit(event, 1),
            (await flows.execute(flow, None)).result(),
            (await flows.execute(function, None)).result(),
        ):
            with pytest.raises(arrives) as caught:
                await awaited
            assert type(caught.value) is arrives


def test_a_class_of_the_very_name_comes_before_one_of_the_same_name_in_the_main_module() -> None:
    there = type("Refused", (Exception,), {"__module__": "other"})
    main = type("Refused", (Exception,), {"__module__": "__main__"})
    for declared in ([there, main], [main, there]):
        text = describe(main("no"), attempts=1, declared=declared)
        assert type(revive("failed", text, event="e", job_id="j", declared=declared)) is main
