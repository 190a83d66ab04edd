"""Optional arguments: None means the same as leaving them out, wherever they are passed."""

from __future__ import annotations

import typing
from collections.abc import Callable
from types import NoneType
from typing import Any

import pytest

from eventbus import EmitKeywords, Event, EventContext, EventProvider, SyncContext
from eventbus.settings.keywords import EmitOptions, emit_options
from workflows import StepContext, Workflow, WorkflowProvider

MakeProvider = Callable[..., EventProvider]

_OPTIONS = typing.get_type_hints(EmitKeywords)
_OPTIONAL = sorted(
    name
    for name, kind in _OPTIONS.items()
    if NoneType in typing.get_args(kind) and name != "reply_timeout"  # where None means none
)
_NONE: dict[str, Any] = dict.fromkeys(_OPTIONAL)


def test_what_has_no_other_default_may_be_none() -> None:
    assert set(_OPTIONAL) >= {"at", "delay", "idempotency_key", "meta", "reply", "retry"}
    assert {name for name in _OPTIONS if getattr(EmitOptions(), name) is None} == set(_OPTIONAL)


@pytest.mark.parametrize("name", _OPTIONAL)
async def test_an_emission_takes_none_for_not_given(make_provider: MakeProvider, name: str) -> None:
    assert emit_options({name: None}) == EmitOptions()
    provider = make_provider()
    provider.on("double")(lambda number: 2 * number)
    async with provider.worker():
        given: Any = {name: None}
        assert await provider.emit("double", 4, **given) == 8
        assert [await each for each in provider.emit_many("double", [1, 2], **given)] == [2, 4]


async def test_the_event_has_its_say_where_none_is_given(make_provider: MakeProvider) -> None:
    keyed = Event("keyed", payload=int, result=int, key=str, reply=True)
    provider = make_provider()

    @provider.on(keyed, group="default", concurrency=None, retry=None, timeout=None, pool=None)
    async def answer(number: int) -> int:
        return number

    async with provider.worker():
        first, again = (provider.emit(keyed, 4, **_NONE) for _ in range(2))
        assert (await first, await again) == (4, 4)
        assert first.job_id == again.job_id


async def test_contexts_and_threads_take_none_too(make_provider: MakeProvider) -> None:
    provider = make_provider()
    provider.on("double")(lambda number: 2 * number)

    @provider.on("in.loop")
    async def in_loop(number: int, ctx: EventContext) -> list[int]:
        many = ctx.emit_many("double", [number], **_NONE)
        return [await ctx.emit("double", number, **_NONE), await many[0]]

    @provider.on("in.thread")
    def in_thread(number: int, ctx: SyncContext) -> list[int]:
        many = ctx.emit_many("double", iter([number]), **_NONE)
        return [ctx.emit("double", number, **_NONE).result(), many[0].result()]

    async with provider.worker():
        assert await provider.emit("in.loop", 4) == [8, 8]
        assert await provider.emit("in.thread", 4) == [8, 8]


async def test_a_flow_and_its_steps_take_none(make_provider: MakeProvider) -> None:
    provider = make_provider()
    flows = WorkflowProvider(provider)
    shop = Workflow("shop", input=int, timeout=None, retry=None, version=None)
    provider.on("double")(lambda number: 2 * number)

    @shop.step(name=None, retry=None, timeout=None, when=None, after=None)
    async def first(ctx: StepContext[int]) -> int:
        return await ctx.emit("double", ctx.input, **_NONE)

    @first.rollback(retry=None, timeout=None)
    async def undo(ctx: StepContext[int], result: int) -> None: ...

    @shop.step
    def second(ctx: StepContext[int]) -> list[int]:
        many = ctx.emit_many("double", [ctx.input, 1], **_NONE)
        return [ctx.result(first), *(each.result() for each in many)]

    flows.register(shop)
    async with provider.worker():
        flow = await flows.execute(shop, 4, idempotency_key=None, timeout=None, delay=None, meta=None)
        assert await flow.result(timeout=None) is None
        assert (await flow.report()).steps["second"].result == [8, 8, 2]
