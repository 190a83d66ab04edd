"""A flow of a state machine that runs in this process, without a server: the same run, with everything in memory.

It is for tests and dry runs; nothing is durable. The triggers are given beforehand: each is sent when the machine rests and
accepts it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from eventbus import UsageError
from eventbus.lowlevel import Codec, Outcome, Signal, current
from workflows.execution.environment import Environment, InlineTools
from workflows.execution.rollback import Saga, failures_of, verdict_on
from workflows.execution.step_tools import MemoryShelf
from workflows.functions.calls.child_call import Child
from workflows.functions.definition import Durable
from workflows.functions.endings import Completed
from workflows.functions.surroundings import Surroundings
from workflows.inline.durable_flow import InlineDurable, no_span, open_graph
from workflows.inline.inline_children import InlineChild, InlineChildren
from workflows.inline.memory_recorder import MemoryRecorder
from workflows.machines.children import read_end
from workflows.machines.choosing import Rest, trigger_name
from workflows.machines.definition import MachineDefinition
from workflows.machines.run import MachineRun
from workflows.machines.settled import ChildEnd
from workflows.machines.snapshot import ACCEPTS, NAMES, Awaited, Snapshot, document_name, obligations_in
from workflows.machines.standing import Standing
from workflows.machines.transition import Transition
from workflows.machines.undo import MachineUndo, MachineUndos
from workflows.records.ids import new_flow_id
from workflows.records.records import Cause, describe_flow, revive_flow

__all__ = ["InlineMachine", "open_machine"]


class InlineMachine:
    """One inline flow of a state machine. Await `run` only once."""

    def __init__(
        self,
        definition: MachineDefinition,
        given: bytes,
        flow_id: str,
        environment: Environment,
        *,
        meta: Mapping[str, Any],
        correlation_id: str,
        limit: float | None = None,
        triggers: Sequence[tuple[Transition[Any] | str, Any]] = (),
    ) -> None:
        """Run the machine from the state `given`, within `limit` seconds. Raises DefinitionError for a trigger that is none."""
        self.definition = definition
        self.recorder: MemoryRecorder = MemoryRecorder()
        self.recorder.sleep = environment.sleep
        self._given = given.decode()
        self._flow_id = flow_id
        self._environment = environment
        self._meta = meta
        self._correlation_id = correlation_id
        self._limit = limit
        known = [(definition.find_trigger(given), payload) for given, payload in triggers]
        self._triggers = [(transition, transition.encode(payload)) for transition, payload in known]
        self._sent = 0
        self._children = MachineChildren(self._open_child)
        self._work: asyncio.Task[Completed] | None = None
        self._reason: str | None = None
        self._state, self._text = "running", ""

    async def run(self) -> Any:
        """Run the flow to its end; return its result, or raise its error. Cancelling this call undoes nothing."""
        await self.settle()
        if self._state == "completed":
            return self.definition.codecs.output.decode(self._text)
        raise revive_flow(self._state, self._text, self.definition.name, self._flow_id)

    async def settle(self) -> None:
        """Run the flow to its end. Raises UsageError for a trigger that does not come, or that nobody accepts."""
        try:
            self._work = asyncio.create_task(self._advance(), name=self._flow_id)
            await asyncio.wait({self._work}, timeout=self._limit)
            if not self._work.done() or self._reason is not None:
                await self._cut()
                await self._undo("timeout" if self._reason is None else "cancelled")
                return
            self._state, self._text = "completed", self._work.result().output
        finally:
            await self._cut()
            await self._children.close()

    async def _cut(self) -> None:
        if self._work is not None and not self._work.done():
            self._work.cancel()
            await asyncio.wait({self._work})

    # What a flow is that another one started.

    def ended(self) -> tuple[str, str]:
        """Return its state and its outcome as JSON text, after its end."""
        return self._state, self._text

    def cancel(self, reason: str) -> None:
        """Stop it; it undoes itself."""
        self._reason = reason
        if self._work is not None:
            self._work.cancel()

    def undos(self, prefix: str) -> Sequence[Any]:
        """Return nothing: a machine that completed is not undone."""
        del prefix
        return ()

    async def _advance(self) -> Completed:
        while True:
            run = MachineRun(
                self.definition,
                standing := self._standing(),
                self.recorder,
                self._around(),
                self._children,
                number=1,
                load=self._load,
            )
            ending = await run.run()
            if isinstance(ending, Completed):
                if self._triggers:
                    names = ", ".join(transition.name for transition, _ in self._triggers)
                    raise UsageError(
                        f"flow {self._flow_id} has ended before these triggers were sent: {names}; leave them out"
                    )
                return ending
            assert isinstance(ending, Rest)  # noqa: S101  (nothing stops a worker here)
            await self._rest(ending, standing)

    async def _rest(self, rest: Rest, standing: Standing) -> None:
        place, trouble = standing.snapshot.place, standing.snapshot.trouble
        is_early = trouble is None and self._triggers and self._is_accepted(standing, self._triggers[0][0])
        if rest.children or (rest.until_ms is not None and not is_early):
            await self._wait(rest)
            return
        if trouble is not None and trouble.is_over and not self._triggers:
            raise revive_flow(
                "failed", self._describe("failed", trouble.transition, trouble.failure), self.definition.name, self._flow_id
            )  # fmt: skip
        if not self._triggers:
            raise UsageError(
                f"flow {self._flow_id} waits at place {place!r} for a trigger that does not come; give it: "
                "run_inline(..., triggers=[(transition, payload)])"
            )
        transition, payload = self._triggers.pop(0)
        if not self._is_accepted(standing, transition):
            offered = ", ".join(name.removeprefix("!") for name in standing.accepts) or "none"
            raise UsageError(
                f"flow {self._flow_id} stands at place {place!r} and accepts no trigger {transition.name!r}; it accepts: {offered}"
            )
        self._sent += 1
        self.recorder.live.pop(ACCEPTS, None)  # as the server does in the call that takes a trigger
        self.recorder.inbox.append(
            Signal(f"{self._sent}", self._sent, trigger_name(transition.name), payload)
        )

    async def _wait(self, rest: Rest) -> None:
        """Wait for a time, for a child, or for what comes first."""
        if rest.until_ms is None:
            await self._children.wait(rest.children)
        elif not rest.children:
            await self.recorder.wait_until(rest.until_ms)
        else:
            until = asyncio.create_task(self.recorder.wait_until(rest.until_ms))
            try:
                await self._children.wait(rest.children, until)
            finally:
                until.cancel()

    def _is_accepted(self, standing: Standing, transition: Transition[Any]) -> bool:
        return trigger_name(transition.name) in standing.accepts

    def _standing(self) -> Standing:
        live = {name: text for name, text in self.recorder.live.items() if name in NAMES}
        first = Snapshot(self.definition.start, entered_ms=self.recorder.now_ms)
        return Standing(self._flow_id, live, first, self._given)

    async def _load(self, name: str) -> str | None:
        return self.recorder.live.get(document_name(name))

    def _open_child(self, child: Child) -> InlineChild:
        workflow: Any = child.workflow
        facts: dict[str, Any] = {"meta": self._meta, "correlation_id": self._correlation_id}
        if isinstance(workflow, MachineDefinition):
            return InlineMachine(
                workflow, child.given, child.id, self._environment, limit=workflow.timeout, **facts
            )
        if isinstance(workflow, Durable):
            function = cast("Durable[Any, Any]", workflow)
            return InlineDurable(
                function, child.given, child.id, self._environment, limit=function.timeout, **facts
            )
        return open_graph(child, self._environment, **facts)

    def _around(self) -> Surroundings:
        environment = self._environment
        return Surroundings(
            flow_id=self._flow_id,
            run="1",
            workflow=self.definition.name,
            tools=InlineTools(environment.provider, {}),
            call_sync=environment.call_sync,
            sleep=environment.sleep,
            span=no_span(environment.traceparent),
            meta=self._meta,
            correlation_id=self._correlation_id,
            traceparent=environment.traceparent,
            facts={
                "workflow": self.definition.name,
                "flow_id": self._flow_id,
                "correlation_id": self._correlation_id,
            },
            middleware=environment.middleware,
            shelf=MemoryShelf(self.recorder.live),
        )

    async def _undo(self, cause: Cause) -> None:
        """Stop the children, run the rollbacks, and record the error of the flow."""
        await self._children.stop(f"flow {self._flow_id} stopped")
        standing = self._standing()
        undos = MachineUndos(self.definition, self._around(), standing.snapshot, standing.state, self._load)
        saga: Saga[MachineUndo] = Saga(
            undos.list_open(obligations_in(self._flow_id, self.recorder.live)),
            flow_id=self._flow_id,
            call_sync=self._environment.call_sync,
            sleep=self._environment.sleep,
            facts={"correlation_id": self._correlation_id},
        )
        outcomes = await saga.run()
        self._text = self._describe(cause, "", "", outcomes)
        self._state = "cancelled" if cause == "cancelled" else "failed"

    def _describe(
        self, cause: Cause, step: str, failure: str, outcomes: Sequence[tuple[str, str]] = ()
    ) -> str:
        return describe_flow(
            cause,
            flow_id=self._flow_id,
            workflow=self.definition.name,
            step=step,
            error=failure,
            job=self._flow_id,
            timeout=self._limit or 0.0,
            reason=self._reason or "",
            rollback=verdict_on(outcomes),
            rollback_errors=failures_of(outcomes),
        )


class MachineChildren(InlineChildren):
    """The children of an inline machine: they run in this event loop, beside it."""

    def __init__(self, open_child: Any) -> None:
        super().__init__(open_child)
        self._definitions: dict[tuple[str, str], Any] = {}

    def check(self, workflow: Any) -> None:
        """Remember a definition that is started; raise DefinitionError for one that cannot run."""
        if not isinstance(workflow, MachineDefinition):
            super().check(workflow)
        self._definitions[workflow.name, workflow.version] = workflow

    async def start(self, children: Sequence[Awaited], *, rests: bool) -> None:
        """Start children."""
        del rests
        for child in children:
            workflow = self._definitions[child.workflow, child.version]
            self.follow(
                Child(
                    id=child.id,
                    position="",
                    given=bytes(child.given),
                    workflow=workflow,
                    timeout=workflow.timeout,
                )
            )

    async def ends(self, children: Sequence[Awaited]) -> dict[str, Outcome]:
        """Return the ends of those that have ended."""
        return {child.id: self._ends[child.id].result() for child in children if self._ends[child.id].done()}

    def read(self, child: Awaited, end: Outcome) -> ChildEnd:
        """Return the end of a child."""
        return read_end(child, end, self._definitions[child.workflow, child.version])


def open_machine(
    definition: MachineDefinition,
    given: Any,
    environment: Environment,
    *,
    meta: Mapping[str, Any] | None = None,
    limit: float | None = None,
    triggers: Sequence[tuple[Transition[Any] | str, Any]] = (),
) -> InlineMachine:
    """Return an inline flow of a state machine that has not begun. Raises PayloadError for what does not fit."""
    ambient, flow_id = current(), new_flow_id(definition.name)
    codec = Codec(dict[str, Any], role="meta", owner=definition.name, max_bytes=1 << 20)
    return InlineMachine(
        definition,
        definition.codecs.input.encode(given),
        flow_id,
        msgspec.structs.replace(environment, traceparent=ambient.traceparent),
        meta=codec.decode(codec.encode({**(ambient.meta or {}), **(meta or {})})),
        correlation_id=ambient.correlation_id or flow_id,
        limit=limit,
        triggers=triggers,
    )
