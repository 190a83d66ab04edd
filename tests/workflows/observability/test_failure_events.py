"""Every failure of a flow is in the log of a worker: steps, rollbacks, hooks, and the end of the flow."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, MutableMapping
from typing import Any

import pytest

from eventbus import EventProvider, Retry, StoreRefused, StoreUnavailable
from workflows import (
    FlowCancelled,
    FlowContext,
    FlowTimeout,
    StepContext,
    StepError,
    Workflow,
    WorkflowProvider,
    durable,
    task,
)
from workflows.distributed.activation import Activation

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
Logs = list[MutableMapping[str, Any]]

_TWICE = Retry(attempts=2, delay="1ms", jitter=0)
_TOLD = re.compile(r"failed|cancelled|raised|not undone")


def _told(logs: Logs) -> list[tuple[str, str, str]]:
    """Return the event, level and place of each logged failure, in order."""
    return [
        (each["event"], each["log_level"], each.get("step", each.get("hook", "")))
        for each in logs
        if _TOLD.search(each["event"])
    ]


def _one(logs: Logs, event: str) -> MutableMapping[str, Any]:
    (found,) = [each for each in logs if each["event"] == event]
    return found


def _places(text: str) -> list[str]:
    files = {os.path.basename(each) for each in re.findall(r'File "([^"]+)"', text)}  # noqa: PTH119
    assert files == {"test_failure_events.py"}
    return re.findall(r"line \d+, in (\w+)", text)


class Declined(Exception):
    pass


@task
async def hang() -> None:
    await asyncio.Event().wait()


async def test_each_attempt_and_each_end_is_one_event(make_provider: MakeProvider, logs: Logs) -> None:
    workflow = Workflow[Any, Any]("w", retry=_TWICE)

    @workflow.step()
    async def reserve(ctx: StepContext[Any]) -> int:
        return 1

    @reserve.rollback
    def release(ctx: StepContext[Any], _: int) -> None:
        raise ConnectionError("warehouse away")

    @workflow.step()
    def charge(ctx: StepContext[Any]) -> None:
        raise OSError("bank away")

    @workflow.failed
    async def report(ctx: StepContext[Any], error: Exception) -> None:
        raise KeyError("report")

    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(workflow)
    async with provider, provider.worker():
        handle = await flows.execute(workflow, None)
        with pytest.raises(StepError):
            await handle.result()
    assert _told(logs) == [
        ("attempt failed, trying again", "warning", "charge"),
        ("step failed", "error", "charge"),
        ("rollback failed, trying again", "warning", "reserve"),
        ("rollback failed", "error", "reserve"),
        ("failed hook raised", "error", ""),
        ("flow failed", "error", "charge"),
    ]
    flow = {"workflow": "w", "flow_id": handle.id, "correlation_id": handle.id}
    step = _one(logs, "step failed")
    assert step.items() >= {**flow, "attempt": 2, "max_attempts": 2, "error": "OSError: bank away"}.items()
    assert step["job_id"].startswith(f"{handle.id}/1/charge")
    assert _places(step["exception"]) == ["charge"]
    assert _one(logs, "attempt failed, trying again")["retry_in"] == 0.001
    rollback = _one(logs, "rollback failed")
    assert rollback.items() >= {**flow, "attempt": 2, "max_attempts": 2}.items()
    assert _places(rollback["exception"]) == ["release"]
    hook = _one(logs, "failed hook raised")
    assert hook.items() >= flow.items()
    assert _places(hook["exception"]) == ["report"]
    ended = _one(logs, "flow failed")
    assert ended.items() >= {**flow, "cause": "failed", "rollback": "incomplete"}.items()
    assert "OSError: bank away" in ended["error"]
    assert "exception" not in ended


async def test_the_completed_hook_is_told_as_a_hook(make_provider: MakeProvider, logs: Logs) -> None:
    workflow = Workflow[Any, Any]("w", retry=_TWICE)

    @workflow.step()
    async def one(ctx: StepContext[Any]) -> None: ...

    @workflow.completed
    async def end(ctx: StepContext[Any]) -> None:
        raise ValueError("no end")

    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(workflow)
    async with provider, provider.worker():
        with pytest.raises(StepError):
            await (await flows.execute(workflow, None)).result()
    assert _told(logs) == [
        ("attempt failed, trying again", "warning", "completed"),
        ("hook failed", "error", "completed"),
        ("flow failed", "error", "__completed__"),
    ]
    assert _places(_one(logs, "hook failed")["exception"]) == ["end"]


async def test_what_a_workflow_declares_is_an_answer_unless_it_could_not_be_undone(
    make_provider: MakeProvider, logs: Logs
) -> None:
    inner = Workflow[Any, Any]("inner", retry=Retry(attempts=1), errors=[Declined])

    @inner.step()
    async def charge(ctx: StepContext[Any]) -> None:
        raise Declined("no credit")

    outer = Workflow[bool, Any]("outer", retry=Retry(attempts=1))

    @outer.step()
    async def reserve(ctx: StepContext[bool]) -> bool:
        return ctx.input

    @reserve.rollback
    async def release(ctx: StepContext[bool], is_stuck: bool) -> None:
        if is_stuck:
            raise ConnectionError("warehouse away")

    outer.flow(inner, input=lambda _: None)
    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(outer)
    async with provider, provider.worker():
        with pytest.raises((StepError, Declined)):
            await (await flows.execute(outer, False)).result()
        assert _told(logs) == [
            ("step failed", "info", "charge"),
            ("flow failed", "info", "charge"),
            ("step failed", "info", "inner"),
            ("flow failed", "info", "inner"),
        ]
        assert not [each for each in logs if "exception" in each]
        logs.clear()
        with pytest.raises((StepError, Declined)):
            await (await flows.execute(outer, True)).result()
    assert _told(logs)[-2:] == [("rollback failed", "error", "reserve"), ("flow failed", "error", "inner")]


async def test_a_cancelled_flow_and_one_that_timed_out_are_told_once(
    make_provider: MakeProvider, logs: Logs
) -> None:
    workflow = Workflow[Any, Any]("w", retry=Retry(attempts=1))
    began = asyncio.Event()

    @workflow.step()
    async def wait(ctx: StepContext[Any]) -> None:
        began.set()
        await asyncio.Event().wait()

    provider = make_provider(lease="0.5s")
    flows = WorkflowProvider(provider)
    flows.register(workflow)
    async with provider, provider.worker():
        handle = await flows.execute(workflow, None)
        await began.wait()
        await handle.cancel("not wanted")
        with pytest.raises(FlowCancelled):
            await handle.result()
        ended = _one(logs, "flow cancelled")
        assert (ended["log_level"], ended["flow_id"]) == ("info", handle.id)
        assert (ended["cause"], ended["rollback"]) == ("cancelled", "none")
        assert "not wanted" in ended["error"]
        handle = await flows.execute(workflow, None, timeout="10ms")
        with pytest.raises(FlowTimeout):
            await handle.result()
    ended = _one(logs, "flow failed")
    assert (ended["log_level"], ended["flow_id"], ended["cause"]) == ("error", handle.id, "timeout")
    assert "step failed" not in {each["event"] for each in logs}


async def test_a_function_that_is_cancelled_while_it_works_is_told_once(
    make_provider: MakeProvider, logs: Logs
) -> None:
    began = asyncio.Event()

    @durable("told")
    async def waits(ctx: FlowContext[None]) -> None:
        began.set()
        await ctx.step(hang)

    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(waits)
    async with provider, provider.worker():
        handle = await flows.execute(waits, None)
        await began.wait()
        await handle.cancel("not wanted")
        with pytest.raises(FlowCancelled):
            await handle.result()
    ended = _one(logs, "flow cancelled")
    assert (ended["flow_id"], ended["cause"], ended["rollback"]) == (handle.id, "cancelled", "none")


@pytest.mark.parametrize("refuses", [StoreRefused("too large"), StoreUnavailable("gone")])
async def test_a_rollback_phase_that_the_server_refuses_is_told_and_tried_again(
    make_provider: MakeProvider, logs: Logs, monkeypatch: pytest.MonkeyPatch, refuses: Exception
) -> None:
    @durable("told")
    async def fails(ctx: FlowContext[None]) -> None:
        raise Declined("no")

    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(fails)
    checkpoint, left = provider.jobs.checkpoint, [refuses]

    async def refuse_once(*args: Any, **options: Any) -> bool:
        if left:
            raise left.pop()
        return await checkpoint(*args, **options)

    monkeypatch.setattr(provider.jobs, "checkpoint", refuse_once)
    async with provider, provider.worker():
        with pytest.raises(StepError):
            await (await flows.execute(fails, None)).result()
    told = [each for each in logs if each["event"] == "flow not undone, trying again"]
    assert len(told) == (isinstance(refuses, StoreRefused)), "the log of the connection tells of an outage"


async def test_a_look_that_the_server_refuses_is_told_and_done_again(
    make_provider: MakeProvider, logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    workflow = Workflow[Any, Any]("w", retry=Retry(attempts=1))

    @workflow.step
    async def fails(ctx: StepContext[Any]) -> None:
        raise Declined("no")

    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(workflow)
    look, left = provider.jobs.look, [StoreRefused("this user may not")] * 3

    async def refuse(*args: Any, **options: Any) -> Any:
        if left:
            raise left.pop()
        return await look(*args, **options)

    monkeypatch.setattr(provider.jobs, "look", refuse)
    async with provider, provider.worker():
        with pytest.raises(StepError):
            await (await flows.execute(workflow, None)).result()
    events = ("server refused a call, trying again", "flow not undone, trying again")
    told = [each for each in logs if each["event"] in events]
    assert [each["error"] for each in told] == ["StoreRefused: this user may not"] * 3


@task
async def count() -> int:
    return 1


@durable("counts")
async def counts(ctx: FlowContext[None]) -> int:
    return await ctx.step(count)


async def test_a_flow_whose_journal_the_server_refuses_is_told_and_goes_on_after_that(
    make_provider: MakeProvider, logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(counts)
    load, left = Activation.load, [StoreRefused("this user may not")] * 2

    async def refuse(self: Activation) -> None:
        if left:
            raise left.pop()
        await load(self)

    monkeypatch.setattr(Activation, "load", refuse)
    async with provider, provider.worker():
        assert await (await flows.execute(counts, None)).result() == 1
    told = [each for each in logs if each["event"] == "server refused a call, trying again"]
    assert [each["error"] for each in told] == ["StoreRefused: this user may not"] * 2
    assert [each["retry_in"] for each in told] == [5, 5]
