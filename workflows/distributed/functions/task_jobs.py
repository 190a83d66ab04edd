"""Jobs that call a task for a durable function anywhere in the fleet: what a job says, and the consumer that
runs it.

    added by the flow's root -> claimed -> active -> completed | failed | cancelled
                                                  -> delayed -> active

What must always hold: a job names its task by its key, and a worker calls only what it has imported; the step
key is that of the call's position, whoever runs it. Each attempt follows the task's own options, and those of
the durable function.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Annotated, Any

import msgspec

from eventbus import Later, Sensitive, StoreCorrupt
from eventbus.lowlevel import (
    Attempt,
    Job,
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
    is_quoting,
    later,
    log_failure,
    park,
    retry,
)
from workflows.definition.checks.signature import taken_by
from workflows.definition.task import Task, call_task, find_task
from workflows.distributed.functions.flow_around import FlowAround, codecs_for
from workflows.distributed.step_consumer import facts_of, read_message
from workflows.distributed.worker_runtime import ServerAway, WorkerRuntime, put_off
from workflows.execution.attempt import StillRuns
from workflows.execution.step_runner import judge
from workflows.execution.surroundings import Child, Surroundings
from workflows.records.ids import flow_queue, parse_member, steps_queue
from workflows.records.records import FlowMessage, StepRecord, encode_step, hidden_in, is_declared

_log = get_logger("workflows.step")


class _Call(msgspec.Struct, rename={"task": "t", "item": "i"}):
    """What the job is to call."""

    task: str
    item: msgspec.Raw


def describe_task(outer: FlowMessage, child: Child) -> FlowMessage:
    """Return the message of the job that calls a task for a flow."""
    assert child.task is not None, "only calls of tasks are jobs"  # noqa: S101
    call = msgspec.json.encode(_Call(child.task.key, msgspec.Raw(child.given)))
    # An item that repeats a hidden value of its flow is hidden as a whole.
    hidden = _WHOLE if is_quoting(child.given) else _hidden_of(child.task)
    return msgspec.structs.replace(
        outer, input=msgspec.Raw(call), kept={}, bare=True, durable=False, hidden=hidden
    )


def _hidden_in(item: Any) -> msgspec.Raw:
    """Return the `hidden` of the message of a call that has an item of this type."""
    return hidden_in(msgspec.defstruct("_Call", [("i", item)]), None)


@lru_cache(maxsize=1000)
def _hidden_of(task: Task[..., Any]) -> msgspec.Raw:
    kind = taken_by(task.function, 0, extras=True)
    return _hidden_in(Any if isinstance(kind, str) else kind)


_WHOLE = _hidden_in(Annotated[Any, Sensitive()])


class TaskConsumer:
    """Runs the jobs of the flows of one durable function."""

    group = ""

    def __init__(self, name: str, runtime: WorkerRuntime, services: WorkerServices) -> None:
        self.queue: str = steps_queue(name)
        self.base: str = self.queue
        self.follows: Sequence[str] = (flow_queue(name),)
        self.concurrency: int = services.settings.concurrency
        self.retention: Retention = services.retention
        self._name = name
        self._runtime = runtime

    def settled(self, job_id: str, state: str, text: str) -> None:
        """Do nothing: the flow's root reads the outcome."""

    def surround(self) -> None:
        """Start with an empty context: each attempt sets its own."""
        begin_apart()

    def timeout_of(self, job: Job) -> float | None:
        """Return the timeout of the task in seconds; None if it has none, or is not known here."""
        task = self._task(job)
        if task is None or task.pool not in (
            None,
            "thread",
        ):  # then it counts from when the attempt has a place
            return None
        return task.timeout

    async def run(self, job: Job) -> Settle | None:
        """Call the task once."""
        hide_around(job.body)
        message, call = read_message(job), _read(job)
        task = find_task(call.task)
        if task is None:
            return park(f"not known here: task {call.task}")
        durable = self._runtime.registry.durable(self._name, message.version)
        if durable is None:
            return park(f"not known here: version {message.version} of durable function {self._name}")
        if message.baggage:
            attach_baggage(message.baggage)
        place = parse_member(job.id)
        position = place.step.replace("-", ".")
        run = f"{place.run}.{place.index}" if place.index else str(place.run)
        around = FlowAround(self._runtime, durable, place.flow_id, message, job_id=job.id).make(run)
        most = codecs_for(self._runtime, durable).max_bytes
        item = task.item_codec(most).decode(memoryview(call.item))
        key = f"{place.flow_id}/{run}/{position}"
        label, number, given = f"{task.name}@{position}", job.attempts + 1, (item,)
        own = Attempt(self._runtime.services.host, job)
        attempt = partial(self._call, job, task, item, around, key, own)
        with around.step(label, number, key, own) as traceparent:
            try:
                value = await around.through("task", label, number, traceparent, given, attempt)
            except StillRuns:
                return give_back()  # its thread still runs after the flow was cancelled
            result = task.codec(most).encode(value)
        return complete(encode_step(StepRecord(result=msgspec.Raw(result), traceparent=traceparent)))

    async def _call(
        self, job: Job, task: Task[..., Any], item: Any, around: Surroundings, key: str, own: Attempt
    ) -> Any:
        if around.pools is None or (places := around.pools.places(task)) is None:
            return await call_task(task, (item,), {}, self._runtime.call_sync)
        attempt = job.attempts + 1
        label = f"{task.name}@{key.rpartition('/')[2]}"
        facts = {**around.facts, "step": label, "attempt": attempt}
        call = partial(around.pools.call, task, (item,), {}, key=key, attempt=attempt, facts=facts, own=own)
        return await self._runtime.run_in_place(places, job, task.timeout, call)

    def decide(self, job: Job, error: BaseException) -> Settle:
        """Retry while attempts are left and the error is retryable; otherwise the call has failed."""
        attempts = job.attempts + 1
        if isinstance(error, ServerAway):
            return put_off(job, error, self.facts(job))
        if isinstance(error, Later):
            return later("", round(error.delay * 1000))
        durable = self._runtime.registry.durable(self._name, self._version(job))
        task = self._task(job)
        if durable is None or task is None:
            return fail(describe(error, attempts=attempts))
        delay, error = judge(task.retry or durable.retry, attempts, error, durable)
        owner = f"{durable.name}.{task.name}"
        text = describe(error, attempts=attempts, declared=durable.errors, event=owner)
        return fail(text) if delay is None else retry(text, round(delay * 1000))

    def facts(self, job: Job) -> Mapping[str, Any]:
        """Return the fields of log events about the job."""
        place, task = parse_member(job.id), self._task(job)
        label = f"{task.name if task is not None else ''}@{place.step.replace('-', '.')}"
        return {"workflow": self._name, "flow_id": place.flow_id, "step": label, **facts_of(job)}

    def failure(self, job: Job, text: str) -> None:
        """Return None: hooks are told of its flow, when that has ended."""

    def failed(self, job: Job, settle: Settle) -> None:
        """Log a failed attempt."""
        if settle.state == "cancelled":
            return  # the end of its flow is logged instead
        is_last = settle.state == "failed"
        log_failure(
            _log,
            "step failed" if is_last else "attempt failed, trying again",
            settle.text,
            dict(self.facts(job)),
            retry_in=None if is_last else settle.delay_ms / 1000,
            is_answer=is_declared(settle.text),
        )

    def _task(self, job: Job) -> Task[..., Any] | None:
        try:
            return find_task(_read(job).task)
        except StoreCorrupt:
            return None

    def _version(self, job: Job) -> str | None:
        return read_message(job).version or None


def _read(job: Job) -> _Call:
    try:
        return msgspec.json.decode(read_message(job).input, type=_Call)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise StoreCorrupt(f"job {job.id} does not name a task: {error}") from None
