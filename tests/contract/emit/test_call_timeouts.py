"""The time that the server may take to answer: every call has a limit, and an argument to set it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import pytest
from drivers.virtual import VirtualWorld

from eventbus import DefinitionError, EmitError, EventProvider, StoreUnavailable
from eventbus.lowlevel import Inspector
from eventbus.model import clock
from eventbus.settings.settings import Settings
from eventbus.store.calls.tree_store import TreeStore
from eventbus.store.connection.retrying import RetryingCaller
from workflows import StepContext, Workflow, WorkflowProvider

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
Calls = dict[str, Callable[..., Awaitable[Any]]]

_FLOW = "w~0123456789abcdef0123"


def _workflow() -> Workflow[Any, Any]:
    workflow = Workflow[Any, Any]("w", spread=True)

    @workflow.step()
    async def work(ctx: StepContext[Any]) -> None:
        return None

    return workflow


def _calls(provider: EventProvider, flows: WorkflowProvider, workflow: Workflow[Any, Any]) -> Calls:
    """Every call that asks the server, but `result`, whose own timeout bounds it."""
    handle = flows.handle(_FLOW)

    def inspector(call_timeout: Any = None) -> Inspector:
        return provider.inspector.within(call_timeout)

    return {
        "cancel": lambda **given: provider.cancel("0-1", **given),
        "add_group": lambda **given: provider.add_group("work", "g", **given),
        "inspector.jobs.get": lambda **given: inspector(**given).jobs.get("0-1"),
        "inspector.trees.get": lambda **given: inspector(**given).trees.get("0-1"),
        "inspector.jobs.list": lambda **given: inspector(**given).jobs.list("work", state="waiting"),
        "inspector.queues.count": lambda **given: inspector(**given).queues.count("work"),
        "inspector.jobs.cancel": lambda **given: inspector(**given).jobs.cancel("0-1"),
        "jobs.cancel": lambda **given: provider.jobs.cancel("0-1", "", **given),
        "flows.execute": lambda **given: flows.execute(workflow, None, **given),
        "flows.report": lambda **given: flows.report(_FLOW, **given),
        "flows.tree": lambda **given: flows.tree(_FLOW, **given),
        "flows.status": lambda **given: flows.status(_FLOW, **given),
        "flows.flows": flows.flows,
        "flows.retry": lambda **given: flows.retry(_FLOW, **given),
        "handle.status": handle.status,
        "handle.report": handle.report,
        "handle.cancel": handle.cancel,
    }


_asking: ContextVar[str] = ContextVar("asking", default="")


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """The seconds that each call gives the server: how long it asks again, at most."""
    left: dict[str, float] = {}
    repeat = RetryingCaller.repeat

    async def note(self: RetryingCaller, invocation: Any, deadline: float | None, **given: Any) -> Any:
        seconds = math.inf if deadline is None else deadline - clock.monotonic()
        # Trees of several callers go together, so their sender has the context of none.
        name = "flows.execute" if getattr(invocation, "_name", "") == "graph" else _asking.get()
        left[name] = max(seconds, left.get(name, 0))
        return await repeat(self, invocation, deadline, **given)

    monkeypatch.setattr(RetryingCaller, "repeat", note)
    return left


async def _ask(name: str, call: Callable[..., Awaitable[Any]], **given: Any) -> None:
    """Let the call say that the server is away."""
    _asking.set(name)
    error = EmitError if name == "flows.execute" else StoreUnavailable
    with pytest.raises(error):
        await call(**given)


async def _ask_all(calls: Calls, **given: Any) -> None:
    await asyncio.gather(*(_ask(name, call, **given) for name, call in calls.items()))


@pytest.fixture
def away(make_provider: MakeProvider, virtual: VirtualWorld) -> MakeProvider:
    """Make providers whose server nobody reaches."""
    virtual.take_server_away()
    return make_provider


async def test_without_a_server_each_call_ends_with_the_reply_timeout(
    away: MakeProvider, left: dict[str, float]
) -> None:
    provider = away(reply_timeout="400ms")
    flows, workflow = WorkflowProvider(provider), _workflow()
    flows.register(workflow)
    async with provider:
        calls = _calls(provider, flows, workflow)
        await _ask_all(calls)
    assert {name: round(left[name], 6) for name in calls} == dict.fromkeys(calls, 0.4)


async def test_a_calls_own_timeout_wins_over_the_setting_and_bounds_the_whole_call(
    away: MakeProvider, left: dict[str, float]
) -> None:
    provider = away(reply_timeout="1 hour")
    flows, workflow = WorkflowProvider(provider), _workflow()
    flows.register(workflow)
    async with provider:
        calls = _calls(provider, flows, workflow)
        await _ask_all(calls, call_timeout="300ms")
        emission = provider.emit("work", reply_timeout="200ms")
        await _ask("result", lambda: provider.result("0-1", reply_timeout="300ms"))
        with pytest.raises(EmitError):
            await emission
    assert {name: round(left[name], 6) for name in calls} == dict.fromkeys(calls, 0.3)


@pytest.mark.parametrize("given", [0, "0s", -1, "soon", True])
async def test_a_timeout_that_is_none_is_refused(make_provider: MakeProvider, given: Any) -> None:
    provider = make_provider()
    flows, workflow = WorkflowProvider(provider), _workflow()
    flows.register(workflow)
    async with provider:
        for call in _calls(provider, flows, workflow).values():
            with pytest.raises(DefinitionError, match="expected call_timeout to be"):
                await call(call_timeout=given)
        assert await flows.flows() == []


@pytest.mark.parametrize(("setting", "expected"), [("2s", 2.0), (None, 30.0), (0, 30.0)])
def test_the_default_is_the_reply_timeout_or_30_seconds(setting: Any, expected: float) -> None:
    settings = Settings.resolve({}, reply_timeout=setting)
    assert (settings.call_timeout(), settings.call_timeout("1500ms")) == (expected, 1.5)


async def test_a_flow_that_was_not_started_says_so_and_has_its_id(away: MakeProvider) -> None:
    provider = away(reply_timeout="200ms")
    flows, workflow = WorkflowProvider(provider), _workflow()
    flows.register(workflow)
    async with provider:
        with pytest.raises(EmitError, match=r"workflow w was not enqueued: .*; execute it again$") as caught:
            await flows.execute(workflow, None)
    assert caught.value.enqueued is False
    assert caught.value.job_id.startswith("w~")


@pytest.mark.parametrize("key", [None, "k"])
async def test_a_flow_of_which_nobody_knows_whether_it_was_started_says_how_to_find_out(
    make_provider: MakeProvider, monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    add = TreeStore.add

    async def lose_the_answer(self: TreeStore, *given: Any, **options: Any) -> Any:
        await add(self, *given, **options)
        monkeypatch.undo()
        raise StoreUnavailable("no answer in time", address="here", sent=True)

    provider = make_provider()
    flows, workflow = WorkflowProvider(provider), _workflow()
    flows.register(workflow)
    async with provider, provider.worker():
        monkeypatch.setattr(TreeStore, "add", lose_the_answer)
        with pytest.raises(EmitError, match="it is unknown whether workflow w was enqueued") as caught:
            await flows.execute(workflow, None, idempotency_key=key)
        flow_id = caught.value.job_id
        assert caught.value.enqueued is None
        if key is None:
            assert f"`await flows.handle({flow_id!r}).status()` tells" in str(caught.value)
            handle = flows.handle(flow_id)
        else:
            assert "execute it again: with its idempotency_key" in str(caught.value)
            handle = await flows.execute(workflow, None, idempotency_key=key)
        assert handle.id == flow_id
        assert await handle.result() is None


async def test_a_short_timeout_of_one_flow_does_not_cut_those_that_are_started_beside_it(
    make_provider: MakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadlines: list[tuple[int, float]] = []
    add = TreeStore.add

    async def note(self: TreeStore, emitter: str, chunks: Any, *, deadline: float, **given: Any) -> Any:
        deadlines.append((len(chunks), deadline - now))
        return await add(self, emitter, chunks, deadline=deadline, **given)

    monkeypatch.setattr(TreeStore, "add", note)
    provider = make_provider()
    flows, workflow = WorkflowProvider(provider), _workflow()
    flows.register(workflow)
    now = clock.monotonic()
    async with provider:
        monkeypatch.setattr(clock, "monotonic", lambda: now)
        timeouts = [None, "20s", None, "3s", None]
        await asyncio.gather(*(flows.execute(workflow, None, call_timeout=each) for each in timeouts))
    found = sorted((count, round(left)) for count, left in deadlines)
    assert sum(count for count, _ in found) == 5
    assert {left for _, left in found} == {3, 20, 30}


async def test_what_a_worker_asks_under_its_lease_does_not_hang_on_how_long_callers_wait(
    make_provider: MakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[float] = []

    def note(owner: type, name: str) -> None:
        call = getattr(owner, name)

        async def noted(self: Any, *given: Any, deadline: float, **options: Any) -> Any:
            left.append(deadline - clock.monotonic())
            return await call(self, *given, deadline=deadline, **options)

        monkeypatch.setattr(owner, name, noted)

    provider = make_provider(reply_timeout="5s")
    flows, workflow = WorkflowProvider(provider), _workflow()
    declared = Workflow[Any, Any]("w")
    caller = WorkflowProvider(make_provider())
    flows.register(workflow)
    caller.register(declared)
    async with caller.provider:
        handle = await caller.execute(declared, None)
        note(TreeStore, "look")
        note(TreeStore, "checkpoint")
        async with provider, provider.worker():
            await handle.result()
    assert len(left) >= 2  # its root looks at the flow, and adds the step
    assert min(left) > 5 + 10, "the callers' 5 s are none of it"
