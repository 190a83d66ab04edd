"""Steps of a durable function: a task that runs once it is its turn, with its retries, until its end is
recorded.

    begun -> active -> step | failed | cut
                    -> try (recorded) -> pauses, here or in the server -> active

What must always hold: an attempt starts only after all that came before it is recorded, its failed attempts
among it: so there are never more of these than the rule allows, wherever a worker dies. What the code gets is
what the record says, a value or an error, also in the run in which it happened.

A failed attempt is recorded while its pause goes on, however short that is. `Later` is no failed attempt, and
is recorded only if the flow sleeps.

Crash windows: `dies-in-step` (it runs again with the same step key), `dies-before-record` (the same),
`dies-in-pause` (the next attempt has the next number).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import msgspec

from eventbus import DefinitionError, Later, Retry
from eventbus.lowlevel import Codec, describe, get_logger, log_failure, note_around
from workflows.definition.task import Task, call_task
from workflows.execution.attempt import AttemptRun, Ended
from workflows.execution.step_attempt import StepAttempt
from workflows.execution.step_runner import judge
from workflows.functions.code_run import CodeRun, Scope, TimedCall
from workflows.functions.history import Record
from workflows.records.entries import Entry

if TYPE_CHECKING:
    from workflows.execution.surroundings import PoolSlots

R = TypeVar("R")

HELD_SECONDS = 1.0
"""A flow stays in its worker for an attempt that is due within so many seconds; for a later one it sleeps."""

_log = get_logger("workflows.step")


class StepCall(TimedCall[R]):
    """One call of a task."""

    __slots__ = (
        "_args",
        "_attempt",
        "_attempts",
        "_is_cut",
        "_kwargs",
        "_own",
        "_pause",
        "_started_ms",
        "has_saved",
        "is_doubtful",
        "task",
    )

    family: ClassVar[str] = "step"
    begins_attempts: ClassVar[bool] = True

    def __init__(
        self,
        run: CodeRun,
        scope: Scope,
        task: Task[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        position: str | None = None,
    ) -> None:
        super().__init__(run, scope, task.name, position)
        self.task: Task[..., Any] = task
        self._args = args
        self._kwargs = kwargs or {}
        self._attempts = 0
        self._attempt: AttemptRun | None = None
        self._own: StepAttempt | None = None
        self._pause: asyncio.Future[Any] | None = None
        self._is_cut = False
        self._started_ms = 0
        self.is_doubtful: bool = False
        """Whether an attempt may have taken effect whose end nobody recorded, because its worker died."""
        self.has_saved: bool = False
        """Whether a value may be there that an attempt saved for the next one."""

    def start(self, begun: Record | None) -> None:
        """Run when it is due: at once, or after the pause that is recorded."""
        self.is_doubtful = self.run.history.is_doubtful(self.position)
        self.has_saved = self.is_doubtful or begun is not None
        if begun is not None:
            self._attempts = begun.entry.attempts
            self.due_ms: int | None = begun.entry.due_ms
            self.run.pending[self.position] = self
        else:
            self.run.fresh.append(self)

    def close(self) -> None:
        """Cancel what runs; its end is recorded all the same, so that it can be undone."""
        super().close()
        self.cut()

    def cut(self) -> None:
        """Cancel what runs."""
        self._is_cut = True
        if self._attempt is not None:
            self._attempt.cut()
        if self._pause is not None:
            self._pause.cancel()

    def read(self, record: Record) -> tuple[Any, BaseException | None]:
        """Return the result, or the error that the record revives."""
        entry = record.entry
        if entry.kind == "failed":
            return None, self.run.revive(entry.failure, self.label)
        note_around(self.label, entry.result, self.codec.type)
        return self.codec.decode(memoryview(entry.result)), None

    async def work(self) -> Entry:
        """Make attempts until one has ended with what is to be recorded; return the entry of that."""
        while not self._is_cut:
            self._started_ms = self.run.now_ms
            ended = await self._try()
            if ended.is_cut:
                return self._entry("cut", is_lost=ended.is_lost or self.is_doubtful, undo=self.undo)
            if ended.error is None:
                result, traceparent = ended.value
                return self._entry(
                    "step", result=msgspec.Raw(result), traceparent=traceparent, undo=self.undo
                )
            delay, failure = self._follow(ended.error)
            if delay is None:
                return self._entry("failed", **failure)
            if failure or delay > HELD_SECONDS or self.run.is_leaving:
                due = self.run.now_ms + round(delay * 1000)
                return self._entry("try", due_ms=due, is_lost=self.is_doubtful, undo=self.undo, **failure)
            await self._wait(delay)
        return self._entry("cut", is_lost=self.is_doubtful, undo=self.undo)

    def _follow(self, error: BaseException) -> tuple[float | None, dict[str, msgspec.Raw]]:
        """Decide what follows from the error of an attempt: the seconds until the next one, and its record in
        an entry.
        """
        if isinstance(error, Later):
            return error.delay, {}
        self._attempts += 1
        delay, error = self.judge(self._attempts, error)
        failure = self.describe(error)
        self._tell(failure, delay, is_answer=self.is_answer(error))
        return delay, {"error": msgspec.Raw(failure.encode())}

    def in_doubt(self) -> Entry:
        """Return the entry that counts if the worker dies before the end of the step is recorded."""
        return self._entry("cut", is_lost=True, undo=self.undo)

    @property
    def codec(self) -> Codec:
        """The codec of the result."""
        return self.task.codec(self.run.max_bytes)

    def judge(self, attempts: int, error: BaseException) -> tuple[float | None, BaseException]:
        """Return the seconds until the next attempt (None: it was the last one), and the error that
        counts.
        """
        return judge(self._rule, attempts, error, self.run.durable)

    def describe(self, error: BaseException) -> str:
        """Return the record of the error of an attempt."""
        return describe(error, attempts=self._attempts, declared=self.run.durable.errors, event=self._owner)

    def is_answer(self, error: BaseException) -> bool:
        """Tell whether an error is a declared answer, of which people need no alarm."""
        return self.run.durable.is_answer(error)

    @property
    def _rule(self) -> Retry:
        return self.task.retry or self.run.durable.retry

    @property
    def undo(self) -> str:
        """The key of the task, if that has a rollback."""
        return "" if self.task.undo is None else self.task.key

    @property
    def _owner(self) -> str:
        return f"{self.run.durable.name}.{self.label}"

    def _entry(self, kind: str, **facts: Any) -> Entry:
        now = self.run.now_ms
        return Entry(
            kind=kind,
            place=self.position,
            name=self.name,
            attempts=self._attempts,
            started_ms=self._started_ms or now,
            took_ms=max(0, now - self._started_ms) if self._started_ms else 0,
            **facts,
        )

    async def _try(self) -> Ended:
        pools = self.run.around.pools
        try:
            slots = None if pools is None else pools.places(self.task)
        except DefinitionError as error:
            return Ended(error=error)
        if slots is None:
            return await self._make_attempt()
        if not await self._take(slots):
            return Ended(is_cut=True)
        if self.run.is_leaving:  # the place came too late: another worker makes the attempt
            slots.leave()
            return Ended(error=Later(0))
        try:
            return await self._make_attempt()
        finally:
            slots.leave()

    async def _take(self, slots: PoolSlots) -> bool:
        """Wait for a place; return False, without one, if a cut comes first."""
        if slots.enter():
            return True
        self._pause = line = asyncio.ensure_future(slots.wait())
        try:
            await asyncio.wait({line})
        except asyncio.CancelledError:
            if not line.cancel() and not line.cancelled():
                slots.leave()  # the place and the cancellation came in the same moment
            raise
        finally:
            self._pause = None
        if line.cancelled():
            return False
        if self._is_cut:
            slots.leave()
        return not self._is_cut

    async def _make_attempt(self) -> Ended:
        self._started_ms = self.run.now_ms
        where = f"step {self.label!r}"
        self._attempt = AttemptRun(self._call, what=where, timeout=self.task.timeout)
        code = self.run.around.own
        self._own = own = StepAttempt(code.host, code.job, self.saved_as, where=where, run=self._attempt)
        try:
            return await self._attempt.run()
        finally:
            own.has_ended = True
            self.has_saved = self.has_saved or own.has_saved
            self._attempt = self._own = None

    @property
    def saved_as(self) -> str:
        """The name under which its attempts save; that of no other call."""
        return f"{self.run.around.run}/{self.position}"

    async def _call(self) -> tuple[bytes, str]:
        """Run the function once; return its result as JSON, and the traceparent of the attempt."""
        around, own = self.run.around, self._own
        assert own is not None  # noqa: S101  (of the attempt that calls this)
        key = self.run.step_key(self.position)
        with around.step(self.label, self._attempts + 1, key, own) as traceparent:
            value = await around.through(
                "task", self.label, self._attempts + 1, traceparent, self._args, self.perform
            )
            return self.codec.encode(value), traceparent

    async def perform(self) -> Any:
        """Call the function."""
        around, pools = self.run.around, self.run.around.pools
        if pools is not None and self.task.pool not in (None, "thread"):
            assert self._own is not None  # noqa: S101  (of the attempt that calls this)
            return await pools.call(
                self.task,
                self._args,
                self._kwargs,
                key=self.run.step_key(self.position),
                attempt=self._attempts + 1,
                facts={**around.facts, "step": self.label, "attempt": self._attempts + 1},
                own=self._own,
            )
        return await call_task(self.task, self._args, self._kwargs, around.call_sync)

    async def _wait(self, delay: float) -> None:
        """Wait for the next attempt here; a cut ends the wait."""
        self._pause = asyncio.ensure_future(self.run.around.sleep(delay))
        try:
            await asyncio.wait({self._pause})
        finally:
            pause, self._pause = self._pause, None
            pause.cancel()
        if not pause.cancelled():
            pause.result()  # raises the error of a `sleep` that a user supplied

    def _tell(self, failure: str, delay: float | None, *, is_answer: bool) -> None:
        log_failure(
            _log,
            "step failed" if delay is None else "attempt failed, trying again",
            failure,
            {
                **self.run.around.facts,
                "step": self.label,
                "attempt": self._attempts,
                "max_attempts": self._rule.attempts,
            },
            retry_in=delay,
            is_answer=is_answer,
        )
