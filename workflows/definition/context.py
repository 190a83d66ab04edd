"""The context of a workflow's functions: the facts of their flow, earlier results, and emitting.

Steps, conditions, rollbacks and hooks all get the same class. Not here: reading results. They are loaded
before the function is called, as far as the bounds allow; the others are loaded on request.

What must always hold: each context decodes a result once, with its type, from the record of its step. So
every reader has its own copy, and parallel steps see the same value.
"""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Generic, TypeVar, Unpack, overload

from eventbus import DefinitionError, EmitKeywords, Event, UsageError
from eventbus.lowlevel import (
    Attempt,
    HasLifespans,
    LifespanValues,
    Logger,
    Stopping,
    get_logger,
    note_around,
    outside_job,
    progress_text,
    read_saved,
    running_loop,
    saved_text,
    trace_facts,
    trace_id_of,
)
from workflows.definition.codecs import Codecs
from workflows.definition.flow_tools import (
    Done,
    FlowData,
    FlowFacts,
    FlowTools,
    RemoteSteps,
    StepEmission,
    StepLoad,
    ThreadLoad,
)
from workflows.definition.middleware import AttemptContext, AttemptKind, FlowMiddleware
from workflows.definition.outline import StepOutline
from workflows.errors import ResultNotLoaded, StepFailed, StepSkipped
from workflows.records.records import StepRecord, revive_error

I = TypeVar("I")  # noqa: E741  (input, beside O and R)
P = TypeVar("P")
R = TypeVar("R")
S = TypeVar("S")
D = TypeVar("D")

_UNSET: Any = object()


