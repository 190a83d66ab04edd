"""Flows of state machines in a real server."""

from __future__ import annotations

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
