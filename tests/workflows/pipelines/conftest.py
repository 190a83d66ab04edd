"""Pipelines hold what they say in every runner of flows."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest
from drivers.runners import RUNNERS, Runner, open_runner

from eventbus import EventProvider


@pytest.fixture(params=RUNNERS)
async def runner(
    request: pytest.FixtureRequest, make_provider: Callable[..., EventProvider]
) -> AsyncIterator[Runner]:
    """Each way to run a flow, one after the other."""
    async with open_runner(request.param, make_provider) as runner:
        yield runner
