"""The worker runtime of flows: what the jobs of one worker share, its definitions, codecs and caches."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

from eventbus import StoreError
from eventbus.lowlevel import Emits, JobClient, WorkerServices, trace_id_of, tracer
from workflows.definition.codecs import Codecs
from workflows.definition.context import FlowFacts, StepContext
from workflows.definition.workflow import Workflow
from workflows.distributed.result_cache import MAX_RESULTS, NEAR_RESULTS, ResultCache
from workflows.execution.attempt import PATIENCE, StillRuns
from workflows.execution.environment import is_in_loop
from workflows.execution.spans import flow_attributes, work_span
from workflows.records.ids import member_id
from workflows.records.records import FlowMessage, StepRecord, read_step
from workflows.registry import StepRegistry

__all__ = ["AWAY_MS", "Flow", "ServerAway", "WorkerRuntime"]

T = TypeVar("T")

_CHOSEN = 10_000
"""The number of bare flows whose version a worker remembers, by run; the oldest is forgotten first."""


AWAY_MS = 1000
"""Milliseconds until a job is tried again that could not begin because the server was away."""


class WorkerRuntime:
    """The state that the consumers of one worker share."""

    def __init__(self, jobs: JobClient, services: WorkerServices, registry: StepRegistry) -> None:
        self.jobs = jobs
        self.services = services
        self.registry = registry
        self.loader: ResultCache = ResultCache(jobs)
        self._codecs: dict[int, Codecs] = {}
        self._chosen: dict[tuple[str, int], str] = {}

    def note_version(self, flow_id: str, run: int, version: str) -> None:
        """Remember the version that the root of a bare flow has chosen."""
        self._chosen[flow_id, run] = version
        while len(self._chosen) > _CHOSEN:
            del self._chosen[next(iter(self._chosen))]

    def version_of(self, flow_id: str, message: FlowMessage) -> str:
        """Return the version of a flow without asking the server; empty if it is not known here."""
        return message.version or self._chosen.get((flow_id, message.run), "")

    async def ask(self, question: Awaitable[T]) -> T:
        """Await a question to the server before a function runs. Raises ServerAway instead of StoreError."""
        try:
            return await question
        except StoreError as error:
            raise ServerAway(str(error)) from error

    def find(self, name: str, version: str) -> Workflow[Any, Any] | None:
        """Return a workflow that this process can run; None if another process must run the flow.

        An empty `version` means the version that was registered last.
        """
        if not self.registry.has(name, version=version or None):
            return None
        found = self.registry.workflow(name, version or None)
        return found if found.steps or found.completed_hook is not None else None

    def codecs(self, workflow: Workflow[Any, Any]) -> Codecs:
        """Return the codecs of a workflow; they are made once."""
        known = self._codecs.get(id(workflow))
        if known is None:
            settings = self.services.settings
            limit = max(settings.max_payload, settings.max_result)
            known = self._codecs[id(workflow)] = Codecs(workflow, max_bytes=limit)
        return known

    async def call_sync(self, call: Callable[[], Any]) -> Any:
        """Run a plain function in one of the worker's threads.

        A thread cannot be cancelled. If this call is cancelled, it still returns the function's value if that
        comes within `PATIENCE` seconds, because what the function did must be recorded. Raises StillRuns if
        the function runs longer.
        """
        plain = _Plain(call)
        thread = asyncio.ensure_future(self.services.threads.run(plain.run))
        try:
            return await asyncio.shield(thread)  # a cancel must not detach the thread's value from this call
        except asyncio.CancelledError:
            if plain.revoke():  # it still waited for a thread, so nothing was done
                thread.cancel()
                raise
            return await _let_end(thread)


class _Plain:
    """A plain function that either begins once, or is revoked and never begins."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._taken = threading.Lock()

    def run(self) -> Any:
        """Call the function, unless it was revoked."""
        return self._call() if self._taken.acquire(blocking=False) else None

    def revoke(self) -> bool:
        """Prevent the function from beginning; return False if it has begun."""
        return self._taken.acquire(blocking=False)


async def _let_end(thread: asyncio.Future[Any]) -> Any:
    """Return the value of a cancelled function if it ends in time; an error of its own no longer matters."""
    try:
        await asyncio.wait({thread}, timeout=PATIENCE)
    except asyncio.CancelledError:
        pass  # cancelled a second time: do not wait any longer
    if not thread.done():
        thread.add_done_callback(_forget)
        raise StillRuns
    if thread.cancelled() or thread.exception() is not None:
        raise asyncio.CancelledError
    return thread.result()


def _forget(thread: asyncio.Future[Any]) -> None:
    if not thread.cancelled():
        thread.exception()  # marks it as retrieved, so that asyncio does not log it


