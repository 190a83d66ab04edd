"""Every test here is checked for what it leaves behind; for that, each must be `async def`."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
async def nothing_is_left(leak_check: None) -> None:
    """See `leak_check`; it is set up first and so looks last."""
