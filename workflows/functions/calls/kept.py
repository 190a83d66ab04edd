"""What a retry by hand keeps of a durable function, and what it forgets. The rule stands here alone.

    journal: what run 1 recorded | run 2 | what run 2 recorded | run 3 | ...    -> what counts now

At each retry, of what is recorded:

1. *What was undone is run again.* A step whose rollback succeeded is forgotten, and so is a flow that was
   started and of which anything was undone. A step whose rollback failed is kept: it may be in effect.
2. *The failed call is run again*: the one whose error ended the function, also if the code raised another
   error because of it; those that failed beside it, as items of a map or in other branches; and each other
   one behind which neither its code nor code outside of that recorded anything. A failure that the code has
   dealt with is kept.
3. *What the code recorded behind the failed call is forgotten*, in its own scope and in those outside: that
   was because of the error, as code that tidies up and raises again. Other items of a map, other branches,
   and calls that were made before the error was there, are not behind it. Nor is what an earlier run
   recorded, before the call failed.
4. *What had only begun is run again*: sleeps, waits, flows and jobs without an end, attempts.
5. *A race whose winner does not count any more* is decided again.
6. *All else is kept*, with its values and its place: it is not run again.

With a wait goes the id of the signal that it took, if a sender chose one: of a wait that is kept the same
signal does not come again, and of one that is forgotten it may (`flow_retry`).

What is kept is of two kinds. What was recorded before all that runs again is *firm*: the code must ask for
it, or it has changed, and the flow is parked. What stands at or behind a call that runs again, in its own
scope or in one outside of it, is *loose*: that call may end in another way now, so the code may go another
way. A loose record counts if the code makes a call of the same kind and name at its place. If the code makes
another one, or ends before, the record is passed over, and no park follows. It is not lost: the next retry
has it, unless the new call was recorded in its place. What a run itself records is firm for its replays.

Random numbers and ids follow from the run in which the flow began (`Kept.origin`), not from that of the
retry. So they are the same for what is kept, and behind it.

What must always hold: what counts follows from the journal alone, so that each worker and each replay has the
same; no retry of unchanged code parks a flow; no step that completed and was not undone runs again unless
rule 3 forgets it.

Journals of old releases: a `raised` of theirs does not say what is behind the error (`steps`); then all
counts as behind it that was recorded after the failure at a later position of its scope or of one outside.
Their `run` does not say in which run the flow began; then ids follow from that run, as they did in that
release.

Other ways that were weighed: to keep only what was recorded before the first call that runs again (steps
without a rollback would take effect twice), and to forget what is loose once the code goes another way (the
same, in the run after that).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import msgspec

from workflows.functions.history import ENDS, is_under, losers, split_position
from workflows.records.entries import Entry

_FORGOTTEN = ("undo", "hook", "raised", "try", "cut", "stop")


class Kept(msgspec.Struct):
    """What counts of a journal for the current run of a function.

    `first` is the number of the first entry that counts, and `again` how often the function has started
    again. `input` is the input of that; None: that of the flow. Of `entries`, those whose number in that list
    is in `loose` count only if the code asks for them. `origin` is the run whose random numbers and ids the
    code has; 0: the only one.
    """

    first: int = 0
    again: int = 0
    input: msgspec.Raw | None = None
    entries: list[Entry] = []
    loose: set[int] = set()
    origin: int = 0

    def run_of(self, run: int) -> str:
        """Return the name of run number `run`, which the ids of its jobs and the keys of its steps have."""
        return f"{run}.{self.again}" if self.again else str(run)

    def seed_of(self, run: int) -> str:
        """Return the name from which random numbers and ids follow in run number `run`."""
        return self.run_of(self.origin or run)


def kept_entries(entries: Iterable[Entry]) -> Kept:
    """Return what counts of a journal."""
    kept = Kept(entries=[], loose=set())
    for number, entry in enumerate(entries, start=1):
        if entry.kind == "again":
            kept = Kept(number, kept.again + 1, entry.result, [], set(), kept.origin)
        elif entry.kind == "run":
            _resume(kept)
            kept.origin = int(entry.origin) if entry.origin.isdecimal() else entry.run
        else:
            kept.entries.append(entry)
    return kept


def _resume(kept: Kept) -> None:
    """Forget what does not count in the next run, and find out what is loose in it."""
    entries = kept.entries
    raised = _raised(entries)
    forgotten = raised | _undone(entries) | _last_failures(entries, raised) | _open(entries)
    while lost := _undecided(entries, forgotten):
        forgotten |= lost
    lost_places = [
        place
        for number, entry in enumerate(entries)
        if entry.kind == "race" and number not in forgotten
        for place in losers(entry)
    ]
    reach = _Reach(
        entry.place
        for number, entry in enumerate(entries)
        if number in forgotten and entry.kind in ENDS and not is_under(entry.place, lost_places)
    )
    left: list[Entry] = []
    loose: set[int] = set()
    for number, entry in enumerate(entries):
        if number in forgotten or entry.kind in _FORGOTTEN:
            continue
        if number in kept.loose or reach.has(entry.place):
            loose.add(len(left))
        left.append(entry)
    kept.entries, kept.loose = left, loose


def _undone(entries: Sequence[Entry]) -> set[int]:
    """Return the calls that were undone, in whole or in part. Each is known by its name and place."""
    undone: dict[str, int] = {}
    for number, entry in enumerate(entries):
        if entry.kind == "undo" and not entry.failure:
            undone[entry.place.partition("/")[0]] = number
    return {
        number
        for number, entry in enumerate(entries)
        if undone and number < undone.get(f"{entry.name}@{entry.place}", -1)
    }


def _raised(entries: Sequence[Entry]) -> set[int]:
    """Return the calls whose errors ended the function, and what the code recorded because of those."""
    found: set[int] = set()
    for entry in entries:
        if entry.kind == "raised":
            for told in entry.steps:
                place, *behind = told.split()
                found |= _ended_by(entries, place, [split_position(one) for one in behind])
            if not entry.steps:
                found |= _ended_by(entries, entry.place.rpartition("@")[2], None)
    return found


def _ended_by(entries: Sequence[Entry], place: str, behind: Sequence[list[int]] | None) -> set[int]:
    """Return the entries of a failed call, and those recorded after its end at positions behind its error.

    `behind` has the first such position of each scope; None: nobody has told it.
    """
    ends = [number for number, entry in enumerate(entries) if entry.place == place and entry.kind in ENDS]
    if not ends:
        return set()
    last = ends[-1]
    found = _same(entries, last)
    reach = _Reach([place])
    for number in range(last + 1, len(entries)):
        entry = entries[number]
        if not _is_position(entry.place) or entry.place == place:
            continue
        position = split_position(entry.place)
        if any(_is_at_or_behind(position, first) for first in behind or ()) or (
            behind is None and reach.has(entry.place)
        ):
            found.add(number)
    return found


def _same(entries: Sequence[Entry], number: int) -> set[int]:
    """Return all entries of the call of one entry: not those of another one made there in an earlier run."""
    name, place = entries[number].name, entries[number].place
    return {
        one
        for one, entry in enumerate(entries)
        if entry.place == place and entry.name == name and entry.kind not in ("undo", "hook", "raised")
    }


def _open(entries: Sequence[Entry]) -> set[int]:
    """Return the beginnings of what has no end."""
    ended = {(entry.place, entry.name) for entry in entries if entry.kind in ENDS}
    return {
        number
        for number, entry in enumerate(entries)
        if entry.kind in ("sleep", "wait", "child") and (entry.place, entry.name) not in ended
    }


def _last_failures(entries: Sequence[Entry], raised: Collection[int]) -> set[int]:
    """Return the calls that failed, or that nothing came to, and behind which no code went on.

    What was done because of the error that ended the function (`raised`) says nothing; what was undone later
    does.
    """
    waits = {(entry.place, entry.name) for entry in entries if entry.kind == "wait"}
    highest: dict[tuple[int, ...], int] = {}
    seen: set[str] = set()
    found: set[int] = set()
    for number in range(len(entries) - 1, -1, -1):
        entry = entries[number]
        if entry.kind not in ENDS or number in raised or entry.place in seen:
            continue
        seen.add(entry.place)
        position = split_position(entry.place)
        levels = [(tuple(position[:level]), position[level]) for level in range(0, len(position), 2)]
        if entry.kind == "failed" or (entry.kind == "due" and (entry.place, entry.name) in waits):
            if not any(highest.get(scope, -1) > count for scope, count in levels):
                found |= _same(entries, number)
        else:
            for scope, count in levels:
                highest[scope] = max(highest.get(scope, -1), count)
    return found


def _places(entries: Sequence[Entry], forgotten: Collection[int]) -> set[str]:
    """Return the places of what is left, and the branches in which something is."""
    there: set[str] = set()
    for number, entry in enumerate(entries):
        if number in forgotten or entry.kind in _FORGOTTEN:
            continue
        place = entry.place
        while place and place not in there:
            there.add(place)
            place = place.rpartition(".")[0]
    return there


def _undecided(entries: Sequence[Entry], forgotten: Collection[int]) -> set[int]:
    """Return the races whose winner does not count any more, so that they are run again."""
    races = [
        number for number, entry in enumerate(entries) if entry.kind == "race" and number not in forgotten
    ]
    there = _places(entries, forgotten) if races else set[str]()
    return {
        number
        for number in races
        if not _stands(entries[number].steps[int(bytes(entries[number].result))], there)
    }


def _stands(places: str, there: Collection[str]) -> bool:
    """Tell whether the winner of a race counts: a call, a branch, or all parts of a gather."""
    position, *parts = [place for place in places.split() if not place.startswith("-")]
    if parts:
        return all(_stands(part, there) for part in parts)
    return position in there


def _is_position(place: str) -> bool:
    return place[:1].isdecimal() and "@" not in place


def _is_at_or_behind(position: Sequence[int], first: Sequence[int]) -> bool:
    """Tell whether a call was made in the scope of `first`, or below it, at that number or later."""
    last = len(first) - 1
    return len(position) > last and position[:last] == first[:last] and position[last] >= first[last]


class _Reach:
    """What stands at or behind certain calls: in their scopes, and in those outside of them."""

    def __init__(self, places: Iterable[str]) -> None:
        self._same: set[str] = set()
        """Items of maps: the other items of the map are not behind them."""
        self._first: dict[tuple[int, ...], int] = {}
        """The first number, by scope."""
        for place in places:
            position = split_position(place)
            if len(position) % 2 == 0:
                self._same.add(place)
            for level in range(0, len(position), 2):
                scope, number = tuple(position[:level]), position[level]
                first = number if level == len(position) - 1 else number + 1
                self._first[scope] = min(self._first.get(scope, first), first)

    def has(self, place: str) -> bool:
        if not self._first or not _is_position(place):
            return False
        position = split_position(place)
        return place in self._same or any(
            position[level] >= self._first.get(tuple(position[:level]), position[level] + 1)
            for level in range(0, len(position), 2)
        )
