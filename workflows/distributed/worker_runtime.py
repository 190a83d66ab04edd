"""The worker runtime of flows: what the jobs of one worker share, its definitions, codecs and caches."""

from __future__ import annotations

import asyncio
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, TypeAlias, TypeVar

import msgspec

from eventbus import ProviderStopped, StoreCorrupt, StoreError, StoreUnavailable
from eventbus.lowlevel import (
    Attempt,
    Emits,
    Job,
    JobClient,
    Places,
    Settle,
    ThreadPool,
    WorkerServices,
    complete,
    describe,
    get_logger,
    later,
    log_failure,
    outside_job,
    run_blocking,
    tracer,
)
from workflows.definition.codecs import Codecs
from workflows.definition.context import StepContext
from workflows.definition.flow_tools import FlowFacts
from workflows.definition.middleware import FlowMiddleware
from workflows.definition.plan import Before
from workflows.definition.step import Step
from workflows.definition.workflow import Workflow
from workflows.distributed.activation import read_journal
from workflows.distributed.caches.flow_cache import FlowCache
from workflows.distributed.caches.result_cache import MAX_RESULTS, NEAR_RESULTS, ResultCache
from workflows.distributed.paused_steps import PausedSteps
from workflows.distributed.thread_calls import call_in_thread
from workflows.execution.hook_runner import run_completed
from workflows.execution.process_steps import PooledSteps
from workflows.execution.rollback import AddInner, UndoPlan
from workflows.execution.spans import flow_attributes, work_span
from workflows.execution.surroundings import PoolSlots
from workflows.records.entries import Entry
from workflows.records.graph_history import read_graph, record_of
from workflows.records.ids import member_id, split_item
from workflows.records.records import FlowMessage, StepRecord, encode_step, read_message_of, read_step
from workflows.registry import StepRegistry

T = TypeVar("T")

AddNested: TypeAlias = "Callable[[WorkerRuntime, UndoPlan, str, str, str, str], Awaitable[None]]"
"""What `execution.rollback.AddInner` is, given the runtime. It is the same for flows of every kind
(`distributed.nested_undo`), so the runtime has it, and no kind knows the others.
"""

_CHOSEN = 10_000  # bare flows whose version a worker remembers, by run; the oldest is forgotten first
_SHORT = 1024  # bytes of an input that the job of each item carries at most

_AWAY_MS = 1000
"""Milliseconds until a job is tried again that could not begin because the server was away."""
_REFUSED_MS = 5000
"""Milliseconds until it is, if the server refused the call: somebody must do something first."""

_log = get_logger("workflows")


