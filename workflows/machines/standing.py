"""Where a machine stands in this activation, and what of that the server has: it makes the live texts of an
append.

What must always hold: it changes only after an append has returned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from workflows.machines.snapshot import (
    ACCEPTS,
    CHILDREN,
    DOUBTS,
    MACHINE,
    STATE,
    Awaited,
    Obligation,
    Snapshot,
    read_children,
    read_doubts,
    read_snapshot,
    write_children,
    write_doubts,
    write_snapshot,
)


class NewStanding(msgspec.Struct, frozen=True, kw_only=True):
    """Where a machine stands after an append. `accepts` are the names of the triggers that it takes there.

    `doubts` are transitions with a rollback whose body was given up on, so that nobody knows what it did.
    """

    snapshot: Snapshot
    state: str
    awaited: tuple[Awaited, ...]
    accepts: tuple[str, ...]
    doubts: tuple[Obligation, ...] = ()

    def texts(self) -> dict[str, str]:
        """Return it as live texts."""
        return {
            MACHINE: write_snapshot(self.snapshot),
            STATE: self.state,
            CHILDREN: write_children(self.awaited),
            ACCEPTS: " ".join(self.accepts),
            DOUBTS: write_doubts(self.doubts),
        }


class Standing:
    """Where one machine stands. `is_recorded` is false before the first append of the flow."""

    def __init__(self, flow_id: str, live: Mapping[str, str], first: Snapshot, state: str) -> None:
        """Begin with the live texts of the flow, or at `first` if there are none. Raises StoreCorrupt."""
        snapshot = read_snapshot(flow_id, live)
        self.is_recorded: bool = snapshot is not None
        self.snapshot: Snapshot = snapshot or first
        self.state: str = live.get(STATE, state)
        self.awaited: tuple[Awaited, ...] = tuple(read_children(flow_id, live))
        self.accepts: tuple[str, ...] = tuple(live.get(ACCEPTS, "").split())
        self.doubts: tuple[Obligation, ...] = tuple(read_doubts(flow_id, live))
        self._written = dict(live)

    def change(
        self,
        *,
        snapshot: Snapshot | None = None,
        state: str | None = None,
        awaited: Sequence[Awaited] | None = None,
        accepts: Sequence[str] = (),
        doubts: Sequence[Obligation] | None = None,
    ) -> NewStanding:
        """Return the standing with what is given; nothing is accepted then unless `accepts` says so."""
        return NewStanding(
            snapshot=snapshot or self.snapshot,
            state=self.state if state is None else state,
            awaited=self.awaited if awaited is None else tuple(awaited),
            accepts=tuple(accepts),
            doubts=self.doubts if doubts is None else tuple(doubts),
        )

    def difference(self, new: NewStanding) -> dict[str, str]:
        """Return the live texts that the server does not have."""
        return {name: text for name, text in new.texts().items() if self._written.get(name, "") != text}

    def adopt(self, new: NewStanding) -> None:
        """Stand there: it is recorded."""
        self.snapshot, self.state, self.awaited = new.snapshot, new.state, new.awaited
        self.accepts, self.doubts = new.accepts, new.doubts
        self._written = new.texts()
        self.is_recorded = True

    def note_closed(self) -> None:
        """Note that the server has closed the place, because a trigger came."""
        self.accepts = ()
        self._written[ACCEPTS] = ""
