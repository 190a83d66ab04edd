"""The consumer of a workflow's steps: from a claimed job to the step's record.

    claimed -> placed (whose step it is) -> read (earlier results) -> run -> recorded | decided

A step that is a sub-workflow runs twice: it adds the inner flow's root and waits for it, in one
call; when that has ended it runs again and takes over what became of it. What must hold: the inner flow's id
follows from the job's, so no crash starts it twice; what this process does not know is parked.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from eventbus import StoreCorrupt
from eventbus.lowlevel import (
    Host,
    Job,
    Member,
    Outcome,
    Retention,
    Settle,
    complete,
    describe,
    fail,
    give_back,
    park,
    retry,
)
from workflows.attempt import StillRuns
from workflows.context import StepContext
from workflows.definition import Workflow
from workflows.flow import Before
from workflows.names import flow_queue, parse_member, steps_queue
from workflows.nesting import start_id
from workflows.records import (
    FlowMessage,
    StepRecord,
    decode_message,
    encode_message,
    encode_step,
    revive_flow,
)
from workflows.step import Step
from workflows.steps import ask, is_wanted, judge, rule_of, run_step
from workflows.telemetry import work_span
from workflows.work.loader import MAX_RESULTS, NEAR_RESULTS
from workflows.work.site import Flow, Site

__all__ = ["StepConsumer", "read_message"]

_GRAPH = "graph"
"""The checkpoint of a root that added its steps itself: the version that it chose."""


class StepConsumer:
    """Runs the steps of one workflow, in every version that this process knows."""

    group = ""

    def __init__(self, workflow: str, site: Site, host: Host) -> None:
        self.queue = self.base = steps_queue(workflow)
        self.follows: Sequence[str] = (self.queue, flow_queue(workflow))
        self.concurrency = host.settings.concurrency
        self.retention: Retention = host.retention
        self._workflow = workflow
        self._site = site

    def settled(self, job_id: str, state: str, text: str) -> None:
        """What a step left is known here now, where the steps after it mostly run."""
        if state == "completed":
            self._site.loader.keep(job_id, text)

    def timeout_of(self, job: Job) -> float | None:
        """The step's own; None where this process does not know the step.

        Where it must ask for the flow's version yet, the longest that the step has in any.
        """
        limits = [workflow.steps[step].timeout for workflow, step in self._candidates(job)]
        known = [each for each in limits if each is not None]
        return max(known, default=None) if len(known) == len(limits) else None

    async def run(self, job: Job) -> Settle | None:
        """Run one attempt of the step that the job stands for."""
        message = read_message(job)
        place = parse_member(job.id)
        version = await self._read_version(place.flow_id, message)
        workflow = self._site.find(self._workflow, version)
        if workflow is None or place.step not in workflow.steps:
            known = ", ".join(self._site.registry.versions(self._workflow))
            return park(f"not known here: step {place.step}, version {version}; known: {known}")
        flow, step = Flow(self._site, workflow, place.flow_id, message), workflow.steps[place.step]
        near, reach = _before(workflow, step.name)
        records, unloaded = await flow.read_records(near)
        with work_span(
            "step",
            workflow=workflow.name,
            flow_id=flow.flow_id,
            step=step.name,
            attempt=job.attempts + 1,
            traceparent=message.traceparent,
            tracestate=message.tracestate,
            links=[records[each].traceparent for each in step.after if each in records],
        ) as traceparent:
            context = flow.context(
                step.name,
                job_id=job.id,
                attempt=job.attempts + 1,
                traceparent=traceparent,
                records=records,
                reach=reach,
                unloaded=unloaded if reach is near else reach,
            )
            if step.workflow is not None:
                return await self._run_nested(job, flow, step, step.workflow, context)
            try:
                return complete(await run_step(step, context, self._site.call_sync))
            except StillRuns:
                return give_back()  # cancelled with its flow: the server records it as unknown

    def decide(self, job: Job, error: BaseException) -> Settle:
        """Retry, while attempts are left and the error may pass; else the step failed."""
        attempts = job.attempts + 1
        candidates = self._candidates(job)
        if not candidates:
            return fail(describe(error, attempts=attempts))
        workflow, name = candidates[-1]
        delay, error = judge(rule_of(workflow, workflow.steps[name]), attempts, error)
        text = _recorded(error) or describe(error, attempts=attempts, declared=workflow.errors)
        return fail(text) if delay is None else retry(text, round(delay * 1000))

    async def _run_nested(
        self, job: Job, flow: Flow, step: Step[Any, Any], inner: Workflow[Any, Any], ctx: StepContext[Any]
    ) -> Settle | None:
        """Start the inner flow, or take over what became of it."""
        flow_id = start_id(job.id, inner, job.attempts)
        (outcome,) = await self._site.jobs.outcomes([flow_id])
        if outcome.state in ("completed", "failed", "cancelled"):
            return _taken_over(outcome, inner, flow_id, ctx)
        given = None
        if outcome.state == "unknown":
            if not await is_wanted(step, ctx):
                return complete(encode_step(StepRecord(skipped=True, traceparent=ctx.traceparent)))
            given = await self._nested_member(flow_id, flow, step, inner, ctx)
        word = await self._site.jobs.spawn(
            job, [] if given is None else [given], tree=_tree_of(flow), awaited=[flow_id]
        )
        return give_back() if word == "stopping" else None

    async def _nested_member(
        self, flow_id: str, flow: Flow, step: Step[Any, Any], inner: Workflow[Any, Any], ctx: StepContext[Any]
    ) -> Member:
        given = bytes(flow.message.input)
        codec = self._site.codecs(inner).input
        if step.input is None:
            codec.decode(given)  # raises for what does not fit
        else:
            given = codec.encode(await ask(step.input, ctx))
        timeout = _effective(inner.timeout, self._site.host.settings.lease)
        message = FlowMessage(
            input=msgspec.Raw(given),
            version=inner.version,
            meta=flow.message.meta,
            correlation_id=flow.facts.correlation_id,
            causation_id=ctx.job_id,
            traceparent=ctx.traceparent,
            tracestate=flow.message.tracestate,
            timeout=timeout,
            bare=True,
            priority=flow.message.priority,
        )
        return Member(
            flow_id,
            flow_queue(inner.name),
            body=encode_message(message),
            priority=message.priority,
            on="wake",
            up="wake",
            is_root=True,
            timeout=timeout or 0.0,
        )

    async def _read_version(self, flow_id: str, message: FlowMessage) -> str:
        """The flow's version; of one that was started bare the one that its root chose."""
        version = self._site.version_of(flow_id, message)
        if version:
            return version
        page = await self._site.jobs.look(flow_id, limit=0)
        if version := page.saved.get(_GRAPH, ""):
            self._site.note_version(flow_id, message.run, version)
        return version

    def _candidates(self, job: Job) -> list[tuple[Workflow[Any, Any], str]]:
        """The workflow with the job's step, the last one last of several where its version is not known yet."""
        try:
            message = decode_message(job.body)
        except (msgspec.MsgspecError, UnicodeError):
            message = FlowMessage(input=msgspec.Raw(b"null"))
        place = parse_member(job.id)
        version = self._site.version_of(place.flow_id, message)
        versions = [version] if version else self._site.registry.versions(self._workflow)
        found = [self._site.find(self._workflow, each) for each in versions]
        return [(each, place.step) for each in found if each is not None and place.step in each.steps]


