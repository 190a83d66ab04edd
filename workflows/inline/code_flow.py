"""An inline flow that code of its own runs, in place of a graph of steps: that of a durable function, or of a
state machine.

    running -> completed
            -> failed | cancelled, after its children were stopped and its rollbacks ran

    running -> waiting -> running

It is for tests and dry runs. Nothing is durable, and what must always hold is what holds for a flow in a
worker. What comes while
the flow waits (a signal, a trigger) wakes it, if it is open; else the code waits in vain, and the flow says
so.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import anyio

from eventbus.lowlevel import Attempt, Outcome, mark_awaited, outside_job
from workflows.definition.codecs import flow_codecs
from workflows.definition.flow_definition import AnyDefinition
from workflows.definition.flow_tools import FlowFacts
from workflows.errors import Rollback
from workflows.execution.attempt import let_go, wait_ended
from workflows.execution.environment import Environment, InlineTools
from workflows.execution.rollback import RollbackResult, Saga, UndoPlan
from workflows.execution.step_attempt import MemoryHost
from workflows.execution.stop import Stop
from workflows.execution.surroundings import Child, Children, FlowStops, NoChildren, Surroundings
from workflows.functions.endings import Completed, Failed
from workflows.inline.inline_children import InlineChildren
from workflows.inline.inner import InnerFlow, Opening, OpenInner
from workflows.inline.memory_recorder import MemoryRecorder
from workflows.records.records import Cause, revive_flow
from workflows.records.report import FlowState, FlowStatus


class CodeFlow(ABC):
    """One inline flow. Await `run` or `settle`, only once."""

    def __init__(
        self,
        definition: AnyDefinition,
        given: bytes,
        facts: FlowFacts,
        environment: Environment,
        children: InlineChildren,
        *,
        timeout: float | None,
        open_inner: OpenInner,
    ) -> None:
        """Prepare a flow that may take `timeout` seconds, and whose children `open_inner` makes."""
        self.facts = facts
        self.recorder: MemoryRecorder = MemoryRecorder()
        self.recorder.sleep = environment.sleep
        self.given = given
        """The input as JSON text."""
        self.created_ms: int = self.recorder.clock.now_ms
        self._definition = definition
        self._environment = environment
        self._children = children
        self._open_inner = open_inner
        self._timeout = timeout
        self._work: asyncio.Task[Completed | Failed] | None = None
        self._reason: str | None = None
        self._is_cut = True
        self._state: FlowState = "pending"
        self._text = ""
        self.rollback: Rollback = "none"
        self.outcomes: list[RollbackResult] = []
        """What became of the rollbacks."""
        self.ended_ms: int = 0
        self.is_open: bool = False
        """Whether signals and triggers may come while it runs."""

    async def run(self) -> Any:
        """Run the flow to its end; return its output, or raise its error. Cancelling this call undoes
        nothing.
        """
        await self.settle()
        return self.outcome()

    def outcome(self) -> Any:
        """Return the output, or raise the error, of a flow that has ended."""
        known = self._definition
        if self._state == "completed":
            return flow_codecs(known).output.decode(self._text)
        error = revive_flow(self._state, self._text, known.name, self.facts.flow_id, known.errors)
        mark_awaited(error)
        raise error

    async def settle(self) -> None:
        """Run the flow to its end. Raises what `_advance` raises."""
        try:
            if self._reason is None:
                self._state = "running"
                self._work = asyncio.create_task(self._advance(), name=self.facts.flow_id)
                await asyncio.wait({self._work}, timeout=self._timeout)
            if self._work is None or not self._work.done() or self._reason is not None:
                await self._cut()
                if self._work is not None:
                    let_go(self._work)  # it may have ended with FlowStops
                await self._undo("timeout" if self._reason is None else "cancelled")
                return
            ending = self._work.result()
            if isinstance(ending, Completed):
                self._state, self._text = "completed", ending.output
                self.ended_ms = self.recorder.clock.now_ms
            else:
                await self._undo("failed", step=ending.step, failure=ending.failure)
        finally:
            with anyio.CancelScope(shield=True):  # no function of the flow may outlive this call
                try:
                    await self._cut()
                finally:
                    await self._children.close()

    # What its handle asks.

    @property
    def version(self) -> str:
        """The version of its definition."""
        return self._definition.version

    @property
    def is_stopping(self) -> bool:
        """Whether it was cancelled or has failed, and undoes what it did."""
        return self._reason is not None or self._state == "rolling_back"

    def status(self) -> FlowStatus:
        """Return its state, and that of its rollbacks."""
        is_stopping = self.is_stopping and self._state in ("pending", "running", "waiting")
        return FlowStatus("rolling_back" if is_stopping else self._state, self.rollback)

    def stop_for(self, reason: str) -> bool:
        """Cancel it; return False if that is not its outcome, because it was stopping or had ended."""
        has_ended = self._work is not None and self._work.done()
        if self.is_stopping or has_ended:
            return False
        self.cancel(reason)
        return True

    async def _wait_first(self, children: Sequence[str], until_ms: int | None) -> None:
        """Wait until one of the children has ended, the time has come, or something was sent: for the first
        of these. Raises FlowStops.
        """
        others: list[asyncio.Task[Any]] = [asyncio.create_task(self.recorder.stopped.wait())]
        if until_ms is not None:
            others.append(asyncio.create_task(self.recorder.wait_until(until_ms)))
        if self.is_open:
            others.append(asyncio.create_task(self.recorder.came.wait()))
        self._state = "waiting"
        try:
            await self._children.wait(children, *others)
            for each in others:
                if each.done():
                    each.result()  # raises the error of a `sleep` that a user supplied
            if self.recorder.stopped.is_set():
                raise FlowStops
        finally:
            self._state = "running"
            for each in others:
                each.cancel()
            await wait_ended(others)

    # What a flow is that another one started.

    def ended(self) -> tuple[str, str]:
        """Return its state, and its outcome as JSON text, after its end."""
        return self._state, self._text

    def cancel(self, reason: str, *, is_cut: bool = True) -> None:
        """Stop it; it undoes itself. Without `is_cut` its active steps finish their attempt first, unless a
        later call cuts them.
        """
        self._is_cut = is_cut or (self._is_cut and self._reason is not None)
        if self._reason is None:
            self._reason = reason
        self.recorder.stopped.set()
        if is_cut and self._work is not None:
            self._work.cancel()
            if self._state == "rolling_back":  # it waits for children that were to end their steps
                self._children.cancel_all(reason)

    def progress(self) -> Any:
        """Return None: no call tells any."""
        return None

    @abstractmethod
    async def plan_undo(self, prefix: str = "") -> UndoPlan:
        """Return what is to be undone of it, after its end; `prefix` begins the paths."""

    # For the kinds.

    @abstractmethod
    async def _advance(self) -> Completed | Failed:
        """Run the code until it ends."""

    async def _stop_children(self) -> Mapping[str, Outcome]:
        """Stop the children; return their ends, by id."""
        return await self._children.stop(f"flow {self.facts.flow_id} stopped", is_cut=self._is_cut)

    def _open_child(self, child: Child) -> InnerFlow:
        assert child.workflow is not None, "jobs run in the flow itself here"  # noqa: S101
        return self._open_inner(
            Opening(
                definition=child.workflow,
                id=child.id,
                given=child.given,
                timeout=child.timeout,
                outer=self.facts,
            )
        )

    async def _undo(self, cause: Cause, *, step: str = "", failure: str = "") -> None:
        """Stop the children, run the rollbacks, and record the error of the flow."""
        self._state = "rolling_back"
        await self._stop_children()
        plan = await self.plan_undo()
        saga = Saga(
            plan,
            flow_id=self.facts.flow_id,
            call_sync=self._environment.call_sync,
            sleep=self._environment.sleep,
            facts={"correlation_id": self.facts.correlation_id},
        )
        self.outcomes = await saga.run()
        self.rollback, self._text = self._end(plan, cause, step, failure)
        self._state, self.ended_ms = (
            "cancelled" if cause == "cancelled" else "failed",
            self.recorder.clock.now_ms,
        )

    def _end(self, plan: UndoPlan, cause: Cause, step: str, failure: str) -> tuple[Rollback, str]:
        """Return the verdict on the rollbacks, and the record of the flow's error."""
        flow_id, workflow = self.facts.flow_id, self._definition.name
        stop = Stop(cause=cause, step=step, failure=failure, job=flow_id, reason=self._reason or "")
        return plan.end(stop, self.outcomes, flow_id=flow_id, workflow=workflow, timeout=self._timeout)

    def _around(self, run: str, children: Children | None = None) -> Surroundings:
        environment, facts = self._environment, self.facts
        return Surroundings(
            flow_id=facts.flow_id,
            run=run,
            workflow=self._definition.name,
            tools=InlineTools(environment.provider, {}),
            own=Attempt(MemoryHost(self.recorder.live), outside_job(facts.flow_id)),
            call_sync=environment.call_sync,
            sleep=environment.sleep,
            span=_no_span(environment.traceparent),
            meta=facts.meta,
            correlation_id=facts.correlation_id,
            traceparent=environment.traceparent,
            facts={
                "workflow": self._definition.name,
                "flow_id": facts.flow_id,
                "correlation_id": facts.correlation_id,
            },
            middleware=environment.middleware,
            children=children or NoChildren(),
        )

    async def _cut(self) -> None:
        if self._work is not None and not self._work.done():
            self._work.cancel()
            await wait_ended([self._work])  # no function of the flow may outlive it


def _no_span(traceparent: str) -> Callable[[str, str, int], Any]:
    """Return what opens no span, and yields this traceparent."""

    @contextmanager
    def span(_what: str, _label: str, _attempt: int) -> Generator[str]:
        yield traceparent

    return span
