"""The consumer of the flows of one workflow, of whatever kind: it runs their root jobs.

    claimed -> the kind opens the flow -> it advances -> completed | failed | waits | given back | parked
    claimed with a stop -> it is undone (`undo.unwinding`) -> failed | cancelled

Each kind has a driver (`graph_flow`, `functions.durable_flow`, `machines.machine_flow`), which opens flows
and judges errors. All else stands here once: what is parked and why, what is tried again, what is counted and
logged.

What must always hold: an error of this package or of the server is no error of the workflow: the flow is
tried again, and what it recorded counts. A root that knows of its stop acknowledges it first, so that neither
the flow's timeout nor a cancel changes the outcome afterwards. A flow that this process does not know is
parked, with the reason, and neither fails nor goes on. A stopped flow that cannot be read ends, because
nobody can undo it. A run of a flow counts once, when its worker has decided how it ends. The decision counts
twice if that worker dies before the server has heard of it, as every effect of a job may.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from eventbus import JobFailure, StoreCorrupt, StoreUnavailable
from eventbus.lowlevel import (
    Job,
    Metric,
    Retention,
    Settle,
    attach_baggage,
    begin_apart,
    cancel,
    describe,
    fail,
    get_logger,
    give_back,
    hide_around,
    instruments,
    log_failure,
    park,
    retry,
)
from workflows.definition.flow_definition import AnyDefinition
from workflows.distributed.step_consumer import facts_of, read_message
from workflows.distributed.undo.unwinding import StoppedFlow, unwind
from workflows.distributed.worker_runtime import ServerAway, WorkerRuntime, needing_server, put_off
from workflows.execution.rollback import UnknownHere
from workflows.execution.step_runner import WORKFLOW
from workflows.execution.surroundings import FlowStops, LeaseLost
from workflows.records.failures import describe_failed_flow
from workflows.records.ids import flow_queue
from workflows.records.records import FlowFailure, FlowMessage, is_declared, read_flow_failure

_log = get_logger("workflows")

_KEY_TTL_MS = 7 * 86_400_000  # idempotency keys of flows are kept for at least a week


FLOWS_ENDED = Metric(
    "workflows.flow.ended",
    "counter",
    "{flow}",
    "Flows that ended in a worker, by how they ended.",
    ("workflows.workflow", "eventbus.outcome"),
)
"""Counted only if the program has an OpenTelemetry SDK; flows that end before a worker began them are not."""


class ActiveFlow(StoppedFlow, Protocol):
    """A claimed flow in one activation. Await `advance` once, or undo it."""

    async def advance(self) -> Settle | None:
        """Run until the flow ends or waits; return the settle, None if it waits in the server.

        Raises UnknownHere, FlowStops, LeaseLost, ServerAway, StoreCorrupt, and what `FlowDriver.judge`
        judges.
        """
        ...


class FlowDriver(Protocol):
    """What one kind of workflow does with its flows. There is one driver for each consumer."""

    @property
    def newest(self) -> AnyDefinition:
        """The definition whose options count: the one registered last."""
        ...

    @property
    def follows(self) -> Sequence[str]:
        """The queues whose jobs may become ready when a root ends: of the steps of spread flows."""
        ...

    async def open(self, job: Job, message: FlowMessage) -> ActiveFlow:
        """Return the flow of a root job. Raises UnknownHere if another worker must run it, ServerAway,
        StoreCorrupt.
        """
        ...

    def judge(self, job: Job, error: BaseException) -> Settle:
        """Return what follows from an error of `advance` that is the workflow's own; must not raise."""
        ...

    def log_failed(self, job: Job, settle: Settle, facts: Mapping[str, Any]) -> None:
        """Log what `judge` decided, or that the flow failed, unless that is logged already."""
        ...


