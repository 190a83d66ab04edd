"""The session of a command: it starts a provider once the server was reached, and stops it at the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import structlog

from eventbus.errors import StoreUnavailable
from eventbus.model import clock
from eventbus.provider import EventProvider, start_reading
from eventbus.store.connection.connector import Connector
from eventbus.store.embedded.server import Expected

_log = structlog.get_logger("eventbus.worker")

_PAUSE = 0.2  # seconds between two attempts to connect


@asynccontextmanager
async def started(
    provider: EventProvider, *, patience: float = 0.0, reads_only: bool = False, expects: Expected = "nothing"
) -> AsyncGenerator[None]:
    """Start the provider for the block, and stop it after that. Waits `patience` seconds for its server.

    With `reads_only` it writes nothing by itself, so that a user of the server who may only look can use it;
    and
    it makes nothing: an embedded server must run already. `expects` says how much of it must be there
    otherwise.

    A provider by itself starts without its server and keeps trying in the background. A command checks first,
    because a person at a terminal wants an error. Raises StoreUnavailable, StoreRefused, ConfigError.
    """
    # While this one is open the server has a user. So the provider joins it, and starts none of its own.
    connector = Connector(provider.settings.url, expects="server" if reads_only else expects)
    try:
        await connector.start()
        await _reach(connector, provider.settings.name, clock.monotonic() + patience)
        await (start_reading(provider) if reads_only else provider.start())
    finally:
        # Only after the start, otherwise an embedded server would end and start again.
        await connector.aclose()
    try:
        yield
    finally:
        with anyio.CancelScope(shield=True):
            await asyncio.shield(provider.stop())  # a second interrupt must not cut the stop short


async def _reach(connector: Connector, name: str, deadline: float) -> None:
    is_logged = False
    while True:
        try:
            connection = await connector.open(name=name)
        except StoreUnavailable as error:
            if clock.monotonic() >= deadline:
                raise
            if not is_logged:
                is_logged = True
                _log.warning("server not there, waiting for it", error=str(error))
            await asyncio.sleep(_PAUSE)
        else:
            await connection.disconnect()
            return
