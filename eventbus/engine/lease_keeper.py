"""The lease thread of a worker: renews the leases of its jobs, also while the event loop is blocked.

The thread has a connection of its own, so a handler that blocks the loop does not lose its job. The
thread also watches the loop. After a lag of 1 s it logs once which code blocks the loop. After
`hang_after` it stops renewing, because the worker no longer works and its jobs should run elsewhere.
Code that holds the GIL stops this thread too and loses its lease. Where a renewal does not block, as in the
test kit, a task takes the place of the thread.

One renewal keeps all that the worker holds, and names it. What the worker holds without knowing it is given
back by the renewal; otherwise nobody would ever run it. That happens if a failover loses the end of a job.

What must always hold: a lease is kept until the settle of its job is answered; a lease found lost cancels its
handler; a renewal comes each 0.3 of a lease, and one that gets no answer is tried again sooner. No job that
this worker knows of is missing in a renewal: the thread reads the numbers of the answered turns before it
reads the jobs that run, and these before the unsettled ones, because a job moves in this direction and stands
in both meanwhile.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Collection
from typing import Any

from eventbus.engine.executor import Executor, Running
from eventbus.errors import StoreError
from eventbus.model import clock
from eventbus.runtime.upkeep import mark
from eventbus.store.scripting.script_rows import LeaseRow
from eventbus.store.store import Store
from eventbus.telemetry.logging import get_logger
from eventbus.telemetry.propagation import job_around
from eventbus.telemetry.tracebacks import short_stack

_log = get_logger("eventbus.worker")

_LAG_LIMIT = 1.0
"""Seconds after which a blocked event loop is logged."""
_LAG_LOOK = 0.5
"""Seconds between two looks at the event loop, at most."""
_END_WITHIN = 0.5
"""Seconds that a stop waits for the thread."""
_NAMED = 5
"""At most this many running jobs are named if the job that blocks the loop is unknown."""


class LeaseKeeper:
    """Renews the leases of one worker's jobs: the running ones, and the ended ones that wait to be
    settled.
    """

    def __init__(
        self,
        store: Store,
        executor: Executor,
        *,
        worker: str,
        unsettled: Collection[LeaseRow],
        read_calls: Callable[[], tuple[int, int]],
        lease: float,
        hang_after: float,
    ) -> None:
        """`unsettled` has the jobs that ended and are not settled; `read_calls` returns the numbers of the
        turns, one for each lane, whose claims have been started. `lease` and `hang_after` are in seconds.
        """
        self._leases = store.open_leases(timeout=max(0.5, lease / 3))
        self._executor = executor
        self._worker = worker
        self._unsettled = unsettled
        self._read_calls = read_calls
        self._lease = lease
        self._hang_after = hang_after
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread = 0
        self._asked: float | None = None  # monotonic time since which the loop owes an answer
        self._is_lagging = False
        self._is_refused = False
        self._next_beat = 0.0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the thread. Call this in the event loop that the thread shall watch."""
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._next_beat = clock.monotonic()
        if not self._leases.blocks:
            self._task = self._loop.create_task(self._run_in_loop(), name="eventbus-leases")
            return
        self._thread = threading.Thread(target=self._run, name="eventbus-leases", daemon=True)
        self._thread.start()

    async def aclose(self) -> None:
        """End the thread and its connection; wait at most 0.5 s, because the server may not answer."""
        self._stop.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, _END_WITHIN)
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    @property
    def lag(self) -> float:
        """Seconds for which the event loop has owed an answer; 0 if it owes none."""
        asked = self._asked
        return 0.0 if asked is None else clock.monotonic() - asked

    @property
    def is_kept(self) -> bool:
        """False only if the thread died: it was started, was not asked to stop, and does not live."""
        return self._stop.is_set() or self._thread is None or self._thread.is_alive()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._ask_loop()
            self._stop.wait(min(_LAG_LOOK, self._beat_once()))
            self._watch_loop()
        self._leases.close()

    async def _run_in_loop(self) -> None:
        mark("idle")
        try:
            while True:  # noqa: ASYNC110  (each round does something)
                await asyncio.sleep(self._beat_once())
        finally:
            self._leases.close()

    def _beat_once(self) -> float:
        """Renew all leases if that is due; return the seconds until it is due again."""
        if clock.monotonic() >= self._next_beat:
            beat = 0.3 * self._lease  # three tries before a lease ends
            is_done = self._renew()
            self._next_beat = clock.monotonic() + (beat if is_done else beat / 4)
        return max(0.0, self._next_beat - clock.monotonic())

    def _renew(self) -> bool:
        """Renew all leases; return False if it failed and must be tried again soon, before the leases end."""
        if self.lag > self._hang_after:
            return True
        calls = self._read_calls()
        rows = [LeaseRow(run.job.id, run.job.token) for run in list(self._executor.running.values())]
        running = dict(rows)
        # Unsettled jobs come last. If one of them also runs under a newer token, `dict(rows)` below keeps
        # the older token, so a lost lease does not cancel the newer run.
        rows += list(self._unsettled)
        try:
            lost, cancelled, returned = self._leases.renew(
                rows,
                worker=self._worker,
                calls=calls,
                lease_ms=round(self._lease * 1000),
                lag_ms=round(self.lag * 1000),
            )
        except StoreError as error:
            self._note_refused(error, len(rows))
            return False
        if self._is_refused:
            self._is_refused = False
            _log.info("leases renewed again", jobs=len(rows))
        if returned:
            _log.warning("jobs given back that this worker held and did not know of", job_ids=returned)
        if lost:
            tokens = dict(rows)
            self._in_loop(self._executor.lose, [(job, tokens[job]) for job in lost])
        if cancelled:  # the wake listener got a message of most of them, but a message may be lost
            claims = [(job, running[job]) for job in cancelled if job in running]
            self._in_loop(self._executor.cancel, claims)
        return True

    def _note_refused(self, error: StoreError, jobs: int) -> None:
        """Log a failed renewal once until one succeeds, and only if there are jobs to lose."""
        if jobs and not self._is_refused:
            self._is_refused = True
            _log.warning("leases not renewed, trying again", error=str(error), jobs=jobs)
            self._executor.teller.error("lease_keeper", error)

    def _ask_loop(self) -> None:
        """Ask the loop for an answer, unless it owes one: the lag counts from the first question."""
        if self._asked is None:
            self._asked = clock.monotonic()
            self._in_loop(self._answer)

    def _answer(self) -> None:
        self._asked = None

    def _in_loop(self, call: object, *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *args)  # type: ignore[union-attr, arg-type]
        except RuntimeError:
            self._stop.set()  # the loop is closed, so no handler is left that needs a lease

    def _watch_loop(self) -> None:
        lag = self.lag
        if lag < _LAG_LIMIT:
            self._is_lagging = False
            return
        if self._is_lagging:
            return
        self._is_lagging = True
        # The only way to read another thread's stack; it is documented in spite of its name.
        frames = sys._current_frames()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        frame = frames.get(self._loop_thread)
        stack = short_stack(frame).rstrip() if frame else ""
        _log.warning(
            "event loop blocked; run CPU-bound code outside it",
            seconds=round(lag, 1),
            stack=stack,
            **self._blocking(),
        )

    def _blocking(self) -> dict[str, Any]:
        """Return log fields of the job that blocks the loop, or of some running jobs if that is unknown."""
        running = list(self._executor.running.values())
        task = None if self._loop is None else asyncio.current_task(self._loop)
        for run in running:
            if task is not None and run.task is task:
                return run.told()
        # A task that a handler started is no job's own task, but its context names the job.
        found = None if task is None else self._executor.find(job_around(task))
        if found is not None:
            return found.told()
        return {"running": [_named(run) for run in running[:_NAMED]], "running_count": len(running)}


def _named(run: Running) -> str:
    return f"{run.job.queue} {run.job.id}"
