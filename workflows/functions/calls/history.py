"""The history of one run of a durable function: its recorded calls by their position.

    position   "2" is the third call of the function, "4.0.1" the second call of the first branch of the call "4"

What must always hold: a history is read once and changes only by `add`; each entry keeps its number in the journal, from
which the code's times and lengths follow, so that they are the same in each replay.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import msgspec

from workflows.records.entries import Entry

__all__ = ["History", "Kept", "Record", "family_of", "is_under", "kept_entries", "losers", "split_position"]

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
_ENDS = frozenset(("step", "failed", "signal", "due", "race", "patch", "rollback"))
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
        reopened: Collection[str] = (),
    ) -> None:
        """Read `entries`; `number` is how many entries the journal has before them.

        The calls at the positions `reopened` may run although later ones are recorded.
        """
        self.created_ms = created_ms
        self._reopened = reopened
        self.number: int = number
        self.first: int = number
        self.size: int = 0
        self._begun: dict[str, Record] = {}
        self._ended: dict[str, Record] = {}
        self._highest: dict[str, int] = {}
        self.open_children: dict[str, Entry] = {}
        """The beginnings of children that have not ended, by position."""
        self._lost: list[str] = []
        self._doubtful: set[str] = set()
        for entry in entries:
            self.add(entry)

    @property
    def length(self) -> int:
        """The number of entries."""
        return self.number - self.first

    def add(self, entry: Entry) -> Record:
        """Add an entry that is recorded."""
        self.number += 1
        self.size += _OVERHEAD + len(bytes(entry.result)) + len(bytes(entry.error))
        record = Record(entry, self.number - self.first, self.size)
        kind, place = entry.kind, entry.place
        if entry.child:
            self._note_child(entry)
        if kind == "race":
            self._lost += losers(entry)
        if entry.is_lost:
            self._doubtful.add(place)
        elif kind == "cut":
            self._doubtful.discard(place)
        if kind in _ENDS:
            self._ended[place] = record
            self._note(place)
        elif kind in _FAMILIES:
            self._begun[place] = record
            self._note(place)
        return record

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

    def _note(self, place: str) -> None:
        """Remember the highest number at each level of a position."""
        highest = self._highest
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

    def ended(self, position: str) -> Record | None:
        """Return the record of the end of a call; None if it did not end."""
        return self._ended.get(position)

    def begun(self, position: str) -> Record | None:
        """Return the record of the beginning of a call that waits, or of its last attempt; None without one."""
        return self._begun.get(position)

    def at(self, position: str) -> Entry | None:
        """Return the entry that tells the kind and the name of a call; None if nothing is recorded of it."""
        record = self._begun.get(position) or self._ended.get(position)
        return None if record is None else record.entry

    def is_doubtful(self, position: str) -> bool:
        """Tell whether a step may have taken effect in a worker that died."""
        return position in self._doubtful

    @property
    def is_reopened(self) -> bool:
        """Whether a call has yet to run again although later ones are recorded."""
        return any(position not in self._ended for position in self._reopened)

    def is_open_again(self, position: str) -> bool:
        """Tell whether a call runs again although later ones are recorded."""
        return position in self._reopened and position not in self._ended

    def highest(self, scope: str) -> int:
        """Return the highest number that is recorded in a scope or below it; -1 if nothing is."""
        return self._highest.get(scope, -1)

    def first_from(self, scope: str, number: int) -> Entry | None:
        """Return the first recorded call of a scope from a number on; of a call with branches one in these."""
        begin = f"{scope}." if scope else ""
        for count in range(number, self.highest(scope) + 1):
            found = self.at(f"{begin}{count}")
            if found is not None:
                return found
            for branch in range(self.highest(f"{begin}{count}") + 1):
                if (found := self.first_from(f"{begin}{count}.{branch}", 0)) is not None:
                    return found
        return None


def family_of(entry: Entry) -> str:
    """Return the kind of call that an entry is of: `step`, `child`, `sleep`, `wait`, `race`, `patch` or `rollback`."""
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


class Kept(msgspec.Struct):
    """What counts of a journal for the current run of a function.

    `first` is the number of the first entry that counts, and `again` how often the function has started again. `input` is
    the input of that; None: that of the flow. The calls at `reopened` run again, although later ones are kept.
    """

    first: int = 0
    again: int = 0
    input: msgspec.Raw | None = None
    entries: list[Entry] = []
    reopened: set[str] = set()


def kept_entries(entries: Sequence[Entry]) -> Kept:
    """Return what counts of a journal. A retry by hand keeps what completed and was not undone."""
    kept = Kept(entries=[], reopened=set())
    for number, entry in enumerate(entries, start=1):
        if entry.kind == "again":
            kept = Kept(number, kept.again + 1, entry.result, [], set())
        elif entry.kind == "run":
            _resume(kept)
        else:
            kept.entries.append(entry)
    return kept


def _resume(kept: Kept) -> None:
    """Drop the entries of an ended run that do not count in the next one."""
    entries = kept.entries
    dropped = {_call_in(entry.place) for entry in entries if _is_undone(entry)}
    raised = {entry.place.rpartition("@")[2] for entry in entries if entry.kind == "raised"}
    dropped |= raised | {
        entry.place for entry in entries for place in raised if _is_behind(entry.place, place)
    }
    ended = {entry.place for entry in entries if entry.kind in _ENDS}
    dropped |= {
        entry.place
        for entry in entries
        if entry.kind in ("sleep", "wait", "child") and entry.place not in ended
    }
    dropped |= _last_failures(entries)
    left = [
        entry
        for entry in entries
        if entry.kind not in ("undo", "hook", "raised", "try", "cut", "stop") and entry.place not in dropped
    ]
    while lost := _undecided(left):
        dropped |= lost
        left = [entry for entry in left if entry.place not in lost]
    kept.entries, kept.reopened = left, kept.reopened | dropped


def _call_in(path: str) -> str:
    """Return the position of the call in the path of a rollback, which may be one inside a child."""
    return path.partition("/")[0].rpartition("@")[2]


def _is_behind(place: str, earlier: str) -> bool:
    """Tell whether a call was made behind an earlier one in the same code, or in a branch that began there."""
    scope, _, number = earlier.rpartition(".")
    prefix = f"{scope}." if scope else ""
    if not number.isdecimal() or not place.startswith(prefix):
        return False
    first = place.removeprefix(prefix).partition(".")[0]
    return first.isdecimal() and int(first) > int(number)


def _is_undone(entry: Entry) -> bool:
    return entry.kind == "undo" and not entry.failure


def _last_failures(entries: Sequence[Entry]) -> set[str]:
    """Return the calls that failed, or that nothing came to, and behind which their code recorded nothing."""
    waits = {entry.place for entry in entries if entry.kind == "wait"}
    failed = {
        entry.place
        for entry in entries
        if entry.kind == "failed" or (entry.kind == "due" and entry.place in waits)
    }
    last: dict[str, int] = {}
    for entry in entries:
        scope, _, number = entry.place.rpartition(".")
        if entry.kind in _ENDS and entry.place not in failed:
            last[scope] = max(last.get(scope, -1), int(number))
    found: set[str] = set()
    for place in failed:
        scope, _, number = place.rpartition(".")
        if last.get(scope, -1) < int(number):
            found.add(place)
    return found


def _undecided(entries: Sequence[Entry]) -> set[str]:
    """Return the races whose winner does not count any more, so that they are run again."""
    there = {entry.place for entry in entries}
    return {
        entry.place
        for entry in entries
        if entry.kind == "race" and not _stands(entry.steps[int(bytes(entry.result))], there)
    }


def _stands(places: str, there: Collection[str]) -> bool:
    """Tell whether the winner of a race is among the places that count: a call, a branch, or all parts of a gather."""
    position, *parts = [place for place in places.split() if not place.startswith("-")]
    if parts:
        return all(_stands(part, there) for part in parts)
    return position in there or any(place.startswith(f"{position}.") for place in there)
