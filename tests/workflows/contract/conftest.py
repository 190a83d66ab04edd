"""The contract of flows holds for every runner."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest
from drivers.runners import DistributedRunner, InlineRunner, Runner

from eventbus import EventProvider


@pytest.fixture(params=["inline", "local", "spread"])
async def runner(
    request: pytest.FixtureRequest, make_provider: Callable[..., EventProvider]
) -> AsyncIterator[Runner]:
    """Each way to run a flow, one after the other."""
    runner: Runner = (
        InlineRunner()
        if request.param == "inline"
        else DistributedRunner(make_provider, spread=request.param == "spread")
    )
    yield runner
    await runner.aclose()
