"""A worker that lives, and whose lease thread does not reach the server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from eventbus import EventProvider
from eventbus.errors import StoreUnavailable
from eventbus.store.calls.lease_store import LeaseStore

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]


async def test_short_jobs_of_a_worker_that_lives_are_not_taken_though_its_renewals_fail(
    make_provider: MakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider, rescuer = make_provider(lease=1.0), make_provider(lease=1.0)
    runs: list[int] = []

    @provider.on("ask", concurrency=5)
    async def ask(n: int) -> int:
        runs.append(n)
        await asyncio.sleep(0.1)
        return n

    rescuer.on("other")(lambda n: n)

    def renew(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable("no connection is left", address="nowhere", sent=False)

    monkeypatch.setattr(LeaseStore, "renew", renew)
    async with provider, rescuer, rescuer.worker(), provider.worker():
        emissions = provider.emit_many("ask", range(150), reply_timeout=None)
        assert await asyncio.gather(*emissions) == list(range(150))
    assert len(runs) == 150
