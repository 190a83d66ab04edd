"""The consumer of a workflow's steps: it turns a claimed job into the step's record.

    claimed -> id parsed (which step) -> earlier results read -> run -> recorded | decided

A step that is a sub-workflow runs twice: first it adds the inner flow's root and waits for it, in one call;
after the inner flow has ended, it runs again and takes over that flow's outcome.

What must always hold: the id of the inner flow is derived from the job's id, so that no crash starts that
flow twice; a job whose step or version this process does not know is parked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import msgspec

from eventbus import Later, StoreCorrupt
from eventbus.lowlevel import (
    FINAL_STATES,
    Attempt,
    Job,
    Outcome,
    Retention,
    Settle,
    WorkerServices,
    attach_baggage,
    begin_apart,
    complete,
    describe,
    fail,
    get_logger,
    give_back,
    hide_around,
    hide_in_record,
    later,
    log_failure,
    park,
    retry,
    shelve,
    trace_facts,
    trace_id_of,
)
from workflows.definition.context import StepContext
from workflows.definition.each import EachStep, make_item
from workflows.definition.flow_definition import AnyDefinition
from workflows.definition.nesting import start_id
from workflows.definition.plan import Before
from workflows.definition.step import Step
from workflows.definition.workflow import Workflow
from workflows.distributed.caches.result_cache import MAX_RESULTS, NEAR_RESULTS
from workflows.distributed.nested_flows import make_nested
from workflows.distributed.pauses.member import run_pause
from workflows.distributed.worker_runtime import Flow, ServerAway, WorkerRuntime, put_off
from workflows.execution.attempt import StillRuns
from workflows.execution.step_runner import (
    ATTEMPT,
    CORRELATION_ID,
    FLOW_ID,
    JOB_ID,
    STEP,
    TRACE_ID,
    WORKFLOW,
    is_wanted,
    judge,
    rule_of,
    run_step,
)
from workflows.records.checkpoints import GRAPH
from workflows.records.ids import StepJobId, flow_queue, parse_member, read_place, steps_queue
from workflows.records.records import (
    FlowMessage,
    StepRecord,
    decode_message,
    decode_step,
    encode_message,
    encode_step,
    is_declared,
    revive_flow,
)

_log = get_logger("workflows.step")


class StepConsumer:
    """Runs the steps of one workflow, in every version that this process knows.

    A step with a concurrency or a limit has a queue and a consumer of its own, so that a worker claims no
    more than it may run. Jobs of other steps wait on a shelf while their step is paused.
    """

    group = ""

    def __init__(
        self, workflow: str, runtime: WorkerRuntime, services: WorkerServices, *, limited: str = ""
    ) -> None:
        """Serve the step `limited`, or those without a limit."""
        limits = runtime.registry.limited(workflow)
        self.queue: str = steps_queue(workflow, limited)
        self.base: str = self.queue
        self.follows: Sequence[str] = (*step_queues(limits, workflow), flow_queue(workflow))
        step = limits.get(limited)
        self.concurrency: int = (step and step.concurrency) or services.settings.concurrency
        self.limit: str = "" if step is None or step.limit is None else step.limit.to_wire()
        self._has_own_queue = limited != ""
        self.retention: Retention = services.retention
        self._workflow = workflow
        self._runtime = runtime

    def settled(self, job_id: str, state: str, text: str) -> None:
        """Keep the record of a completed step here, because this worker mostly runs the next steps too."""
        if state == "completed":
            self._runtime.loader.keep(job_id, text)

    def surround(self) -> None:
        """Set the context variables that are the same for every step; `run` sets the others."""
        begin_apart()
        WORKFLOW.set(self._workflow)
        for variable in (FLOW_ID, STEP, JOB_ID, CORRELATION_ID):
            variable.set(...)  # means absent; setting a variable that exists is cheaper than adding one
        ATTEMPT.set(1)

    def timeout_of(self, job: Job) -> float | None:
        """Return the step's timeout in seconds; None if this process does not know the step.

        If the flow's version is not known yet, return the longest timeout that the step has in any version.
        """
        steps = [workflow.steps[step] for workflow, step in self._candidates(job)]
        if any(self._runtime.places_of(step.pool) is not None for step in steps):
            return None  # it counts from when the attempt has a place
        limits = [step.timeout for step in steps]
        known = [limit for limit in limits if limit is not None]
        # A version without a timeout means that no timeout is safe.
        return max(known, default=None) if len(known) == len(limits) else None

    async def run(self, job: Job) -> Settle | None:
        """Run one attempt of the job's step."""
        message = read_message(job)
        place = parse_member(job.id)
        FLOW_ID.set(place.flow_id)
        STEP.set(place.name)
        JOB_ID.set(job.id)
        CORRELATION_ID.set(message.correlation_id or place.flow_id)
        if job.attempts:
            ATTEMPT.set(job.attempts + 1)
        if message.traceparent:
            TRACE_ID.set(trace_id_of(message.traceparent))
        paused = self._runtime.paused
        if not (self._has_own_queue or paused.is_silent) and (
            shelf := await paused.find_shelf(self._workflow, place.name, job.id)
        ):
            return shelve(shelf)
        version = await self._read_version(place.flow_id, message)
        workflow = self._runtime.find(self._workflow, version)
        step = None if workflow is None else _find_step(workflow, place, message)
        if workflow is None or step is None:
            known = ", ".join(self._runtime.registry.versions(self._workflow))
            return park(f"not known here: step {place.name}, version {version}; known: {known}")
        message = await self._runtime.complete_message(place.flow_id, message)
        hide_around(partial(encode_message, message))
        flow = Flow(self._runtime, workflow, place.flow_id, message)
        near, reach = _before(workflow, place.step)
        records, unloaded = await flow.read_records(near)
        if message.baggage:
            attach_baggage(message.baggage)
        with flow.span(
            "step",
            step=step.name,
            job_id=job.id,
            attempt=job.attempts + 1,
            links=[records[earlier].traceparent for earlier in step.after if earlier in records],
        ) as traceparent:
            context = flow.context(
                step.name,
                job_id=job.id,
                attempt=job.attempts + 1,
                traceparent=traceparent,
                records=records,
                reach=reach,
                unloaded=unloaded if reach is near else reach,
                own=Attempt(self._runtime.services.host, job),
            )
            if step.workflow is not None:
                return await self._run_nested(job, flow, step, step.workflow, context)
            if step.pause is not None:
                return await run_pause(job, flow, step, step.pause, context)
            try:
                record = await self._run_step(job, step, context)
                record.has_undo = step.undo is not None and not record.skipped
                return complete(encode_step(record))
            except StillRuns:
                # Its thread still runs after the flow was cancelled: the server records the step as unknown.
                return give_back()

    async def _run_step(self, job: Job, step: Step[Any, Any], context: StepContext[Any]) -> StepRecord:
        runtime, places = self._runtime, self._runtime.places_of(step.pool)
        if places is None:
            runtime.services.start_clock(job, step.timeout)  # if its version was not known
            return await run_step(step, context, runtime.call_sync)
        attempt = partial(run_step, step, context, runtime.call_sync)
        return await runtime.run_in_place(places, job, step.timeout, attempt)

    def decide(self, job: Job, error: BaseException) -> Settle:
        """Retry while attempts are left and the error is retryable; otherwise the step has failed."""
        attempts = job.attempts + 1
        if isinstance(error, ServerAway):  # the step's function has not run
            return put_off(job, error, self.facts(job))
        if isinstance(error, Later):
            return later("", round(error.delay * 1000))
        candidates = self._candidates(job)
        if not candidates:
            return fail(describe(error, attempts=attempts))
        workflow, name = candidates[-1]
        step = workflow.steps[name]  # that of an item, too
        delay, error = judge(rule_of(workflow, step), attempts, error, workflow)
        ran = f"{workflow.name}.{parse_member(job.id).name}"
        text = _recorded(error) or describe(error, attempts=attempts, declared=workflow.errors, event=ran)
        if delay is not None:
            return retry(text, round(delay * 1000))
        if step.on_failure == "ignore" or step.keeps_failures:  # what comes after it runs
            has_undo = step.undo is not None and step.rollback_on_failure
            return complete(encode_step(StepRecord(error=msgspec.Raw(text.encode()), has_undo=has_undo)))
        return fail(text)

    def facts(self, job: Job) -> Mapping[str, Any]:
        """Return the fields that `ctx.log` has too."""
        return {**step_facts(self._workflow, job), **facts_of(job)}

    def failure(self, job: Job, text: str) -> None:
        """Return None: hooks are told of its flow, when that has ended."""

    def failed(self, job: Job, settle: Settle) -> None:
        """Log a failed attempt: a warning while attempts are left, then an error; not for declared errors."""
        if settle.state == "cancelled":
            return  # the end of its flow is logged instead
        facts, candidates = dict(self.facts(job)), self._candidates(job)
        if candidates:
            workflow, name = candidates[-1]
            facts["max_attempts"] = rule_of(workflow, workflow.steps[name]).attempts
        is_last = settle.state != "delayed"
        text = decode_step(settle.text).failure if settle.state == "completed" else settle.text
        log_failure(
            _log,
            "step failed" if is_last else "attempt failed, trying again",
            text,
            facts,
            retry_in=None if is_last else settle.delay_ms / 1000,
            is_answer=is_declared(text),
        )

    async def _run_nested(
        self, job: Job, flow: Flow, step: Step[Any, Any], inner: AnyDefinition, ctx: StepContext[Any]
    ) -> Settle | None:
        """Start the inner flow, or take over its outcome if it has ended."""
        flow_id = start_id(job.id, inner, job.attempts)
        (outcome,) = await self._runtime.ask(self._runtime.jobs.outcomes([flow_id]))
        if outcome.state in FINAL_STATES:
            return _taken_over(outcome, inner, flow_id, ctx)
        given = None  # if the inner flow exists already, only wait for it
        if outcome.state == "unknown":
            if not await is_wanted(step, ctx):
                return complete(encode_step(StepRecord(skipped=True, traceparent=ctx.traceparent)))
            given = await make_nested(flow, step, inner, ctx, flow_id)
        members = [] if given is None else [given]
        word = await self._runtime.ask(
            self._runtime.jobs.spawn(job, members, tree=flow.flow_id, awaited=[flow_id])
        )
        # None: the job waits for the inner flow or has lost its lease, so there is nothing to settle.
        return give_back() if word == "stopping" else None

    async def _read_version(self, flow_id: str, message: FlowMessage) -> str:
        """Return the flow's version; for a flow that was started bare, the version that its root chose."""
        version = self._runtime.version_of(flow_id, message)
        if version:
            return version
        page = await self._runtime.ask(self._runtime.jobs.look(flow_id, limit=0))
        if version := page.saved.get(GRAPH, ""):
            self._runtime.note_version(flow_id, message.run, version)
        return version

    def _candidates(self, job: Job) -> list[tuple[Workflow[Any, Any], str]]:
        """Return the workflow with the job's step and its name; one pair for each version if that is unknown.

        The version that was registered last is the last one.
        """
        try:
            message = decode_message(job.body)
        except (msgspec.MsgspecError, UnicodeError):
            message = FlowMessage(input=msgspec.Raw(b"null"))
        place = parse_member(job.id)
        version = self._runtime.version_of(place.flow_id, message)
        versions = [version] if version else self._runtime.registry.versions(self._workflow)
        found = [self._runtime.find(self._workflow, known) for known in versions]
        return [(known, place.step) for known in found if known is not None and place.step in known.steps]


