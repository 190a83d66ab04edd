"""The executor of a worker: runs each claimed job in an asyncio task of its own, and decides how the job
settles.

    claimed -> running -> decided -> settled

Each job has a plain task, not a task group, because a group costs more than the job. The executor
owns these tasks; nothing outside it cancels them. Not here: who claims and who sends the settles (`claimer`).

What must always hold:
- each started job makes exactly one settle; it makes none if its lease is lost, or if it suspended
  itself, because the server already knows then;
- a job's slot is free only when its task has really ended, or when the executor gave up on it (`abandoned`);
- the cause of a cancellation decides what it means:
  - `timeout` is a failed attempt, also when the handler swallows the cancellation and returns;
  - `shutdown` gives the job back, unless it completed nevertheless;
  - `lease` settles nothing;
  - `cancel` settles the job as cancelled, unless it completed nevertheless: then the server, which
    holds the request, decides what the completion is worth;
  - without a cause, the handler cancelled itself: that is an error;
- the consumer is notified once of each failure that is settled, so that it logs the failure; a failure
  that cannot be logged is settled nevertheless;
- a job starts in the context that its consumer prepared (`surround`), not in that of another job or of
  whatever started the worker.

A handler that ignores its cancellation is cancelled again after `patience`. After another `patience` the
executor gives up on it and counts it: its job is settled without it, and its later result is ignored.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, Literal, cast

from eventbus.engine.consumer import Consumer, SharingConsumer
from eventbus.engine.job import Job, Settle, cancelled, fail, give_back
from eventbus.engine.reporting.job_meter import JobMeter, note_lost
from eventbus.model.containment import original
from eventbus.runtime.timers import TimerWheel
from eventbus.telemetry.failure import describe_odd, mark_own
from eventbus.telemetry.listeners import Teller
from eventbus.telemetry.logging import get_logger

MAX_ABANDONED = 10
"""A worker that gave up on this many handlers drains and ends, because its process is not healthy."""

_log = get_logger("eventbus.worker")

Cause = Literal["timeout", "shutdown", "lease", "cancel"]
_ENDS = ("failed", "cancelled")
_LAST_LINES = 1.0
"""Seconds that the lines which a job kept may delay its end."""


class Running:
    """One job that runs, with its task and the cause of its cancellation, if there is one."""

    __slots__ = (
        "bucket", "cause", "consumer", "executor", "job",
        "metered", "signalled", "strikes", "task", "timeout",
    )  # fmt: skip

    def __init__(self, executor: Executor, job: Job, consumer: Consumer) -> None:
        self.executor: Executor = executor
        self.job: Job = job
        self.consumer: Consumer = consumer
        self.task: asyncio.Task[None] | None = None
        self.cause: Cause | None = None
        self.timeout: float | None = None
        self.bucket: int = 0
        self.strikes: int = 0
        self.metered: float = 0.0
        """When it began, in monotonic seconds, if it is metered."""
        self.signalled: asyncio.Event | None = None
        """Set by each signal that the job is sent; None as long as it does not listen."""

    def on_deadline(self) -> None:
        """Cancel the job, because its timeout or the patience after an earlier cancellation is over."""
        self.executor.strike(self, "timeout")

    def told(self) -> dict[str, Any]:
        """Return the fields of log events about this job."""
        return {**self.consumer.facts(self.job), "job_id": self.job.id, "queue": self.job.queue}


class Executor:
    """The jobs that this worker is running."""

    def __init__(
        self, settle: Callable[[Job, Settle], None], *, patience: float, teller: Teller | None = None
    ) -> None:
        """`settle` receives each decision. `patience` is in seconds, see the text of this module."""
        self.teller: Teller = teller or Teller()
        self.running: dict[str, Running] = {}
        self.aliases: dict[str, str] = {}
        """Ids in whose name code of a running job emits -> the id of that job."""
        self.counts: Counter[str] = Counter()
        self.unsaid: Mapping[str, object] = {}
        """The jobs that have kept lines (`kept_lines`)."""
        self.say_last: Callable[[Job], Coroutine[Any, Any, None]] | None = None
        """Sends the lines of a job; returns when they are answered."""
        self.abandoned: int = 0
        self.handed_back: list[Job] = []
        """Jobs that were running when a stop gave them back."""
        self.unhealthy: asyncio.Event = asyncio.Event()
        """Set once the executor gave up on MAX_ABANDONED handlers."""
        self.deadlines: TimerWheel = TimerWheel()
        self.meter: JobMeter | None = None
        """Records the metrics of jobs; None without an SDK."""
        self._settle = settle
        self._patience = patience
        self._ended = asyncio.Event()
        self._contexts: dict[str, contextvars.Context] = {}

    def find(self, job_id: str) -> Running | None:
        """Return the running job of this id, or of this alias; None if it does not run here."""
        return self.running.get(self.aliases.get(job_id, job_id))

    def start(self, job: Job, consumer: Consumer) -> None:
        """Start one claimed job; returns at once."""
        if job.id in self.running:
            self._supersede(self.running[job.id])
        run = Running(self, job, consumer)
        self.running[job.id] = run
        self.counts[job.queue] += 1
        if self.meter is not None:
            run.metered = self.meter.started(job)
        run.timeout = consumer.timeout_of(job)
        if run.timeout is not None:
            run.bucket = self.deadlines.add(run, run.timeout)
        # One context for each queue, copied for each job: to set the same variables again would cost more.
        context = self._contexts.get(job.queue)
        if context is None:
            context = self._open(consumer)
        run.task = asyncio.get_running_loop().create_task(self._run(run), context=context.copy())
        if self.teller.is_on:
            self.teller.tell("claimed", job.queue, job.id, state="active", attempt=job.attempts + 1)

    def start_clock(self, job: Job, timeout: float | None) -> None:
        """Let the timeout of a running job, in seconds, count from now on: until now it waited for a place.

        Its consumer gave no timeout when it started. Does nothing for a job that is being cancelled.
        """
        run = self.running.get(job.id)
        if timeout is None or run is None or run.job is not job or run.strikes or run.timeout is not None:
            return
        run.timeout = timeout
        run.bucket = self.deadlines.add(run, timeout)

    def set_clock(self, job: Job, timeout: float | None) -> None:
        """Let this timeout of a running job, in seconds, count from now on, in the place of the one that
        counts; None: no limit.

        Does nothing for a job that is being cancelled.
        """
        run = self.running.get(job.id)
        if run is None or run.job is not job or run.strikes:
            return
        if run.timeout is not None:
            self.deadlines.discard(run, run.bucket)
        run.timeout = timeout
        if timeout is not None:
            run.bucket = self.deadlines.add(run, timeout)

    def forget(self, queue: str) -> None:
        """Forget a queue whose last job has ended; its next consumer opens a context of its own."""
        self._contexts.pop(queue, None)
        del self.counts[queue]

    def _open(self, consumer: Consumer) -> contextvars.Context:
        """Make the context in which each job of a queue starts: what lifespans set, and what the consumer
        adds.
        """
        context = self._contexts[consumer.queue] = contextvars.copy_context()
        context.run(consumer.surround)
        return context

    async def _run(self, run: Running) -> None:
        settle: Settle | None
        try:
            settle = await run.consumer.run(run.job)
            if run.cause in ("timeout", "lease"):  # the handler swallowed its cancellation
                settle = self._decide_cancelled(run)
        except asyncio.CancelledError as error:
            settle = self._decide_cancelled(run, error)
        except BaseException as error:  # noqa: BLE001  (whatever a handler raises, SystemExit too)
            settle = _decide(run, error)
            if run.cause is not None:  # the error came from the cancellation, so the cause decides
                settle = self._decide_cancelled(run)
        if run.job.id in self.unsaid:
            await self._wait_said(run)
        self._end(run, settle)

    async def _wait_said(self, run: Running) -> None:
        """Wait until the lines that a job kept are sent: behind its end nobody would hold its lease.

        What the job comes to is decided already, so a cancellation only ends the wait.
        """
        if self.say_last is None:
            return
        try:
            await asyncio.wait_for(self.say_last(run.job), _LAST_LINES)
        except (TimeoutError, asyncio.CancelledError):
            pass

    def _decide_cancelled(self, run: Running, error: BaseException | None = None) -> Settle | None:
        if run.cause == "lease":
            return None
        if run.cause == "shutdown":
            self.handed_back.append(run.job)
            return give_back()
        if run.cause == "cancel":
            return cancelled()
        if run.cause == "timeout":
            late = TimeoutError(f"the handler timed out: it ran longer than its timeout of {run.timeout:g} s")
            late.__cause__ = error  # its traceback shows where the handler was
            mark_own(late)
            error = late
        return _decide(run, error or asyncio.CancelledError())

    def _end(self, run: Running, settle: Settle | None) -> None:
        job = run.job
        if self.running.get(job.id) is not run:
            return  # the executor gave up on it, or another run took its place: the outcome was decided then
        if settle is not None:
            self._settle(
                job, settle
            )  # first, so that the lease thread always finds the job in one of the two places
        elif self.teller.is_on and run.cause is None:
            self.teller.tell("suspended", job.queue, job.id, state="waiting-children")
        del self.running[job.id]
        self.counts[job.queue] -= 1
        if self.meter is not None:
            self.meter.ended(job, settle, run.metered)
        if run.timeout is not None or run.strikes:
            self.deadlines.discard(run, run.bucket)
        if not self.running:
            self._ended.set()
        if settle is not None and settle.state != "completed" and (settle.counts or settle.state in _ENDS):
            self._tell(run, settle)

    def _tell(self, run: Running, settle: Settle) -> None:
        """Have the consumer log a failure. The job is settled even if the program's own log
        processors raise.
        """
        try:
            run.consumer.failed(run.job, settle)
        except Exception as error:  # noqa: BLE001  (of the program's logging)
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"the failure of job {run.job.id} could not be logged", "exception": error}
            )

    def strike(self, run: Running, cause: Cause) -> None:
        """Cancel a job; the second call cancels it again, and the third one gives up on it.

        The deadline after each cancellation makes the next call. The first cause stays.
        """
        if self.running.get(run.job.id) is not run or run.task is None:
            return
        run.cause = run.job.ending = run.cause or cause
        run.strikes += 1
        if inspect.getcoroutinestate(cast("Any", run.task.get_coro())) == inspect.CORO_CREATED:
            # The coroutine has not begun, so `_run` never gets the cancellation: decide here.
            run.task.cancel()
            is_given_back = run.cause == "shutdown"
            settle = self._decide_cancelled(run)
            self._end(run, give_back(has_begun=False) if is_given_back else settle)
            return
        if run.strikes <= 2:
            run.task.cancel(run.cause)
            self.deadlines.discard(run, run.bucket)  # a run has one deadline at a time
            run.bucket = self.deadlines.add(run, self._patience)
            return
        self.abandoned += 1
        if self.abandoned >= MAX_ABANDONED:
            self.unhealthy.set()
        _log.error("handler ignores its cancellation, given up on", **run.told())
        if isinstance(run.consumer, SharingConsumer):
            run.consumer.gathering.give_up(run.job)
        # After a cancel, a job that is given back still ends as cancelled, because the server holds the
        # request; a member of a stopped tree is recorded as unknown, because its effect is indeterminate.
        self._end(run, give_back() if run.cause == "cancel" else self._decide_cancelled(run))

    def lose(self, leases: Iterable[tuple[str, str]]) -> None:
        """Cancel the jobs whose leases, pairs of id and token, are lost; they settle nothing.

        Ignores a job that this worker has since claimed again under a newer token.
        """
        for job_id, token in leases:
            run = self.running.get(job_id)
            if run is not None and run.job.token == token and run.cause != "lease":
                _log.warning("lease lost, handler cancelled", **run.told())
                note_lost(run.job.queue)
                run.cause = run.job.ending = "lease"
                self.strike(run, "lease")

    def cancel(self, claims: Iterable[tuple[str, str]]) -> None:
        """Cancel those of these claims, pairs of id and token, that run here, because a user asked for it.

        Ignores a job that this worker has claimed anew since: it was retried after the cancel had ended it.
        The root of a stopped tree goes on: it is running the rollbacks that the stop asked for.
        """
        for job_id, token in claims:
            run = self.running.get(job_id)
            if run is not None and run.job.token == token and run.cause is None and not run.job.stop:
                _log.info("job cancelled while it ran", **run.told())
                self.strike(run, "cancel")

    def tell(self, job_id: str) -> None:
        """Tell a job that listens that it was sent a signal."""
        run = self.running.get(job_id)
        if run is not None and run.signalled is not None:
            run.signalled.set()

    def abort(self) -> None:
        """Cancel every running job without a settle, because its lease is no longer renewed."""
        self.lose([(run.job.id, run.job.token) for run in self.running.values()])

    def _supersede(self, run: Running) -> None:
        """Cancel a run whose lease was lost unnoticed, because this worker claimed its job again."""
        run.cause = run.job.ending = "lease"
        self._end(run, None)
        if run.task is not None:
            run.task.cancel()

    async def drain(self, grace: float) -> None:
        """Let handlers finish within `grace` seconds, then cancel the rest and give their jobs back."""
        if await self.wait_ended(grace):
            return
        for run in list(self.running.values()):
            self.strike(run, "shutdown")
        await self.wait_ended(2 * self._patience + 0.1)  # both cancellations, and then it gives up

    async def wait_ended(self, seconds: float | None = None) -> bool:
        """Wait until nothing runs; return False if that takes longer than `seconds`."""
        if not self.running:
            return True
        self._ended.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._ended.wait()
        except TimeoutError:
            return False
        return True


def _decide(run: Running, error: BaseException) -> Settle:
    """Return what becomes of a job whose handler raised. An error that cannot be asked fails it."""
    try:
        return run.consumer.decide(run.job, original(error))
    except BaseException as odd:  # noqa: BLE001  (nobody else would end the job)
        _log.error("an error cannot be asked, so its job fails", **run.told(), error=type(odd).__qualname__)
        return fail(describe_odd(error, odd, attempts=run.job.attempts + 1))
