from __future__ import annotations

from collections.abc import Callable

import pytest

from eventbus import EventProvider


@pytest.fixture
def provider(make_provider: Callable[..., EventProvider]) -> EventProvider:
    return make_provider()
