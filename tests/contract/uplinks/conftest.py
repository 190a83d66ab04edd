"""What the tests of uplinks ask the server and the providers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from eventbus import EventProvider
from eventbus.emit.uplink import Uplink


@pytest.fixture
def streams(admin: Callable[..., Any], prefix: str) -> Callable[[], list[str]]:
    """The reply streams of this test's prefix."""
    return lambda: sorted(admin("KEYS", f"{prefix}*:replies:*"))


@pytest.fixture
def connections(admin: Callable[..., Any]) -> Callable[[str], Counter[str]]:
    """The connections whose names begin with a word, by name."""

    def count(begin: str) -> Counter[str]:
        lines = [line.split(" ") for line in admin("CLIENT", "LIST").splitlines()]
        names = [part.partition("=")[2] for words in lines for part in words if part.startswith("name=")]
        return Counter(name for name in names if name.startswith(begin))

    return count


@pytest.fixture
def uplink() -> Callable[[EventProvider], Uplink]:
    """The uplink of a started provider."""

    def find(provider: EventProvider) -> Uplink:
        emitter = provider._life.emitter  # pyright: ignore[reportPrivateUsage]
        assert emitter is not None
        return emitter._uplink  # pyright: ignore[reportPrivateUsage]

    return find
