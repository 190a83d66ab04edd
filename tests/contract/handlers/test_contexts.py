"""What handlers get and can do beside their payload: chains, meta, progress, log."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import pytest

from eventbus import EventContext, EventProvider, HandlerError, PayloadError, Retry, SyncContext

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]
Facts = dict[str, Any]


def _facts(ctx: EventContext) -> Facts:
    return {
        "job": ctx.job_id,
        "correlation": ctx.correlation_id,
        "causation": ctx.causation_id,
        "meta": dict(ctx.meta),
    }


def _chain(provider: EventProvider) -> None:
    """a emits b, b emits c; each answers with the facts of all below it."""

    @provider.on("a")
    async def a(_: Any, ctx: EventContext) -> list[Facts]:
        return [_facts(ctx), *(await ctx.emit("b"))]

    @provider.on("b")
    async def b(_: Any, ctx: EventContext) -> list[Facts]:
        # Not through the context: what surrounds the handler counts.
        return [_facts(ctx), *(await provider.emit("c", None, meta={"extra": 1}))]

    @provider.on("c")
    async def c(_: Any, ctx: EventContext) -> list[Facts]:
        return [_facts(ctx)]


async def test_a_chain_keeps_its_correlation_and_names_its_causes(make_provider: MakeProvider) -> None:
    provider = make_provider()
    _chain(provider)
    async with provider.worker():
        with provider.context(tenant="t1", user=5):
            emission = provider.emit("a", meta={"user": 6})
        a, b, c = await emission
    assert emission.correlation_id == a["correlation"] == b["correlation"] == c["correlation"] == a["job"]
    assert (a["causation"], b["causation"], c["causation"]) == (None, a["job"], b["job"])
    assert a["meta"] == b["meta"] == {"tenant": "t1", "user": 6}
    assert c["meta"] == {"tenant": "t1", "user": 6, "extra": 1}
    assert len({a["job"], b["job"], c["job"]}) == 3


async def test_chains_that_run_at_once_do_not_mix(make_provider: MakeProvider) -> None:
    provider = make_provider(concurrency=40)
    _chain(provider)
    async with provider.worker():
        emissions = [provider.emit("a", meta={"chain": n}) for n in range(20)]
        for n, emission in enumerate(emissions):
            facts: list[Facts] = await emission
            assert {each["correlation"] for each in facts} == {emission.correlation_id}
            assert {each["meta"]["chain"] for each in facts} == {n}


async def test_what_surrounds_the_start_of_a_worker_is_nothing_to_its_handlers(
    make_provider: MakeProvider,
) -> None:
    provider = make_provider()
    _chain(provider)
    with provider.context(tenant="of the starter"):
        async with provider.worker():
            with provider.context(tenant="of the emission"):
                (facts,) = await provider.emit("c")
    assert facts["meta"] == {"tenant": "of the emission"}


async def test_meta_ends_with_its_block_and_inner_values_win(make_provider: MakeProvider) -> None:
    provider = make_provider()
    _chain(provider)
    async with provider.worker():
        with provider.context(a=1, b=1):
            with provider.context(b=2):
                (inner,) = await provider.emit("c")
            (outer,) = await provider.emit("c")
        (none,) = await provider.emit("c")
    assert (inner["meta"], outer["meta"], none["meta"]) == ({"a": 1, "b": 2}, {"a": 1, "b": 1}, {})


async def test_an_emission_of_a_failing_handler_is_on_its_way_all_the_same(
    make_provider: MakeProvider,
) -> None:
    provider = make_provider(retry=Retry(attempts=1))
    heard: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()

    @provider.on("outer")
    async def outer(_: Any, ctx: EventContext) -> None:
        ctx.emit("told", reply=False)
        raise ValueError("after it")

    @provider.on("told")
    async def told(_: Any, ctx: EventContext) -> None:
        heard.set_result(ctx.causation_id)

    async with provider.worker():
        emission = provider.emit("outer")
        with pytest.raises(HandlerError):
            await emission
        assert await asyncio.wait_for(heard, 240) == emission.job_id


async def test_threads_pass_chain_and_meta_on(make_provider: MakeProvider) -> None:
    provider = make_provider()
    _chain(provider)

    @provider.on("start")
    def start(_: Any, ctx: SyncContext) -> list[Facts]:
        return ctx.emit("c").result(240)

    async with provider.worker():
        with provider.context(tenant="t"):
            emission = provider.emit("start")
        (facts,) = await emission
    assert (facts["correlation"], facts["causation"]) == (emission.correlation_id, emission.job_id)
    assert facts["meta"] == {"tenant": "t"}


async def test_progress_is_recorded(
    make_provider: MakeProvider, admin: Callable[..., Any], prefix: str
) -> None:
    provider = make_provider()
    stored: list[str] = []

    @provider.on("long")
    async def long(_: Any, ctx: EventContext) -> None:
        for value in (50, {"part": [1, 2]}, None):
            await ctx.progress(value)
            stored.append(admin("GET", f"{prefix}:2:{{0}}:progress:{ctx.job_id}"))

    async with provider.worker():
        await provider.emit("long")
    assert stored == ["50", '{"part":[1,2]}', "null"]


async def test_progress_of_one_tick_travels_together(
    make_provider: MakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    from eventbus.store.store import Store

    provider = make_provider(concurrency=20)
    calls: list[int] = []
    note = Store.note

    async def counted(self: Store, notes: Any, **options: Any) -> list[str]:
        calls.append(len(notes))
        return await note(self, notes, **options)

    monkeypatch.setattr(Store, "note", counted)
    all_here = asyncio.Barrier(20)

    @provider.on("long")
    async def long(n: int, ctx: EventContext) -> None:
        await all_here.wait()
        await ctx.progress(n)

    async with provider.worker():
        for each in provider.emit_many("long", range(20)):
            await each
    assert sum(calls) == 20
    assert len(calls) <= 3


@pytest.mark.parametrize("value", [float("nan"), object(), "x" * 20_000, {1: 2}])
async def test_progress_that_is_no_small_json_value_is_refused(
    make_provider: MakeProvider, value: Any
) -> None:
    provider = make_provider()

    @provider.on("long")
    async def long(_: Any, ctx: EventContext) -> str:
        with pytest.raises(PayloadError, match="progress"):
            await ctx.progress(value)
        return "went on"

    async with provider.worker():
        assert await provider.emit("long") == "went on"


async def test_a_handler_that_lost_its_lease_learns_it_at_its_progress(
    make_provider: MakeProvider, admin: Callable[..., Any], prefix: str
) -> None:
    provider = make_provider()
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @provider.on("long", concurrency=1)
    async def long(_: Any, ctx: EventContext) -> None:
        (held,) = admin("KEYS", f"{prefix}:2:{{0}}:held:*")
        admin("HSET", held, ctx.job_id, "0" * 15 + "somebody:999")
        try:
            await ctx.progress(1)
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.set_result(admin("EXISTS", f"{prefix}:2:{{0}}:progress:{ctx.job_id}"))
            raise

    async with provider.worker():
        emission = provider.emit("long", reply_timeout=None)
        await emission.enqueued()
        assert await asyncio.wait_for(ended, 240) == 0
        assert not emission.done()


async def test_the_log_of_a_context_knows_its_job(
    make_provider: MakeProvider, logs: list[MutableMapping[str, Any]]
) -> None:
    provider = make_provider()

    @provider.on("greet")
    async def greet(_: Any, ctx: EventContext) -> None:
        ctx.log.info("hello", who="you")
        assert ctx.log is ctx.log

    @provider.on("greet.too")
    def greet_too(_: Any, ctx: SyncContext) -> None:
        ctx.log.info("hello", who="thread")

    async with provider.worker() as worker:
        emission = provider.emit("greet")
        await emission
        other = provider.emit("greet.too")
        await other
    entries = {each["who"]: each for each in logs if each["event"] == "hello"}
    assert entries["you"] == {
        "event": "hello",
        "log_level": "info",
        "who": "you",
        "event_name": "greet",
        "job_id": emission.job_id,
        "attempt": 1,
        "correlation_id": emission.correlation_id,
        "worker": worker.id,
        "provider": provider.settings.name,
    }
    assert entries["thread"]["job_id"] == other.job_id


async def test_a_context_emits_many(make_provider: MakeProvider) -> None:
    provider = make_provider()

    @provider.on("double")
    async def double(n: int) -> int:
        return 2 * n

    @provider.on("outer")
    async def outer(count: int, ctx: EventContext) -> list[int]:
        return [await each for each in ctx.emit_many("double", range(count))]

    async with provider.worker():
        assert await provider.emit("outer", 5) == [0, 2, 4, 6, 8]