class WorkerRuntime:
    """The state that the consumers of one worker share."""

    def __init__(
        self,
        jobs: JobClient,
        services: WorkerServices,
        registry: StepRegistry,
        middleware: Sequence[FlowMiddleware],
        add_nested: AddNested,
    ) -> None:
        self.middleware: Sequence[FlowMiddleware] = middleware
        self.add_inner: AddInner = partial(add_nested, self)
        self.jobs = jobs
        self.services = services
        self.registry = registry
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.loader: ResultCache = ResultCache(jobs)
        self.flows: FlowCache = FlowCache()
        self.paused: PausedSteps = PausedSteps(jobs)
        self.remote: PooledSteps = PooledSteps(services.pools, self.call_sync)
        self._slots: dict[str, Places] = {}
        self._limits: dict[int, dict[str, tuple[Places, ...]]] = {}
        self._codecs: dict[int, Codecs] = {}
        self._reaches: dict[tuple[int, str], Collection[str]] = {}
        self._chosen: dict[tuple[str, int], str] = {}

    def note_version(self, flow_id: str, run: int, version: str) -> None:
        """Remember the version that the root of a bare flow has chosen."""
        self._chosen[flow_id, run] = version
        while len(self._chosen) > _CHOSEN:
            del self._chosen[next(iter(self._chosen))]

    def version_of(self, flow_id: str, message: FlowMessage) -> str:
        """Return the version of a flow without asking the server; empty if it is not known here."""
        return message.version or self._chosen.get((flow_id, message.run), "")

    async def complete_message(self, flow_id: str, message: FlowMessage) -> FlowMessage:
        """Return the message of a job of a flow with its input, if that is left out. Raises ServerAway,
        StoreCorrupt.
        """
        if not message.is_short:
            return message
        given = self.flows.inputs.get(flow_id)
        if given is None:
            page = await self.ask(self.jobs.look(flow_id, limit=0))
            given = read_message_of(flow_id, page.root.get("body", "")).input
            self.flows.keep_input(flow_id, given)
        return msgspec.structs.replace(message, input=given, is_short=False)

    async def ask(self, question: Awaitable[T]) -> T:
        """Await a question to the server before a function runs. Raises ServerAway instead of StoreError."""
        with needing_server():
            return await question

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

    def slots_of(self, workflow: str) -> Places:
        """Return the slots of a workflow's local steps; a step that awaits a flow of another one holds none
        of those.
        """
        slots = self._slots.get(workflow)
        if slots is None:
            slots = self._slots[workflow] = Places(self.services.settings.concurrency)
        return slots

    def limits_of(self, workflow: Workflow[Any, Any]) -> dict[str, tuple[Places, ...]]:
        """Return the places of the local steps with a concurrency or a pool, in the order in which they are
        taken.
        """
        known = self._limits.get(id(workflow))
        if known is None:
            every = {name: tuple(self._limits_on(step)) for name, step in workflow.steps.items()}
            known = self._limits[id(workflow)] = {name: places for name, places in every.items() if places}
        return known

    def _limits_on(self, step: Step[Any, Any]) -> Iterator[Places]:
        if step.concurrency is not None:  # versions share its slots
            name = f"{step.owner}/{step.name}"  # no workflow has such a name
            yield self._slots.setdefault(name, Places(step.concurrency))
        if (places := self.places_of(step.pool)) is not None:
            yield places

    def places_of(self, pool: str | None) -> Places | None:
        """Return the places of a pool; None for the threads of the worker and the event loop."""
        return None if pool is None or pool == "thread" else self.services.pools[pool].places

    async def run_in_place(
        self,
        places: PoolSlots,
        job: Job,
        timeout: float | None,  # noqa: ASYNC109  (of the attempt)
        call: Callable[[], Awaitable[T]],
    ) -> T:
        """Wait for a place, and make one attempt of a job there; its timeout counts from then on."""
        if not places.enter():
            await places.wait()
        try:
            self.services.start_clock(job, timeout)
            return await call()
        finally:
            places.leave()

    def reach_of(self, workflow: Workflow[Any, Any], step: str) -> Collection[str]:
        """Return the steps whose results `step` may ask for; it is found out once."""
        known = self._reaches.get((id(workflow), step))
        if known is None:
            is_small = len(workflow.steps) <= MAX_RESULTS
            known = workflow.plan.ancestors(step) if is_small else Before(workflow.plan, step)
            self._reaches[id(workflow), step] = known
        return known

    async def call_sync(self, call: Callable[[], Any], threads: ThreadPool | None = None) -> Any:
        """Run a plain function in one of the worker's threads, or of those of a pool; see
        `call_in_thread`.
        """
        return await call_in_thread(threads or self.services.threads, call)


class ServerAway(Exception):
    """The server took no call before a function ran, so this does not count as an attempt: it could not be
    reached, or refused the call.
    """


def put_off(job: Job, error: ServerAway, facts: Mapping[str, Any]) -> Settle:
    """Return when a job is tried again for which the server took no call. A refusal is logged."""
    text = describe(error.__cause__ or error, attempts=job.attempts)
    if isinstance(error.__cause__, (StoreUnavailable, ProviderStopped)):
        return later(text, _AWAY_MS)
    log_failure(_log, "server refused a call, trying again", text, facts, retry_in=_REFUSED_MS / 1000)
    return later(text, _REFUSED_MS)


@contextmanager
def needing_server(kind: type[StoreError] = StoreError) -> Generator[None]:
    """Raise ServerAway for an error of the server inside, of this kind, where none is one of a user's
    function.
    """
    try:
        yield
    except StoreCorrupt:
        raise
    except (kind, ProviderStopped) as error:
        raise ServerAway(str(error)) from error


