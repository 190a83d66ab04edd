"""The surroundings of a run: what the place where it runs, a worker or a test, does for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from eventbus import UsageError
from eventbus.lowlevel import (
    Ambient,
    Attempt,
    Emits,
    HasLifespans,
    Outcome,
    Passing,
    Signal,
    clock,
    enter,
    run_blocking,
    set_facts,
    trace_facts,
    trace_id_of,
)
from workflows.definition.flow_tools import CallSync
from workflows.definition.middleware import AttemptContext, AttemptKind, FlowMiddleware, through
from workflows.definition.task_context import TaskContext, set_step_key, set_task
from workflows.records.entries import Entry

if TYPE_CHECKING:
    from workflows.definition.flow_definition import AnyDefinition
    from workflows.definition.task import Task


class FlowStops(Passing):
    """The entries are recorded, but the flow is being stopped, so nothing that follows is wanted."""


class LeaseLost(Passing):
    """This worker's lease of the flow ran out, so nothing was recorded."""


class Child(msgspec.Struct, frozen=True, kw_only=True):
    """What is to run elsewhere: a flow of `workflow` with the input `given`, or a call of `task` with such
    arguments.

    `timeout` is that of the flow, in seconds, None for none. `given` is JSON.
    """

    id: str
    position: str
    given: bytes
    workflow: AnyDefinition | None = None
    task: Task[..., Any] | None = None
    timeout: float | None = None


class FlowClock:
    """The clock of one activation: the time of the server, or of a flow in this process."""

    def __init__(self, now_ms: int) -> None:
        """Show `now_ms` now, and go on from there."""
        self._now_ms = now_ms
        self._since = clock.monotonic()

    @property
    def now_ms(self) -> int:
        """The time in ms."""
        return self._now_ms + round((clock.monotonic() - self._since) * 1000)

    def move_to(self, time_ms: int) -> None:
        """Show at least this time from now on, because the flow has slept."""
        self._now_ms += max(0, time_ms - self.now_ms)


class Recorder(Protocol):
    """Where a run records what happens."""

    @property
    def clock(self) -> FlowClock:
        """The clock whose times are recorded."""
        ...

    @property
    def signals(self) -> Sequence[Signal]:
        """The signals that the flow was sent and that no entry has taken, the oldest first."""
        ...

    async def append(
        self, entries: Sequence[Entry], *, live: Mapping[str, str] | None = None, taken: Sequence[str] = ()
    ) -> None:
        """Record entries, live texts and taken signals, all or nothing; raise if the run must end."""
        ...

    async def wait_until(self, time_ms: int) -> None:
        """Wait until the clock shows a time, which is near."""
        ...

    async def listen(self) -> None:
        """Return when a signal may have come, within a second; `refresh` looks for it. A call that is
        cancelled loses none.
        """
        ...

    async def refresh(self) -> None:
        """Look for signals that came since."""
        ...


class Tools(HasLifespans, Protocol):
    """What the code and its steps emit with and share."""

    @property
    def emits(self) -> Emits[Any]:
        """What to emit with where the caller runs."""
        ...


class Children(Protocol):
    """What starts the children of a flow elsewhere, and learns their ends."""

    @property
    def are_here(self) -> bool:
        """Whether there is no elsewhere, so that what would be a job runs here."""
        ...

    def check(self, workflow: AnyDefinition) -> None:
        """Raise DefinitionError if flows of this one cannot be started here."""
        ...

    def follow(self, child: Child) -> asyncio.Future[Outcome]:
        """Add a child whose beginning is recorded, unless it is there; return the future of its end."""
        ...

    def follow_lost(self, child_id: str) -> asyncio.Future[Outcome]:
        """Return the future of the end of a child that was cancelled."""
        ...

    async def cancel(self, child_id: str, reason: str) -> None:
        """Stop a child whose end nobody wants any more."""
        ...


class PoolSlots(Protocol):
    """The slots of a named pool, which the attempts of a flow share with others."""

    def enter(self) -> bool:
        """Take a place; return False if none is free or others wait for one."""
        ...

    async def wait(self) -> None:
        """Wait for a place and take it. A cancelled call takes none."""
        ...

    def leave(self) -> None:
        """Give a place back."""
        ...


