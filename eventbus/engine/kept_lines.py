"""Sends the log lines that running jobs keep to the server, under their leases.

Lines of one tick of the event loop travel in one call. While that is under way, the next ones gather. The
executor waits for the lines of a job before it tells the end of the job, because its lease is over then.

What must always hold: a line fails no handler, and delays the end of its job by a second at most; a line is
kept once, also if its call is repeated, because the lines of a claim are numbered.

Crash windows: `note-not-answered` (the call is repeated, and the numbers tell what is there),
`dies-after-line` (the worker dies before the call: the lines of its last moment are lost).
"""

from __future__ import annotations

import asyncio
from collections import deque

from eventbus.engine.executor import Executor
from eventbus.engine.job import Job
from eventbus.errors import EventBusError
from eventbus.model import clock
from eventbus.store.bounds import KEPT_LINES
from eventbus.store.scripting.script_rows import LineRow
from eventbus.store.store import Store
from eventbus.telemetry.logging import get_logger

MOST_BYTES = 4096
"""The most bytes of one line, in UTF-8; a longer one is cut."""
_IN_CALL = 512 * 1024
"""About the bytes of one call."""

_log = get_logger("eventbus.worker")


class _Said:
    """The lines of one claim of a job that are not sent yet."""

    __slots__ = ("count", "job", "waiting")

    def __init__(self, job: Job) -> None:
        self.job = job
        self.count = 0
        self.waiting: deque[tuple[int, float, str]] = deque(maxlen=KEPT_LINES)


class LineWriter:
    """The lines of one worker's jobs; one call is under way at a time. Make it in the worker's event loop."""

    def __init__(self, store: Store, executor: Executor) -> None:
        self._store = store
        self._executor = executor
        self._said: dict[str, _Said] = {}
        self._flight: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        executor.unsaid, executor.say_last = self._said, self._say_last

    def keep(self, job_id: str, line: str) -> None:
        """Keep a line with a running job, or with the job that this id is an alias of; return at once. In any
        thread.

        Does nothing for a job that does not run here any more.
        """
        text = cut_line(line)
        try:
            is_here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            is_here = False
        if is_here:
            self._put(job_id, text)
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._put, job_id, text)

    def _put(self, job_id: str, text: str) -> None:
        run = self._executor.find(job_id)
        if run is None:
            return
        job = run.job
        said = self._said.get(job.id)
        if said is None or said.job is not job:
            said = self._said[job.id] = _Said(job)
        said.count += 1
        said.waiting.append((said.count, clock.monotonic(), text))
        if self._flight is None:
            self._flight = asyncio.create_task(self._flush(), name="eventbus-lines")

    async def _flush(self) -> None:
        try:
            await asyncio.sleep(0)  # so that further lines of this tick travel in the same call
            while rows := self._take():
                lost = await self._store.note([], rows)
                tokens = {row.id: row.token for row in rows}
                self._executor.lose([(job_id, tokens[job_id]) for job_id in lost])
        except EventBusError as error:
            _log.warning("log lines of jobs not kept", error=str(error))
        finally:
            self._flight = None

    def _take(self) -> list[LineRow]:
        rows: list[LineRow] = []
        size, now = 0, clock.monotonic()
        for job_id, said in self._said.items():
            while said.waiting and size < _IN_CALL:
                number, at, text = said.waiting.popleft()
                rows.append(LineRow(job_id, said.job.token, number, round((now - at) * 1000), text))
                size += len(text)
        return rows

    async def _say_last(self, job: Job) -> None:
        """Return when all lines of a job are answered; forget the job."""
        said = self._said.get(job.id)
        if said is None or said.job is not job:
            return
        try:
            while self._flight is not None:
                await asyncio.wait({self._flight})
                if not said.waiting:
                    return
        finally:
            if self._said.get(job.id) is said:
                del self._said[job.id]


def cut_line(line: object) -> str:
    """Return a line as text that UTF-8 can encode, of at most `MOST_BYTES`: it fails no handler, whatever it
    is.
    """
    text = str(line).encode(errors="backslashreplace")
    if len(text) > MOST_BYTES:
        text = text[: MOST_BYTES - 3] + b"..."
    return text.decode(errors="ignore")
