"""Runs claimed jobs: claimed -> run -> decided -> settled, each in a native task.

A native task for each job, not a task group: a group costs more than the job. The
executor owns the tasks; nobody else cancels them.

What must hold:
- each started job leaves exactly one settle, unless its lease is lost (then none);
- a job's slot is free only when its task has really ended, or was given up on (`abandoned`);
- the cause of a cancellation decides what it means: `timeout` is a failed attempt, also
  when the handler swallows the cancellation and returns; `shutdown` gives the job back,
  unless it completed all the same;
  `lease` settles nothing; `cancel` settles as cancelled unless it completed all the same: the server
  holds the request, and decides what a completion is worth then; without a cause the handler
  cancelled itself: an error;
- a job that suspended itself leaves no settle: the server knows.

A handler that ignores its cancellation is cancelled once more after `patience`, then
detached and counted: its job is settled without it, and what it returns later is
fenced off because nobody listens.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Literal, cast

from eventbus.engine.consumer import Consumer
from eventbus.engine.deadlines import Deadlines
from eventbus.engine.job import Job, Settle, cancelled, give_back
from eventbus.logs import get_logger

__all__ = ["MAX_ABANDONED", "Executor", "Running"]

MAX_ABANDONED = 10
"""Handlers given up on past which a worker drains and ends: its process is not healthy."""

_log = get_logger("eventbus.worker")

Cause = Literal["timeout", "shutdown", "lease", "cancel"]


class Running:
    """One job in execution."""

    __slots__ = ("bucket", "cause", "consumer", "executor", "job", "strikes", "task", "timeout")

    def __init__(self, executor: Executor, job: Job, consumer: Consumer) -> None:
        self.executor = executor
        self.job = job
        self.consumer = consumer
        self.task: asyncio.Task[None] | None = None
        self.cause: Cause | None = None
        self.timeout: float | None = None
        self.bucket = 0
        self.strikes = 0

    def on_deadline(self) -> None:
        """The run's time is over, or its patience after a cancellation is."""
        self.executor.strike(self, "timeout")


class Executor:
    """The jobs that this worker is running."""

    def __init__(self, settle: Callable[[Job, Settle], None], *, patience: float) -> None:
        """`settle` takes each decision; `patience` in seconds as told above."""
        self.running: dict[str, Running] = {}
        self.counts: Counter[str] = Counter()
        self.abandoned = 0
        self.unhealthy = asyncio.Event()
        """Set once MAX_ABANDONED handlers were given up on."""
        self.deadlines = Deadlines()
        self._settle = settle
        self._patience = patience
        self._ended = asyncio.Event()

    def start(self, job: Job, consumer: Consumer) -> None:
        """Start one claimed job."""
        if job.id in self.running:
            self._supersede(self.running[job.id])
        run = Running(self, job, consumer)
        self.running[job.id] = run
        self.counts[job.queue] += 1
        run.timeout = consumer.timeout_of(job)
        if run.timeout is not None:
            run.bucket = self.deadlines.add(run, run.timeout)
        run.task = asyncio.get_running_loop().create_task(self._run(run))

    async def _run(self, run: Running) -> None:
        settle: Settle | None
        try:
            settle = await run.consumer.run(run.job)
            if run.cause in ("timeout", "lease"):
                settle = self._decide_cancelled(run)
        except asyncio.CancelledError as error:
            settle = self._decide_cancelled(run, error)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001  (whatever a handler raises)
            settle = run.consumer.decide(run.job, error)
            if run.cause is not None:
                settle = self._decide_cancelled(run)
        self._end(run, settle)

    def _decide_cancelled(self, run: Running, error: BaseException | None = None) -> Settle | None:
        if run.cause == "lease":
            return None
        if run.cause == "shutdown":
            return give_back()
        if run.cause == "cancel":
            return cancelled()
        if run.cause == "timeout":
            late = TimeoutError(f"the handler timed out: it ran longer than its timeout of {run.timeout:g} s")
            late.__cause__ = error  # shows where it was
            error = late
        return run.consumer.decide(run.job, error or asyncio.CancelledError())

    def _end(self, run: Running, settle: Settle | None) -> None:
        job = run.job
        if self.running.get(job.id) is not run:
            return  # given up on before: its outcome was decided then
        del self.running[job.id]
        self.counts[job.queue] -= 1
        if run.timeout is not None or run.strikes:
            self.deadlines.discard(run, run.bucket)
        if settle is not None:
            self._settle(job, settle)
        if not self.running:
            self._ended.set()

    def strike(self, run: Running, cause: Cause) -> None:
        """Cancel a job: politely, again after `patience`, then give up on it."""
        if self.running.get(run.job.id) is not run or run.task is None:
            return
        run.cause = run.cause or cause
        run.strikes += 1
        if inspect.getcoroutinestate(cast("Any", run.task.get_coro())) == inspect.CORO_CREATED:
            run.task.cancel()  # it ends without having run a line, so nobody else would decide
            self._end(run, self._decide_cancelled(run))
            return
        if run.strikes <= 2:
            run.task.cancel()
            self.deadlines.discard(run, run.bucket)  # one deadline for each run
            run.bucket = self.deadlines.add(run, self._patience)
            return
        self.abandoned += 1
        if self.abandoned >= MAX_ABANDONED:
            self.unhealthy.set()
        _log.error("handler ignores its cancellation, given up on", job_id=run.job.id, queue=run.job.queue)
        # The server knows of a cancel; a member of a stopped tree that is given back is recorded as unknown.
        self._end(run, give_back() if run.cause == "cancel" else self._decide_cancelled(run))

    def lose(self, leases: Iterable[tuple[str, str]]) -> None:
        """These leases, ids with their tokens, are lost: cancel their jobs, settle nothing.

        A job that runs here again under a later token is not meant.
        """
        for job_id, token in leases:
            run = self.running.get(job_id)
            if run is not None and run.job.token == token and run.cause != "lease":
                _log.warning("lease lost, handler cancelled", job_id=job_id, queue=run.job.queue)
                run.cause = "lease"
                self.strike(run, "lease")

    def cancel(self, jobs: Iterable[str]) -> None:
        """Somebody asked for these jobs' end: cancel those that run here.

        The root of a stopped tree was asked before: it is undoing what was done, and goes on.
        """
        for job_id in jobs:
            run = self.running.get(job_id)
            if run is not None and run.cause is None and not run.job.stop:
                _log.info("job cancelled while it ran", job_id=job_id, queue=run.job.queue)
                self.strike(run, "cancel")

    def abort(self) -> None:
        """Nobody will keep the leases of what runs: cancel it."""
        self.lose([(run.job.id, run.job.token) for run in self.running.values()])

    def _supersede(self, run: Running) -> None:
        """Its lease was lost unnoticed, and its job came back to this very worker."""
        run.cause = "lease"
        self._end(run, None)
        if run.task is not None:
            run.task.cancel()

    async def drain(self, grace: float) -> None:
        """Let handlers finish within `grace` seconds, then give the rest back."""
        if await self.wait_ended(grace):
            return
        for run in list(self.running.values()):
            self.strike(run, "shutdown")
        await self.wait_ended(2 * self._patience + 0.1)

    async def wait_ended(self, seconds: float | None = None) -> bool:
        """Wait until nothing runs; False if that takes longer than `seconds`."""
        if not self.running:
            return True
        self._ended.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._ended.wait()
        except TimeoutError:
            return False
        return True
