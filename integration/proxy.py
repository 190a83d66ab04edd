"""A proxy between clients and a server that breaks connections at a chosen moment.

It reads the protocol of both directions, so it knows which answer belongs to which command:
`after` breaks a connection when the server has carried the command out and answered, and the
client hears nothing; `before` when the command has not left for the server.
It runs in a thread with an event loop of its own: that of the test may be blocked.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, deque
from pathlib import Path
from typing import Literal

from eventbus.store.scripts import load_script

__all__ = ["Proxy"]

When = Literal["before", "after"]

_SCRIPTS = ("add", "announce", "look", "note", "renew", "rescue", "sweep", "turn")
_NAMES = {
    mark.encode(): name
    for name in _SCRIPTS
    for script in (load_script(name),)
    for mark in (script.digest, script.source)
}


class Proxy:
    """Listens on a socket of its own and passes everything on, but for the faults asked for."""

    def __init__(self, place: Path, server: Path) -> None:
        self.url = f"unix://{place}"
        self.calls: Counter[str] = Counter()
        """Commands seen: scripts by their name, others by their first word."""
        self.cuts: Counter[str] = Counter()
        """Connections broken, by the command that it was for."""
        self._place = place
        self._server = server
        self._rules: dict[str, tuple[int, When]] = {}
        self._is_down = False
        self._links: set[_Link] = set()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))

    def start(self) -> None:
        self._thread.start()
        assert self._listening.wait(10)

    def close(self) -> None:
        """Break all connections and end."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()

    def cut(self, *names: str, every: int, when: When = "after") -> None:
        """Break the connection at every so-manyth call of each of these commands."""
        for name in names:
            self._rules[name] = (every, when)

    def mute(self) -> None:
        """The connections there are stay open, and no answer comes over them any more."""
        for link in list(self._links):
            link.is_mute = True

    def go_down(self) -> None:
        """Break all connections, and refuse new ones."""
        self._is_down = True
        self._loop.call_soon_threadsafe(self._break_all)

    def come_up(self) -> None:
        self._is_down = False

    def note(self, name: str) -> When | None:
        """A command came; returns whether to break its connection."""
        self.calls[name] += 1
        every, when = self._rules.get(name, (0, "after"))
        if every and self.calls[name] % every == 0:
            self.cuts[name] += 1
            return when
        return None

    async def _run(self) -> None:
        listener = await asyncio.start_unix_server(self._serve, self._place)
        self._listening.set()
        await self._stop.wait()
        listener.close()
        while self._links:
            self._break_all()
            await asyncio.sleep(0)

    def _break_all(self) -> None:
        for link in self._links:
            link.cut()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_down:
            writer.close()
            return
        there = await asyncio.open_unix_connection(self._server)
        link = _Link(self, (reader, writer), there)
        self._links.add(link)
        try:
            await link.run()
        finally:
            self._links.discard(link)


class _Link:
    """One client's connection and the one to the server."""

    def __init__(
        self,
        proxy: Proxy,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self.is_mute = False
        self._proxy = proxy
        self._from_client, self._to_client = client
        self._from_server, self._to_server = server
        self._verdicts: deque[When | None] = deque()
        self._is_cut = asyncio.Event()

    async def run(self) -> None:
        """Pass on until either side ends or the connection is cut."""
        ways = [asyncio.create_task(way) for way in (self._send(), self._answer(), self._is_cut.wait())]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        for writer in (self._to_client, self._to_server):
            writer.close()

    def cut(self) -> None:
        self._is_cut.set()

    async def _send(self) -> None:
        buffer = bytearray()
        while chunk := await self._from_client.read(1 << 20):
            buffer += chunk
            while (end := _frame_end(buffer, 0)) > 0:
                frame = bytes(buffer[:end])
                del buffer[:end]
                verdict = self._proxy.note(_name_of(frame))
                if verdict == "before":
                    return
                self._verdicts.append(verdict)
                self._to_server.write(frame)
            await self._to_server.drain()

    async def _answer(self) -> None:
        buffer = bytearray()
        while chunk := await self._from_server.read(1 << 20):
            buffer += chunk
            while (end := _frame_end(buffer, 0)) > 0:
                frame = bytes(buffer[:end])
                del buffer[:end]
                if self._verdicts.popleft() == "after":
                    return
                if not self.is_mute:
                    self._to_client.write(frame)
            await self._to_client.drain()


def _name_of(frame: bytes) -> str:
    words = frame.split(b"\r\n", 5)
    command = words[2].decode().upper()
    if command not in ("EVAL", "EVALSHA"):
        return command
    return next((name for mark, name in _NAMES.items() if mark in frame), command)


def _frame_end(buffer: bytearray, start: int) -> int:
    """Where the command or reply that begins at `start` ends; -1 if it is not all there yet."""
    line = buffer.find(b"\r\n", start)
    if line < 0:
        return -1
    end = line + 2
    kind = chr(buffer[start])
    if kind == "$":
        size = int(buffer[start + 1 : line])
        end += size + 2 if size >= 0 else 0
    elif kind == "*":
        for _ in range(int(buffer[start + 1 : line])):
            end = _frame_end(buffer, end)
            if end < 0:
                return -1
    return end if end <= len(buffer) else -1
