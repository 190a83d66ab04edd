"""W3C baggage: what is set around an emission or a flow reaches the code they run, even without an SDK."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, MutableMapping
from contextlib import contextmanager
from typing import Any

import pytest
from drivers.records import read_record
from importable import process_handlers
from opentelemetry import baggage, context
from opentelemetry.sdk.trace import TracerProvider

from eventbus import EventContext, EventProvider, Retry, SyncContext
from eventbus.model.message import decode_message
from eventbus.telemetry import spans as telemetry
from workflows import StepContext, StepError, Workflow, WorkflowProvider

MakeProvider = Callable[..., EventProvider]
Body = Callable[[str], str]

TEXT = "tenant=acme+%26+co,tier=3"
SEEN = {"tenant": "acme & co", "tier": "3"}


@contextmanager
def _around(**entries: Any) -> Generator[None]:
    around = context.get_current()
    for name, value in entries.items():
        around = baggage.set_baggage(name, value, around)
    token = context.attach(around)
    try:
        yield
    finally:
        context.detach(token)


@pytest.fixture
def body(admin: Callable[..., Any], prefix: str) -> Body:
    """The message of a job, as the server has it."""
    return lambda job_id: read_record(admin, f"{prefix}:2:{{0}}:job:{job_id}")["body"]


@pytest.fixture
def _afresh() -> Generator[None]:
    telemetry._warn_of_baggage.cache_clear()  # pyright: ignore[reportPrivateUsage]
    yield
    telemetry._warn_of_baggage.cache_clear()  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("has_sdk", [False, True])
async def test_it_reaches_every_handler_of_a_chain(
    make_provider: MakeProvider, monkeypatch: pytest.MonkeyPatch, has_sdk: bool
) -> None:
    if has_sdk:
        monkeypatch.setattr(telemetry.trace, "_TRACER_PROVIDER", TracerProvider())
    provider = make_provider()
    seen: dict[str, dict[str, Any]] = {}

    @provider.on("a")
    async def a(_: Any, ctx: EventContext) -> None:
        seen["a"] = dict(baggage.get_all())
        await ctx.emit("b")
        with _around(tier=4):
            await ctx.emit("c")
        assert dict(baggage.get_all()) == seen["a"]

    @provider.on("b")
    def b(_: Any, ctx: SyncContext) -> None:
        seen["b"] = dict(baggage.get_all())
        seen["process"] = ctx.emit("around", 1).result(240)["baggage"]

    @provider.on("c")
    async def c(_: Any) -> None:
        seen["c"] = await asyncio.to_thread(lambda: dict(baggage.get_all()))

    provider.on("around", pool="process")(process_handlers.tell_surroundings)
    async with provider.worker():
        with _around(tenant="acme & co", tier=3):
            emission = provider.emit("a")
        await emission
        assert seen == {"a": SEEN, "b": SEEN, "process": SEEN, "c": {**SEEN, "tier": "4"}}
        assert dict(baggage.get_all()) == {}
        seen.clear()
        await provider.emit("a")
    assert seen == {"a": {}, "b": {}, "process": {}, "c": {"tier": "4"}}


async def test_it_passes_through_threads_of_the_caller(make_provider: MakeProvider, body: Body) -> None:
    provider = make_provider()

    def emit() -> str:
        with _around(tenant="acme & co", tier=3):
            return provider.sync.emit("a", reply=False).job_id

    async with provider:
        job_id = await asyncio.to_thread(emit)
        await provider.flush()
    assert decode_message(body(job_id)).baggage == TEXT


async def test_every_function_of_a_flow_has_it(make_provider: MakeProvider) -> None:
    provider = make_provider()
    seen: dict[str, dict[str, Any]] = {}

    def note(name: str) -> None:
        seen[name] = dict(baggage.get_all())

    inner = Workflow[Any, Any]("inner", retry=Retry(attempts=1))

    @inner.step()
    def plain(ctx: StepContext[Any]) -> None:
        note("nested")

    @inner.completed
    async def end(ctx: StepContext[Any]) -> None:
        note("completed")

    outer = Workflow[Any, Any]("outer", retry=Retry(attempts=1))

    @outer.step()
    async def first(ctx: StepContext[Any]) -> None:
        note("step")
        await ctx.emit("heard")

    @first.rollback
    async def undo(ctx: StepContext[Any], _: None) -> None:
        note("rollback")

    outer.flow(inner)

    @outer.step()
    async def fall(ctx: StepContext[Any]) -> None:
        raise ValueError

    @outer.failed
    def failed(ctx: StepContext[Any], error: Exception) -> None:
        note("failed")

    @provider.on("heard")
    async def hear(_: Any) -> None:
        note("heard")

    flows = WorkflowProvider(provider)
    flows.register(outer)
    async with provider, provider.worker():
        with _around(tenant="acme & co", tier=3):
            handle = await flows.execute(outer, None)
        with pytest.raises(StepError):
            await handle.result()
    assert seen == dict.fromkeys(("step", "heard", "nested", "completed", "rollback", "failed"), SEEN)


@pytest.mark.usefixtures("_afresh")
@pytest.mark.parametrize(
    "entries",
    [
        {"large": "x" * 4000, "other": "x" * 4000, "third": "x" * 300},
        {"long": "x" * 4100},
        {f"n{n}": "1" for n in range(181)},
    ],
    ids=["bytes", "entry", "entries"],
)
async def test_more_than_w3c_allows_is_left_out_with_one_warning(
    make_provider: MakeProvider, body: Body, logs: list[MutableMapping[str, Any]], entries: dict[str, str]
) -> None:
    provider = make_provider()
    async with provider:
        with _around(**entries):
            emissions = [provider.emit("a", 1, reply=False) for _ in range(3)]
        await provider.flush()
    assert {body(each.job_id) for each in emissions} == {'{"p":1}'}
    (entry,) = [each for each in logs if "baggage" in each["event"]]
    assert (entry["log_level"], entry["max_bytes"]) == ("warning", 8192)
    assert "xxx" not in str(entry)


class Unreadable:
    def __str__(self) -> str:
        raise RuntimeError("not this")


@pytest.mark.parametrize("text", ["", "=", "no pair", "a=b;;;=,,=", "ü=ü", "a=" + "x" * 9000, "%zz=%zz"])
async def test_text_that_is_none_fails_no_job(
    make_provider: MakeProvider, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    provider = make_provider()
    provider.on("a")(lambda _: "done")
    workflow = Workflow[Any, Any]("w", retry=Retry(attempts=1))

    @workflow.step()
    async def one(ctx: StepContext[Any]) -> None: ...

    flows = WorkflowProvider(provider)
    flows.register(workflow)
    async with provider.worker():
        with monkeypatch.context() as patch:
            patch.setattr("eventbus.emit.emitter.baggage_around", lambda: text)
            patch.setattr("workflows.client.starting.baggage_around", lambda: text)
            emission = provider.emit("a")
            handle = await flows.execute(workflow, None)
        assert await emission == "done"
        await handle.result()
        with _around(odd=Unreadable()):
            assert await provider.emit("a") == "done"