class StepContext(LifespanValues, Generic[I]):
    """The first argument of every function of a workflow. Do not change its attributes.

    `input` is the input of the flow. `workflow` and `step` are names; in a rollback `step` is the step that
    is undone, and in the hooks `completed` and `failed` it is empty. `attempt` counts from 1. `meta` and
    `correlation_id` are the same in every function of a flow. `job_id` is the job that this function runs in;
    `traceparent` and `tracestate` are the W3C trace context of its attempt, empty if there is none. `worker`
    is the id of the worker that runs the function, and `provider` the name of its provider; both are empty in
    a flow that runs inline.
    """

    __slots__ = (
        "_codecs",
        "_data",
        "_log",
        "_own",
        "_reach",
        "_records",
        "_tools",
        "_unloaded",
        "_values",
        "attempt",
        "correlation_id",
        "flow_id",
        "input",
        "job_id",
        "meta",
        "provider",
        "run",
        "step",
        "traceparent",
        "tracestate",
        "worker",
        "workflow",
    )

    def __init__(
        self,
        tools: FlowTools,
        codecs: Codecs,
        facts: FlowFacts,
        *,
        input: I,  # noqa: A002  (as the workflow calls it)
        step: str,
        job_id: str,
        attempt: int,
        traceparent: str,
        records: Mapping[str, StepRecord],
        reach: Collection[str],
        unloaded: Collection[str] = (),
        own: Attempt,
    ) -> None:
        """Use the loaded `records`; `reach` names the steps whose results may be asked for, nearest first.

        `unloaded` are the steps of `reach` whose records were left out because of their size or number. A
        step of `reach` that is neither in `records` nor in `unloaded` did not complete. `own` is what the
        attempt can do itself; that of a rollback or a hook saves nothing.
        """
        self._codecs = codecs
        self.workflow: str = codecs.workflow.name
        self.input: I = input
        self.flow_id: str = facts.flow_id
        self.run: int = facts.run
        self.meta: Mapping[str, Any] = facts.meta
        self.correlation_id: str = facts.correlation_id
        self.tracestate: str = facts.tracestate
        self.worker: str = facts.worker
        self.provider: str = facts.provider
        self.step: str = step
        self.job_id: str = job_id
        self.attempt: int = attempt
        self.traceparent: str = traceparent
        self._data = facts.data
        self._tools = tools
        self._records = records
        self._reach = reach
        self._unloaded = unloaded
        self._own = own
        self._values: dict[str, Any] = {}
        self._log: Logger | None = None

    @property
    def log(self) -> Logger:
        """A structlog logger bound to flow, workflow, step, job, attempt, correlation, worker, provider,
        trace and span.
        """
        if self._log is None:
            self._log = get_logger("workflows.step").bind(**log_facts(self))
        return self._log

    @property
    def data(self) -> Any:
        """What the workflow's `data` function returned in this activation; its functions share it.

        Raises UsageError if the workflow has none, inside that function, and in a step with `pool="process"`.
        """
        if not self._data.has_value:
            raise UsageError(
                f"workflow {self.workflow!r} has no data: decorate a function with @workflow.data"
            )
        return self._data.value

    @overload
    def result(self, step: StepOutline[R]) -> R: ...
    @overload
    def result(self, step: StepOutline[R], default: D) -> R | D: ...
    @overload
    def result(self, step: Callable[[StepContext[Any]], Awaitable[R]]) -> R: ...
    @overload
    def result(self, step: Callable[[StepContext[Any]], Awaitable[R]], default: D) -> R | D: ...
    @overload
    def result(self, step: Any, default: Any = ...) -> Any: ...
    def result(self, step: Any, default: Any = _UNSET) -> Any:
        """Return the result of an earlier step, which is given as itself, its function, or its name.

        `default` is returned for a step that was skipped, for one whose failure is ignored (`on_failure`),
        and in a hook or rollback also for a step that did not complete; without `default` that raises
        StepSkipped, or StepFailed for an ignored failure. Raises ResultNotLoaded for a result that was not
        loaded beforehand (see `load`), and DefinitionError for a step that does not run before this one.
        """
        name = self._find(step)
        if name in self._unloaded and name not in self._records:
            raise ResultNotLoaded(step=name, workflow=self.workflow)
        return self._read(name, self._records.get(name), default)

    @overload
    def load(self, step: StepOutline[R]) -> StepLoad[R]: ...
    @overload
    def load(self, step: StepOutline[R], default: D) -> StepLoad[R | D]: ...
    @overload
    def load(self, step: Callable[[StepContext[Any]], Awaitable[R]]) -> StepLoad[R]: ...
    @overload
    def load(self, step: Callable[[StepContext[Any]], Awaitable[R]], default: D) -> StepLoad[R | D]: ...
    @overload
    def load(self, step: Any, default: Any = ...) -> StepLoad[Any]: ...
    def load(self, step: Any, default: Any = _UNSET) -> Any:
        """Return the result of an earlier step as `result` does, but read it from the server if necessary.

        Await it in an async function. In a plain function, which runs in a thread, `.result()` waits.
        """
        work = self._load(step, default)
        return work if running_loop() is not None else ThreadLoad(self._tools.wait, work)

    async def _load(self, step: Any, default: Any) -> Any:
        name = self._find(step)
        record = self._records.get(name)
        if record is None and name in self._unloaded:
            record = await self._tools.load_record(name)
        return self._read(name, record, default)

    def keep_line(self, line: str) -> None:
        """Keep a log line with the job that this function runs in, as `EventContext.keep_line` does; return
        at once.

        A local step runs in the job of its flow, so the line begins with the name of the step. A rollback
        runs in the job of the flow that is undone. Inline the call does nothing.
        """
        self._own.keep_line(f"{self.step}: {line}" if self.step else line)

    def progress(self, value: Any) -> Awaitable[None]:
        """Record how far this step is, any JSON value of at most 16 KiB; a number from 0 to 100 is a
        percentage.

        The report of the flow shows it while the attempt runs. A newer value replaces an older one. Await the
        call in an async function; in a plain function, which runs in a thread, it returns when the value is
        recorded. After the end of the attempt it does nothing. Raises PayloadError for another value,
        UsageError in a rollback or a hook, and StoreRefused if the server refuses the call.
        """
        text = progress_text(value)
        if not self._own.saves:
            raise UsageError(
                f"ctx.progress is for steps: the reports of workflow {self.workflow!r} show no progress of "
                "rollbacks and hooks"
            )
        return self._do(self._own.tell(text))

    @property
    def stopping(self) -> Stopping | None:
        """Why this attempt should end early: `"stop"`, `"cancel"`, `"timeout"` or `"lease lost"`; None while
        it should go on.

        `"stop"` is the stop of the worker, after which the attempt still has the grace; `"cancel"` says that
        its flow was cancelled, or timed out; `"timeout"` is that of this attempt. All but the first come with
        a cancellation, of which a thread hears only here. Always None in a rollback and a hook.
        """
        return self._own.stopping

    def save(self, value: Any) -> Awaitable[None]:
        """Keep a JSON value for the next attempt of this step, in place of what was saved before.

        It stays over retries, `Later`, stops and crashes of the worker, and is gone when the step has ended.
        No other step, and no other item of an each step, sees it. Await the call in an async function; in a
        plain function it returns when the value is recorded. Raises PayloadError for a value that would not
        come back as it is, or over `max_result`; StoreRefused if the lease is lost or the attempt has ended;
        ProviderStopped; and UsageError in a rollback or a hook.
        """
        own = self._find_own("save")
        return self._do(own.save(saved_text(value, owner=self._owner, max_bytes=own.max_saved)))

    @overload
    def saved(self, kind: type[S], /) -> StepLoad[S | None]: ...
    @overload
    def saved(self, kind: type[S], /, *, default: D) -> StepLoad[S | D]: ...
    def saved(self, kind: Any, /, *, default: Any = None) -> Any:
        """Return what an attempt of this step saved last, as a value of the type `kind`; otherwise `default`.

        Await it in an async function. In a plain function, which runs in a thread, `.result()` waits. Raises
        PayloadError if the value does not fit the type, StoreError, ProviderStopped, and UsageError in a
        rollback or a hook.
        """
        work = self._saved(self._find_own("saved"), kind, default)
        return work if running_loop() is not None else ThreadLoad(self._tools.wait, work)

    async def _saved(self, own: Attempt, kind: Any, default: Any) -> Any:
        return read_saved(await own.read_saved(), kind, default, owner=self._owner)

    def _do(self, work: Coroutine[Any, Any, None]) -> Awaitable[None]:
        """Return what is to be awaited; in a thread, wait for it here."""
        if running_loop() is not None:
            return work
        self._tools.wait(work)
        return Done()

    def _find_own(self, name: str) -> Attempt:
        if not self._own.saves:
            raise UsageError(
                f"ctx.{name} is for steps: rollbacks and hooks of workflow {self.workflow!r} have nothing "
                "saved"
            )
        return self._own

    @property
    def _owner(self) -> str:
        return f"{self.workflow}.{self.step}"

    @property
    def results(self) -> Mapping[str, Any]:
        """The loaded results by the name of their step, without steps that were skipped or failed."""
        names = (name for name in self._codecs.workflow.steps if name in self._reach)
        found = {
            name: self._read(name, self._records[name], None)
            for name in names
            if name in self._records and self._records[name].has_result
        }
        return MappingProxyType(found)

    @overload
    def emit(self, event: Event[P, R], payload: P, **options: Unpack[EmitKeywords]) -> StepEmission[R]: ...
    @overload
    def emit(self, event: str, payload: Any = ..., **options: Unpack[EmitKeywords]) -> StepEmission[Any]: ...
    def emit(self, event: Any, payload: Any = None, **options: Any) -> Any:
        """Emit as `EventProvider.emit` does, as part of this flow's chain and trace.

        In a plain function, which runs in a thread, it emits as `SyncProvider.emit` does: `.result()` waits.
        """
        return self._tools.emits.emit(event, payload, **options)

    @overload
    def emit_many(
        self, event: Event[P, R], payloads: Iterable[P], **options: Unpack[EmitKeywords]
    ) -> list[StepEmission[R]]: ...
    @overload
    def emit_many(
        self, event: str, payloads: Iterable[Any], **options: Unpack[EmitKeywords]
    ) -> list[StepEmission[Any]]: ...
    def emit_many(self, event: Any, payloads: Iterable[Any], **options: Any) -> list[Any]:
        """Emit many as `EventProvider.emit_many` does, as part of this flow's chain and trace."""
        return self._tools.emits.emit_many(event, payloads, **options)

    @property
    def _lifespans(self) -> HasLifespans:
        return self._tools

    def _loaded(self) -> tuple[Mapping[str, StepRecord], Collection[str], Attempt]:
        records = self._records
        return {name: records[name] for name in self._reach if name in records}, self._unloaded, self._own

    def _find(self, step: Any) -> str:
        name = self._codecs.workflow.find(step).name
        if name not in self._reach:
            raise DefinitionError(
                f"step {self.step!r} of workflow {self.workflow!r} asks for the result of step {name!r}, "
                f"which does not run before it; put {name!r} into its `after`"
            )
        return name

    def _read(self, name: str, record: StepRecord | None, default: Any) -> Any:
        if record is None or record.skipped:
            if default is _UNSET:
                reason = "was skipped" if record is not None else "did not complete"
                raise StepSkipped(step=name, workflow=self.workflow, reason=reason)
            return default
        if record.failure:
            if default is _UNSET:
                raise StepFailed(step=name, workflow=self.workflow, error=self._revive(name, record))
            return default
        if name not in self._values:
            codec = self._codecs.result(name)
            note_around(name, record.result, codec.type)
            # A memoryview lets the codec read the Raw without a copy of its bytes.
            self._values[name] = codec.decode(memoryview(record.result))
        return self._values[name]

    def _revive(self, name: str, record: StepRecord) -> BaseException:
        workflow = self._codecs.workflow
        return revive_error(
            record.failure, owner=f"{workflow.name}.{name}", job=self.job_id, errors=workflow.errors
        )


