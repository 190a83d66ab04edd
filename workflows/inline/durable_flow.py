"""A flow of a durable function that runs in this process, without a server: the same run, with a journal in memory.

It is for tests and dry runs. Nothing is durable, and what must always hold is what holds for a flow in a worker; see
`functions.function_run`. With `replays` the code starts again from its top after each record, so that it cannot rely on
clocks, random numbers or variables that no replay brings back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from eventbus import UsageError
from eventbus.lowlevel import Codec, Outcome, current
from eventbus.lowlevel import Signal as SentSignal
from workflows.definition.context import FlowFacts
from workflows.definition.signal import Signal
from workflows.definition.workflow import Workflow
from workflows.execution.environment import Environment, InlineTools
from workflows.execution.rollback import Saga, failures_of, verdict_on
from workflows.execution.step_tools import MemoryShelf
from workflows.functions.calls.child_call import Child, end_entry
from workflows.functions.calls.history import History, kept_entries
from workflows.functions.context import FlowContext
from workflows.functions.definition import Durable, DurableCodecs
from workflows.functions.endings import Again, Asleep, Completed, Ending, Failed, Mismatch
from workflows.functions.function_run import FunctionRun
from workflows.functions.rollbacks import doubts_in, inherited_in, undo_of
from workflows.functions.surroundings import Surroundings
from workflows.inline.flow import InlineFlow, Stop
from workflows.inline.inbox import InlineInbox
from workflows.inline.inline_children import InlineChild, InlineChildren
from workflows.inline.memory_recorder import MemoryRecorder, RunAgain
from workflows.records.entries import Entry
from workflows.records.ids import new_flow_id
from workflows.records.records import Cause, describe_flow, revive_flow

__all__ = ["InlineDurable", "no_span", "open_durable", "open_graph"]


class InlineDurable:
    """One inline flow of a durable function. Await `run` only once."""

    def __init__(
        self,
        durable: Durable[Any, Any],
        given: bytes,
        flow_id: str,
        environment: Environment,
        *,
        meta: Mapping[str, Any],
        correlation_id: str,
        limit: float | None = None,
        signals: Sequence[tuple[Signal[Any], Any]] = (),
        replays: bool = False,
    ) -> None:
        """Run `durable` with the input `given`, within `limit` seconds. The signals are in the inbox from the start."""
        self.durable = durable
        self.recorder: MemoryRecorder = MemoryRecorder(
            signals=[
                SentSignal(str(order), order, signal.name, signal.encode(payload))
                for order, (signal, payload) in enumerate(signals, start=1)
            ]
        )
        self.recorder.replays = replays
        self._shelf = MemoryShelf(self.recorder.live)
        self.recorder.sleep = environment.sleep
        self._codecs = DurableCodecs(durable)
        self._given = given
        self._created_ms = self.recorder.now_ms
        self._environment = environment
        self._flow_id = flow_id
        self._meta = meta
        self._correlation_id = correlation_id
        self._limit = limit
        self._children = InlineChildren(self._open_child)
        self._work: asyncio.Task[Completed | Failed] | None = None
        self._reason: str | None = None
        self._state, self._text = "running", ""

    async def run(self) -> Any:
        """Run the flow to its end; return its output, or raise its error. Cancelling this call undoes nothing."""
        await self.settle()
        if self._state == "completed":
            return self._codecs.output.decode(self._text)
        raise revive_flow(self._state, self._text, self.durable.name, self._flow_id, self.durable.errors)

    async def settle(self) -> None:
        """Run the flow to its end. Raises NonDeterminismError, and UsageError if a signal does not come."""
        try:
            self._work = asyncio.create_task(self._advance(), name=self._flow_id)
            await asyncio.wait({self._work}, timeout=self._limit)
            if not self._work.done() or self._reason is not None:
                await self._cut(self._work)
                await self._undo("timeout" if self._reason is None else "cancelled")
                return
            ending = self._work.result()
            if isinstance(ending, Completed):
                self._state, self._text = "completed", ending.output
            else:
                await self._undo("failed", step=ending.step, failure=ending.failure)
        finally:
            if self._work is not None:
                await self._cut(self._work)
            await self._children.close()

    @staticmethod
    async def _cut(work: asyncio.Task[Any]) -> None:
        if not work.done():
            work.cancel()
            await asyncio.wait({work})

    # What a flow is that another one started.

    def ended(self) -> tuple[str, str]:
        """Return its state and its outcome as JSON text, after its end."""
        return self._state, self._text

    def cancel(self, reason: str) -> None:
        """Stop it; it undoes itself."""
        self._reason = reason
        if self._work is not None:
            self._work.cancel()

    def undos(self, prefix: str = "") -> list[Any]:
        """Return the rollbacks that it owes, the newest first."""
        found: list[Any] = []
        around = self._around("1")
        for entry in reversed(kept_entries(self.recorder.entries).entries):
            path = f"{prefix}{entry.name}@{entry.place}"
            if entry.child and entry.kind == "step":
                found += self._children.undos(entry.child, f"{path}/")
            elif (undo := undo_of(self.durable, entry, around, path)) is not None:
                found.append(undo)
        return found

    async def _advance(self) -> Completed | Failed:
        while True:
            try:
                ending = await self._once()
            except RunAgain:
                continue
            if isinstance(ending, (Completed, Failed)):
                return ending
            if isinstance(ending, Mismatch):
                raise ending.error
            if isinstance(ending, Again):
                self.recorder.entries.append(Entry(kind="again", result=msgspec.Raw(ending.text)))
                continue
            await self._sleep(ending)

    async def _once(self) -> Ending:
        kept = kept_entries(self.recorder.entries)
        history = History(kept.entries, created_ms=self._created_ms, number=kept.first)
        around = self._around(f"1.{kept.again}" if kept.again else "1")
        run = FunctionRun(self.durable, self._codecs, history, self.recorder, around)
        self.recorder.is_busy = lambda: run.is_working
        given = bytes(kept.input) if kept.input is not None else self._given
        context: FlowContext[Any] = FlowContext(run, self._codecs.input.decode(given))
        return await run.run(self.durable.function(context))

    async def _sleep(self, ending: Asleep) -> None:
        if ending.children:
            await self._wait(ending)
        elif ending.until_ms is None:
            raise UsageError(
                f"flow {self._flow_id} waits for a signal that does not come; give it: "
                "run_inline(..., signals=[(signal, payload)])"
            )
        else:
            await self.recorder.wait_until(ending.until_ms)

    async def _wait(self, ending: Asleep) -> None:
        """Wait for a child or a time. If a test makes time pass at once, children go first."""
        is_real = self._environment.sleep is asyncio.sleep
        if ending.until_ms is None or not is_real:
            await self._children.wait(ending.children)
            return
        timer = asyncio.create_task(self.recorder.wait_until(ending.until_ms))
        try:
            await self._children.wait(ending.children, timer)
        finally:
            timer.cancel()
            await asyncio.wait({timer})

    def _open_child(self, child: Child) -> InlineChild:
        workflow = child.workflow
        assert workflow is not None, "jobs run in the flow itself here"  # noqa: S101
        if isinstance(workflow, Durable):
            return InlineDurable(
                workflow,
                child.given,
                child.id,
                self._environment,
                meta=self._meta,
                correlation_id=self._correlation_id,
                limit=child.timeout,
                replays=self.recorder.replays,
            )
        return open_graph(child, self._environment, meta=self._meta, correlation_id=self._correlation_id)

    def _around(self, run: str) -> Surroundings:
        return Surroundings(
            flow_id=self._flow_id,
            run=run,
            workflow=self.durable.name,
            tools=InlineTools(self._environment.provider, {}),
            call_sync=self._environment.call_sync,
            sleep=self._environment.sleep,
            span=no_span(self._environment.traceparent),
            meta=self._meta,
            correlation_id=self._correlation_id,
            traceparent=self._environment.traceparent,
            facts={
                "workflow": self.durable.name,
                "flow_id": self._flow_id,
                "correlation_id": self._correlation_id,
            },
            middleware=self._environment.middleware,
            children=self._children,
            shelf=self._shelf,
        )

    async def _undo(self, cause: Cause, *, step: str = "", failure: str = "") -> None:
        """Stop the children, run the rollbacks, and record the error of the flow."""
        await self._note_ends()
        saga: Saga[Any] = Saga(
            self.undos(),
            flow_id=self._flow_id,
            call_sync=self._environment.call_sync,
            sleep=self._environment.sleep,
            facts={"correlation_id": self._correlation_id},
        )
        entries = kept_entries(self.recorder.entries).entries
        inherited, is_doubtful = inherited_in(entries, self._flow_id)
        outcomes = [*doubts_in(entries), *inherited, *await saga.run()]
        self._text = describe_flow(
            cause,
            flow_id=self._flow_id,
            workflow=self.durable.name,
            step=step,
            error=failure,
            job=self._flow_id,
            timeout=self._limit or 0.0,
            reason=self._reason or "",
            rollback="incomplete" if is_doubtful else verdict_on(outcomes),
            rollback_errors=failures_of(outcomes),
        )
        self._state = "cancelled" if cause == "cancelled" else "failed"

    async def _note_ends(self) -> None:
        recorder = self.recorder
        ends = await self._children.stop(f"flow {self._flow_id} stopped")
        for entry in History(kept_entries(recorder.entries).entries).open_children.values():
            end = ends.get(entry.child, Outcome(entry.child, "unknown", ""))
            recorder.entries.append(
                end_entry(entry, end, flow_id=self._flow_id, now_ms=recorder.now_ms, is_wanted=False)
            )


def open_graph(
    child: Child, environment: Environment, *, meta: Mapping[str, Any], correlation_id: str
) -> InlineChild:
    """Return the flow of a child that is a graph of steps."""
    assert isinstance(child.workflow, Workflow)  # noqa: S101  (of what other kind it is, its starter has asked)
    facts = FlowFacts(flow_id=child.id, meta=meta, correlation_id=correlation_id)
    inbox = InlineInbox(is_open=False)
    return _InlineGraph(
        InlineFlow(child.workflow, child.given, facts, environment, timeout=child.timeout, inbox=inbox)
    )


class _InlineGraph:
    """A flow of a graph of steps that another flow started."""

    def __init__(self, flow: InlineFlow) -> None:
        self._flow = flow
        self.settle = flow.settle
        self.undos = flow.undos

    def ended(self) -> tuple[str, str]:
        """Return its state and its outcome as JSON text, after its end."""
        return self._flow.state, self._flow.output or self._flow.failure

    def cancel(self, reason: str) -> None:
        """Stop it; it undoes itself."""
        self._flow.stop(Stop(cause="cancelled", reason=reason))


def open_durable(
    durable: Durable[Any, Any],
    given: Any,
    environment: Environment,
    *,
    meta: Mapping[str, Any] | None = None,
    limit: float | None = None,
    signals: Sequence[tuple[Signal[Any], Any]] = (),
    replays: bool = False,
) -> InlineDurable:
    """Return an inline flow of a durable function that has not begun.

    It inherits meta and correlation id of the caller's context; `meta` overrides single keys. Raises PayloadError for an
    input, a meta or a signal that does not fit.
    """
    codecs, ambient = DurableCodecs(durable), current()
    flow_id = new_flow_id(durable.name)
    meta_codec = Codec(dict[str, Any], role="meta", owner=durable.name, max_bytes=codecs.max_bytes)
    return InlineDurable(
        durable,
        codecs.input.encode(given),
        flow_id,
        msgspec.structs.replace(environment, traceparent=ambient.traceparent),
        meta=meta_codec.decode(meta_codec.encode({**(ambient.meta or {}), **(meta or {})})),
        correlation_id=ambient.correlation_id or flow_id,
        limit=limit,
        signals=signals,
        replays=replays,
    )


def no_span(traceparent: str) -> Callable[[str, str, int], Any]:
    """Return what opens no span, and yields this traceparent."""

    @contextmanager
    def span(_what: str, _label: str, _attempt: int) -> Generator[str]:
        yield traceparent

    return span
