"""Emissions of a durable function: a step that emits an event, with or without waiting for its outcome.

What must always hold: the idempotency key of an emission follows from its position, so that it is sent once,
however often the step runs; an emission that the code does not await is sent, and recorded, before the next
call of the same code. An event, a payload or an option that cannot be sent is refused at the call, because
the code may never await it.

An option that says what becomes of other jobs of the key (`throttle`, `debounce`, `keep_last`, `supersede`)
needs the key that those have: that of the event, or a given one. So it takes the place of the position's, and
such an emission is sent at least once: one whose worker died before the record is sent again, and meets the
jobs of its key once more.
"""

from __future__ import annotations

import functools
from collections.abc import Generator, Mapping
from typing import Any, TypeVar

import msgspec

from eventbus import (
    DefinitionError,
    EmissionExpired,
    EmitError,
    Event,
    HandlerError,
    JobCancelled,
    ResponseTimeout,
    StalledError,
    StoreError,
    UsageError,
)
from eventbus.lowlevel import (
    Codec,
    Failure,
    check_emission,
    describe,
    emit_options,
    hide_in_record,
    option_of_key,
    read_failure,
    revive,
    shown,
    with_places_of,
)
from workflows.definition.task import AsyncTask
from workflows.functions.calls.step_call import StepCall
from workflows.functions.code_run import CodeRun, Scope
from workflows.functions.history import Record
from workflows.functions.origin import Origin, set_origin

R = TypeVar("R")