def step_queues(limited: Iterable[str], workflow: str) -> list[str]:
    """Return the queues of a workflow's step jobs, that of each of its `limited` steps among them."""
    return [steps_queue(workflow), *(steps_queue(workflow, step) for step in limited)]


def facts_of(job: Job) -> dict[str, Any]:
    """Return the fields of log events about any job of a flow, as far as its message can be read."""
    facts: dict[str, Any] = {"job_id": job.id, "attempt": job.attempts + 1}
    try:
        message = decode_message(job.body)
    except (msgspec.MsgspecError, UnicodeError):
        return facts
    member = read_place(job.id)
    facts["correlation_id"] = message.correlation_id or (job.id if member is None else member.flow_id)
    return facts | trace_facts(trace_id_of(message.traceparent))


def step_facts(workflow: str, job: Job) -> dict[str, Any]:
    """Return the fields of log events that identify a step's workflow, flow and name."""
    member = read_place(job.id)
    if member is None:
        return {"workflow": workflow}
    return {"workflow": workflow, "flow_id": member.flow_id, "step": member.name}


def _find_step(workflow: Workflow[Any, Any], place: StepJobId, message: FlowMessage) -> Step[Any, Any] | None:
    """Return what a job runs: a step, or an item of one. None if this definition has another kind of step
    there.
    """
    step = workflow.steps.get(place.step)
    if step is None or message.has_item != step.is_each or message.has_item != (place.index > 0):
        return None
    return (
        make_item(cast("EachStep[Any, Any]", step), place.index - 1, message.item) if step.is_each else step
    )


