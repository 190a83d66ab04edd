"""Flows of state machines in a real server."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from drivers.machines.acting import forget

from eventbus import EventProvider
from workflows import WorkflowProvider

MakeProvider = Callable[..., EventProvider]


@pytest.fixture(autouse=True)
def _forgotten() -> None:
    forget()


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


@pytest.fixture
def until() -> Callable[..., Awaitable[None]]:
    """Wait until a condition holds, which may be async; fails with its name after `within` seconds."""

    async def wait_until(condition: Callable[[], Any], what: str, *, within: float = 10.0) -> None:
        end = time.monotonic() + within
        while True:
            holds = condition()
            if await holds if inspect.isawaitable(holds) else holds:
                return
            assert time.monotonic() < end, f"not within {within:g} s: {what}"
            await asyncio.sleep(0.005)

    return wait_until
