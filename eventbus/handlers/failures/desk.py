"""The desk for failures of one worker: it calls the hooks of a program for each job that ended as failed.

    heard of -> looked up -> described -> each hook called, at most 16 at a time
                          -> dropped: it was cancelled just before, or ended by another worker

The engine says what this worker has ended (`engine.reporting.failure_listener`). The desk calls the hooks
beside the jobs, in tasks and threads of its own.

What must always hold:
- a hook is called for a job once in this process, and only after the server has recorded that the job failed;
- whatever a hook does, no job waits for it: one that raises is logged, one that hangs is cancelled
  after 30 s;
- what waits here is bounded. Above 10,000 failures further ones are dropped, and the log says how many;
- a stop waits for the hooks within the grace, and 2 s at least; what is left is cancelled, and the
  log says how many.

Each failure is looked up once, because the answer to a settle says nothing of a cancel that came first, and
because a settle that was sent twice is refused though the first one was recorded. One call looks up all that
wait. If the server does not answer within 2 s, the hooks are called with what the worker knows.

Crash windows: `dies-before-failure-hook`: the process dies after the server has recorded the end, and before
the hook ran or while it runs: it is not called again. `rescue-not-answered`: the answer of a rescue was lost,
and the repeated call finds nothing: nobody knows which job it ended. In both the record of the job says that
it failed.

Weighed: a hook that runs at least once needs a job or a mark for each failed job in the server, which costs
those who use no hooks. Who needs that emits an event where the error is caught, or reads the list of failed
jobs.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from eventbus.engine.consumer import Consumer, TellingConsumer
from eventbus.engine.job import Job
from eventbus.errors import StoreError
from eventbus.handlers.failures.descriptions import describe_job
from eventbus.handlers.failures.hook import FailureHook
from eventbus.model import clock
from eventbus.model.containment import original
from eventbus.runtime.thread_pool import ThreadPool
from eventbus.store.readable import number_in
from eventbus.store.store import Store
from eventbus.telemetry.failure import error_line, message_of, type_name
from eventbus.telemetry.job_failure import JobFailure
from eventbus.telemetry.log_context import set_facts
from eventbus.telemetry.logging import get_logger
from eventbus.telemetry.propagation import Ambient, enter
from eventbus.telemetry.spans import begin_apart

_log = get_logger("eventbus.worker")

_MOST = 10_000  # failures that wait for their hooks
_AT_ONCE = 16  # calls of hooks
_THREADS = _AT_ONCE  # for hooks that are not async: none waits for a thread while its limit runs
_LOOKED_UP = 64  # failures in one call
_LOOK_WITHIN = 2.0  # seconds
_HOOK_WITHIN = 30.0  # seconds
_LAST = 2.0
"""Seconds that the hooks have at a stop at least, also when the drain used up the whole grace."""
_PATIENCE = 1.0
"""Seconds that a cancelled hook has to end."""


class _Heard(NamedTuple):
    """A job that the desk heard of. `job` is None if only its record tells of it."""

    job_id: str
    job: Job | None = None
    text: str = ""
    is_doubtful: bool = False


class FailureDesk:
    """Calls the hooks of one worker. Implements `engine.reporting.failure_listener.FailureListener`."""

    def __init__(
        self,
        hooks: Sequence[FailureHook],
        store: Store,
        consumers: Mapping[str, Consumer],
        worker: str,
        *,
        grace: float,
    ) -> None:
        """`consumers` say what is told of their jobs. `worker` is the id that stands in records, `grace` is
        in seconds.
        """
        self._hooks = hooks
        self._store = store
        self._consumers = consumers
        self._worker = worker
        self._grace = grace
        self._waiting: deque[_Heard] = deque()
        self._dropped = 0
        self._in_hand = 0
        """How many failures are looked up, and not told yet."""
        self._teller: asyncio.Task[None] | None = None
        self._calls: set[asyncio.Task[None]] = set()
        self._places = asyncio.Semaphore(_AT_ONCE)
        self._threads: ThreadPool | None = None
        self._end: float | None = None
        """When the grace of a stop is over, in monotonic seconds; None before a stop."""
        self._at_once = asyncio.Event()

    def note(self, job: Job, text: str, *, is_doubtful: bool = False) -> None:
        """Hear of a job of this worker that failed with the error `text`; if it is doubtful, its record is to
        say so.
        """
        self._hear(_Heard(job.id, job, text, is_doubtful))

    def note_unseen(self, job_id: str) -> None:
        """Hear of a job of which only the id is known: its lease ran out too often, or its record cannot be
        read.
        """
        self._hear(_Heard(job_id))

    def _hear(self, heard: _Heard) -> None:
        if len(self._waiting) >= _MOST:
            self._dropped += 1
            return
        self._waiting.append(heard)
        if self._teller is None:
            self._teller = asyncio.get_running_loop().create_task(self._tell_all(), name="failure hooks")

    def begin_stop(self, *, at_once: bool = False) -> None:
        """Note that the worker stops: the grace counts from the first call on. `at_once` ends the wait for
        hooks.
        """
        if self._end is None:
            self._end = clock.monotonic() + self._grace
        if at_once:
            self._at_once.set()

    async def finish(self) -> None:
        """Wait for the hooks until the grace is over, and 2 s at least; cancel what is left, and log how much
        that is.
        """
        try:
            if self._teller is not None or self._calls:
                await self._finish()
        finally:
            if self._threads is not None:
                self._threads.close()

    async def _finish(self) -> None:
        left = self._grace if self._end is None else self._end - clock.monotonic()
        ending = asyncio.create_task(self._wait_told())
        at_once = asyncio.create_task(self._at_once.wait())
        try:
            await asyncio.wait(
                [ending, at_once], timeout=max(left, _LAST), return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            tasks = [each for each in (ending, at_once, self._teller, *self._calls) if each is not None]
            untold = len(self._waiting) + self._in_hand + len(self._calls) + self._dropped
            for task in tasks:
                task.cancel()
            if untold:
                _log.error("failure hooks did not finish, cancelled", worker=self._worker, count=untold)
        await asyncio.wait(tasks, timeout=_PATIENCE)

    async def _wait_told(self) -> None:
        while self._teller is not None or self._calls:
            await asyncio.wait([each for each in (self._teller, *self._calls) if each is not None])

    async def _tell_all(self) -> None:
        """Tell of all that waits, the oldest first."""
        begin_apart()
        try:
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(_LOOKED_UP, len(self._waiting)))]
                self._in_hand = len(batch)
                if self._dropped:
                    _log.error("failures not told, their hooks are too slow", count=self._dropped)
                    self._dropped = 0
                found = await self._look_up(batch)
                for place, (job, text) in enumerate(found):
                    self._in_hand = len(found) - place
                    await self._call_hooks(self._describe(job, text))
                self._in_hand = 0
        finally:
            self._teller = None

    async def _look_up(self, batch: Sequence[_Heard]) -> list[tuple[Job, str]]:
        """Return the jobs that are to be told, each with its error."""
        deadline = clock.monotonic() + _LOOK_WITHIN
        states = await self._read_states(
            [each.job_id for each in batch if each.job is not None and not each.is_doubtful], deadline
        )
        found: list[tuple[Job, str]] = []
        for each in batch:
            if each.job is not None and not each.is_doubtful:
                if self._has_failed(each.job, states.get(each.job_id, "unknown")):
                    found.append((each.job, each.text))
            elif told := await self._look_at(each, deadline):
                found.append(told)
        return found

    async def _read_states(self, jobs: Sequence[str], deadline: float) -> dict[str, str]:
        """Return the states of these jobs; empty if the server does not say."""
        if not jobs:
            return {}
        try:
            looks = await self._store.look("", jobs, join=False, deadline=deadline)
        except StoreError:
            return {}
        return {look.job: look.state for look in looks}

    def _has_failed(self, job: Job, state: str) -> bool:
        """Tell whether a job that its worker said to have failed ended so. `state` is what its record says
        now.

        It is `cancelled` if somebody had asked for that before. It is open if somebody runs it again by hand
        since, or if it is a root that is to undo its tree first: only its consumer knows which.
        """
        if isinstance(self._consumers.get(job.queue), TellingConsumer):
            return state != "cancelled"
        return state in ("failed", "unknown")

    async def _look_at(self, heard: _Heard, deadline: float) -> tuple[Job, str] | None:
        """Read the record of an unseen or a doubtful job; return None if it is not to be told."""
        try:
            look = await self._store.inspection.job(heard.job_id, deadline=deadline)
        except StoreError:
            # Of a doubtful job nobody knows whether another worker runs it again; an unseen one has failed.
            unknown = '{"type":"unknown","message":"its record could not be read in time"}'
            return None if heard.is_doubtful else (_job_of(heard.job_id, {}, ""), unknown)
        fields = look.fields
        if heard.is_doubtful:
            is_ours = fields.get("state") == "failed" and fields.get("worker") == self._worker
            return (heard.job, heard.text) if is_ours and heard.job is not None else None
        queue = fields.get("queue", "")
        if queue not in self._consumers and "root" in fields and "tree" not in fields:
            return None  # its root is told, when it ends
        return _job_of(heard.job_id, fields, look.body), look.text

    def _describe(self, job: Job, text: str) -> JobFailure | None:
        consumer = self._consumers.get(job.queue)
        try:
            says = isinstance(consumer, TellingConsumer)
            failure = consumer.failure(job, text) if says else describe_job(job, text)
        except Exception as error:  # noqa: BLE001  (of a consumer of another package, which must not raise)
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"its consumer cannot tell of the failed job {job.id}", "exception": error}
            )
            failure = describe_job(job, text)
        return None if failure is None else msgspec.structs.replace(failure, worker=self._worker)

    async def _call_hooks(self, failure: JobFailure | None) -> None:
        for hook in self._hooks:
            if failure is not None and hook.wants(failure):
                await self._places.acquire()
                call = asyncio.create_task(self._call(hook, failure), name=f"failure hook {hook.name}")
                self._calls.add(call)
                call.add_done_callback(self._on_called)

    def _on_called(self, call: asyncio.Task[None]) -> None:
        self._calls.discard(call)
        self._places.release()

    async def _call(self, hook: FailureHook, failure: JobFailure) -> None:
        """Call a hook. What it emits belongs to the chain of the failed job, and its log events have the
        facts of that.
        """
        enter(Ambient(failure.meta or None, failure.correlation_id, failure.job_id))
        facts = facts_of(failure)
        set_facts(facts)
        limit = asyncio.timeout(_HOOK_WITHIN)
        try:
            async with limit:
                await self._run(hook, failure)
        except asyncio.CancelledError:
            raise
        except BaseException as raised:  # noqa: BLE001  (whatever a hook raises)
            error = original(raised)
            late = f"it ran longer than {_HOOK_WITHIN:g} s, and was cancelled"
            line = error_line(type_name(type(error)), late if limit.expired() else message_of(error))
            _log.error("failure hook raised", **facts, hook=hook.name, error=line, exc_info=error)

    async def _run(self, hook: FailureHook, failure: JobFailure) -> None:
        if hook.is_async:
            await hook(failure)
            return
        if self._threads is None:
            self._threads = ThreadPool(_THREADS)
        returned = await self._threads.run(partial(hook, failure))
        if inspect.isawaitable(returned):  # a plain function around an async one
            await returned


def facts_of(failure: JobFailure) -> dict[str, Any]:
    """Return the fields of log events about a hook: names and ids, no payload."""
    facts = {"job_id": failure.job_id, "correlation_id": failure.correlation_id}
    if failure.flow_id:
        return {**facts, "workflow": failure.name, "flow_id": failure.flow_id}
    named = {"event_name": failure.name, **facts}
    return named if failure.group == "default" else {**named, "group": failure.group}


def _job_of(job_id: str, fields: Mapping[str, str], body: str) -> Job:
    """Return a job of another worker from its record."""
    stop = fields.get("stop", "") or ("failed" if "tree" in fields else "")
    attempts, stalls = (number_in(fields, name) for name in ("attempts", "stalls"))
    return Job(job_id, "", fields.get("queue", ""), body, attempts, stalls, 0, 0, 0, stop)
