"""The consumer of the flows of a durable function, in every version that this process knows.

Not here: running a flow (`distributed.functions.durable_flow`).

What must always hold: an error of this package or of the server is no error of the function: the flow is
tried again, and what it recorded counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from eventbus import JobFailure, ProviderStopped, StoreCorrupt, StoreError
from eventbus.lowlevel import (
    Job,
    Retention,
    Settle,
    WorkerServices,
    begin_apart,
    cancel,
    describe,
    fail,
    get_logger,
    hide_around,
    later,
    log_failure,
    park,
    retry,
)
from workflows.distributed.flow_counter import note_completed, note_stopped
from workflows.distributed.functions.durable_flow import DurableFlow
from workflows.distributed.functions.parked_flows import ParkedFlows
from workflows.distributed.step_consumer import facts_of, read_message
from workflows.distributed.worker_runtime import AWAY_MS, ServerAway, WorkerRuntime
from workflows.functions.definition import Durable
from workflows.functions.rollbacks import UnknownTask
from workflows.machines.definition import MachineDefinition
from workflows.records.failures import describe_failed_flow
from workflows.records.ids import flow_queue
from workflows.records.records import is_declared, read_flow_failure

__all__ = ["DurableConsumer"]

_log = get_logger("workflows")

_KEY_TTL_MS = 7 * 86_400_000  # idempotency keys of flows are kept for at least a week


class DurableConsumer:
    """Runs the flows of one durable function."""

    group = ""

    def __init__(
        self,
        name: str,
        runtime: WorkerRuntime,
        services: WorkerServices,
        newest: Durable[Any, Any] | MachineDefinition | None = None,
    ) -> None:
        """Run flows of `name` with the options of `newest`, by default the function that was
        registered last.
        """
        self.queue: str = flow_queue(name)
        self.base: str = self.queue
        self.follows: Sequence[str] = ()
        newest = newest or runtime.registry.durable(name)
        own = None if newest is None else newest.concurrency
        self.concurrency: int = own or services.settings.concurrency
        limit = None if newest is None else newest.limit
        self.limit: str = "" if limit is None else limit.to_wire()
        keeps = (None, None) if newest is None else (newest.keep_completed, newest.keep_failed)
        kept = services.retention_for(*keeps)
        self.retention: Retention = msgspec.structs.replace(kept, key_ttl=max(kept.key_ttl, _KEY_TTL_MS))
        self.definitions: Mapping[str, str] = runtime.registry.told_graphs(name)
        self.name: str = name
        self.runtime: WorkerRuntime = runtime
        self._parked = ParkedFlows()

    def settled(self, job_id: str, state: str, text: str) -> None:
        """Do nothing: only jobs in the server wait for a flow."""

    def surround(self) -> None:
        """Start with an empty context: the run of the function sets its own."""
        begin_apart()

    def timeout_of(self, job: Job) -> float | None:
        """Return None: each task has its own timeout, and the server keeps the flow's timeout."""
        del job

    async def run(self, job: Job) -> Settle | None:
        """Run the flow until it ends or sleeps, or undo it if it was stopped."""
        hide_around(job.body)
        try:
            return note_completed(self.name, await self.advance(job))
        except UnknownTask as error:
            _log.error(
                "flow parked, this worker has not imported what it needs", **self.facts(job), error=str(error)
            )
            return park(f"not known here: {error}")
        except StoreCorrupt as error:
            if job.stop:
                return await self._give_up(job, error)
            raise

    async def advance(self, job: Job) -> Settle | None:
        """Run the flow, or undo it; return the settle, None if the lease is lost."""
        message = read_message(job)
        durable = self.runtime.registry.durable(self.name, message.version or None)
        if durable is None:
            return park(f"not known here: version {message.version} of durable function {self.name}")
        flow = DurableFlow(self.runtime, durable, job, message, self._parked)
        return await (flow.undo() if job.stop else flow.advance())

    def decide(self, job: Job, error: BaseException) -> Settle:
        """Try again after an error of the server; fail the flow for any other one."""
        if isinstance(error, (ServerAway, StoreError, ProviderStopped)) and not isinstance(
            error, StoreCorrupt
        ):
            return later(describe(error, attempts=job.attempts), AWAY_MS)
        attempts = job.attempts + 1
        if job.stop:  # back off up to a minute
            return retry(describe(error, attempts=attempts), min(1000 * 2 ** min(attempts, 6), 60_000))
        return fail(describe(error, attempts=attempts, event=self.name))

    def facts(self, job: Job) -> Mapping[str, Any]:
        """Return the fields that `ctx.log` has too."""
        return {"workflow": self.name, "flow_id": job.id, **facts_of(job)}

    def failure(self, job: Job, text: str) -> JobFailure | None:
        """Return what hooks are told of a flow that has failed, None if it is still to be undone."""
        return describe_failed_flow(self.name, job, text)

    def failed(self, job: Job, settle: Settle) -> None:
        """Log the end of the flow, or a failure of this package; the steps have logged theirs."""
        facts = dict(self.facts(job))
        if settle.state == "delayed":
            log_failure(
                _log, "flow not undone, trying again", settle.text, facts, retry_in=settle.delay_ms / 1000
            )
        elif job.stop or settle.state == "cancelled":
            self._tell_ended(job, settle, facts)

    def _tell_ended(self, job: Job, settle: Settle, facts: dict[str, Any]) -> None:
        """Log the end of the flow, without a traceback: its step or its rollbacks have logged theirs."""
        del facts["attempt"]
        failure = read_flow_failure(settle.text)
        note_stopped(self.name, settle, failure)
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
        if not await self.runtime.ask(self.runtime.jobs.checkpoint(job, acknowledges=True)):
            return None
        text = describe(error, attempts=job.attempts)
        return cancel(text) if job.stop == "cancelled" else fail(text, counts=False)