def _before(workflow: Workflow[Any, Any], step: str) -> tuple[list[str], Collection[str]]:
    """Return the steps whose results are read before `step` runs, and all whose results it may ask for."""
    if len(workflow.steps) <= MAX_RESULTS:
        near = workflow.plan.ancestors(step)
        return near, near
    return workflow.plan.ancestors(step, most=NEAR_RESULTS), Before(workflow.plan, step)


class _InnerFailed(Exception):
    """The flow of a sub-workflow did not complete; `text` is its record, which becomes the step's record."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


def _taken_over(outcome: Outcome, inner: AnyDefinition, flow_id: str, ctx: StepContext[Any]) -> Settle:
    if outcome.state == "completed":
        result = (outcome.text or "null").encode()
        return complete(encode_step(StepRecord(result=msgspec.Raw(result), traceparent=ctx.traceparent)))
    error = revive_flow(outcome.state, outcome.text or "", inner.name, flow_id, inner.errors)
    raise _InnerFailed(hide_in_record(outcome.text or "")) from error


def _recorded(error: BaseException) -> str:
    return error.text if isinstance(error, _InnerFailed) else ""


def read_message(job: Job) -> FlowMessage:
    """Return the message of the job's flow. Raises StoreCorrupt if the body is not a message."""
    try:
        return decode_message(job.body)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise StoreCorrupt(f"the message of the flow of job {job.id} cannot be read: {error}") from None
