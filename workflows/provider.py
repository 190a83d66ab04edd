"""The provider of workflows: the front of everything that a program does with them.

It belongs to an EventProvider, starts and stops with it, and its flows run in that one's workers.
Not here: how a flow is put together (`flow`, `work.flows`), how it runs (`work`), how it is looked at (`inspection`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from eventbus import DefinitionError, EventProvider, PayloadError, UsageError
from eventbus.lowlevel import (
    JOIN,
    REUSE,
    SUPERSEDE,
    Codec,
    Consumer,
    Duration,
    Host,
    Tree,
    check_key,
    current,
    seconds,
    shown,
)
from workflows.codecs import Codecs
from workflows.definition import Workflow
from workflows.handle import FlowHandle, FlowReading
from workflows.inspection import Inspection
from workflows.names import check_flow_id, flow_queue, member_id, new_flow_id, steps_queue, workflow_of
from workflows.records import FlowMessage, encode_message
from workflows.registry import StepRegistry
from workflows.report import FlowReport, FlowSummary, FlowTree
from workflows.restart import restart_flow
from workflows.telemetry import start_context
from workflows.testing import run_inline
from workflows.work.flows import FlowConsumer, members_of
from workflows.work.site import Site
from workflows.work.steps import StepConsumer

__all__ = ["WorkflowProvider"]

I = TypeVar("I")  # noqa: E741  (input)
O = TypeVar("O")  # noqa: E741  (output)

_LOWEST, _HIGHEST = -4000, 4000


class WorkflowProvider:
    """Workflows on the server of an event provider."""

    def __init__(self, provider: EventProvider) -> None:
        """The workers of `provider` run the flows of what is registered here before they start."""
        self.provider = provider
        self._jobs = provider.jobs
        self._registry = StepRegistry()
        self._inspection = Inspection(provider.jobs, provider.inspector)
        self._codecs: dict[int, Codecs] = {}
        self._site: Site | None = None
        provider.jobs.attach(self)

    # Defining.

    def register(self, workflow: Workflow[Any, Any]) -> None:
        """Have flows of this workflow, and of its sub-workflows, executed and run here.

        Several versions of one name may be registered: new flows take the last one, and the workers here
        run those of all. One without steps and hooks is only executed from here: workers elsewhere, which
        have its steps, run it. Raises DefinitionError for a definition that cannot work, UsageError
        while a worker of the provider runs in this process.
        """
        if self._jobs.has_worker:
            raise UsageError(
                f"register workflow {shown(getattr(workflow, 'name', workflow))} before the worker of this provider starts"
            )
        self._registry.register(workflow)

    # Executing.

    async def execute(
        self,
        workflow: Workflow[I, O],
        input: I,  # noqa: A002  (as the workflow calls it)
        *,
        idempotency_key: str | None = None,
        timeout: Duration | None = None,  # noqa: ASYNC109  (of the flow, kept in the server)
        delay: Duration | None = None,
        priority: int = 0,
        meta: Mapping[str, Any] | None = None,
        reuse_failure: bool = False,
        supersede: bool = False,
    ) -> FlowHandle[O]:
        """Start a flow; returns once the server has all of it.

        With an `idempotency_key` that stands for an open or completed flow, the handle is on that one; a
        failed one is started anew unless `reuse_failure`; `supersede` cancels an open one. `timeout`
        overrides the workflow's (0: none); it counts from when the flow is due and is kept in the server, with
        the lease time added. `delay`, `priority` (-4000..4000, lower first) and `meta` are for all its steps.

        Raises DefinitionError for a workflow that is not registered here and for options, PayloadError for
        an input that is not of the workflow's type, EmitError, ProviderStopped: before anything runs.
        """
        known = self._check_registered(workflow)
        codecs = self._codecs_of(known)
        given = self._encode_input(codecs, known, input)
        flow_id = new_flow_id(known.name)
        limit = known.timeout if timeout is None else seconds(timeout, setting="timeout") or None
        effective = None if limit is None else limit + self.provider.settings.lease
        message = self._message(known, flow_id, given, meta, idempotency_key, effective)
        wait = 0.0 if delay is None else seconds(delay, setting="delay")
        message.priority = rank = _check_priority(priority)
        tree = Tree(
            flow_id,
            flow_queue(known.name),
            encode_message(message),
            members_of(known, flow_id, message, priority=rank, delay=wait),
            [member_id(flow_id, message.run, each) for each in known.plan.last],
            priority=rank,
            delay=wait,
            timeout=effective or 0.0,
            key="" if idempotency_key is None else self._jobs.digest(check_key(idempotency_key)),
            print="" if idempotency_key is None else _print_of(given),
            meeting=_meeting(idempotency_key, reuse_failure=reuse_failure, supersede=supersede),
        )
        reading = self._reading(known.name)
        emission = self._jobs.add(tree, reading, correlation_id=message.correlation_id)
        await emission.enqueued()
        return FlowHandle(emission.job_id, self._jobs, reading, self, emission)

    async def run_inline(
        self,
        workflow: Workflow[I, O],
        input: I,  # noqa: A002  (as the workflow calls it)
        *,
        meta: Mapping[str, Any] | None = None,
        timeout: Duration | None = None,  # noqa: ASYNC109  (of the flow, with rollback)
    ) -> O:
        """Run a flow here and now, without jobs: the same rules and errors, nothing is durable.

        For dry runs and tests; see `workflows.testing`. `ctx.emit` uses this provider, which need not be
        started otherwise. Raises as a handle's `result` does.
        """
        return await run_inline(workflow, input, meta=meta, timeout=timeout, provider=self.provider)

    def handle(self, flow_id: str) -> FlowHandle[Any]:
        """Return a handle on any flow by its id; whether there is one is found when it is asked.

        Its output has the workflow's type if that is registered here. Raises DefinitionError for what is no
        flow's id.
        """
        return FlowHandle(check_flow_id(flow_id), self._jobs, self._reading(workflow_of(flow_id)), self)

    # Looking at flows, and managing them.

    async def retry(self, flow_id: str, resume: bool | None = None) -> FlowHandle[Any]:
        """Run a flow that has ended once more, under its id; returns when that is recorded.

        With `resume` steps that completed and were not rolled back keep their results and are not run again;
        without it all are. None: a failed or cancelled flow is resumed, a completed one runs from the start. Input,
        meta, version, key and timeout stay; the time counts anew. Handles of the earlier run have heard its
        outcome; the one that is returned, and later ones, hear the new one. Any process can do this; a worker that has
        the workflow runs it. Raises FlowNotEnded (also where two retry at once: one of them does), UnknownJob,
        UsageError for a sub-workflow's flow, StoreError.
        """
        await restart_flow(self._jobs, check_flow_id(flow_id), resume=resume)
        return self.handle(flow_id)

    async def report(self, flow_id: str) -> FlowReport:
        """Return what is recorded of a flow's steps and rollbacks now. Raises UnknownJob, StoreError.

        Results have their types where the workflow is registered here, in the flow's version.
        """
        return await self._inspection.report(check_flow_id(flow_id), self._find_codecs)

    async def tree(self, flow_id: str) -> FlowTree:
        """Return what is recorded of a flow, of those of its sub-workflows, and of attempts that failed.

        Raises UnknownJob, StoreError.
        """
        return await self._inspection.tree(check_flow_id(flow_id), self._find_codecs)

    async def flows(
        self, workflow: str | None = None, *, state: str | None = None, limit: int = 50
    ) -> list[FlowSummary]:
        """Return the newest flows, of one workflow or of all; `state` is one of a flow's. Raises StoreError."""
        return await self._inspection.flows(workflow, state=state, limit=limit)

    # What workers ask.

    @property
    def queues(self) -> Sequence[str]:
        """The queues that workers of this process serve: two for each workflow whose steps or hooks are here."""
        names = dict.fromkeys(
            each.name for each in self._registry if each.steps or each.completed_hook is not None
        )
        return [queue for name in names for queue in (flow_queue(name), steps_queue(name))]

    def make_consumer(self, queue: str, host: Host) -> Consumer:
        """Make the consumer of one of these queues."""
        if self._site is None or self._site.host is not host:
            self._site = Site(self._jobs, host, self._registry)
        name = queue.removeprefix(flow_queue(""))
        if name.endswith(".steps"):
            return StepConsumer(name.removesuffix(".steps"), self._site, host)
        return FlowConsumer(name, self._site, host)

    def _check_registered(self, workflow: Workflow[Any, Any]) -> Workflow[Any, Any]:
        if not isinstance(workflow, Workflow):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DefinitionError(f"expected a workflow to execute, got: {shown(workflow)}")
        if not any(each is workflow for each in self._registry):
            raise DefinitionError(
                f"workflow {workflow.name!r} is not registered here; call flows.register({workflow.name}) before"
            )
        return workflow

    def _codecs_of(self, workflow: Workflow[Any, Any]) -> Codecs:
        known = self._codecs.get(id(workflow))
        if known is None:
            limit = self.provider.settings.max_payload
            known = self._codecs[id(workflow)] = Codecs(workflow, max_bytes=int(limit))
        return known

    def _find_codecs(self, workflow: str, version: str) -> Codecs | None:
        if not self._registry.has(workflow, version=version or None):
            return None
        return self._codecs_of(self._registry.workflow(workflow, version or None))

    def _encode_input(self, codecs: Codecs, workflow: Workflow[Any, Any], given: Any) -> bytes:
        try:
            return codecs.input.encode(given)
        except PayloadError as error:
            raise PayloadError(
                f"the input of workflow {workflow.name!r} failed its validation: {error}",
                event=workflow.name,
                path=error.path,
                role="payload",
            ) from error

    def _message(
        self,
        workflow: Workflow[Any, Any],
        flow_id: str,
        given: bytes,
        meta: Mapping[str, Any] | None,
        key: str | None,
        timeout: float | None,
    ) -> FlowMessage:
        ambient = current()
        traceparent, tracestate = start_context(workflow.name, flow_id, ambient)
        if meta is not None and not isinstance(meta, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DefinitionError(
                f"expected meta of workflow {workflow.name!r} to be a dict, got: {shown(meta)}"
            )
        merged = {**(ambient.meta or {}), **(meta or {})}
        if merged:
            limit = int(self.provider.settings.max_payload)
            Codec(dict[str, Any], role="meta", owner=workflow.name, max_bytes=limit).encode(merged)
        is_bare = not workflow.steps
        return FlowMessage(
            input=msgspec.Raw(given),
            version="" if is_bare and workflow.completed_hook is None else workflow.version,
            meta=merged or None,
            correlation_id=ambient.correlation_id or flow_id,
            causation_id=ambient.job_id,
            traceparent=traceparent,
            tracestate=tracestate,
            key=key or "",
            timeout=timeout,
            bare=is_bare and workflow.completed_hook is None,
        )

    def _reading(self, workflow: str) -> FlowReading:
        if self._registry.has(workflow):
            known = self._registry.workflow(workflow)
            return FlowReading(workflow, self._codecs_of(known).output, known.errors)
        limit = int(self.provider.settings.max_result)
        return FlowReading(workflow, Codec(Any, role="result", owner=workflow, max_bytes=limit), ())


def _print_of(given: bytes) -> str:
    return hashlib.sha1(given, usedforsecurity=False).hexdigest()[:16]


def _meeting(key: str | None, *, reuse_failure: bool, supersede: bool) -> int:
    if supersede and reuse_failure:
        raise DefinitionError("expected either supersede or reuse_failure, got both")
    if supersede and key is None:
        raise DefinitionError("supersede needs an idempotency_key")
    return SUPERSEDE if supersede else REUSE if reuse_failure else JOIN


def _check_priority(priority: Any) -> int:
    if type(priority) is not int or not _LOWEST <= priority <= _HIGHEST:
        raise DefinitionError(
            f"expected priority to be a whole number from {_LOWEST} to {_HIGHEST}, got: {shown(priority)}"
        )
    return priority
