"""Flows of state machines in a real server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from drivers.counting import OURS, count_lines, count_sent
from drivers.machines.acting import did, forget

from eventbus import EventProvider
from workflows import FlowHandle, WorkflowProvider

Cost = Callable[..., Awaitable[tuple[int, int]]]
MakeProvider = Callable[..., EventProvider]


@pytest.fixture(autouse=True)
def _forgotten() -> None:
    forget()


@pytest.fixture
def cost(until: Callable[..., Awaitable[None]], admin: Callable[..., Any]) -> Cost:
    """Return what a trigger costs until it has run and the worker of this process is idle: lines of Python of
    the packages, and bytes that the server sends.
    """

    async def cost(
        flows: WorkflowProvider, flow: FlowHandle[Any], trigger: Any, payload: Any, name: str
    ) -> tuple[int, int]:
        worker: Any = flows.provider._life.worker
        ran = did.count(name)
        with count_sent(admin) as sent, count_lines(OURS) as lines:
            await flow.trigger(trigger, payload)
            await until(lambda: did.count(name) > ran and worker.is_idle, f"{name} has run")
        return lines.count, sent.count

    return cost


@pytest.fixture
def open_flows(
    make_provider: MakeProvider, stack: AsyncExitStack
) -> Callable[..., Awaitable[WorkflowProvider]]:
    """Start a provider with a worker that runs these workflows."""

    async def start(*workflows: Any, worker: bool = True, **settings: Any) -> WorkflowProvider:
        provider = make_provider(**settings)
        flows = WorkflowProvider(provider)
        for workflow in workflows:
            flows.register(workflow)
        await stack.enter_async_context(provider)
        if worker:
            await stack.enter_async_context(provider.worker())
        return flows

    return start
