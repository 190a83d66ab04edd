"""Reads the lines of a file or of standard input ahead, in a thread.

A thread, because a read may wait for a person at a keyboard while results come in. It is a daemon thread and
not one of a pool, because such a read cannot be cancelled. It reads at most two chunks ahead, so a file of
any size needs little memory.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from io import UnsupportedOperation
from pathlib import Path
from typing import Any, NamedTuple

_CHUNK = 1 << 16  # bytes
_AHEAD = 2  # chunks


class Source(NamedTuple):
    """A source of lines.

    `read` returns the next bytes as soon as there are some, and empty bytes at the end. `size` is in bytes,
    or None if unknown.
    """

    read: Callable[[], bytes]
    close: Callable[[], object] = bool
    size: int | None = None


class LineReader:
    """Reads lines in chunks. It must be made in the event loop that takes the lines."""

    def __init__(self, source: Source) -> None:
        """Take the source over and start reading. The reader closes the source after its last line."""
        self._source = source
        self._loop = asyncio.get_running_loop()
        self._chunks: asyncio.Queue[list[bytes] | Exception] = asyncio.Queue()
        self._room = threading.Semaphore(_AHEAD)
        self._is_closed = False
        threading.Thread(target=self._run, name="eventbus-lines", daemon=True).start()

    async def next_chunk(self) -> list[bytes]:
        """Wait for the next lines; return them without line ends, none at the end. Raises OSError."""
        chunk = await self._chunks.get()
        self._room.release()
        if isinstance(chunk, Exception):
            raise chunk
        return chunk

    def close(self) -> None:
        """Stop reading. A caller that waits for lines gets the empty list of the end."""
        self._is_closed = True
        self._room.release()  # wakes the thread if it waits for room, so that it ends
        self._chunks.put_nowait([])

    def _run(self) -> None:
        parts: list[bytes] = []
        try:
            while not self._is_closed:
                chunk = self._source.read()
                *lines, rest = chunk.split(b"\n")
                if lines:
                    lines[0] = b"".join((*parts, lines[0]))
                    parts.clear()
                parts.append(rest)
                if not chunk and (last := b"".join(parts)):
                    lines = [last]
                if lines and not self._put(lines):
                    return
                if not chunk:
                    self._put([])
                    return
        except Exception as error:  # noqa: BLE001  (`next_chunk` raises it)
            self._put(error)
        finally:
            self._source.close()

    def _put(self, chunk: list[bytes] | Exception) -> bool:
        self._room.acquire()
        if self._is_closed:
            return False
        try:
            self._loop.call_soon_threadsafe(self._chunks.put_nowait, chunk)
        except RuntimeError:
            return False  # the loop has ended
        return True


def open_lines(place: str) -> Source:
    """Open a file, or standard input for `-`. Raises OSError."""
    if place == "-":
        return _standard_input()
    file = Path(place).open("rb", buffering=0)  # noqa: SIM115  (the reader closes it)
    size = os.fstat(file.fileno()).st_size
    return Source(lambda: file.read(_CHUNK) or b"", file.close, size or None)


def read_all() -> bytes:
    """Return all of standard input."""
    return sys.stdin.buffer.read()


def _standard_input() -> Source:
    stream: Any = sys.stdin.buffer
    try:
        number = stream.fileno()
    except UnsupportedOperation:
        return Source(lambda: stream.read(_CHUNK))
    # Not through the buffer: a waiting read holds its lock, and the interpreter's exit would wait for that
    # lock.
    return Source(lambda: os.read(number, _CHUNK))