class EmitCall(StepCall[R]):
    """One emission. Awaited, its result is the outcome of the event; otherwise nobody waits for that."""

    __slots__ = ("_event", "_options", "_payload", "is_sent_only")

    def __init__(
        self, run: CodeRun, scope: Scope, event: Event[Any, R] | str, payload: Any, options: Mapping[str, Any]
    ) -> None:
        """Take a position. Raises DefinitionError and PayloadError for what cannot be sent, also in each
        replay.
        """
        super().__init__(run, scope, _TASK)
        self._event = event
        self._payload = payload
        self._options = options
        self.is_sent_only: bool = False
        self.name: str = event.name if isinstance(event, Event) else event
        if self.recall() is None:  # what is recorded was sent
            self._check()
        scope.emissions.append(self)

    def _check(self) -> None:
        if not isinstance(self._event, (str, Event)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DefinitionError(
                f"expected an Event or the name of one in ctx.emit, got: {shown(self._event)}"
            )
        check_emission(self._event, self._payload, emit_options(self._options))
        _payload_codec(self._event, self.run.max_bytes).encode(self._payload)

    def __await__(self) -> Generator[Any, Any, R]:
        """Wait for the outcome. Raises UsageError for one that was sent already, because then nobody waits
        for it.
        """
        if self.is_sent_only:
            raise UsageError(
                f"the emission of {self.name!r} at position {self.position} was sent without waiting for its "
                "outcome, because the code made another call before it awaited this one; await it where you "
                "call it, or put both into ctx.gather"
            )
        return super().__await__()

    def take(self) -> None:
        """Be no longer one that nobody awaits."""
        if self in self.scope.emissions:
            self.scope.emissions.remove(self)

    def send(self) -> None:
        """Begin without waiting for the outcome, because the code has not awaited it."""
        self.is_sent_only = True
        self.begin()

    async def perform(self) -> Any:
        """Emit, and wait for the outcome if the code does."""
        options = dict(self._options)
        if not option_of_key(emit_options(options)):
            options = {"idempotency_key": self.run.step_key(self.position), "reuse_failure": True, **options}
        if self.is_sent_only and "reply" not in options:
            options["reply"] = False
        emission = self.run.around.tools.emits.emit(self._event, self._payload, **options)
        await emission.enqueued()
        return await emission if self._has_outcome else None

    def read(self, record: Record) -> tuple[Any, BaseException | None]:
        """Return the outcome of the event, or its error, which is that of an emission."""
        entry = record.entry
        if entry.kind != "failed":
            return super().read(record)
        error = self._revive(entry.failure)
        set_origin(error, Origin(self.label, entry.failure))
        return None, error

    def _revive(self, text: str) -> Exception:
        failure, job_id = read_failure(text), self.run.flow_id
        if failure.type == "ResponseTimeout" and failure.args:
            waited, job_id, state = failure.args
            return ResponseTimeout(event=self.name, job_id=job_id, timeout=waited, state=state)
        state = "cancelled" if failure.type == "JobCancelled" else "failed"
        return revive(state, text, event=self.name, job_id=job_id, declared=self._errors)

    def describe(self, error: BaseException) -> str:
        """Return the record of an error: that of the event's job, so that the code gets what an
        emitter gets.
        """
        failure = _failure_of(error)
        if failure is None:
            return describe(error, attempts=self._attempts, declared=self._errors, event=self.name)
        return hide_in_record(with_places_of(msgspec.json.encode(failure).decode(), error))

    def is_answer(self, error: BaseException) -> bool:
        """Tell whether an error is one that the event or the function declares."""
        return isinstance(error, self._errors) or super().is_answer(error)

    @property
    def _errors(self) -> tuple[type[Exception], ...]:
        own = () if isinstance(self._event, str) else self._event.errors
        return (*own, *self.run.durable.errors)

    @property
    def codec(self) -> Codec:
        """The codec of the outcome."""
        return _codec(self._event if self._has_outcome else None, self.run.max_bytes)

    @property
    def _has_outcome(self) -> bool:
        """Whether awaiting it gives the outcome of the event, and not only that its job is in the server."""
        if self.is_sent_only:
            return False
        reply = self._options.get("reply")
        if isinstance(self._event, str):  # the definition, which the provider has, is not known here
            return reply is not False
        return self._event.reply if reply is None else reply and self._event.default

    def judge(self, attempts: int, error: BaseException) -> tuple[float | None, BaseException]:
        """Emit again only if it is not known to be in the server: the event's own rule has tried the rest."""
        if isinstance(error, (EmitError, StoreError)):
            return super().judge(attempts, error)
        return None, error


@functools.lru_cache(maxsize=1024)
def _payload_codec(event: Event[Any, Any] | str, max_bytes: int) -> Codec:
    name, kind = (event, Any) if isinstance(event, str) else (event.name, event.payload)
    return Codec(kind, role="payload", owner=name, max_bytes=max_bytes)


@functools.lru_cache(maxsize=1024)
def _codec(event: Event[Any, Any] | str | None, max_bytes: int) -> Codec:
    if event is None:
        return Codec(None, role="result", owner="emit", max_bytes=max_bytes)
    if isinstance(event, str):
        return Codec(Any, role="result", owner=event, max_bytes=max_bytes)
    return Codec(event.result, role="result", owner=event.name, max_bytes=max_bytes)


def _failure_of(error: BaseException) -> Failure | None:
    """Return the failure that the error of a job stands for; None for any other error."""
    if isinstance(error, HandlerError):
        return Failure(
            type=error.type_name,
            message=error.remote_message,
            attempts=error.attempts,
            traceback=error.remote_traceback,
            causes=list(error.causes),
            event=error.event,
        )
    if isinstance(error, ResponseTimeout):
        return Failure(
            "ResponseTimeout", str(error), event=error.event, args=[error.timeout, error.job_id, error.state]
        )
    if isinstance(error, JobCancelled):
        return Failure("JobCancelled", error.reason, event=error.event)
    if isinstance(error, EmissionExpired):
        return Failure("EmissionExpired", str(error), expired=True, event=error.event)
    if isinstance(error, StalledError):
        return Failure("StalledError", str(error), stalls=error.stalls, event=error.event)
    return None


async def _emit() -> Any:
    """Stand for the function of an emission, which has none."""
    raise NotImplementedError


_TASK: AsyncTask[[], Any] = AsyncTask(_emit, name="emit")
