"""Flows of durable functions in a real server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from eventbus import EventProvider
from workflows import Durable, WorkflowProvider

MakeProvider = Callable[..., EventProvider]


@pytest.fixture
def open_flows(
    make_provider: MakeProvider, stack: AsyncExitStack
) -> Callable[..., Awaitable[WorkflowProvider]]:
    """Start a provider with a worker that runs these functions."""

    async def start(*functions: Durable[Any, Any], worker: bool = True, **settings: Any) -> WorkflowProvider:
        provider = make_provider(**settings)
        flows = WorkflowProvider(provider)
        for function in functions:
            flows.register(function)
        await stack.enter_async_context(provider)
        if worker:
            await stack.enter_async_context(provider.worker())
        return flows

    return start
