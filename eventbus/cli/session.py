"""A provider's time in a command: started once its server was really reached, stopped at the end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from eventbus.provider import EventProvider
from eventbus.store.connection import Connector
from eventbus.store.store import Store

__all__ = ["started"]

_PATIENCE = 2.0


@asynccontextmanager
async def started(provider: EventProvider) -> AsyncIterator[None]:
    """Start the provider, and stop it.

    A provider alone waits in the background for a server that is not there; somebody at a
    terminal wants to hear of it. Raises StoreUnavailable after 2 s, StoreRefused, ConfigError.
    """
    settings = provider.settings
    probe = Store(Connector(settings.url), prefix=settings.prefix, name=settings.name)
    try:
        await probe.start(deadline=time.monotonic() + _PATIENCE, allow_eviction=settings.allow_eviction)
        await provider.start()
    finally:
        await probe.aclose()
    try:
        yield
    finally:
        await asyncio.shield(provider.stop())
