"""The drain of a stopping worker: lets the running handlers finish, and gives back the jobs that cannot.

    running -> ended by itself, within the grace
            -> stuck: handed back at once
            -> handed back when the grace is over, or is cut short

A handler is stuck when it awaits the outcome of a job that no worker will run: this worker claims no more, no
other live worker serves the job's queue, and the job does not run anywhere. Such a handler can only finish in
a later run. So its job is given back now, without an attempt, as it would be at the end of the grace. A
handler that awaits the job of a stuck handler is stuck too.

Not here: how a handler is cancelled, and how its job settles (`Executor`).

What must always hold:
- a handler that may still finish has the whole grace. So no handler counts as stuck while the
  server does not say in time who serves a queue or where a job is. A job that runs under another
  draining worker is waited for;
- the server is not asked while no handler awaits a job;
- the log names the jobs that are given back, and the jobs for which the stop waits.

A handler may begin to wait at any time, so the waits are checked each half second. A wait may be over when
the server's answer arrives: then the handler is left alone. If a task that a handler started awaits a job
that the handler emitted, this counts as a wait of the handler too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from eventbus.engine.executor import Executor
from eventbus.engine.job import Job
from eventbus.errors import StoreError
from eventbus.model import clock
from eventbus.store.store import Store
from eventbus.telemetry.logging import get_logger

_log = get_logger("eventbus.worker")

_INTERVAL = 0.5
"""Seconds between two checks for stuck handlers."""
_ANSWER_WITHIN = 1.0
"""Seconds that the server has to answer one check."""
_TELL_AFTER = 1.0
"""Seconds; a shorter stop logs nothing about its handlers."""
_NAMED = 10
"""At most this many jobs are named in one log event."""
_IDLE = frozenset({"waiting", "delayed", "parked", "waiting-children"})


class HandlerWait(NamedTuple):
    """The handler of the job `waiter` awaits the outcome of `job`, which belongs to `queue`."""

    waiter: str
    job: str
    queue: str


class Drain:
    """Waits for the handlers of one stopping worker. An object is used once."""

    def __init__(
        self,
        store: Store,
        executor: Executor,
        *,
        worker: str,
        find_waits: Callable[[], Iterable[HandlerWait]],
    ) -> None:
        """`find_waits` returns the waits that this process knows of: which handler awaits which job."""
        self._store = store
        self._executor = executor
        self._worker = worker
        self._find_waits = find_waits
        self._told: set[str] = set()

    async def wait_finished(self, grace: float) -> None:
        """Wait until nothing runs or `grace` seconds are over; give back the jobs of stuck handlers
        meanwhile.
        """
        begin = clock.monotonic()
        end = begin + grace
        is_told = False
        while self._executor.running and (left := end - clock.monotonic()) > 0:
            await self._hand_back_stuck(clock.monotonic() + min(left, _ANSWER_WITHIN))
            left = max(0.0, end - clock.monotonic())
            if await self._executor.wait_ended(min(left, _INTERVAL)):
                return
            if not is_told and clock.monotonic() - begin >= _TELL_AFTER:
                is_told = True
                jobs = [run.job for run in self._executor.running.values()]
                _log.info("waiting for handlers to finish", grace=grace, **_names(jobs))

    async def hand_back(self) -> None:
        """Cancel the handlers that still run and give their jobs back, without an attempt."""
        await self._executor.drain(0)
        jobs = [job for job in self._executor.handed_back if job.id not in self._told]
        if jobs:
            _log.warning("handlers did not finish, handed back without an attempt", **_names(jobs))

    async def _hand_back_stuck(self, deadline: float) -> None:
        try:
            stuck = await self._find_stuck(deadline)
        except StoreError:
            return  # unknown, so all handlers have the rest of the grace
        if not stuck:
            return
        runs = [self._executor.running[waiter] for waiter in dict.fromkeys(wait.waiter for wait in stuck)]
        _log.warning(
            "handlers wait for jobs that only this worker would run, handed back without an attempt",
            **_names([run.job for run in runs]),
            wait_for=sorted({wait.queue for wait in stuck}),
        )
        for run in runs:
            self._told.add(run.job.id)
            self._executor.strike(run, "shutdown")

    async def _find_stuck(self, deadline: float) -> list[HandlerWait]:
        """Return the waits that cannot end while this worker stops. Raises StoreError."""
        waits = self._look()
        queues = sorted({wait.queue for wait in waits})
        looks = await self._store.presence.survey(queues, asker=self._worker, deadline=deadline)
        unserved = {queue for queue, look in zip(queues, looks, strict=True) if not look.workers}
        jobs = sorted({wait.job for wait in waits if wait.queue in unserved})
        outcomes = await self._store.look("", jobs, join=False, deadline=deadline)
        idle = {outcome.job for outcome in outcomes if outcome.state in _IDLE}
        # Read the waits again: some may have ended during the two calls.
        return _stuck([wait for wait in self._look() if wait.queue in unserved], idle)

    def _look(self) -> list[HandlerWait]:
        """Return the waits of handlers that run here and were not cancelled."""
        return [
            wait._replace(waiter=run.job.id)
            for wait in self._find_waits()
            if (run := self._executor.find(wait.waiter)) is not None and run.cause is None
        ]


def _stuck(waits: Sequence[HandlerWait], idle: Collection[str]) -> list[HandlerWait]:
    """Return the waits for jobs that are idle, and the waits for jobs whose own handlers are stuck."""
    found: list[HandlerWait] = []
    hopeless = set(idle)
    while more := [wait for wait in waits if wait.job in hopeless and wait not in found]:
        found += more
        hopeless.update(wait.waiter for wait in more)
    return found


def _names(jobs: Sequence[Job]) -> dict[str, object]:
    """Return log fields: how many jobs of each queue, and the ids of the first ones."""
    return {"queues": dict(Counter(job.queue for job in jobs)), "jobs": [job.id for job in jobs[:_NAMED]]}