class Flow:
    """One flow as its jobs see it; implements `definition.context.FlowTools` for their contexts."""

    def __init__(
        self, runtime: WorkerRuntime, workflow: Workflow[Any, Any], flow_id: str, message: FlowMessage
    ) -> None:
        self.runtime = runtime
        self.workflow = workflow
        self.version: str = workflow.version
        self.flow_id = flow_id
        self.message = message
        self.codecs: Codecs = runtime.codecs(workflow)
        self.shared: Callable[[Any], Any] = runtime.services.host.shared
        self.facts: FlowFacts = FlowFacts(
            flow_id=flow_id,
            run=message.run,
            meta=message.meta or {},
            correlation_id=message.correlation_id or flow_id,
            tracestate=message.tracestate,
            worker=runtime.services.worker,
            provider=runtime.services.settings.name,
        )

    def first_entry(self, *, is_spread: bool = False) -> Entry:
        """Return the entry with which the journal of this run begins."""
        workflow = self.workflow
        return Entry(
            kind="spread" if is_spread else "run",
            run=self.message.run,
            version=self.version,
            steps=tuple(workflow.steps),
        )

    def child_message(self) -> FlowMessage:
        """Return the message of a job of this flow that runs apart while the journal has the other steps."""
        kept = {name: run for name, run in self.message.kept.items() if name in self.workflow.steps}
        version = self.workflow.version
        return msgspec.structs.replace(self.message, version=version, mode="local", bare=True, kept=kept)

    def item_message(self, item: msgspec.Raw) -> FlowMessage:
        """Return the message of the job of an item; thousands of these do not repeat a long input."""
        message = self.child_message()
        message.item = item
        if len(bytes(message.input)) > _SHORT:
            message.input, message.is_short = msgspec.Raw(b"null"), True
        return message

    def job_of(self, step: str) -> str:
        """Return the id of the job that has a step's record: of this run, or of the run it was kept from.

        The items of a step that runs for each item of a list have the numbers from 1 on.
        """
        name, index = split_item(step)
        return member_id(self.flow_id, self.message.run_of(step), name, index + 1)

    async def read_records(self, steps: Sequence[str]) -> tuple[dict[str, StepRecord], list[str]]:
        """Read the records of `steps`, the nearest first; return them, and the steps that were left out."""
        if self.message.mode == "local":
            records = await self.runtime.ask(self._read_recorded(steps))
            return {step: records[step] for step in steps if step in records}, []
        most = MAX_RESULTS if len(self.workflow.steps) <= MAX_RESULTS else NEAR_RESULTS
        near = steps[:most]
        records = dict[str, StepRecord]()
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

    async def _read_recorded(self, steps: Sequence[str]) -> dict[str, StepRecord]:
        """Return the records of steps, and of others, from what is kept here, or from the journal of the
        flow.
        """
        loader, jobs = self.runtime.loader, {step: self.job_of(step) for step in steps}
        kept = {step: text for step, job in jobs.items() if (text := loader.kept.get(job)) is not None}
        if len(kept) == len(jobs):
            return {step: read_step(jobs[step], text) for step, text in kept.items()}
        run, flows = self.message.run, self.runtime.flows
        known = flows.records_of(self.flow_id, run)
        if all(step in known for step in steps):
            return dict(known)
        entries = await read_journal(self.runtime.jobs, self.flow_id, {"journal": "1"})
        history = read_graph(entries, self.message)
        ended = {name: each.last for name, each in history.steps.items() if each.last.kind == "step"}
        records = {name: record_of(entry) for name, entry in ended.items()}
        for name, record in records.items():
            loader.keep(self.job_of(name), encode_step(record))
        flows.keep_records(self.flow_id, run, records)
        return records

    def context(
        self,
        step: str,
        *,
        job_id: str,
        attempt: int,
        traceparent: str,
        records: Mapping[str, StepRecord],
        reach: Collection[str],
        unloaded: Collection[str] = (),
        own: Attempt | None = None,
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
            own=own or Attempt(self.runtime.services.host, outside_job(job_id), ""),
        )

    async def complete(
        self, job: Job, records: Mapping[str, StepRecord], unloaded: Collection[str] = ()
    ) -> Settle:
        """Run the `completed` hook, and return the settle with the flow's output. Raises what the hook
        raises.
        """
        with self.span("completed", job_id=job.id, attempt=job.attempts + 1) as traceparent:
            context = self.context(
                "",
                job_id=job.id,
                attempt=job.attempts + 1,
                traceparent=traceparent,
                records=records,
                reach=self.workflow.steps,
                unloaded=unloaded,
            )
            return complete(await run_completed(self.workflow, context, self.runtime.call_sync))

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
            url=services.settings.url,
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

    @property
    def emits(self) -> Emits[Any]:
        """What to emit with where the caller runs."""
        return self.runtime.services.host.emits

    async def load_record(self, step: str) -> StepRecord | None:
        """Read the record of one step; None if the step did not complete."""
        if self.message.mode == "local":
            return (await self._read_recorded([step])).get(step)
        (outcome,) = await self.runtime.loader.load([self.job_of(step)])
        return read_step(outcome.job, outcome.text) if outcome.state == "completed" and outcome.text else None

    @property
    def middleware(self) -> Sequence[FlowMiddleware]:
        """The functions around each attempt."""
        return self.runtime.middleware

    @property
    def remote(self) -> PooledSteps:
        """Runs the functions of steps in their pools."""
        return self.runtime.remote

    def wait(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run `work` in the worker's event loop and wait for it in the caller's thread."""
        return run_blocking(self.runtime.loop, work, timeout)
