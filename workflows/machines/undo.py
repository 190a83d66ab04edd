"""The rollbacks of a stopped machine: one for each move whose transition has one, the newest first.

What must always hold: what is owed stands in live texts, so it is known however long the journal was; a
rollback that this release does not know makes the list impossible, and another worker must undo.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import msgspec

from eventbus import Retry
from workflows.definition.flow_tools import CallSync
from workflows.execution.rollback import RollbackResult
from workflows.execution.spans import traceparent_around
from workflows.execution.surroundings import Surroundings
from workflows.functions.rollbacks import UnknownTask
from workflows.machines.context import MachineContext, key_of
from workflows.machines.definition import MachineDefinition
from workflows.machines.snapshot import NOTHING, Obligation, Snapshot, read_doubts, write_obligation
from workflows.records.indeterminate import unknown_text

__all__ = ["MachineUndo", "MachineUndos", "doubts_in"]

_RULE = Retry(attempts=3)
_TIMEOUT = 300.0


class MachineUndo(msgspec.Struct, frozen=True, kw_only=True):
    """One rollback to run."""

    path: str
    """The transition and the number of its move; of a machine inside another flow, behind the path of that
    one.
    """
    obligation: Obligation
    definition: MachineDefinition
    around: Surroundings
    make_machine: Callable[[], Any]
    make_context: Callable[[int, str], MachineContext[Any]]
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
        machine = self.make_machine()
        key = key_of(around, self.obligation.move, f"{self.obligation.transition}/undo")
        context = self.make_context(number, key)
        traceparent = traceparent_around(around.traceparent)  # the saga has opened the span
        around.enter_attempt(self.path, number, key, traceparent)
        try:
            await around.through(
                "rollback",
                self.path,
                number,
                traceparent,
                context.state,
                partial(undo, machine, context),
            )
        finally:
            context.close()


def doubts_in(flow_id: str, live: Mapping[str, str], prefix: str = "") -> list[RollbackResult]:
    """Return the transitions that may have taken effect although no move says so, with the error that says
    so. Raises StoreCorrupt.
    """
    return [(prefix + each.path, unknown_text(1, "")) for each in read_doubts(flow_id, live)]


class MachineUndos:
    """Makes the rollbacks of one stopped machine, and their records."""

    def __init__(
        self,
        definition: MachineDefinition,
        around: Surroundings,
        snapshot: Snapshot,
        state: str,
        load: Callable[[str], Awaitable[str | None]],
    ) -> None:
        self._definition = definition
        self._around = around
        self._snapshot = snapshot
        self._state = state
        self._load = load

    def list_open(self, obligations: Sequence[Obligation], prefix: str = "") -> list[MachineUndo]:
        """Return the rollbacks to run, in order, `prefix` before their paths. Raises UnknownTask for one that
        this release does not have.
        """
        make_machine = cache(self._definition.machine)
        for each in obligations:
            known = self._definition.transitions.get(each.transition)
            if known is None or known.undo is None:
                raise UnknownTask(f"the rollback of transition {each.path}")
        return [
            MachineUndo(
                path=prefix + each.path,
                obligation=each,
                definition=self._definition,
                around=self._around,
                make_machine=make_machine,
                make_context=self._context,
            )
            for each in obligations
        ]

    def done(self, obligations: Sequence[Obligation]) -> dict[str, str]:
        """Return the outcomes that are recorded: path -> record of the error, empty on success."""
        return {each.path: bytes(each.error).decode() for each in obligations if each.is_done}

    def text_of(self, obligations: Sequence[Obligation], path: str, failure: str) -> dict[str, str]:
        """Return the live text that records an outcome."""
        owed = next(each for each in obligations if each.path == path)
        return write_obligation(
            msgspec.structs.replace(
                owed, is_done=True, error=msgspec.Raw(failure.encode()) if failure else NOTHING
            )
        )

    def _context(self, number: int, key: str) -> MachineContext[Any]:
        return MachineContext(
            self._around,
            self._definition.codecs.state.decode(self._state),
            place=self._snapshot.place,
            moves=self._snapshot.moves,
            key=key,
            load=self._load,
            check=_refuse,
            attempt=number,
            may_change=False,
        )


def _refuse(definition: Any) -> None:
    """Do nothing: a rollback may not start children, and its context says so first."""
    del definition
