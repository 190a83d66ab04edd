"""The provider of workflows: a program registers, executes, inspects and retries workflows with it.

It belongs to an EventProvider: it starts and stops with that provider, and the workers of that provider run
its flows. Not here: the order of the steps (`definition.plan`), running flows (`distributed`, `inline`), and
reading their reports (`client.inspection`).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, Unpack, cast, overload

from eventbus import EmitError, EventProvider, UnknownJob, UsageError
from eventbus.lowlevel import (
    Duration,
    FailureFunction,
    check_correlation_id,
    check_key,
    check_middleware,
    check_priority,
    make_failure_hook,
    seconds,
    shown,
)
from workflows.client.definitions import Definitions
from workflows.client.flow_lister import FlowLister
from workflows.client.flow_retry import check_whole, retry_flow
from workflows.client.handle import FlowHandle
from workflows.client.inspection import FlowInspector
from workflows.client.looks import FlowLooks
from workflows.client.many_flows import ManyFlows
from workflows.client.pauses import FlowPauses
from workflows.client.scheduling import FlowSchedules
from workflows.client.sent_signals import SignalSender
from workflows.client.starting import check_flag, meeting_of, message_of, not_started
from workflows.definition.flow_definition import AnyWorkflow, definition_of
from workflows.definition.job_tree import tree_of
from workflows.definition.keywords import StartKeywords
from workflows.definition.middleware import FlowMiddleware
from workflows.definition.workflow import Workflow
from workflows.distributed.extension import FlowExtension
from workflows.functions.definition import Durable
from workflows.graphs.graph import Graph
from workflows.machines.machine import StateMachine
from workflows.machines.transition import Transition
from workflows.records.ids import check_flow_id, new_flow_id, workflow_of
from workflows.records.report import FlowReport, FlowStatus, FlowTree
from workflows.registry import StepRegistry
from workflows.testing import run_inline

I = TypeVar("I")  # noqa: E741  (input)
O = TypeVar("O")  # noqa: E741  (output)
M = TypeVar("M", bound=FlowMiddleware)
H = TypeVar("H", bound=FailureFunction)

_NOTHING: Any = None  # `@flows.use()` passes no function; the check then raises a DefinitionError


class WorkflowProvider(FlowPauses, FlowLooks, ManyFlows):
    """Workflows on the server of an event provider."""

    def __init__(self, provider: EventProvider) -> None:
        """Use `provider` for all flows: its workers run the workflows registered here before they start."""
        self.provider: EventProvider = provider
        self._jobs = provider.jobs
        self._registry = StepRegistry()
        self._inspection = FlowInspector(provider.jobs, provider.inspector)
        self._lists = FlowLister(provider.jobs)
        self._graphs: dict[tuple[str, str], Graph] = {}
        self._definitions = Definitions(self._registry, provider.jobs)
        self._sender = SignalSender(provider.jobs, self._registry, self.definition)
        self._middleware: list[FlowMiddleware] = []
        self.schedules: FlowSchedules = FlowSchedules(provider, self._definitions)
        """Starts flows at times."""
        provider.jobs.attach(FlowExtension(provider.jobs, self._registry, self._middleware))

    # Registering.

    def register(self, workflow: AnyWorkflow[Any, Any]) -> None:
        """Register a workflow and its sub-workflows, a durable function or a state machine: its flows can be
        executed and run here.

        Several versions of one name may be registered: new flows use the version registered last, and the
        workers of this process run flows of every version. A workflow without steps and hooks can only be
        executed here: workers elsewhere, which have its steps, run it. Raises DefinitionError for a
        definition that cannot work, and UsageError while a worker of the provider runs in this process.
        """
        if self._jobs.has_worker:
            raise UsageError(
                f"register workflow {shown(getattr(workflow, 'name', workflow))} before the worker of this "
                "provider starts"
            )
        self._registry.register(workflow)

    def use(self, middleware: M = _NOTHING) -> M:
        """Put an async function around each attempt of a step, task, rollback or hook, in workers that start
        from now on.

            @flows.use
            async def timed(value, ctx: AttemptContext, call):
                return await call(value)

        `value` is the input of the flow; the result of the step in its rollback, the error in the hook
        `failed`, and the arguments of a task. The middleware runs in the event loop, within the timeout. It
        may change the result, which is checked, raise, or return without `call`. The first one registered is
        the outermost. Returns the function. Raises DefinitionError for another kind of function.
        """
        check_middleware(middleware, takes="a value, an AttemptContext and a call", owner="flows")
        self._middleware.append(middleware)
        return middleware

    def on_failure(self, hook: H = _NOTHING) -> H:
        """Have a function called for each flow that a worker of this process ends as failed, after its
        rollbacks.

            @flows.on_failure
            async def alert(failure: JobFailure) -> None:
                await page(f"{failure.name} failed in {failure.step}: {failure.error}, undone:
                {failure.rollback}")

        It is called as one of `provider.on_failure`, which hears of flows as well, and never of a step that
        other attempts follow. The flow of a sub-workflow is told too, with the outermost flow as its
        `root_id`. Returns the function. Raises DefinitionError for another kind of function.
        """
        self.provider.on_failure(make_failure_hook(hook, owner="flows", flows_only=True))
        return hook

    def failed(self, hook: H = _NOTHING) -> H:
        """Do what `on_failure` does; the old name, for one release."""
        warnings.warn("flows.failed is deprecated: use flows.on_failure", DeprecationWarning, stacklevel=2)
        return self.on_failure(hook)

    # Executing.

    @overload
    async def execute(
        self, workflow: Workflow[I, O] | Durable[I, O], input: I, **options: Unpack[StartKeywords]
    ) -> FlowHandle[O]: ...
    @overload
    async def execute(
        self, workflow: type[StateMachine[I]], input: I, **options: Unpack[StartKeywords]
    ) -> FlowHandle[Any]: ...
    async def execute(
        self,
        workflow: AnyWorkflow[Any, Any],
        input: Any,  # noqa: A002  (as the workflow calls it)
        *,
        idempotency_key: str | None = None,
        timeout: Duration | None = None,  # noqa: ASYNC109  (of the flow, kept in the server)
        delay: Duration | None = None,
        priority: int = 0,
        meta: Mapping[str, Any] | None = None,
        correlation_id: str | None = None,
        reuse_failure: bool = False,
        supersede: bool = False,
        require_worker: bool = False,
        keep_completed: Duration | None = None,
        keep_failed: Duration | None = None,
        call_timeout: Duration | None = None,
    ) -> FlowHandle[Any]:
        """Start a flow of a workflow of any kind; return its handle once the server has recorded the whole
        flow.

        The input of a state machine is its first state.

        If the `idempotency_key` belongs to an open or completed flow, the handle refers to that flow. A
        failed flow is started again, unless `reuse_failure`; `supersede` cancels an open flow. With
        `require_worker`, NoWorker is raised while no worker serves the workflow; those of its steps are not
        asked for. `timeout` overrides the workflow's timeout (0: none). The server keeps it with the lease
        time added, and counts it from the moment when the flow is due. `delay`, `priority` (-4000..4000,
        lower first), `meta` and `correlation_id` apply to every step. A `correlation_id` has 1 to 512
        printable characters, by default that of the caller's job or context, and without one the flow's id.
        `keep_completed` and `keep_failed` (an age or 0) say how long this flow is kept once it has ended,
        over the workflow's own.

        Raises, before anything runs: DefinitionError for a workflow that is not registered here and for wrong
        options, PayloadError for an input that does not fit the workflow's type, EmitError, ProviderStopped.
        """
        known = self._definitions.registered(workflow)
        given = self._definitions.encode_input(known, input)
        flow_id = new_flow_id(known.name)
        limit = known.timeout if timeout is None else seconds(timeout, setting="timeout") or None
        effective = None if limit is None else limit + self.provider.settings.lease
        chain = "" if correlation_id is None else check_correlation_id(correlation_id)
        message = message_of(self.provider, known, flow_id, given, meta, chain, idempotency_key, effective)
        wait = 0.0 if delay is None else seconds(delay, setting="delay")
        message.priority = check_priority(priority)
        keeps = (keep_completed, keep_failed)
        if check_flag(require_worker, "require_worker") or keeps != (None, None):
            message.bare = True  # the worker adds the steps
        is_keyed = idempotency_key is not None
        tree = tree_of(
            known if isinstance(known, Workflow) else None,
            flow_id,
            message,
            delay=wait,
            key=self._jobs.digest(check_key(idempotency_key)) if is_keyed else "",
            # The fingerprint lets the server notice a key that is used again with another input.
            print=self._jobs.payload_digest(given) if is_keyed else "",
            meeting=meeting_of(idempotency_key, reuse_failure=reuse_failure, supersede=supersede),
            require_worker=require_worker,
            keeps=keeps,
        )
        reading = self._definitions.reading(known.name)
        emission = self._jobs.add(
            tree, reading, correlation_id=message.correlation_id, call_timeout=call_timeout
        )
        try:
            await emission.enqueued()
        except EmitError as error:
            raise not_started(error, flow_id, is_keyed=is_keyed) from error.__cause__
        # Not `flow_id`: an idempotency key may have led to a flow that exists already.
        return FlowHandle(emission.job_id, self._jobs, reading, self, self._sender, emission)

    async def run_inline(
        self,
        workflow: Workflow[I, O] | Durable[I, O] | type[StateMachine[I]],
        input: I,  # noqa: A002  (as the workflow calls it)
        *,
        meta: Mapping[str, Any] | None = None,
        timeout: Duration | None = None,  # noqa: ASYNC109  (of the flow, with rollback)
        triggers: Sequence[tuple[Transition[Any], Any]] = (),
    ) -> O:
        """Run a flow in this process, without jobs: the same rules and errors, but nothing is durable.

        This is for dry runs and tests; see `workflows.testing`. Only `ctx.emit` needs this provider to be
        started. Raises the errors of a handle's `result`.
        """
        return await run_inline(
            workflow,
            input,
            meta=meta,
            timeout=timeout,
            provider=self.provider,
            middleware=tuple(self._middleware),
            triggers=triggers,
        )

    @overload
    def handle(self, flow_id: str, workflow: type[StateMachine[Any]] | None = None) -> FlowHandle[Any]: ...
    @overload
    def handle(self, flow_id: str, workflow: Workflow[Any, O] | Durable[Any, O]) -> FlowHandle[O]: ...
    def handle(self, flow_id: str, workflow: AnyWorkflow[Any, Any] | None = None) -> FlowHandle[Any]:
        """Return a handle for any flow by its id; the handle's calls find out whether the flow exists.

        `workflow` gives the handle the types of its output and declared errors; it need not be registered
        here. Without `workflow` the handle uses the workflow of that name that is registered here, if there
        is one. Raises UnknownJob for text that is not the id of a flow, or of a flow of another workflow, and
        DefinitionError for an id that is not a str.
        """
        name = workflow_of(flow_id)
        if workflow is None:
            return FlowHandle(flow_id, self._jobs, self._definitions.reading(name), self, self._sender)
        known = definition_of(workflow, "the workflow of a flow")
        if known.name != name:
            raise UnknownJob(
                flow_id, f"{shown(flow_id)} is the id of a flow of workflow {name!r}, not of {known.name!r}"
            )
        return FlowHandle(flow_id, self._jobs, self._definitions.reading_of(known), self, self._sender)

    # Inspecting flows, and managing them. `call_timeout` is how long the server may take to answer the whole
    # call, by default the provider's `reply_timeout`; a call that takes longer raises StoreUnavailable.

    @overload
    async def retry(
        self,
        flow_id: str,
        resume: bool | None = ...,
        *,
        workflow: type[StateMachine[Any]] | None = None,
        run: int | None = ...,
        target: str | None = ...,
        call_timeout: Duration | None = ...,
    ) -> FlowHandle[Any]: ...
    @overload
    async def retry(
        self,
        flow_id: str,
        resume: bool | None = ...,
        *,
        workflow: Workflow[Any, O] | Durable[Any, O],
        run: int | None = ...,
        target: str | None = ...,
        call_timeout: Duration | None = ...,
    ) -> FlowHandle[O]: ...
    async def retry(
        self,
        flow_id: str,
        resume: bool | None = None,
        *,
        workflow: AnyWorkflow[Any, Any] | None = None,
        run: int | None = None,
        target: str | None = None,
        call_timeout: Duration | None = None,
    ) -> FlowHandle[Any]:
        """Run a flow that has ended again, under the same id; return its handle once the retry is recorded.

        If `resume` is true, steps that completed and were not rolled back keep their results and do not run
        again; if it is false, all steps run. None resumes a failed or cancelled flow, and runs a completed
        one from the start. Input, meta, version, key and timeout stay the same; the timeout starts again.
        Handles of the earlier run keep its outcome; the returned handle, and later ones, get the new outcome.
        Any process can ask for a retry; a worker that has the workflow runs it. With `run` it is refused
        unless that is the number of the last run, so that of two callers who saw the same end one begins a
        run.

        A state machine that has not ended runs the transition again that failed, or with `target` moves to
        that place first; it raises SignalRefused if it is being stopped.

        Raises FlowNotEnded (also if another caller retries the flow at the same time, or did since `run`),
        UnknownJob and DefinitionError as `handle` does, UsageError for the flow of a sub-workflow,
        StoreError.
        """
        handle = self.handle(flow_id) if workflow is None else self.handle(flow_id, cast("Any", workflow))
        deadline = self._jobs.settings.deadline(call_timeout)
        if target is not None:
            self._definitions.check_place(workflow_of(flow_id), target)
        await retry_flow(self._jobs, flow_id, resume=resume, run=run, target=target, deadline=deadline)
        return handle

    async def remove(self, flow_id: str, *, call_timeout: Duration | None = None) -> bool:
        """Remove a flow that has ended: its record, its journal, its steps and its sub-workflows.

        Return False, and change nothing, while it is open: cancel it first, so that what it did is undone. A
        removed flow is listed no more and cannot be retried. Whoever awaits it still finds how it ended for
        up to four minutes. Its idempotency key answers for its time. If the answer was lost, the same call
        again says that the flow is unknown. Raises UnknownJob, UsageError for the flow of a sub-workflow,
        StoreError.
        """
        check_whole(flow_id, "remove")
        return await self.provider.inspector.within(call_timeout).trees.remove(flow_id)

    async def status(self, flow_id: str, *, call_timeout: Duration | None = None) -> FlowStatus:
        """Return the state of a flow and of its rollbacks. Raises UnknownJob, StoreError."""
        return await self._inspection.status(check_flow_id(flow_id), call_timeout=call_timeout)

    async def report(self, flow_id: str, *, call_timeout: Duration | None = None) -> FlowReport:
        """Return the report of a flow: the recorded state of its steps and rollbacks.

        Results have their types if the workflow is registered here in the flow's version. A step whose record
        cannot be read is `damaged`. Raises UnknownJob and StoreError; StoreCorrupt if the flow's own record
        cannot be read.
        """
        return await self._inspection.look(self._definitions.find_codecs, call_timeout=call_timeout).report(
            check_flow_id(flow_id)
        )

    async def tree(self, flow_id: str, *, call_timeout: Duration | None = None) -> FlowTree:
        """Return the reports of a flow and of its sub-workflows' flows, with the errors of failed attempts.

        Raises the errors of `report`.
        """
        return await self._inspection.look(self._definitions.find_codecs, call_timeout=call_timeout).tree(
            check_flow_id(flow_id)
        )
