"""Hooks that keep what they are told, and workers that run what was emitted to its end."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from eventbus import EventProvider, JobFailure


@pytest.fixture
def listen() -> Callable[[EventProvider], list[JobFailure]]:
    """Register a hook that keeps what it is told."""

    def register(provider: EventProvider) -> list[JobFailure]:
        told: list[JobFailure] = []

        @provider.on_failure
        async def keep(failure: JobFailure) -> None:
            told.append(failure)

        return told

    return register


@pytest.fixture
def working() -> Callable[[EventProvider], AbstractAsyncContextManager[Callable[[], Awaitable[None]]]]:
    """Run a worker; gives a wait until all that was emitted has ended. At its end all hooks have run."""

    @asynccontextmanager
    async def run(provider: EventProvider) -> AsyncGenerator[Callable[[], Awaitable[None]]]:
        async with provider, provider.worker() as worker:

            async def drain() -> None:
                await worker.wait_drained(provider.flush)

            yield drain

    return run
