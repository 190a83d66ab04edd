"""What the tests of process handlers share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from importable import forkers

from eventbus import EventProvider
from eventbus.handlers.worker import EventWorker

MakeProvider = Callable[..., EventProvider]
Start = Callable[..., Awaitable[tuple[EventProvider, EventWorker]]]


@pytest.fixture
async def start(make_provider: MakeProvider, stack: AsyncExitStack) -> Start:
    """Start a provider and a worker with these handlers and `echo`, all in one process at a time."""

    async def start(*handlers: Any) -> tuple[EventProvider, EventWorker]:
        provider = make_provider(retry=1, reply_timeout=120)
        for handler in (forkers.echo, *handlers):
            provider.on(handler.__name__, pool="process", concurrency=1)(handler)
        await stack.enter_async_context(provider)
        return provider, await stack.enter_async_context(provider.worker())

    return start
