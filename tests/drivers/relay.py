"""A relay before a server, in the event loop of the test: it loses connections where the test says so."""

from __future__ import annotations

import asyncio
from typing import Literal, Self

__all__ = ["Relay", "When"]

When = Literal["before", "instead", "after"]
"""Lose the connection before what the client sent reaches the server, before the server's answer reaches the
client, or behind that."""


class Relay:
    """Listens on the loopback and passes on to a server, while it is open."""

    def __init__(self, host: str, port: int) -> None:
        self._to = (host, port)
        self._server: asyncio.Server | None = None
        self._ways: set[asyncio.StreamWriter] = set()
        self._is_open = True
        self._cut: tuple[bytes, int, When] | None = None
        self.refused = 0
        """How many connections were refused since it was shut."""
        self.is_cut = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.shut()
        await self._server.wait_closed()

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def shut(self) -> None:
        """Lose all connections, and refuse new ones."""
        self._is_open, self.refused = False, 0
        self.is_cut.set()
        for way in list(self._ways):
            way.transport.abort()

    def open(self) -> None:
        self._is_open = True

    def shut_at(self, word: bytes, count: int, when: When) -> None:
        """Be shut as soon as clients have sent so many pieces that have `word` in them."""
        self._cut = (word, count, when)
        self.is_cut.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._is_open:
            self.refused += 1
            writer.transport.abort()
            return
        to_reader, to_writer = await asyncio.open_connection(*self._to)
        self._ways |= {writer, to_writer}
        ends = [
            asyncio.create_task(self._pass(reader, to_writer, is_asking=True)),
            asyncio.create_task(self._pass(to_reader, writer, is_asking=False)),
        ]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for way in (writer, to_writer):
            self._ways.discard(way)
            way.transport.abort()
        await asyncio.wait(ends)

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_asking: bool
    ) -> None:
        try:
            while data := await reader.read(1 << 16):
                when = self._hits(data) if is_asking else None
                if when == "before":
                    self.shut()
                    return
                writer.write(data)
                await writer.drain()
                if when == "instead":  # the server has it, and its answer finds nobody
                    writer.write_eof()
                    self.shut()
                    return
                if when == "after":
                    asyncio.get_running_loop().call_later(0.002, self.shut)
        except OSError:
            return

    def _hits(self, data: bytes) -> When | None:
        if self._cut is None:
            return None
        word, count, when = self._cut
        if word not in data:
            return None
        self._cut = (word, count - 1, when) if count > 1 else None
        return when if count == 1 else None
