"""A flow with damaged keys ends with an error that says so, and is undone as far as its steps are known."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from eventbus import EventProvider, HandlerError, Retry
from workflows import FlowCancelled, StepContext, StepError, Workflow, WorkflowProvider

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
Admin = Callable[..., Any]
Until = Callable[..., Awaitable[None]]


class Line:
    """Three steps one after the other; the middle one waits for the gate."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.begun = asyncio.Event()
        self.undone: list[str] = []
        self.workflow: Workflow[Any, Any] = Workflow("line", retry=Retry(attempts=1), spread=True)
        for name in ("first", "second", "third"):
            self.workflow.step(self._act, name=name).rollback(self._undo)

    async def _act(self, ctx: StepContext[Any]) -> str:
        if ctx.step == "second":
            self.begun.set()
            await self.gate.wait()
        return ctx.step

    async def _undo(self, ctx: StepContext[Any], result: str) -> None:
        self.undone.append(result)


def _spoil(admin: Admin, planted: set[str], pattern: str) -> None:
    (name,) = admin("KEYS", pattern)
    admin("DEL", name)
    admin("SET", name, "it is mine")
    planted.add(name)


@pytest.mark.parametrize(
    ("kind", "whose", "told", "step", "undone"),
    [
        ("feeds", "*/second/0", "feeds:", "second", ["second", "first"]),
        ("needs", "*/third/0", "needs:", "third", ["second", "first"]),
        ("done", "*", "done:", "second", []),
    ],
)
async def test_a_flow_whose_keys_are_damaged_fails_with_what_was_found_and_is_undone(
    make_provider: MakeProvider,
    admin: Admin,
    prefix: str,
    planted: set[str],
    kind: str,
    whose: str,
    told: str,
    step: str,
    undone: list[str],
) -> None:
    provider, line = make_provider(), Line()
    flows = WorkflowProvider(provider)
    flows.register(line.workflow)
    async with provider, provider.worker():
        handle = await flows.execute(line.workflow, None)
        await line.begun.wait()
        _spoil(admin, planted, f"{prefix}:*:{kind}:{whose}")
        line.gate.set()
        with pytest.raises(StepError) as caught:
            await asyncio.wait_for(handle.result(), 240)
    error = caught.value
    assert error.step == step
    assert isinstance(error.error, HandlerError)
    assert error.error.type_name == "StoreCorrupt"
    assert told in str(error.error)
    assert line.undone == undone
    assert error.rollback == ("incomplete" if kind == "done" else "complete")


async def test_a_flow_whose_list_of_members_is_damaged_is_incomplete_when_it_stops(
    make_provider: MakeProvider, admin: Admin, prefix: str, planted: set[str]
) -> None:
    provider, line = make_provider(), Line()
    flows = WorkflowProvider(provider)
    flows.register(line.workflow)
    async with provider, provider.worker():
        handle = await flows.execute(line.workflow, None)
        await line.begun.wait()
        _spoil(admin, planted, f"{prefix}:*:members:*")
        assert await handle.cancel()
        with pytest.raises(FlowCancelled) as caught:
            await asyncio.wait_for(handle.result(), 240)
        line.gate.set()
    assert caught.value.rollback == "incomplete"
