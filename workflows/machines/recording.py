"""Recording what a machine does: one append for each change of where it stands.

What must always hold: the change counts only after the append has returned; the first append of a flow has an
entry, so that the next worker knows that there is a snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from workflows.execution.surroundings import Recorder
from workflows.machines.standing import NewStanding, Standing
from workflows.records.entries import Entry


class Recording:
    """The recorder of one activation with the place where the machine stands."""

    def __init__(self, recorder: Recorder, standing: Standing) -> None:
        self.recorder = recorder
        self.standing = standing

    @property
    def now_ms(self) -> int:
        """The time of the recorder's clock in ms."""
        return self.recorder.clock.now_ms

    async def record(
        self,
        new: NewStanding,
        *entries: Entry,
        texts: Mapping[str, str] | None = None,
        taken: Sequence[str] = (),
    ) -> None:
        """Record a new standing with its entries, further live texts, and the signals that it takes. Raises
        what `append` raises.
        """
        standing = self.standing
        live = {**standing.difference(new), **(texts or {})}
        if not entries and not live and not taken:
            return
        if not standing.is_recorded and not entries:
            snapshot = standing.snapshot
            entries = (Entry(kind="move", place=snapshot.place, started_ms=snapshot.entered_ms),)
        await self.recorder.append(entries, live=live, taken=taken)
        standing.adopt(new)

    def entry(self, kind: str, **facts: Any) -> Entry:
        """Return an entry of this moment, about the place where the machine stands."""
        facts = {"started_ms": self.now_ms, "origin": self.standing.snapshot.place, **facts}
        return Entry(kind=kind, **facts)
