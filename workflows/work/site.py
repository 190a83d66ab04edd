"""Where a worker works on flows: the definitions that it knows, and what it reads and calls for them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from eventbus.lowlevel import Host, Jobs
from workflows.attempt import PATIENCE, StillRuns
from workflows.codecs import Codecs
from workflows.context import FlowFacts, StepContext
from workflows.definition import Workflow
from workflows.names import member_id
from workflows.records import FlowMessage, StepRecord, decode_step
from workflows.registry import StepRegistry
from workflows.surroundings import is_in_loop
from workflows.work.loader import MAX_RESULTS, NEAR_RESULTS, Loader

__all__ = ["Flow", "Site"]

_CHOSEN = 10_000
"""Of so many runs of flows that were started bare a worker remembers the version."""


class Site:
    """What the consumers of one worker share."""

    def __init__(self, jobs: Jobs, host: Host, registry: StepRegistry) -> None:
        self.jobs = jobs
        self.host = host
        self.registry = registry
        self.loader = Loader(jobs)
        self._codecs: dict[int, Codecs] = {}
        self._chosen: dict[tuple[str, int], str] = {}

    def note_version(self, flow_id: str, run: int, version: str) -> None:
        """The root of a flow that was started bare has chosen this version."""
        self._chosen[flow_id, run] = version
        while len(self._chosen) > _CHOSEN:
            del self._chosen[next(iter(self._chosen))]

    def version_of(self, flow_id: str, message: FlowMessage) -> str:
        """Return the version of a flow as far as it is known without asking the server, else empty."""
        return message.version or self._chosen.get((flow_id, message.run), "")

    def find(self, name: str, version: str) -> Workflow[Any, Any] | None:
        """Return a workflow that this process can run; None if it must leave the flow to another one.

        An empty version stands for the one that was registered last.
        """
        if not self.registry.has(name, version=version or None):
            return None
        found = self.registry.workflow(name, version or None)
        return found if found.steps or found.completed_hook is not None else None

    def codecs(self, workflow: Workflow[Any, Any]) -> Codecs:
        """Return the codecs of a workflow, made once."""
        known = self._codecs.get(id(workflow))
        if known is None:
            settings = self.host.settings
            limit = max(settings.max_payload, settings.max_result)
            known = self._codecs[id(workflow)] = Codecs(workflow, max_bytes=limit)
        return known

    async def call_sync(self, call: Callable[[], Any]) -> Any:
        """Run a plain function in one of the worker's threads.

        A thread cannot be cancelled: who cancels this gets what the function still returns within a moment.
        Raises StillRuns when it goes on longer.
        """
        plain = _Plain(call)
        thread = asyncio.ensure_future(self.host.threads.run(plain.run))
        try:
            return await asyncio.shield(thread)
        except asyncio.CancelledError:
            if plain.revoke():
                thread.cancel()
                raise
            return await _let_end(thread)


class _Plain:
    """A function that begins once, or is revoked and never begins."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._taken = threading.Lock()

    def run(self) -> Any:
        """Call it, unless it was revoked."""
        return self._call() if self._taken.acquire(blocking=False) else None

    def revoke(self) -> bool:
        """Keep it from beginning; False if it has begun."""
        return self._taken.acquire(blocking=False)


async def _let_end(thread: asyncio.Future[Any]) -> Any:
    """Return what a cancelled function still returns; an error of its own is no news any more."""
    try:
        await asyncio.wait({thread}, timeout=PATIENCE)
    except asyncio.CancelledError:
        pass  # asked a second time: it has had its moment
    if not thread.done():
        thread.add_done_callback(_forget)
        raise StillRuns
    if thread.cancelled() or thread.exception() is not None:
        raise asyncio.CancelledError
    return thread.result()


def _forget(thread: asyncio.Future[Any]) -> None:
    if not thread.cancelled():
        thread.exception()  # nobody is left to hear it


class Flow:
    """One flow as its jobs see it; the tools of their contexts."""

    def __init__(self, site: Site, workflow: Workflow[Any, Any], flow_id: str, message: FlowMessage) -> None:
        self.site = site
        self.workflow = workflow
        self.flow_id = flow_id
        self.message = message
        self.codecs = site.codecs(workflow)
        self.facts = FlowFacts(
            flow_id=flow_id,
            run=message.run,
            meta=message.meta or {},
            correlation_id=message.correlation_id or flow_id,
            tracestate=message.tracestate,
        )

    def job_of(self, step: str) -> str:
        """Return the id of the job whose record is the step's: of this run, or of the one it was kept from."""
        return member_id(self.flow_id, self.message.kept.get(step, self.message.run), step)

    async def read_records(self, steps: Sequence[str]) -> tuple[dict[str, StepRecord], list[str]]:
        """Read the records of steps, the nearest first; return them and the steps that were left out."""
        most = MAX_RESULTS if len(self.workflow.steps) <= MAX_RESULTS else NEAR_RESULTS
        near = steps[:most]
        records: dict[str, StepRecord] = {}
        unloaded = list(steps[most:])
        outcomes = await self.site.loader.load([self.job_of(each) for each in near])
        for step, outcome in zip(near, outcomes, strict=True):
            if outcome.state == "later":
                unloaded.append(step)
            elif outcome.state == "completed" and outcome.text is not None:
                records[step] = decode_step(outcome.text)
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

    # What contexts need.

    def emit(self, event: Any, payload: Any = None, **options: Any) -> Any:
        """As `EventProvider.emit`."""
        host = self.site.host
        tools = host.tools if is_in_loop() else host.sync  # plain functions run in threads
        return tools.emit(event, payload, **options)

    def emit_many(self, event: Any, payloads: Iterable[Any], **options: Any) -> Any:
        """As `EventProvider.emit_many`."""
        host = self.site.host
        if is_in_loop():
            return host.tools.emit_many(event, payloads, **options)
        return [host.sync.emit(event, each, **options) for each in payloads]

    def shared(self, lifespan: Callable[..., Any]) -> Any:
        """Return what a lifespan of this worker yielded."""
        return self.site.host.tools.shared(lifespan)

    async def load_record(self, step: str) -> StepRecord | None:
        """Read the record of one step, None if it did not complete."""
        (outcome,) = await self.site.loader.load([self.job_of(step)])
        return decode_step(outcome.text) if outcome.state == "completed" and outcome.text else None