class Pools(Protocol):
    """The pools in which tasks run."""

    def places(self, task: Task[..., Any]) -> PoolSlots | None:
        """Return the places of the pool of a task; None if it has no named one. Raises DefinitionError."""
        ...

    async def call(
        self,
        task: Task[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        key: str,
        attempt: int,
        facts: Mapping[str, Any],
        own: Attempt,
    ) -> Any:
        """Call a task in its pool, of which the caller has a place. `key` is its step key, `own` what it can
        do.
        """
        ...


class NoChildren:
    """A place where nothing can be started."""

    are_here = True

    def check(self, workflow: AnyDefinition) -> None:
        """Do nothing: the run ends before anything begins."""

    def follow(self, child: Child) -> asyncio.Future[Outcome]:
        """Raise UsageError."""
        raise UsageError(f"flow {child.id} cannot be started here")

    def follow_lost(self, child_id: str) -> asyncio.Future[Outcome]:
        """Raise UsageError."""
        raise UsageError(f"flow {child_id} is not known here")

    async def cancel(self, child_id: str, reason: str) -> None:
        """Do nothing."""


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """What a run needs of the place where it runs.

    `sleep(seconds)` waits between attempts; `call_sync` runs a plain function outside of the event loop.
    `span(what, label, attempt)` opens the span of an attempt and yields its traceparent. `facts` are the
    fields of log events. `middleware` is around each attempt of a task and of a rollback. `job_id` is the job
    that runs here, if that is not the flow's own. Without `pools`, plain functions of tasks run by
    `call_sync` alone. Random numbers and ids of the code follow from `seed`, by default that of the run
    alone. `own` is the attempt of the code, in the job that runs here. `worker` is the id of the worker.
    """

    flow_id: str
    run: str
    seed: str = ""
    job_id: str = ""
    workflow: str
    tools: Tools
    own: Attempt
    call_sync: CallSync
    sleep: Callable[[float], Awaitable[Any]]
    span: Callable[[str, str, int], AbstractContextManager[str]]
    meta: Mapping[str, Any] = MappingProxyType({})
    correlation_id: str = ""
    traceparent: str = ""
    tracestate: str = ""
    facts: Mapping[str, Any] = {}
    middleware: Sequence[FlowMiddleware] = ()
    children: Children = NoChildren()
    pools: Pools | None = None
    worker: str = ""

    async def through(
        self,
        kind: AttemptKind,
        label: str,
        attempt: int,
        traceparent: str,
        value: Any,
        call: Callable[[], Awaitable[Any]],
    ) -> Any:
        """Make one attempt, `call`, with the middleware around it, which gets `value`."""
        if not self.middleware:
            return await call()
        context = AttemptContext(
            kind,
            workflow=self.workflow,
            step=label,
            flow_id=self.flow_id,
            run=int(self.run.partition(".")[0]),
            job_id=self.job_id or self.flow_id,
            attempt=attempt,
            meta=self.meta,
            correlation_id=self.correlation_id,
            traceparent=traceparent,
        )
        return await through(self.middleware, context, value, call)

    def enter(self) -> None:
        """Set the ambient facts of the code, which are those of its flow."""
        enter(Ambient(self.meta, self.correlation_id, self.flow_id, self.traceparent, self.tracestate))

    @contextmanager
    def step(self, label: str, attempt: int, key: str, own: Attempt) -> Generator[str]:
        """Surround one attempt of a step, which has a task and so a context of its own; yield its
        traceparent.
        """
        with self.span("step", label, attempt) as traceparent:
            self.enter_attempt(label, attempt, key, traceparent)
            self.enter_task(label, attempt, key, own)
            yield traceparent

    def enter_task(self, label: str, attempt: int, key: str, own: Attempt) -> None:
        """Let `task_context()` return what an attempt can do, in its own context."""
        wait = partial(run_blocking, asyncio.get_running_loop())
        set_task(
            TaskContext(
                own, wait, workflow=self.workflow, step=label, key=key, attempt=attempt, worker=self.worker
            )
        )

    def enter_attempt(self, label: str, attempt: int, key: str, traceparent: str) -> None:
        """Set the ambient facts, the step key and the log fields of an attempt, whose span is open, in its
        own context.
        """
        enter(Ambient(self.meta, self.correlation_id, self.flow_id, traceparent, self.tracestate))
        set_step_key(key)
        set_task(None)
        trace = trace_facts(trace_id_of(traceparent))
        set_facts({**self.facts, "step": label, "attempt": attempt, **trace})
