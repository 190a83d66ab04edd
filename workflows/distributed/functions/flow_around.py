"""What surrounds the code, the steps and the rollbacks of a flow of a durable function, or of a state
machine, in a worker.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from eventbus.lowlevel import Attempt, Job, outside_job, trace_id_of, tracer
from workflows.distributed.functions.task_pools import TaskPools
from workflows.distributed.worker_runtime import WorkerRuntime
from workflows.execution.spans import flow_attributes, work_span
from workflows.execution.surroundings import Children, NoChildren, Surroundings
from workflows.functions.definition import Durable, DurableCodecs
from workflows.machines.definition import MachineDefinition
from workflows.records.records import FlowMessage

_OVERHEAD = 4096  # bytes of an entry besides its value, at most


class FlowAround:
    """Makes the surroundings, the spans and the log fields of one flow, or of a job of it."""

    def __init__(
        self,
        runtime: WorkerRuntime,
        durable: Durable[Any, Any] | MachineDefinition,
        flow_id: str,
        message: FlowMessage,
        *,
        job_id: str = "",
    ) -> None:
        """Use `job_id` for a job of the flow that is not its root. A state machine has no tasks, and so no
        pools.
        """
        self._runtime = runtime
        self._durable = durable
        self._flow_id = flow_id
        self._message = message
        self._job_id = job_id or flow_id

    def make(
        self, run: str, children: Children | None = None, job: Job | None = None, *, seed: str = ""
    ) -> Surroundings:
        """Return the surroundings of a run of the code, or of what belongs to one. The code's own have a
        `job` and a `seed`.
        """
        message, host = self._message, self._runtime.services.host
        return Surroundings(
            flow_id=self._flow_id,
            run=run,
            seed=seed,
            job_id=self._job_id,
            workflow=self._durable.name,
            tools=host,
            own=Attempt(host, job or outside_job(self._job_id)),
            call_sync=self._runtime.call_sync,
            sleep=asyncio.sleep,
            span=self.span,
            meta=message.meta or {},
            correlation_id=message.correlation_id or self._flow_id,
            traceparent=message.traceparent,
            tracestate=message.tracestate,
            facts=self.facts(),
            middleware=self._runtime.middleware,
            children=children or NoChildren(),
            worker=self._runtime.services.worker,
            pools=self._pools(),
        )

    def _pools(self) -> TaskPools | None:
        runtime, durable = self._runtime, self._durable
        if not isinstance(durable, Durable):
            return None
        return TaskPools(runtime, durable, self._flow_id, max_bytes=codecs_for(runtime, durable).max_bytes)

    def facts(self) -> dict[str, Any]:
        """Return the fields of log events."""
        message = self._message
        facts = {
            "workflow": self._durable.name,
            "flow_id": self._flow_id,
            "correlation_id": message.correlation_id or self._flow_id,
        }
        trace_id = trace_id_of(message.traceparent)
        return facts | ({"trace_id": trace_id} if trace_id else {})

    def span(
        self, what: str, label: str, attempt: int, links: Sequence[str] = (), *, owner: str = ""
    ) -> AbstractContextManager[str]:
        """Open the span of an attempt; `owner` is the name of the workflow if not this flow's."""
        if tracer() is None:
            return nullcontext(self._message.traceparent)
        services, name = self._runtime.services, owner or self._durable.name
        attributes = flow_attributes(
            what,
            "process",
            workflow=name,
            flow_id=self._flow_id,
            job_id=self._job_id,
            correlation_id=self._message.correlation_id or self._flow_id,
            client=services.settings.name,
            url=services.settings.url,
        )
        attributes |= {
            "eventbus.worker.id": services.worker,
            "eventbus.attempt": attempt,
            "workflows.step": label,
        }
        return work_span(
            f"{what} {name}.{label.partition('@')[0]}",
            attributes,
            traceparent=self._message.traceparent,
            tracestate=self._message.tracestate,
            links=links,
        )


def codecs_for(runtime: WorkerRuntime, durable: Durable[Any, Any]) -> DurableCodecs:
    """Return the codecs of a function; a value must leave room for the rest of its entry."""
    most = int(runtime.services.settings.max_result)
    return _made(durable, max(most - _OVERHEAD, most // 2))


@functools.lru_cache(maxsize=256)
def _made(durable: Durable[Any, Any], most: int) -> DurableCodecs:
    return DurableCodecs(durable, max_bytes=most)