def _before(workflow: Workflow[Any, Any], step: str) -> tuple[list[str], Collection[str]]:
    """The steps whose results are read before this one runs, and all that it may ask for."""
    if len(workflow.steps) <= MAX_RESULTS:
        near = workflow.plan.ancestors(step)
        return near, near
    return workflow.plan.ancestors(step, most=NEAR_RESULTS), Before(workflow.plan, step)


class _InnerFailed(Exception):
    """The flow of a sub-workflow did not complete; carries its record, which becomes the step's."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


def _taken_over(outcome: Outcome, inner: Workflow[Any, Any], flow_id: str, ctx: StepContext[Any]) -> Settle:
    if outcome.state == "completed":
        result = (outcome.text or "null").encode()
        return complete(encode_step(StepRecord(result=msgspec.Raw(result), traceparent=ctx.traceparent)))
    error = revive_flow(outcome.state, outcome.text or "", inner.name, flow_id, inner.errors)
    raise _InnerFailed(outcome.text or "") from error


def _recorded(error: BaseException) -> str:
    return error.text if isinstance(error, _InnerFailed) else ""


def read_message(job: Job) -> FlowMessage:
    """Return the message of the job's flow. Raises StoreCorrupt for what is none."""
    try:
        return decode_message(job.body)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise StoreCorrupt(f"the message of the flow of job {job.id} cannot be read: {error}") from None


def _tree_of(flow: Flow) -> str:
    return flow.flow_id


def _effective(timeout: float | None, lease: float) -> float | None:
    """What is kept in the server: a stalled worker must not use up the flow's time unseen."""
    return None if not timeout else timeout + lease