def data_of(ctx: StepContext[Any]) -> FlowData:
    """Return the place of the data that the functions of a flow share."""
    return ctx._data  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def keeping_lines_in(job_id: str, ctx: StepContext[Any]) -> StepContext[Any]:
    """Let the context of a rollback keep its log lines with another job than its own, which does not run any
    more; return it.
    """
    host = ctx._own.host  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    ctx._own = Attempt(host, outside_job(job_id), "")  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    return ctx


def without_results(ctx: StepContext[Any]) -> StepContext[Any]:
    """Return a context of the same job that belongs to no step, and has no results."""
    made = copy.copy(ctx)
    made.step = ""
    made._reach, made._records = (), {}  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    made._values, made._log = {}, None  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    return made


def codecs_of(ctx: StepContext[Any]) -> Codecs:
    """Return the codecs of the workflow that a context belongs to."""
    return ctx._codecs  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def remote_of(ctx: StepContext[Any]) -> RemoteSteps | None:
    """Return what runs the steps of a context's flow in processes, if anything does."""
    return ctx._tools.remote  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def middleware_of(ctx: StepContext[Any]) -> Sequence[FlowMiddleware]:
    """Return the functions around each attempt in a context's flow."""
    return ctx._tools.middleware  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def attempt_of(ctx: StepContext[Any], kind: AttemptKind) -> AttemptContext:
    """Return the facts about the attempt of a context for middleware."""
    return AttemptContext(
        kind,
        workflow=ctx.workflow,
        step=ctx.step,
        flow_id=ctx.flow_id,
        run=ctx.run,
        job_id=ctx.job_id,
        attempt=ctx.attempt,
        meta=ctx.meta,
        correlation_id=ctx.correlation_id,
        traceparent=ctx.traceparent,
    )


def loaded_of(ctx: StepContext[Any]) -> tuple[Mapping[str, StepRecord], Collection[str], Attempt]:
    """Return what a context was made of: the loaded records in its reach, the steps that are not loaded, and
    what its attempt can do itself.
    """
    return ctx._loaded()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def log_facts(ctx: StepContext[Any]) -> dict[str, Any]:
    """Return the fields that identify a function of a workflow in its log events."""
    facts: dict[str, Any] = {"workflow": ctx.workflow, "flow_id": ctx.flow_id}
    if ctx.step:
        facts["step"] = ctx.step
    facts |= {"job_id": ctx.job_id, "attempt": ctx.attempt, "correlation_id": ctx.correlation_id}
    if ctx.worker:
        facts |= {"worker": ctx.worker, "provider": ctx.provider}
    if ctx.meta:
        facts["meta"] = dict(ctx.meta)
    return facts | trace_facts(trace_id_of(ctx.traceparent))
