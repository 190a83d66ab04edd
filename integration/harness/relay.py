"""A TCP relay whose connections can become half-open: no bytes pass, and neither side is notified.

That happens when a machine in between is switched off or a firewall forgets a connection. Later
connections work. The relay runs in a thread with its own event loop.
"""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from harness.backends import free_port

__all__ = ["Relay"]


class Relay:
    """Forwards from its own port to a server's socket."""

    def __init__(self, server: Path) -> None:
        self._server = server
        self._port = free_port()
        self._dead: set[asyncio.Task[None]] = set()
        self._links: set[asyncio.Task[None]] = set()
        self._ends: dict[asyncio.Task[None], asyncio.Event] = {}
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._port}"

    @property
    def alive(self) -> int:
        """The number of connections over which bytes pass."""
        return len(self._links - self._dead)

    def start(self) -> None:
        self._thread.start()
        assert self._listening.wait(60)

    def forget(self) -> int:
        """Let no bytes pass over the open connections, in either direction; return how many there are."""
        return asyncio.run_coroutine_threadsafe(self._forget(), self._loop).result(240)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()

    async def _forget(self) -> int:
        count = self.alive
        self._dead |= self._links
        return count

    async def _run(self) -> None:
        listener = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self._listening.set()
        await self._stop.wait()
        for (
            place
        ) in listener.sockets:  # no client is accepted any more; the end of the listener would lose one
            self._loop.remove_reader(place)
        while (
            self._links or len(asyncio.all_tasks()) > 1
        ):  # these tasks belong to the listener, which complains if they are cancelled
            for link in self._links:
                self._ends[link].set()
            await asyncio.sleep(0)
        listener.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = asyncio.current_task()
        assert link is not None
        self._links.add(link)
        end = self._ends[link] = asyncio.Event()
        there, to_server = await asyncio.open_unix_connection(self._server)
        ways: list[asyncio.Task[object]] = [
            asyncio.create_task(self._pass(link, reader, to_server)),
            asyncio.create_task(self._pass(link, there, writer)),
            asyncio.create_task(end.wait()),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            for each in (writer, to_server):
                each.close()
            self._links.discard(link)
            del self._ends[link]

    async def _pass(
        self, link: asyncio.Task[None], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while chunk := await reader.read(1 << 16):
            if link not in self._dead:
                writer.write(chunk)
                await writer.drain()
        if link in self._dead:
            await asyncio.Event().wait()  # the other side is not notified of the end either
