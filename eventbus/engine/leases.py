"""The lease thread: renews this worker's leases whatever the event loop does.

A thread with a connection of its own, so that a handler that blocks the loop does not
lose its job. It also watches the loop: past a lag of 1 s it logs once what blocks it;
past `hang_after` it stops renewing, for then the worker does no work any more and its
jobs belong elsewhere. Code that holds the GIL stops this thread too and loses its lease.

What must hold: a lease is kept until its job's settle is answered; one found lost cancels
its handler; a renewal that gets no answer is tried again at the next beat, three beats to a
lease.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Mapping

from eventbus.engine.executor import Executor
from eventbus.errors import StoreError
from eventbus.logs import get_logger
from eventbus.store.rows import LeaseRow
from eventbus.store.store import Store

__all__ = ["LeaseKeeper"]

_log = get_logger("eventbus.worker")

_LAG_LIMIT = 1.0
_LAG_LOOK = 0.5
_END_WITHIN = 0.5


class LeaseKeeper:
    """Renews the leases of one worker's jobs: those that run, and those that wait to be settled."""

    def __init__(
        self,
        store: Store,
        executor: Executor,
        *,
        worker: str,
        unsettled: Mapping[str, str],
        lease: float,
        hang_after: float,
    ) -> None:
        """`unsettled` are jobs that ended, with their tokens; `lease` and `hang_after` in seconds."""
        self._leases = store.open_leases(timeout=max(0.5, lease / 3))
        self._executor = executor
        self._worker = worker
        self._unsettled = unsettled
        self._lease = lease
        self._hang_after = hang_after
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread = 0
        self._asked: float | None = None  # since when the loop owes an answer
        self._is_lagging = False
        self._is_refused = False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread. Call it in the event loop."""
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._thread = threading.Thread(target=self._run, name="eventbus-leases", daemon=True)
        self._thread.start()

    async def aclose(self) -> None:
        """End the thread and its connection; waits 0.5 s at most, for the server may be silent."""
        self._stop.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, _END_WITHIN)

    @property
    def lag(self) -> float:
        """Seconds for which the event loop has owed an answer; 0 when it owes none."""
        asked = self._asked
        return 0.0 if asked is None else time.monotonic() - asked

    @property
    def is_kept(self) -> bool:
        """Whether the thread does its work, or has none to do."""
        return self._stop.is_set() or self._thread is None or self._thread.is_alive()

    def _run(self) -> None:
        beat = 0.3 * self._lease
        next_beat = time.monotonic()
        while not self._stop.is_set():
            self._ask_loop()
            if time.monotonic() >= next_beat:
                is_done = self._renew()
                next_beat = time.monotonic() + (beat if is_done else beat / 4)
            self._stop.wait(min(_LAG_LOOK, max(0.0, next_beat - time.monotonic())))
            self._watch_loop()
        self._leases.close()

    def _renew(self) -> bool:
        """One try; False if it must soon be made again, for one lost beat leaves little of a lease."""
        if self.lag > self._hang_after:
            return True
        rows = [LeaseRow(run.job.id, run.job.token) for run in list(self._executor.running.values())]
        # Last: an id that also runs, under a later token, is not cancelled for its earlier one.
        rows += [LeaseRow(*each) for each in list(self._unsettled.items())]
        try:
            lost, cancelled = self._leases.renew(
                rows, worker=self._worker, lease_ms=round(self._lease * 1000), lag_ms=round(self.lag * 1000)
            )
        except StoreError as error:
            self._note_refused(error, len(rows))
            return False
        if self._is_refused:
            self._is_refused = False
            _log.info("leases renewed again", jobs=len(rows))
        if lost:
            tokens = dict(rows)
            self._in_loop(self._executor.lose, [(each, tokens[each]) for each in lost])
        if cancelled:  # for most the message came first; it may have been lost
            self._in_loop(self._executor.cancel, cancelled)
        return True

    def _note_refused(self, error: StoreError, jobs: int) -> None:
        """Log it once until a renewal succeeds, and only where there is something to lose."""
        if jobs and not self._is_refused:
            self._is_refused = True
            _log.warning("leases not renewed, trying again", error=str(error), jobs=jobs)

    def _ask_loop(self) -> None:
        """Ask again only after an answer: this thread may itself have been slow since the last one."""
        if self._asked is None:
            self._asked = time.monotonic()
            self._in_loop(self._answer)

    def _answer(self) -> None:
        self._asked = None

    def _in_loop(self, call: object, *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *args)  # type: ignore[union-attr, arg-type]
        except RuntimeError:
            self._stop.set()  # the loop is closed: nobody is left to keep leases for

    def _watch_loop(self) -> None:
        lag = self.lag
        if lag < _LAG_LIMIT:
            self._is_lagging = False
            return
        if self._is_lagging:
            return
        self._is_lagging = True
        # The one way to another thread's stack, documented in spite of its name.
        frames = sys._current_frames()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        frame = frames.get(self._loop_thread)
        stack = "".join(traceback.format_stack(frame)) if frame else ""
        _log.warning("event loop blocked; run CPU-bound code outside it", seconds=round(lag, 1), stack=stack)
