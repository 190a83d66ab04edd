"""A provider's time in a command: started once its server was really reached, stopped at the end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import structlog

from eventbus.errors import StoreUnavailable
from eventbus.provider import EventProvider
from eventbus.store.connection import Connector

__all__ = ["started"]

_log = structlog.get_logger("eventbus.worker")

_PAUSE = 0.2


@asynccontextmanager
async def started(provider: EventProvider, *, patience: float = 0.0) -> AsyncGenerator[None]:
    """Start the provider, and stop it; `patience`: seconds to wait for a server that is not there.

    A provider alone starts without its server and waits in the background; somebody at a
    terminal wants to hear of it. Raises StoreUnavailable, StoreRefused, ConfigError.
    """
    connector = Connector(provider.settings.url)
    try:
        await connector.start()
        await _reach(connector, provider.settings.name, time.monotonic() + patience)
        await provider.start()
    finally:
        await connector.aclose()  # not before: an embedded server would end and start again
    try:
        yield
    finally:
        await asyncio.shield(provider.stop())


async def _reach(connector: Connector, name: str, deadline: float) -> None:
    is_told = False
    while True:
        try:
            connection = await connector.open(name=name)
        except StoreUnavailable as error:
            if time.monotonic() >= deadline:
                raise
            if not is_told:
                is_told = True
                _log.warning("server not there, waiting for it", error=str(error))
            await asyncio.sleep(_PAUSE)
        else:
            await connection.disconnect()
            return
