"""The history of one run of a durable function: its recorded calls by their position.

    position   "2" is the third call of the function, "4.0.1" the second call of the first branch of
               the call "4"

What must always hold: a history is read once and changes only by `add`, and by `recall`, which finds the same
in each replay; each entry keeps its number in the journal, from which the code's times and lengths follow, so
that they are the same, too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

import msgspec

from workflows.records.entries import Entry

_FAMILIES = {
    "step": "step",
    "failed": "step",
    "try": "step",
    "sleep": "sleep",
    "wait": "wait",
    "signal": "wait",
    "race": "race",
    "patch": "patch",
    "rollback": "rollback",
    "child": "child",
}
ENDS = frozenset(("step", "failed", "signal", "due", "race", "patch", "rollback"))
"""The kinds of the entries with which a call ends."""
_CALLS = ENDS | _FAMILIES.keys()
_OVERHEAD = 120  # bytes of an entry besides its values, about


class Record(msgspec.Struct, frozen=True, gc=False):
    """One entry with its place in the history: its number from 1, and the bytes of all entries up to it."""

    entry: Entry
    number: int
    size: int

    @property
    def time_ms(self) -> int:
        """When it happened, in ms of the server's clock."""
        return self.entry.started_ms + self.entry.took_ms


class History:
    """The recorded calls of one run of the function."""

    def __init__(
        self,
        entries: Iterable[Entry] = (),
        *,
        created_ms: int = 0,
        number: int = 0,
        loose: Collection[int] = (),
    ) -> None:
        """Read `entries`; `number` is how many entries the journal has before them.

        Those whose number among `entries` is in `loose` count only if the code asks for them
        (`functions.calls.kept`).
        """
        self.created_ms = created_ms
        self.number: int = number
        self.first: int = number
        self.size: int = 0
        self.begun: dict[str, Record] = {}
        """The last entry of each call, by its position, that tells of its beginning."""
        self.ended: dict[str, Record] = {}
        """The entry of each call about its end, by its position."""
        self._highest: dict[str, int] = {}
        self._loose: dict[str, list[Record]] = {}
        """Records that count only if the code asks for them, by position, the oldest first."""
        self._highest_loose: dict[str, int] = {}
        self.open_children: dict[str, Entry] = {}
        """The beginnings of children that have not ended, by position."""
        self._lost: list[str] = []
        self._doubtful: set[str] = set()
        for place, entry in enumerate(entries):
            if place in loose:
                record = self._count(entry)
                self._loose.setdefault(entry.place, []).append(record)
                _note(entry.place, self._highest_loose)
            else:
                self.add(entry)

    @property
    def length(self) -> int:
        """The number of entries."""
        return self.number - self.first

    def add(self, entry: Entry) -> Record:
        """Add an entry that is recorded."""
        record = self._count(entry)
        self._take(record)
        if entry.kind in _CALLS:
            _note(entry.place, self._highest)
        return record

    def recall(
        self, position: str, family: str, name: str, fits: Callable[[Entry], bool] | None = None
    ) -> Record | None:
        """Return the record of the end of a call that the code makes; None if it did not end.

        A loose record counts from now on if it is of this call, and it `fits`.
        """
        loose = self._loose.get(position)
        if loose and position not in self.begun and position not in self.ended:
            begun = next(record.entry for record in loose if record.entry.name == loose[-1].entry.name)
            is_same = (begun.name, family_of(begun)) == (name, family)
            if is_same and (fits is None or fits(loose[-1].entry)):
                for record in self._loose.pop(position):
                    if record.entry.name == name:
                        self._take(record)
        return self.ended.get(position)

    def has_loose(self, scope: str, number: int) -> bool:
        """Tell whether a scope has a loose record from a number on."""
        return self._highest_loose.get(scope, -1) >= number

    def family_under(self, position: str, name: str, count: int) -> str:
        """Return the family of what the first `count` items of a map recorded; empty if nothing is."""
        found = self.first_from(position, 0)
        if found is not None:
            return family_of(found)
        for number in range(count if self._highest_loose.get(position, -1) >= 0 else 0):
            for record in self._loose.get(f"{position}.{number}", ()):
                if record.entry.name == name:
                    return family_of(record.entry)
        return ""

    def _count(self, entry: Entry) -> Record:
        self.number += 1
        self.size += _OVERHEAD + len(bytes(entry.result)) + len(bytes(entry.error))
        return Record(entry, self.number - self.first, self.size)

    def _take(self, record: Record) -> None:
        """Let a record count."""
        entry = record.entry
        kind, place = entry.kind, entry.place
        if entry.child:
            self._note_child(entry)
        if kind == "race":
            self._lost += losers(entry)
        if entry.is_lost:
            self._doubtful.add(place)
        elif kind == "cut":
            self._doubtful.discard(place)
        if kind in ENDS:
            self.ended[place] = record
        elif kind in _FAMILIES:
            self.begun[place] = record

    def _note_child(self, entry: Entry) -> None:
        if entry.kind == "child":
            self.open_children[entry.place] = entry
        else:
            self.open_children.pop(entry.place, None)

    @property
    def lost_children(self) -> list[Entry]:
        """The children that lost a race and have not ended."""
        if not self._lost or not self.open_children:
            return []
        return [entry for place, entry in self.open_children.items() if is_under(place, self._lost)]

    def at(self, position: str) -> Entry | None:
        """Return the entry that tells the kind and the name of a call; None if nothing is recorded of it."""
        record = self.begun.get(position) or self.ended.get(position)
        return None if record is None else record.entry

    def is_doubtful(self, position: str) -> bool:
        """Tell whether a step may have taken effect in a worker that died."""
        return position in self._doubtful

    def highest(self, scope: str) -> int:
        """Return the highest number that is recorded in a scope or below it; -1 if nothing is."""
        return self._highest.get(scope, -1)

    def first_from(self, scope: str, number: int) -> Entry | None:
        """Return the first recorded call of a scope from a number on; of a call with branches one in
        these.
        """
        begin = f"{scope}." if scope else ""
        for count in range(number, self.highest(scope) + 1):
            found = self.at(f"{begin}{count}")
            if found is not None:
                return found
            for branch in range(self.highest(f"{begin}{count}") + 1):
                if (found := self.first_from(f"{begin}{count}.{branch}", 0)) is not None:
                    return found
        return None


def _note(place: str, highest: dict[str, int]) -> None:
    """Remember the highest number at each level of a position."""
    if "." not in place:
        if (count := int(place)) > highest.get("", -1):
            highest[""] = count
        return
    while place:
        scope, _, number = place.rpartition(".")
        count = int(number)
        if highest.get(scope, -1) < count:
            highest[scope] = count
        place = scope


def family_of(entry: Entry) -> str:
    """Return the kind of call that an entry is of: `step`, `child`, `sleep`, `wait`, `race`, `patch` or
    `rollback`.
    """
    return "child" if entry.child else _FAMILIES.get(entry.kind, entry.kind)


def losers(race: Entry) -> list[str]:
    """Return the positions of the calls and branches that lost a race, with those in groups that lost."""
    winner = int(bytes(race.result))
    lost = (places for number, places in enumerate(race.steps) if number != winner)
    return [place.lstrip("-") for places in lost for place in places.split()]


def is_under(position: str, places: Sequence[str]) -> bool:
    """Tell whether a call is one of these, or was made in one of these branches."""
    return any(position == one or position.startswith(f"{one}.") for one in places)


def split_position(position: str) -> list[int]:
    """Return the numbers in a position, by which positions are sorted."""
    return [int(number) for number in position.split(".")]
