"""Steps with a pool: the worker's side, and the function that runs in a process.

    worker    names, input and loaded results, as JSON ->
    process                                              progress, ..., result or the record of the error

What must always hold: the process finds the step by the import path of its workflow; it decodes and encodes
with the same types as the worker; nothing is recorded there.

Crash windows: `process-dies` (the attempt fails with ProcessDied), `worker-dies` (the process ends with it,
and the step runs again).
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, NoReturn, TypeVar, cast

import msgspec

from eventbus import DefinitionError, ProcessContext, UsageError
from eventbus.lowlevel import (
    ImportPath,
    ThreadPool,
    WorkerPools,
    attempt_in,
    baggage_around,
    find,
    import_path_of_function,
    import_path_of_object,
    run_at_once,
    shown,
    with_facts,
)
from workflows.definition.codecs import Codecs
from workflows.definition.context import StepContext, codecs_of, loaded_of, log_facts
from workflows.definition.flow_tools import FlowData, FlowFacts
from workflows.definition.middleware import FlowMiddleware
from workflows.definition.outline import GraphOutline, StepOutline
from workflows.definition.plan import Before
from workflows.definition.workflow import Workflow
from workflows.records.records import StepRecord, decode_step, encode_step

T = TypeVar("T")


class _Given(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt of a step, for another process. `records` has the records of earlier steps as JSON."""

    workflow: ImportPath
    step: str
    input: str
    records: dict[str, str]
    unloaded: list[str]
    flow_id: str
    run: int
    tracestate: str
    traceparent: str
    max_bytes: int
    worker: str
    provider: str


class PooledSteps:
    """Runs the functions of steps in the pools of one worker. The caller has taken a place of the pool."""

    def __init__(
        self, pools: WorkerPools, call_sync: Callable[[Callable[[], Any], ThreadPool | None], Awaitable[Any]]
    ) -> None:
        """`call_sync` runs a plain function in the threads of a pool."""
        self._pools = pools
        self._call_sync = call_sync
        self._places: dict[int, ImportPath] = {}

    def check(self, workflow: Workflow[Any, Any]) -> None:
        """Raise DefinitionError for a step whose pool is not known, or that a process could not find."""
        for step in workflow.steps.values():
            if step.pool is None or step.pool == "thread":
                continue
            check_known(step.pool, step.where, self._pools)
            if self._pools[step.pool].processes is not None:
                self._place_of(workflow, step)

    async def run(self, step: StepOutline[Any], ctx: StepContext[Any], call: Callable[[], Any]) -> Any:
        """Run the function of a step, which is also `call`, in its pool, and return its result.

        Cancelling kills the process. Raises the declared error or a HandlerError in place of the function's
        own error, and ProcessDied.
        """
        pool = self._pools[step.pool or ""]
        if pool.calls is None:
            return await self._call_sync(call, pool.threads)
        codecs = codecs_of(ctx)
        workflow = codecs.workflow
        records, unloaded, own = loaded_of(ctx)
        place = self._place_of(workflow, step)
        given = _Given(
            workflow=place,
            step=step.name,
            input=codecs.input.encode(ctx.input).decode(),
            records={name: encode_step(record) for name, record in records.items()},
            unloaded=list(unloaded),
            flow_id=ctx.flow_id,
            run=ctx.run,
            tracestate=ctx.tracestate,
            traceparent=ctx.traceparent,
            max_bytes=codecs.max_bytes,
            worker=ctx.worker,
            provider=ctx.provider,
        )
        result = await pool.calls.run(
            _function_place(),
            msgspec.to_builtins(given),
            name=f"{workflow.name}.{step.name}",
            job_id=ctx.job_id,
            attempt=ctx.attempt,
            own=own,
            correlation_id=ctx.correlation_id,
            meta=ctx.meta,
            traceparent=ctx.traceparent,
            baggage=baggage_around(),
            errors_place=place,
            declared=workflow.errors,
        )
        return codecs.result(step.name).decode(result)

    def _place_of(self, workflow: GraphOutline, step: StepOutline[Any]) -> ImportPath:
        place = self._places.get(id(workflow))
        if place is None:
            place = self._places[id(workflow)] = import_path_of_object(
                workflow,
                getattr(step.function, "__module__", ""),
                f"workflow {workflow.name!r}",
                why=f"its {step.where} has pool={step.pool!r}, and the process finds it there",
            )
        return place