class ServerAway(Exception):
    """The server could not be reached before a function ran, so this does not count as an attempt."""


class Flow:
    """One flow as its jobs see it; implements `definition.context.FlowTools` for their contexts."""

    def __init__(
        self, runtime: WorkerRuntime, workflow: Workflow[Any, Any], flow_id: str, message: FlowMessage
    ) -> None:
        self.runtime = runtime
        self.workflow = workflow
        self.flow_id = flow_id
        self.message = message
        self.codecs: Codecs = runtime.codecs(workflow)
        self.facts: FlowFacts = FlowFacts(
            flow_id=flow_id,
            run=message.run,
            meta=message.meta or {},
            correlation_id=message.correlation_id or flow_id,
            tracestate=message.tracestate,
        )

    def job_of(self, step: str) -> str:
        """Return the id of the job that has a step's record: of this run, or of the run it was kept from."""
        return member_id(self.flow_id, self.message.kept.get(step, self.message.run), step)

    async def read_records(self, steps: Sequence[str]) -> tuple[dict[str, StepRecord], list[str]]:
        """Read the records of `steps`, the nearest first; return them, and the steps that were left out."""
        most = MAX_RESULTS if len(self.workflow.steps) <= MAX_RESULTS else NEAR_RESULTS
        near = steps[:most]
        records: dict[str, StepRecord] = {}
        unloaded = list(steps[most:])
        outcomes = await self.runtime.ask(
            self.runtime.loader.load([self.job_of(earlier) for earlier in near])
        )
        for step, outcome in zip(near, outcomes, strict=True):
            if outcome.state == "later":  # past the limit of bytes
                unloaded.append(step)
            elif outcome.state == "completed" and outcome.text is not None:
                records[step] = read_step(outcome.job, outcome.text)
        return records, unloaded

    def context(
        self,
        step: str,
        *,
        job_id: str,
        attempt: int,
        traceparent: str,
        records: dict[str, StepRecord],
        reach: Collection[str],
        unloaded: Collection[str] = (),
    ) -> StepContext[Any]:
        """Make the context of one of the workflow's functions."""
        return StepContext(
            self,
            self.codecs,
            self.facts,
            input=self.codecs.input.decode(memoryview(self.message.input)),
            step=step,
            job_id=job_id,
            attempt=attempt,
            traceparent=traceparent,
            records=records,
            reach=reach,
            unloaded=unloaded,
        )

    @property
    def trace(self) -> dict[str, str]:
        """The fields of log events that identify the flow's trace."""
        trace_id = trace_id_of(self.message.traceparent)
        return {"trace_id": trace_id} if trace_id else {}

    def span(
        self,
        what: str,
        *,
        job_id: str,
        attempt: int,
        step: str = "",
        workflow: str = "",
        links: Iterable[str] = (),
    ) -> AbstractContextManager[str]:
        """Return the span around one attempt of `what`; `workflow` is the step's own if not this flow's."""
        if tracer() is None:
            return nullcontext(self.message.traceparent)
        name, services = workflow or self.workflow.name, self.runtime.services
        attributes = flow_attributes(
            what,
            "process",
            workflow=name,
            flow_id=self.flow_id,
            job_id=job_id,
            correlation_id=self.facts.correlation_id,
            client=services.settings.name,
        )
        attributes |= {"eventbus.worker.id": services.worker, "eventbus.attempt": attempt}
        if step:
            attributes["workflows.step"] = step
        return work_span(
            f"{what} {name}{'.' if step else ''}{step}",
            attributes,
            traceparent=self.message.traceparent,
            tracestate=self.message.tracestate,
            links=links,
        )

    # The methods of FlowTools.

    def emit(self, event: Any, payload: Any = None, **options: Any) -> Any:
        """Emit as `EventProvider.emit` does."""
        return self._emits().emit(event, payload, **options)

    def emit_many(self, event: Any, payloads: Iterable[Any], **options: Any) -> list[Any]:
        """Emit many as `EventProvider.emit_many` does."""
        return self._emits().emit_many(event, payloads, **options)

    def shared(self, lifespan: Callable[..., Any]) -> Any:
        """Return the value that a lifespan of this worker yielded."""
        return self.runtime.services.tools.shared(lifespan)

    async def load_record(self, step: str) -> StepRecord | None:
        """Read the record of one step; None if the step did not complete."""
        (outcome,) = await self.runtime.loader.load([self.job_of(step)])
        is_there = outcome.state == "completed" and outcome.text
        return read_step(outcome.job, outcome.text or "") if is_there else None

    def _emits(self) -> Emits[Any]:
        """Return the object to emit with where the caller runs: plain functions run in threads."""
        services = self.runtime.services
        return services.tools if is_in_loop() else services.sync
