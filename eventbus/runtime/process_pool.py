"""The process pool for CPU-bound handlers: fresh interpreters that can be killed one by one.

It resembles `anyio.to_process`, but sends bytes instead of pickled objects. Each process has a channel of its
own, so that a handler's standard output and error remain those of the worker.

    starting -> idle <-> busy -> ended (it died, was killed, was idle for too long, or the pool closed)

What must always hold:
- an answer belongs to its request, whatever the handler did to its process; `process_channel` checks that;
- a process is killed only by the caller that waits for its answer, by the end of the pool, or, if nobody
  waits, because it sent bytes that were not asked for;
- a process that died or was killed is never used again, even if it had sent a part of an answer;
- a process ends by itself when its channel ends, so it does not outlive a worker that was killed;
- processes that a handler started or forked are in the process group of their parent. They are killed with
  it or at its end, unless they made a session of their own.

The pool has no limit: a process runs one call at a time, and the caller limits the calls.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import anyio

from eventbus._version import __version__
from eventbus.errors import ProcessDied
from eventbus.runtime.process_channel import Attending, ChannelEnded, ProcessChannel
from eventbus.telemetry.logging import get_logger

CHANNEL_LOST = 97
"""The exit code of a process whose handler closed the channel: such a process cannot report otherwise."""

_log = get_logger("eventbus.worker")

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from eventbus.handlers.process.child import main; main(int(sys.argv[1]), version=sys.argv[3])"
)
_LAST_STEPS = 2.0
"""Seconds for an idle or hung-up process to end by itself, and for reading the last bytes of a dead one."""

_MOMENT = 0.5
"""Seconds for a process that heard of its cancellation; less than the patience of all who cancel."""

_is_child = False  # set once, at the start of a child process


def mark_child() -> None:
    """Mark this process as one of a pool."""
    global _is_child
    _is_child = True


def is_child() -> bool:
    """Return whether this process is one of a pool. Such a process must not run a worker."""
    return _is_child


def available_processors() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class ProcessPool:
    """A pool of processes for one event loop; starts them as they are needed."""

    def __init__(self, on_note: Callable[[bytes], None], *, idle_after: float = 60.0) -> None:
        """Make an empty pool. A process ends after `idle_after` seconds without a request.

        `on_note` is called with the notes that processes send besides their answers. It raises if it cannot
        read one.
        """
        self._on_note = on_note
        self._idle_after = idle_after
        self._idle: list[_Process] = []
        self._all: set[_Process] = set()
        self._starts: set[asyncio.Task[_Process]] = set()
        self._is_closed = False

    @property
    def pids(self) -> list[int]:
        """The ids of the live processes."""
        return [process.pid for process in self._all]

    async def run(
        self,
        request: bytes,
        read: Callable[[bytes], Any],
        on_progress: Callable[[bytes], None] | None = None,
        attending: Attending | None = None,
    ) -> Any:
        """Send a request to a process and return its answer, converted by `read`.

        `on_progress` is called with each progress that it sends before its answer, and `attending` serves its
        calls. Cancelling kills the process, at once or, if it wants to hear of that, when it has had a moment
        to answer. Raises ProcessDied if the process ends before it answers, or sends bytes that cannot be an
        answer.
        """
        process = self._idle.pop() if self._idle else await self._start()
        process.stop_clock()
        try:
            answer = await process.ask(request, read, on_progress, attending)
        except BaseException as error:
            with anyio.CancelScope(
                shield=True
            ):  # a scope in a middleware would cut the moment of the process short
                if isinstance(error, asyncio.CancelledError) and await _part(process, attending):
                    self._keep(process)
                else:
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
            for process in self._all:
                ends.create_task(process.end() if process in is_idle else process.kill())

    async def _start(self) -> _Process:
        """Start a process. If its caller is cancelled meanwhile, the process is kept for the next request."""
        start = asyncio.create_task(
            _Process.start(self._on_note, self._leave, self._forget), name="eventbus-process-start"
        )
        self._starts.add(start)
        start.add_done_callback(self._note)
        try:
            return await asyncio.shield(start)  # a start that is cut short could leave a process behind
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
        elif process in self._all and process.is_open:
            self._idle.append(process)
            process.start_clock(self._idle_after, self._retire)

    def _retire(self, process: _Process) -> None:
        self._idle.remove(process)
        process.hang_up()

    def _leave(self, process: _Process, fault: str) -> None:
        """Take a process out of use: its channel ended, or broke by a `fault`, while no caller waited."""
        process.stop_clock()
        if process in self._idle:
            self._idle.remove(process)
        if fault:
            _log.warning("process killed; somebody wrote into its channel", process=process.pid, got=fault)
            process.kill_nowait()

    def _forget(self, process: _Process) -> None:
        """Remove a process that has ended."""
        self._all.discard(process)
        if process in self._idle:
            self._idle.remove(process)


class _Process:
    """One process of a pool, from the side of its worker."""

    def __init__(self, process: asyncio.subprocess.Process, channel: ProcessChannel) -> None:
        self.pid = process.pid
        self._process = process
        self.channel = channel
        self._clock: asyncio.TimerHandle | None = None
        self._watch: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls,
        on_note: Callable[[bytes], None],
        on_channel_end: Callable[[_Process, str], None],
        on_end: Callable[[_Process], None],
    ) -> _Process:
        """Start a process, without waiting until it is ready; requests may be sent at once.

        `on_channel_end` is called if its channel ends while no request is under way, with the fault or an
        empty text. `on_end` is called when the process has ended.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            _, channel = await asyncio.get_running_loop().create_connection(
                lambda: ProcessChannel(on_note), sock=ours
            )
            try:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-c", _BOOT, str(theirs.fileno()), json.dumps(sys.path), __version__),
                    stdin=asyncio.subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    # A group of its own, so that a terminal's Ctrl-C reaches only the worker, and so that
                    # processes that a handler started are killed with this one.
                    start_new_session=True,
                )
            except BaseException:
                channel.close()
                raise
        self = cls(process, channel)
        channel.on_end = partial(on_channel_end, self)
        self._watch = asyncio.create_task(self._wait_ended(on_end), name="eventbus-process-watch")
        return self

    @property
    def is_open(self) -> bool:
        """Whether the process takes requests: it has not ended, and its channel is not broken."""
        return not self.channel.is_over

    async def ask(
        self,
        request: bytes,
        read: Callable[[bytes], Any],
        on_progress: Callable[[bytes], None] | None = None,
        attending: Attending | None = None,
    ) -> Any:
        """Send a request and return the answer, converted by `read`. Raises ProcessDied."""
        try:
            return await self.channel.ask(request, read, on_progress, attending)
        except ChannelEnded as error:
            raise _died(await self._end_code(str(error)), str(error)) from error

    async def _end_code(self, fault: str) -> int | None:
        """End a process whose channel is over, by a `fault` or because it hung up; return its exit code.

        A process that hung up is dead or about to end, and only its own exit code says why. So it gets the
        time for its last steps. If it still runs after that, its handler has closed the channel.
        """
        assert self._watch is not None  # noqa: S101  (set by start)
        if not fault:
            await asyncio.wait([self._watch], timeout=_LAST_STEPS)
        runs_on = not fault and not self._watch.done()
        await self.kill()
        return CHANNEL_LOST if runs_on else self._process.returncode

    def start_clock(self, seconds: float, on_over: Callable[[_Process], None]) -> None:
        """Call `on_over` after `seconds`, unless `stop_clock` comes first."""
        self._clock = asyncio.get_running_loop().call_later(seconds, on_over, self)

    def stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def hang_up(self) -> None:
        """Close the channel. An idle process ends because of that."""
        self.stop_clock()
        self.channel.close()

    async def end(self) -> None:
        """Hang up and wait for the end of the process; kill it after 2 s."""
        self.hang_up()
        assert self._watch is not None  # noqa: S101  (set by start)
        await asyncio.wait([self._watch], timeout=_LAST_STEPS)
        await self.kill()

    async def kill(self) -> None:
        """Kill the process with all processes that it started, and wait until it has ended."""
        assert self._watch is not None  # noqa: S101  (set by start)
        self.kill_nowait()
        await asyncio.wait([self._watch])
        self.hang_up()

    def kill_nowait(self) -> None:
        """Kill the process without waiting. The pool is notified of its end."""
        if self._watch is not None and not self._watch.done():
            self._kill_group()

    def _kill_group(self) -> None:
        """Kill the process and the processes that it started.

        Also called right after its end, while its id cannot be that of another process yet.
        """
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass  # the process is dead; macOS reports dead ones that nobody has waited for as not permitted

    async def _wait_ended(self, on_end: Callable[[_Process], None]) -> None:
        await self._process.wait()
        self._kill_group()
        self.stop_clock()
        on_end(self)
        # Processes that it forked may keep the channel open, and nobody hangs up on a process that died idle.
        asyncio.get_running_loop().call_later(_LAST_STEPS, self.channel.abort)


async def _part(process: _Process, attending: Attending | None) -> bool:
    """Give a process whose request is cancelled a moment to answer, if it wants that; return whether
    it did.
    """
    if attending is None or not attending.part():
        return False
    try:
        return await process.channel.wait_late(_MOMENT)
    except asyncio.CancelledError:  # once more: no more patience
        return False


def _died(code: int | None, fault: str) -> ProcessDied:
    if fault:
        return ProcessDied(
            f"the process of the handler was killed, because it sent {fault}; that is no answer to this job. "
            "A handler must not write into descriptors that it did not open",
            exit_code=code,
        )
    if code == CHANNEL_LOST:
        return ProcessDied(
            "the process of the handler could not send its answer, because the handler had closed the "
            "channel to the worker; a handler must not close descriptors that it did not open",
            exit_code=code,
        )
    if code is None or code >= 0:
        return ProcessDied(
            f"the process of the handler ended before its handler did, with exit code {code}", exit_code=code
        )
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    hint = "; perhaps the system had no memory left" if -code == signal.SIGKILL else ""
    return ProcessDied(f"the process of the handler was ended by {name}{hint}", exit_code=code)
