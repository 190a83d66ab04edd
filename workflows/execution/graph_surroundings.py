"""What the run of a graph asks of the place where it runs: a worker, or this process alone.

A graph records in the same way as the runs of the other kinds (`execution.surroundings`), in a journal or in
memory. Steps that another job or flow runs are its children.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection, Iterable, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import msgspec

from eventbus.lowlevel import Attempt, AttemptHost, Job, Outcome
from workflows.definition.context import StepContext
from workflows.definition.flow_definition import AnyDefinition
from workflows.definition.flow_tools import CallSync, FlowFacts
from workflows.definition.step import Step
from workflows.execution.slots import FlowSlots
from workflows.execution.step_run import StepRun
from workflows.execution.surroundings import Recorder
from workflows.records.records import StepRecord


class StepChild(msgspec.Struct, frozen=True, kw_only=True):
    """What runs a step, or an item, elsewhere: a job of the same workflow, or a flow of `workflow` with the
    JSON input `given`.

    `job_id` is the job of the step. `item` is the item as JSON.
    """

    id: str
    step: Step[Any, Any]
    job_id: str
    item: msgspec.Raw | None = None
    workflow: AnyDefinition | None = None
    given: bytes = b""
    traceparent: str = ""


class GraphRecorder(Recorder, Protocol):
    """Where a graph records."""

    async def listen(self) -> None:
        """Return when a signal may have come, and has been looked for, or in a second."""
        ...

    @property
    def doubts(self) -> Collection[str]:
        """The steps that may have run in an activation that ended with its worker."""
        ...

    @property
    def has_news(self) -> bool:
        """Whether a doubt waits for the next entry, with which it is recorded."""
        ...

    async def stop_failed(self, run: StepRun, *, is_last: bool) -> None:
        """Let it be known that a step has failed for good; `is_last`: no other one is active here."""
        ...


class GraphSurroundings(Protocol):
    """The place where a graph runs."""

    @property
    def host(self) -> AttemptHost:
        """What does for attempts what they ask for."""
        ...

    @property
    def job(self) -> Job:
        """The job of the flow."""
        ...

    @property
    def given(self) -> bytes:
        """The input of the flow as JSON."""
        ...

    @property
    def call_sync(self) -> CallSync:
        """Runs a plain function outside of the event loop."""
        ...

    @property
    def facts(self) -> FlowFacts:
        """The facts of the flow."""
        ...

    @property
    def aliases(self) -> MutableMapping[str, str]:
        """The job in whose name emissions count, by the id of the step's job that runs in it."""
        ...

    def job_of(self, step: str, /) -> str:
        """Return the id of the job of a step or of an item."""
        ...

    def context(
        self,
        step: str,
        *,
        job_id: str,
        attempt: int,
        traceparent: str,
        records: Mapping[str, StepRecord],
        own: Attempt | None = None,
    ) -> StepContext[Any]:
        """Make the context of an attempt of a step; without `own` it saves nothing."""
        ...

    def span(
        self, what: str, *, job_id: str, attempt: int, step: str = "", links: Iterable[str] = ()
    ) -> AbstractContextManager[str]:
        """Return the span of an attempt, which yields its traceparent."""
        ...

    def begin(self, step: str, job_id: str, attempt: int) -> None:
        """Begin an attempt, in the context of its task."""
        ...

    def trace_of(self, job_id: str) -> Mapping[str, str]:
        """Return the fields of log events that identify the span of an attempt, in which this is called."""
        ...

    def tell(self, run: StepRun) -> None:
        """Log the failed attempt of a step."""
        ...

    def slots_of(self, step: str) -> Sequence[FlowSlots]:
        """Return the slots that an attempt of a step takes, in this order."""
        ...

    def may_start(self) -> bool:
        """Tell whether further steps may start here."""
        ...

    def ask_paused(self, step: Step[Any, Any]) -> Awaitable[bool] | None:
        """Return None if no step is paused; else whether this one is, so that no attempt of it may begin
        here.
        """
        ...

    async def sleep(self, delay: float) -> None:
        """Wait `delay` seconds."""
        ...

    def holds(self, delay: float, *, listens: bool = False) -> bool:
        """Tell whether a step waits here for that many seconds (or `math.inf`) even if no other step runs;
        `listens`: a signal may end the wait.
        """
        ...


class GraphChildren(Protocol):
    """What runs steps elsewhere, and tells their ends."""

    are_here: bool
    """Whether there is no elsewhere: flows run in this process, and each step in its flow."""

    async def find_ended(self, ids: Sequence[str]) -> dict[str, Outcome]:
        """Return the outcomes of those that have ended, by id, or are not there (`unknown`)."""
        ...

    def add(self, child: StepChild) -> asyncio.Future[Outcome]:
        """Add a child whose beginning is recorded, unless it is there; return the future of its end."""
        ...

    def end_of(self, child: str) -> asyncio.Future[Outcome]:
        """Return the future of the end of a child that is there."""
        ...

    async def is_stopping(self) -> bool:
        """Tell whether the flow is being stopped, and its children with it."""
        ...
