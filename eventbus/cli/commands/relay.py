"""The relay: emits one event for each input line, and prints the results in the order of the lines.

    line -> emitted (or failed at once) -> settled -> printed, once all lines before it are printed

What must always hold:
- at most `limit` lines are between reading and printing, counted from the oldest line that is not printed, so
  memory does not grow with the file;
- every line gets an answer, on standard output or standard error;
- a line needs no task and no timer of its own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, BinaryIO, NamedTuple

from eventbus.cli.commands.lines import LineReader
from eventbus.cli.commands.meter import Meter
from eventbus.cli.failures import one_line, tell
from eventbus.emit.emission import Emission
from eventbus.errors import EmitError

_SHOWN_LINE = 2000  # characters of a failed line that are printed


class _Place(NamedTuple):
    """One line under way: its number, its text, and its emission or the error of emitting it."""

    number: int
    line: bytes
    emission: Emission[Any] | Exception


class Relay:
    """Emits lines and prints their outcomes."""

    def __init__(
        self,
        emit: Callable[[bytes], Emission[Any]],
        render: Callable[[Any], bytes] | None,
        *,
        limit: int,
        output: BinaryIO,
        meter: Meter,
    ) -> None:
        """`render` makes an output line of a result. With None, results are not printed."""
        self.read: int = 0
        self.answered: int = 0
        self.failed: int = 0
        self._emit = emit
        self._render = render
        self._limit = limit
        self._output = output
        self._meter = meter
        self._window: deque[_Place] = deque()
        self._lines: deque[bytes] = deque()
        self._lines_ended = False
        self._chunk: asyncio.Task[list[bytes]] | None = None

    async def run(self, reader: LineReader) -> None:
        """Emit all lines and print all outcomes. Raises OSError of either side; lines under way stay so."""
        try:
            while True:
                await self._print_settled()
                await self._fill()
                if self._lines and len(self._window) >= self._limit:
                    await _settled(self._window[0])
                elif not self._lines_ended:
                    await self._wait_for_lines(reader)
                elif self._window:
                    await _settled(self._window[0])
                else:
                    return
        finally:
            if self._chunk is not None:
                self._chunk.cancel()

    def stop(self, reader: LineReader) -> None:
        """Take no more lines. `run` ends when the lines under way are printed."""
        self._lines.clear()
        self._lines_ended = True
        reader.close()

    async def abandon(self) -> int:
        """Drop the lines under way, after the provider has stopped; return their number.

        Their outcomes are awaited, so that none is logged as an error that nobody awaited.
        """
        left = len(self._window)
        for place in self._window:
            await _settled(place)
        self._window.clear()
        return left

    async def _fill(self) -> None:
        """Emit lines until the window is full."""
        while self._lines and len(self._window) < self._limit:
            line = self._lines.popleft()
            self.read += 1
            if not line or line.isspace():
                continue
            try:
                emission = self._emit(line)
            except EmitError as error:
                if not self._window or isinstance(self._window[-1].emission, Exception):
                    emission = error
                else:
                    # The send buffer is full. The newest emission leaves it last, so then there is room
                    # again.
                    await _sent(self._window[-1].emission)
                    self._lines.appendleft(line)
                    self.read -= 1
                    continue
            except Exception as error:  # noqa: BLE001  (a type's own validation; the error answers this line)
                emission = error
            self._window.append(_Place(self.read, line, emission))

    async def _wait_for_lines(self, reader: LineReader) -> None:
        """Wait for more lines, or for the oldest line under way."""
        self._chunk = self._chunk or asyncio.create_task(reader.next_chunk())
        waited: list[asyncio.Task[Any]] = [self._chunk]
        if self._window:
            waited.append(asyncio.create_task(_settled(self._window[0])))
        try:
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if len(waited) > 1:
                waited[1].cancel()
        if self._chunk.done():
            chunk, self._chunk = self._chunk, None
            self._take(chunk.result())

    def _take(self, lines: list[bytes]) -> None:
        if lines and not self._lines_ended:
            self._lines.extend(lines)
        else:
            self._lines_ended = True

    async def _print_settled(self) -> None:
        window, size = self._window, 0
        printed: list[bytes] = []
        while window:
            number, line, emission = window[0]
            if not isinstance(emission, Exception) and not emission.done():
                break
            window.popleft()
            size += len(line) + 1
            try:
                if isinstance(emission, Exception):
                    raise emission
                value = await emission  # it has its outcome, so this does not wait
                if self._render is not None:
                    printed.append(self._render(value))
                self.answered += 1
            except Exception as error:  # noqa: BLE001  (declared errors too; the error answers this line)
                self.failed += 1
                tell(f"line {number}: {one_line(error)}: {_shown(line)}")
        if printed:
            printed.append(b"")
            self._output.write(b"\n".join(printed))
            self._output.flush()
        if size:
            self._meter.advance(self.answered, self.failed, size)


async def _settled(place: _Place) -> None:
    """Wait for the outcome of a line without raising it."""
    if not isinstance(place.emission, Exception):
        try:
            await place.emission
        except Exception:  # noqa: BLE001, S110  (raised again when the line is printed)
            pass


async def _sent(emission: Emission[Any]) -> None:
    try:
        await emission.enqueued()
    except Exception:  # noqa: BLE001, S110  (raised again when the line is printed)
        pass


def _shown(line: bytes) -> str:
    text = line.decode("utf-8", "backslashreplace").strip()
    return text if len(text) <= _SHOWN_LINE else f"{text[:_SHOWN_LINE]}... ({len(text)} characters)"