class FlowConsumer:
    """Runs the roots of one workflow's flows, in every version that this process knows."""

    group = ""

    def __init__(self, name: str, driver: FlowDriver, runtime: WorkerRuntime) -> None:
        self.queue: str = flow_queue(name)
        self.base: str = self.queue
        self.follows: Sequence[str] = driver.follows
        newest, services = driver.newest, runtime.services
        self.concurrency: int = newest.concurrency or services.settings.concurrency
        self.limit: str = "" if newest.limit is None else newest.limit.to_wire()
        kept = services.retention_for(newest.keep_completed, newest.keep_failed)
        self.retention: Retention = msgspec.structs.replace(kept, key_ttl=max(kept.key_ttl, _KEY_TTL_MS))
        self.definitions: Mapping[str, str] = runtime.registry.told_graphs(name)
        self._name = name
        self._driver = driver
        self._runtime = runtime

    def settled(self, job_id: str, state: str, text: str) -> None:
        """Do nothing: only jobs in the server wait for a flow."""

    def surround(self) -> None:
        """Start with an empty context, but for the name of the workflow: what runs here sets its own."""
        begin_apart()
        WORKFLOW.set(self._name)

    def timeout_of(self, job: Job) -> float | None:
        """Return None: each function has its own timeout, and the server keeps the flow's timeout."""
        del job

    async def run(self, job: Job) -> Settle | None:
        """Run the flow until it ends or waits, or undo it if it was stopped."""
        hide_around(job.body)
        try:
            message = read_message(job)
            try:
                flow = await self._driver.open(job, message)
            except UnknownHere as error:  # a worker of the other release runs it
                return park(f"not known here: {error}")
            if message.baggage:
                attach_baggage(message.baggage)
            if not job.stop:
                return _note_completed(self._name, await flow.advance())
            with needing_server(StoreUnavailable):  # another error is told, and waited for ever longer
                return await unwind(self._runtime, flow)
        except UnknownHere as error:
            _log.error(
                "flow parked, this worker has not imported what it needs", **self.facts(job), error=str(error)
            )
            return park(f"not known here: {error}")
        except FlowStops:
            return give_back()
        except LeaseLost:
            return None
        except StoreCorrupt as error:
            if job.stop:
                return await self._give_up(job, error)
            raise

    def decide(self, job: Job, error: BaseException) -> Settle:
        """Try again what the server or this package is to blame for; the kind judges an error of a workflow.

        An error of the rollback phase is no workflow's: that phase is tried again, without limit, until the
        flow can be read and its outcome saved.
        """
        if isinstance(error, ServerAway):
            return put_off(job, error, self.facts(job))
        if job.stop:  # back off up to a minute
            attempts = job.attempts + 1
            return retry(describe(error, attempts=attempts), min(1000 * 2 ** min(attempts, 6), 60_000))
        return self._driver.judge(job, error)

    def facts(self, job: Job) -> Mapping[str, Any]:
        """Return the fields that `ctx.log` has too."""
        return {"workflow": self._name, "flow_id": job.id, **facts_of(job)}

    def failure(self, job: Job, text: str) -> JobFailure | None:
        """Return what hooks are told of a flow that has failed, None if it is still to be undone."""
        return describe_failed_flow(self._name, job, text)

    def failed(self, job: Job, settle: Settle) -> None:
        """Log the end of the flow, a rollback phase that is tried again, or a failure as its kind does."""
        facts = dict(self.facts(job))
        if not job.stop:
            if settle.state != "cancelled":  # else it is claimed again, to be undone, and told then
                self._driver.log_failed(job, settle, facts)
        elif settle.state == "delayed":
            log_failure(
                _log, "flow not undone, trying again", settle.text, facts, retry_in=settle.delay_ms / 1000
            )
        else:
            self._tell_ended(job, settle, facts)

    def _tell_ended(self, job: Job, settle: Settle, facts: dict[str, Any]) -> None:
        """Log the end of the flow, without a traceback: its step or its rollbacks have logged theirs."""
        del facts["attempt"]
        failure = read_flow_failure(settle.text)
        _note_stopped(self._name, settle, failure)
        is_answer = settle.state == "cancelled"
        if failure is not None:
            facts |= {"cause": job.stop, "rollback": failure.rollback}
            if failure.step:
                facts["step"] = failure.step
            is_answer = (is_answer or is_declared(settle.text)) and failure.rollback != "incomplete"
        line = "flow cancelled" if settle.state == "cancelled" else "flow failed"
        log_failure(_log, line, settle.text, facts, is_answer=is_answer)

    async def _give_up(self, job: Job, error: StoreCorrupt) -> Settle | None:
        """End a stopped flow whose message or journal cannot be read: nobody can undo it, and it must end."""
        _log.error("flow not undone, its records cannot be read", flow_id=job.id, error=str(error))
        if not await self._runtime.ask(self._runtime.jobs.checkpoint(job, acknowledges=True)):
            return None
        text = describe(error, attempts=job.attempts)
        return cancel(text) if job.stop == "cancelled" else fail(text, counts=False)


def _note_completed(workflow: str, settle: Settle | None) -> Settle | None:
    """Count a flow whose root is settled as completed; return the settle."""
    if settle is not None and settle.state == "completed":
        _count(workflow, "completed")
    return settle


def _note_stopped(workflow: str, settle: Settle, failure: FlowFailure | None) -> None:
    """Count a flow that failed or was cancelled; it is `incomplete` if a rollback failed."""
    is_incomplete = failure is not None and failure.rollback == "incomplete"
    _count(workflow, "incomplete" if is_incomplete else settle.state)


def _count(workflow: str, outcome: str) -> None:
    made = instruments()
    if made is not None:
        attributes = {"workflows.workflow": workflow, "eventbus.outcome": outcome}
        made.counter(FLOWS_ENDED).add(1, attributes)
