"""The rollbacks of a stopped machine: one for each move whose transition has one, the newest first.

What must always hold: what is owed stands in live texts, so it is known however long the journal was; a
rollback that this release does not know makes the list impossible, and another worker must undo.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, TypeAlias

import msgspec

from eventbus import Retry
from eventbus.lowlevel import Outcome
from workflows.definition.flow_tools import CallSync
from workflows.execution.rollback import AddInner, Undoable, UndoPlan, UnknownHere
from workflows.execution.spans import traceparent_around
from workflows.execution.surroundings import Surroundings
from workflows.machines.context import MachineContext, key_of
from workflows.machines.definition import MachineDefinition
from workflows.machines.snapshot import NOTHING, Obligation, obligations_in, write_obligation
from workflows.machines.standing import Standing
from workflows.records.indeterminate import unknown_text

_RULE = Retry(attempts=3)
_TIMEOUT = 300.0

Load: TypeAlias = Callable[[str], Awaitable[str | None]]


class MachineUndo(msgspec.Struct, frozen=True, kw_only=True):
    """One rollback to run."""

    path: str
    """The transition and the number of its move; of a machine inside another flow, behind the path of that
    one.
    """
    obligation: Obligation
    definition: MachineDefinition
    around: Surroundings
    standing: Standing
    make_machine: Callable[[], Any]
    load: Load
    rule: Retry = _RULE
    timeout: float | None = _TIMEOUT
    errors: Sequence[type[Exception]] = ()

    @property
    def owner(self) -> str:
        """The name of the machine."""
        return self.definition.name

    @property
    def traceparent(self) -> str:
        """The traceparent of the transition that is undone."""
        return self.obligation.traceparent

    async def perform(self, number: int, call_sync: CallSync, job_id: str) -> None:
        """Call the rollback. Raises what it and the machine's `__init__` raise, and PayloadError for a state
        that does not fit.
        """
        del call_sync, job_id
        undo, around = self.definition.transitions[self.obligation.transition].undo, self.around
        assert undo is not None, "only transitions with a rollback are listed"  # noqa: S101
        machine, snapshot = self.make_machine(), self.standing.snapshot
        key = key_of(around, self.obligation.move, f"{self.obligation.transition}/undo")
        context: MachineContext[Any] = MachineContext(
            around,
            self.definition.codecs.state.decode(self.standing.state),
            place=snapshot.place,
            moves=snapshot.moves,
            key=key,
            load=self.load,
            check=_refuse,
            attempt=number,
            may_change=False,
        )
        traceparent = traceparent_around(around.traceparent)  # the saga has opened the span
        around.enter_attempt(self.path, number, key, traceparent)
        try:
            await around.through(
                "rollback", self.path, number, traceparent, context.state, partial(undo, machine, context)
            )
        finally:
            context.close()


async def plan_machine(
    definition: MachineDefinition,
    around: Surroundings,
    standing: Standing,
    live: Mapping[str, str],
    load: Load,
    ends: Sequence[Outcome],
    add_inner: AddInner,
    prefix: str = "",
) -> UndoPlan:
    """Return the plan of a machine, from its live texts; `prefix` begins the paths of its moves.

    `ends` are the outcomes of its children; those that completed are not undone. `load(name)` reads a
    document. Raises UnknownHere for a rollback that this release does not have, StoreCorrupt, and what
    `add_inner` raises.
    """
    owed, make_machine = obligations_in(around.flow_id, live), cache(definition.machine)
    for each in owed:
        known = definition.transitions.get(each.transition)
        if known is None or known.undo is None:
            raise UnknownHere(f"the rollback of transition {each.path}")
    plan = UndoPlan(
        undos=[
            MachineUndo(
                path=prefix + each.path,
                obligation=each,
                definition=definition,
                around=around,
                standing=standing,
                make_machine=make_machine,
                load=load,
            )
            for each in owed
        ],
        done={each.path: bytes(each.error).decode() for each in owed if each.is_done},
        # Transitions that may have taken effect although no move says so.
        inherited=[(prefix + each.path, unknown_text(1, "")) for each in standing.doubts],
    )
    for end in ends:
        if end.state in ("failed", "cancelled"):
            path = prefix + end.job.removeprefix(f"{around.flow_id}/")
            await add_inner(plan, end.job, end.state, end.text or "", path)
    return plan


def undone_text(undos: Sequence[Undoable], path: str, failure: str) -> dict[str, str]:
    """Return the live text that records the outcome of a rollback of a machine."""
    undo = next(each for each in undos if isinstance(each, MachineUndo) and each.path == path)
    error = msgspec.Raw(failure.encode()) if failure else NOTHING
    return write_obligation(msgspec.structs.replace(undo.obligation, is_done=True, error=error))


def _refuse(definition: Any) -> None:
    """Do nothing: a rollback may not start children, and its context says so first."""
    del definition
