"""A watcher of one shard, which reads what was told until now."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from drivers.shards import Shard
from drivers.watching.watchers import Watcher


@pytest.fixture
async def watcher(shard: Shard) -> AsyncIterator[Watcher]:
    watcher = Watcher(shard)
    yield watcher
    await watcher.aclose()
