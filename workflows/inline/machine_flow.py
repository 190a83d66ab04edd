"""A flow of a state machine that runs in this process, without a server: the same run, with everything in
memory.

Triggers that are given beforehand are sent when the machine rests and accepts them; an open flow takes
others while it rests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from eventbus import UsageError
from eventbus.lowlevel import Outcome
from workflows.definition.flow_definition import AnyDefinition
from workflows.definition.flow_tools import FlowFacts
from workflows.execution.environment import Environment
from workflows.execution.rollback import UndoPlan
from workflows.execution.surroundings import Child
from workflows.functions.endings import Completed, Failed
from workflows.inline.code_flow import CodeFlow
from workflows.inline.inline_children import InlineChildren
from workflows.inline.inner import InnerFlow, OpenInner
from workflows.inline.triggers import InlineTriggers
from workflows.machines.children import read_end
from workflows.machines.choosing import Rest, trigger_name
from workflows.machines.definition import MachineDefinition
from workflows.machines.run import MachineRun
from workflows.machines.settled import ChildEnd
from workflows.machines.snapshot import ACCEPTS, NAMES, Awaited, Snapshot, document_name
from workflows.machines.standing import Standing
from workflows.machines.transition import Transition
from workflows.machines.undo import plan_machine


class InlineMachine(CodeFlow):
    """One inline flow of a state machine."""

    def __init__(
        self,
        definition: MachineDefinition,
        given: bytes,
        facts: FlowFacts,
        environment: Environment,
        *,
        timeout: float | None,
        open_inner: OpenInner,
        triggers: InlineTriggers,
    ) -> None:
        """Run the machine from the state `given`."""
        self._machine_children = InlineMachineChildren(self._open_child)
        super().__init__(
            definition,
            given,
            facts,
            environment,
            self._machine_children,
            timeout=timeout,
            open_inner=open_inner,
        )
        self.definition = definition
        self._triggers = triggers

    async def plan_undo(self, prefix: str = "") -> UndoPlan:
        """Return what is to be undone of its moves. Children that completed are not undone."""
        standing, children = self._standing(), self._children
        ends = children.outcomes([child.id for child in standing.awaited])
        around, live = self._around("1"), self.recorder.live
        return await plan_machine(
            self.definition, around, standing, live, self._load, ends, children.add_inner, prefix
        )

    async def _advance(self) -> Completed | Failed:
        while True:
            self.recorder.came.clear()
            ending = await self._make_run(standing := self._standing()).run()
            if isinstance(ending, Completed):
                return ending
            assert isinstance(ending, Rest)  # noqa: S101  (nothing stops a worker here)
            if (failed := await self._rest(ending, standing)) is not None:
                return failed

    def _make_run(self, standing: Standing) -> MachineRun:
        return MachineRun(
            self.definition,
            standing,
            self.recorder,
            self._around("1"),
            self._machine_children,
            number=1,
            load=self._load,
        )

    async def _rest(self, rest: Rest, standing: Standing) -> Failed | None:
        """Wait for what comes, or take the next trigger. A machine that stands because a transition failed
        ends as failed: nobody can have it tried again here.
        """
        place, trouble, flow_id = standing.snapshot.place, standing.snapshot.trouble, self.facts.flow_id
        transition = self._triggers.next(self.definition)
        is_accepted = transition is not None and trigger_name(transition.name) in standing.accepts
        has_time = rest.until_ms is not None and not (trouble is None and is_accepted)
        may_come = transition is None and self.is_open and bool(self.accepts)
        if rest.children or has_time or may_come:
            await self._wait_first(rest.children, rest.until_ms)
            return None
        if transition is None:
            if trouble is not None and trouble.is_over:
                return Failed(trouble.transition, trouble.failure)
            raise UsageError(
                f"flow {flow_id} waits at place {place!r} for a trigger that does not come; give it: "
                "run_inline(..., triggers=[(transition, payload)])"
            )
        if not is_accepted:
            offered = ", ".join(name.removeprefix("!") for name in standing.accepts) or "none"
            raise UsageError(
                f"flow {flow_id} stands at place {place!r} and accepts no trigger {transition.name!r}; "
                f"it accepts: {offered}"
            )
        payload = self._triggers.take(self.definition)
        self._take(transition.name, payload)
        return None

    @property
    def accepts(self) -> list[str]:
        """The names of the transitions that may be triggered now."""
        names = self.recorder.live.get(ACCEPTS, "").split()
        return [name.removeprefix("!") for name in names if not name.startswith("!!")]

    def trigger(self, transition: Transition[Any] | str, payload: Any) -> bool:
        """Take a trigger that is sent while it runs; return False if its place does not accept it. Raises
        DefinitionError, PayloadError.
        """
        known = self.definition.find_trigger(transition)
        text = known.encode(payload)
        if known.name not in self.accepts:
            return False
        self._take(known.name, text)
        return True

    def _take(self, transition: str, payload: str) -> None:
        self.recorder.live.pop(ACCEPTS, None)  # as the server does in the call that takes a trigger
        self.recorder.take(trigger_name(transition), payload)

    def _standing(self) -> Standing:
        live = {name: text for name, text in self.recorder.live.items() if name in NAMES}
        first = Snapshot(self.definition.start, entered_ms=self.recorder.clock.now_ms)
        return Standing(self.facts.flow_id, live, first, self.given.decode())

    async def _load(self, name: str) -> str | None:
        return self.recorder.live.get(document_name(name))


class InlineMachineChildren(InlineChildren):
    """The children of an inline machine: they run in this event loop, beside it."""

    def __init__(self, open_child: Callable[[Child], InnerFlow]) -> None:
        super().__init__(open_child)
        self._definitions: dict[tuple[str, str], AnyDefinition] = {}

    def check(self, workflow: AnyDefinition) -> None:
        """Remember a definition that is started; raise DefinitionError for one that cannot run."""
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
