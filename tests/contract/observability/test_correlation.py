"""One correlation id for a chain: set by the emission, by the caller, or by the surrounding context."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from drivers.records import read_record

from eventbus import DefinitionError, EventContext, EventProvider, SyncContext
from workflows import StepContext, Workflow, WorkflowProvider

MakeProvider = Callable[..., EventProvider]


class Chain:
    """Handlers of two groups that emit on, and what each of them saw."""

    def __init__(self, provider: EventProvider) -> None:
        self.seen: dict[str, str] = {}
        self.provider = provider
        provider.on("placed")(self._place)
        provider.on("placed", group="billing")(self._bill)
        for name in ("told", "billed"):
            provider.on(name)(self._hear)

    async def run(self, **options: Any) -> tuple[str, str]:
        """Emit, wait for all; return the emission's own id and its correlation id."""
        self.seen.clear()
        async with self.provider.worker() as runner:
            emission = self.provider.emit("placed", **options)
            await emission
            await runner.wait_drained(self.provider.flush)
        return emission.job_id, emission.correlation_id

    async def _place(self, _: Any, ctx: EventContext) -> None:
        self.seen["placed"] = ctx.correlation_id
        await ctx.emit("told")

    def _bill(self, _: Any, ctx: SyncContext) -> None:
        self.seen["placed@billing"] = ctx.correlation_id
        ctx.emit("billed").result(240)

    async def _hear(self, _: Any, ctx: EventContext) -> None:
        self.seen[ctx.event] = ctx.correlation_id


_ALL = ("placed", "placed@billing", "told", "billed")


async def test_all_groups_of_an_emission_have_one_correlation_id(make_provider: MakeProvider) -> None:
    chain = Chain(make_provider())
    job_id, correlation_id = await chain.run()
    assert correlation_id == job_id
    assert chain.seen == dict.fromkeys(_ALL, job_id)


async def test_a_caller_sets_it_for_one_emission_or_for_all_in_a_block(make_provider: MakeProvider) -> None:
    chain = Chain(make_provider())
    assert (await chain.run(correlation_id="req 1/ü"))[1] == "req 1/ü"
    assert chain.seen == dict.fromkeys(_ALL, "req 1/ü")
    with chain.provider.context(correlation_id="req-2", tenant="acme"):
        assert (await chain.run())[1] == "req-2"
        assert chain.seen == dict.fromkeys(_ALL, "req-2")
        await chain.run(correlation_id="req-3")
        assert chain.seen == dict.fromkeys(_ALL, "req-3")
        with chain.provider.context(correlation_id=None, user="ada"):
            assert (await chain.run(correlation_id=None))[1] == "req-2"


async def test_a_handler_may_begin_a_chain_of_its_own(make_provider: MakeProvider) -> None:
    provider = make_provider()
    seen: list[tuple[str, str | None, dict[str, Any]]] = []

    @provider.on("outer")
    async def outer(_: Any, ctx: EventContext) -> str:
        with provider.context(correlation_id="other"):
            ctx.emit_many("inner", [1], correlation_id="many", reply=False)
            await ctx.emit("inner")
        await ctx.emit("inner")
        return ctx.job_id

    @provider.on("inner")
    async def inner(_: Any, ctx: EventContext) -> None:
        seen.append((ctx.correlation_id, ctx.causation_id, dict(ctx.meta)))

    async with provider.worker():
        job_id = await provider.emit("outer", meta={"tenant": "acme"})
    assert sorted(seen) == sorted((chain, job_id, {"tenant": "acme"}) for chain in ("many", "other", job_id))


async def test_an_emission_that_meets_another_keeps_its_own(make_provider: MakeProvider) -> None:
    provider = make_provider()
    seen: list[str] = []

    @provider.on("keyed")
    async def keyed(_: Any, ctx: EventContext) -> None:
        seen.append(ctx.correlation_id)

    async with provider:
        first = provider.emit("keyed", idempotency_key="k", correlation_id="one")
        second = provider.emit("keyed", idempotency_key="k", correlation_id="two")
        async with provider.worker():
            await first
            await second
    assert (first.job_id, first.correlation_id) == (second.job_id, "one")
    assert second.correlation_id == "two"
    assert seen == ["one"]


@pytest.mark.parametrize("wrong", ["", "x" * 513, "two\nlines", "nul\0", "\ud800", 5, b"req"])
async def test_what_cannot_be_one_is_refused_with_its_value(make_provider: MakeProvider, wrong: Any) -> None:
    provider = make_provider()
    workflow = Workflow[Any, Any]("w")

    @workflow.step()
    async def one(ctx: StepContext[Any]) -> None: ...

    flows = WorkflowProvider(provider)
    flows.register(workflow)
    told = r"correlation_id to be text of 1 to 512 printable characters, got: .+"
    async with provider:
        with pytest.raises(DefinitionError, match=told):
            provider.emit("a", correlation_id=wrong)
        with pytest.raises(DefinitionError, match=told):
            provider.emit_many("a", [1], correlation_id=wrong)
        with pytest.raises(DefinitionError, match=told), provider.context(correlation_id=wrong):
            raise AssertionError
        with pytest.raises(DefinitionError, match=told):
            await flows.execute(workflow, None, correlation_id=wrong)
        await provider.emit("a", correlation_id="x" * 512, reply=False)


async def test_a_message_with_nothing_but_a_payload_stays_so(
    make_provider: MakeProvider, admin: Callable[..., Any], prefix: str
) -> None:
    provider = make_provider()

    def body(job_id: str) -> str:
        return read_record(admin, f"{prefix}:2:{{0}}:job:{job_id}")["body"]

    async with provider:
        bare = provider.emit("a", 1, reply=False)
        with provider.context():
            same = provider.emit("a", 1, reply=False)
        set_by_caller = provider.emit("a", 1, reply=False, correlation_id="req-1")
        await provider.flush()
    assert body(bare.job_id) == body(same.job_id) == '{"p":1}'
    assert body(set_by_caller.job_id) == '{"p":1,"c":"req-1"}'


@pytest.mark.parametrize("how", ["option", "context", "neither"])
async def test_a_flow_has_one_for_all_its_functions_and_what_they_emit(
    make_provider: MakeProvider, how: str
) -> None:
    provider = make_provider()
    seen: set[str] = set()

    @provider.on("told", group="audit")
    async def hear(_: Any, ctx: EventContext) -> None:
        seen.add(ctx.correlation_id)

    inner = Workflow[Any, Any]("inner")

    @inner.step()
    async def tell(ctx: StepContext[Any]) -> None:
        seen.add(ctx.correlation_id)
        await ctx.emit("told", reply=False)

    outer = Workflow[Any, Any]("outer")
    outer.flow(inner)

    @outer.completed
    def end(ctx: StepContext[Any]) -> None:
        seen.add(ctx.correlation_id)

    flows = WorkflowProvider(provider)
    flows.register(outer)
    around = provider.context(correlation_id="req-1") if how == "context" else contextlib.nullcontext()
    async with provider, provider.worker() as runner:
        with around:
            handle = await flows.execute(outer, None, correlation_id="req-1" if how == "option" else None)
        await handle.result()
        await runner.wait_drained(provider.flush)
    assert seen == {handle.id if how == "neither" else "req-1"}