def check_known(pool: str, where: str, known: Collection[str]) -> None:
    """Raise DefinitionError, naming `where`, for a pool that the worker does not have."""
    if pool != "thread" and pool not in known:
        names = ", ".join(f'"{name}"' for name in ("thread", *known))
        raise DefinitionError(
            f"expected pool of {where} to be one of {names}, got: {shown(pool)}; "
            "declare a pool of your own before the worker starts, with provider.pool(name, processes=...) or "
            "threads=..."
        )


def run_here(payload: Mapping[str, Any], ctx: ProcessContext) -> str:
    """Run one attempt in this process; return the result as JSON text. Raises what the function raises, and
    PayloadError.
    """
    given = msgspec.convert(payload, _Given)
    codecs = _codecs(given.workflow, given.max_bytes)
    workflow = codecs.workflow
    if given.step not in workflow.steps:
        raise DefinitionError(
            f"{given.workflow} has no step {given.step!r} in this process; start the worker again if its "
            "code was replaced"
        )
    step = workflow.steps[given.step]

    inner: StepContext[Any] = StepContext(
        _ProcessTools(),
        codecs,
        FlowFacts(
            flow_id=given.flow_id,
            run=given.run,
            meta=ctx.meta,
            correlation_id=ctx.correlation_id,
            tracestate=given.tracestate,
            worker=given.worker,
            provider=given.provider,
            data=_NoData() if "data" in workflow.hooks else FlowData(),
        ),
        input=codecs.input.decode(given.input),
        step=step.name,
        job_id=ctx.job_id,
        attempt=ctx.attempt,
        traceparent=given.traceparent,
        records={name: decode_step(text) for name, text in given.records.items()},
        reach=Before(workflow.plan, step.name),
        unloaded=given.unloaded,
        own=attempt_in(ctx),
    )
    with with_facts(log_facts(inner)):
        return codecs.result(step.name).encode(step.function(inner)).decode()


@functools.cache
def _codecs(place: ImportPath, max_bytes: int) -> Codecs:
    workflow: Any = find(place)
    if not isinstance(workflow, Workflow):
        raise DefinitionError(f"{place} is no workflow in this process, but {workflow!r}")
    return Codecs(cast("Workflow[Any, Any]", workflow), max_bytes=max_bytes)


@functools.cache
def _function_place() -> ImportPath:
    return import_path_of_function(run_here, "the function that runs steps in processes")


class _NoData(FlowData):
    """The data of a flow in a process: the worker made them, and they are not sent along."""

    __slots__ = ()

    def __init__(self) -> None:
        self.has_value = True

    @property
    def value(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Refuse."""
        raise UsageError(
            'ctx.data is not there in a step with pool="process": the worker made it in its own process, and '
            "it is not sent; make the value in the step's own function, or let an earlier step return it"
        )


class _ProcessTools:
    """The FlowTools of a step in a process, which has no connection to the server."""

    @property
    def emits(self) -> NoReturn:
        """Refuse."""
        _refuse("emit")

    def shared(self, lifespan: Any) -> Any:  # noqa: ARG002
        """Refuse."""
        _refuse("shared")

    async def load_record(self, step: str) -> StepRecord | None:
        """Refuse: what fits was sent along."""
        _refuse(f"load of step {step!r}, whose result was not sent along")

    middleware: Sequence[FlowMiddleware] = ()
    """None: it is around the attempt in the worker."""

    @property
    def remote(self) -> None:
        """None: this is the process."""

    def wait(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run `work` at once."""
        return run_at_once(work, timeout)


def _refuse(what: str) -> NoReturn:
    raise UsageError(
        f"ctx.{what} is not there in a step whose pool has processes, which have no connection to the "
        "server; do that in a step before or after it"
    )
