"""The contract of a flow holds whoever runs it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from runners import InlineRunner, Runner


@pytest.fixture(params=["inline"])
async def runner(request: pytest.FixtureRequest) -> AsyncIterator[Runner]:
    """Each way to run a flow, one after the other."""
    runner = InlineRunner()
    yield runner
    await runner.aclose()
