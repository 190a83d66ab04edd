"""Processes for CPU-bound handlers: fresh interpreters that can be killed one by one.

As `anyio.to_process`, but with bytes in place of pickled objects, and each with a channel of its
own, so that a handler's standard output and error stay the worker's.

    starting -> idle <-> busy -> ended (it died, was killed, was idle for long, or the pool closed)

What must hold:
- a process is killed only by whoever waits for its answer, or by the end of the pool;
- one that was killed or died is never used again, whatever it had answered half;
- a process ends by itself when its channel ends, so it does not outlive a worker that was killed.

There is no limit here: a process runs one call, and the caller limits the calls.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import struct
import sys
from collections.abc import Callable

from eventbus._version import __version__
from eventbus.errors import ProcessDied

__all__ = ["HEADER", "Processes", "available_processors", "is_child", "mark_child"]

HEADER = struct.Struct("!?I")
"""Before each message on a channel: whether it is the answer, or a note before it; its length in bytes."""

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from eventbus.remote.child import main; main(int(sys.argv[1]), version=sys.argv[3])"
)
_LAST_STEPS = 2.0
"""Seconds for an idle process to end by itself, and for what a dead one wrote to be read."""

_is_child = False  # what kind of process this is; set once, at its start


def mark_child() -> None:
    """Say that this process is one of a pool."""
    global _is_child
    _is_child = True


def is_child() -> bool:
    """Whether this process is one of a pool: it runs no worker."""
    return _is_child


def available_processors() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Processes:
    """A pool of processes for one event loop; starts them as they are needed."""

    def __init__(self, on_note: Callable[[bytes], None], *, idle_after: float = 60.0) -> None:
        """A process ends when nothing was asked of it for `idle_after` seconds.

        `on_note` takes what processes say before they answer.
        """
        self._on_note = on_note
        self._idle_after = idle_after
        self._idle: list[_Process] = []
        self._all: set[_Process] = set()
        self._starts: set[asyncio.Task[_Process]] = set()
        self._is_closed = False

    @property
    def pids(self) -> list[int]:
        """The processes that live."""
        return [each.pid for each in self._all]

    async def run(self, request: bytes) -> bytes:
        """Return the answer of a process to a request. Cancelling kills that process.

        Raises ProcessDied if it ends before it answers.
        """
        process = self._idle.pop() if self._idle else await self._start()
        process.stop_clock()
        try:
            answer = await process.ask(request, self._on_note)
        except BaseException:
            await process.kill()
            raise
        self._keep(process)
        return answer

    async def aclose(self) -> None:
        """End all processes: idle ones by themselves, the others by force. Idempotent."""
        self._is_closed = True
        if self._starts:
            await asyncio.wait(self._starts)
        is_idle = set(self._idle)
        self._idle.clear()
        async with asyncio.TaskGroup() as ends:
            for each in self._all:
                ends.create_task(each.end() if each in is_idle else each.kill())

    async def _start(self) -> _Process:
        """Start one. If nobody waits for it any more when it has started, it is kept for the next."""
        start = asyncio.create_task(_Process.start(self._forget), name="eventbus-process-start")
        self._starts.add(start)
        start.add_done_callback(self._note)
        try:
            return await asyncio.shield(start)
        except asyncio.CancelledError:
            start.add_done_callback(self._keep_started)
            raise

    def _note(self, start: asyncio.Task[_Process]) -> None:
        self._starts.discard(start)
        if not start.cancelled() and start.exception() is None:
            self._all.add(start.result())

    def _keep_started(self, start: asyncio.Task[_Process]) -> None:
        if not start.cancelled() and start.exception() is None:
            self._keep(start.result())

    def _keep(self, process: _Process) -> None:
        if self._is_closed:
            process.hang_up()
        elif process in self._all:
            self._idle.append(process)
            process.start_clock(self._idle_after, self._retire)

    def _retire(self, process: _Process) -> None:
        self._idle.remove(process)
        process.hang_up()

    def _forget(self, process: _Process) -> None:
        """It has ended."""
        self._all.discard(process)
        if process in self._idle:
            self._idle.remove(process)


class _Process:
    """One process of a pool, as its worker sees it."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.pid = process.pid
        self._process = process
        self._reader = reader
        self._writer = writer
        self._clock: asyncio.TimerHandle | None = None
        self._watch: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, on_end: Callable[[_Process], None]) -> _Process:
        """Start a process; `on_end` hears when it has ended. It becomes ready by itself."""
        ours, theirs = socket.socketpair()
        with theirs:
            reader, writer = await asyncio.open_connection(sock=ours)
            try:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-c", _BOOT, str(theirs.fileno()), json.dumps(sys.path), __version__),
                    stdin=asyncio.subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    # A group of its own: a terminal's Ctrl-C is for the worker alone, and what a
                    # handler started dies with it.
                    start_new_session=True,
                )
            except BaseException:
                writer.close()
                raise
        self = cls(process, reader, writer)
        self._watch = asyncio.create_task(self._wait_ended(on_end), name="eventbus-process-watch")
        return self

    async def ask(self, request: bytes, on_note: Callable[[bytes], None]) -> bytes:
        """Return its answer to a request. Raises ProcessDied."""
        try:
            self._writer.write(HEADER.pack(True, len(request)) + request)
            await self._writer.drain()
            while True:
                is_answer, size = HEADER.unpack(await self._reader.readexactly(HEADER.size))
                message = await self._reader.readexactly(size)
                if is_answer:
                    return message
                on_note(message)
        except (OSError, asyncio.IncompleteReadError) as error:
            await self.kill()  # it hung up; in most cases it is dead
            raise _died(self._process.returncode) from error

    def start_clock(self, seconds: float, on_over: Callable[[_Process], None]) -> None:
        """Call `on_over` after so long, unless `stop_clock` comes first."""
        self._clock = asyncio.get_running_loop().call_later(seconds, on_over, self)

    def stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def hang_up(self) -> None:
        """Nothing more will be asked: an idle process ends by that."""
        self.stop_clock()
        self._writer.close()

    async def end(self) -> None:
        """Hang up and wait for its end; kill it if that takes long."""
        self.hang_up()
        assert self._watch is not None  # noqa: S101  (set by start)
        await asyncio.wait([self._watch], timeout=_LAST_STEPS)
        await self.kill()

    async def kill(self) -> None:
        """Kill the process with all that it started, and wait until it is gone."""
        assert self._watch is not None  # noqa: S101  (set by start)
        if not self._watch.done():
            self._kill_group()
        await asyncio.wait([self._watch])
        self.hang_up()

    def _kill_group(self) -> None:
        """Kill it and what it started; at once after its end too, while its number is no other's."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass  # dead, or (on macOS) dead and not yet waited for

    async def _wait_ended(self, on_end: Callable[[_Process], None]) -> None:
        await self._process.wait()
        self._kill_group()
        self.stop_clock()
        on_end(self)
        # Whatever it forked may keep the channel open; and one that died idle has nobody who hangs up.
        asyncio.get_running_loop().call_later(_LAST_STEPS, self._close_channel)

    def _close_channel(self) -> None:
        self._reader.feed_eof()
        self._writer.close()


def _died(code: int | None) -> ProcessDied:
    if code is None or code >= 0:
        return ProcessDied(
            f"the process of the handler ended before its handler did, with exit code {code}", exit_code=code
        )
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    hint = "; perhaps the system had no memory left" if -code == signal.SIGKILL else ""
    return ProcessDied(f"the process of the handler was ended by {name}{hint}", exit_code=code)
