"""A fake server that answers as a test wants: with nothing, an error, or the end of the connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Self, TypeAlias

import hiredis

__all__ = ["CLOSE", "OK", "Answer", "FakeServer", "bulk"]

OK = b"+OK\r\n"
CLOSE = b""
"""The answer that closes the connection."""

Answer: TypeAlias = Callable[[list[str]], bytes | None]
"""Maps a command to the bytes of its answer; None means no answer."""


def bulk(text: str) -> bytes:
    data = text.encode()
    return b"$%d\r\n%s\r\n" % (len(data), data)


class FakeServer:
    """Listens on the loopback. It answers the handshake of a client with OK, all other commands as told."""

    def __init__(self, answer: Answer, *, is_deaf: bool = False) -> None:
        """A deaf server accepts connections and never reads."""
        self.received: list[list[str]] = []
        self.connections = 0
        self._answer = answer
        self._is_deaf = is_deaf
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        await self._server.wait_closed()

    @property
    def port(self) -> int:
        assert self._server is not None
        return self._server.sockets[0].getsockname()[1]

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def cut(self) -> None:
        """End every connection at once."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    def push(self, data: bytes) -> None:
        """Send data that no client asked for."""
        for writer in self._writers:
            writer.write(data)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.append(writer)
        if self._is_deaf:
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            return
        parser = hiredis.Reader(encoding="utf-8", errors="surrogateescape")
        try:
            while data := await reader.read(65536):
                parser.feed(data)
                while (command := parser.gets()) is not False:
                    self._reply(writer, command)
        except OSError:
            pass  # the test cut the connection
        writer.close()

    def _reply(self, writer: asyncio.StreamWriter, command: list[str]) -> None:
        if command[0] in ("CLIENT", "SELECT", "AUTH"):
            writer.write(OK)
            return
        self.received.append(command)
        answer = self._answer(command)
        if answer == CLOSE:
            writer.close()
        elif answer is not None:
            writer.write(answer)
