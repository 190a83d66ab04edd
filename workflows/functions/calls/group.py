"""Groups: calls and branches that run side by side, all of them or until the first one ends.

    gather   waits for all, and raises the error of the lowest position; it records nothing
    race     the first one that ends wins; the winner is recorded before the code goes on, and the
             others are closed

What must always hold: a replay takes the winner that is recorded, and does not run the code of the others, so
nothing of them can be awaited behind the race. If a worker dies before the winner is recorded, it is decided
again, because nothing behind the race has begun. A call tells its end to one group; one that is refused takes
no position.
"""

from __future__ import annotations

import inspect
from collections.abc import Coroutine, Sequence
from typing import Any, Generic, NamedTuple, TypeVar, cast

import msgspec

from eventbus import UsageError
from eventbus.lowlevel import shown
from workflows.functions.code_run import Call, CodeRun, Mark, Part, Scope
from workflows.functions.control import FlowStopping
from workflows.functions.history import Record
from workflows.functions.origin import note_beside
from workflows.records.entries import Entry

T = TypeVar("T")


class Winner(NamedTuple, Generic[T]):
    """The outcome of a race: the number of the winner among the arguments, from 0, and its value."""

    number: int
    value: T


class Branch(Part):
    """Code that runs beside other code, in a scope of its own."""

    __slots__ = ("scope",)

    def __init__(self, run: CodeRun, position: str, routine: Coroutine[Any, Any, Any]) -> None:
        super().__init__(run, position)
        self.scope: Scope = Scope(position, routine, Mark(0), run.seed)

    def begin(self) -> None:
        """Start the code."""
        self.is_begun = True
        self.run.start_scope(self.scope, self)

    def close(self) -> None:
        """End the code: its calls are forgotten, and its `finally` blocks run."""
        super().close()
        if not self.is_begun:
            self.scope.routine.close()
            return
        if self.scope.waiting is not None:
            self.scope.waiting.close()
        self.run.unwind(self.scope, FlowStopping("another call won the race"))

    @property
    def mark(self) -> Mark:
        """How far its code has come."""
        return self.scope.mark


class _Group(Call[Any]):
    """Several parts that run side by side."""

    __slots__ = ("parts",)

    def __init__(self, run: CodeRun, scope: Scope, given: Sequence[Any], name: str) -> None:
        """Take a position. Raises UsageError, and takes none, for what cannot be given to a group, or not to
        this one.
        """
        try:
            _check_given(run, scope, given, name)
        except UsageError:
            _let_go(run, scope, given)
            raise
        super().__init__(run, scope, name)
        self.parts: list[Part] = [self._part(index, one) for index, one in enumerate(given)]

    def _part(self, index: int, given: Any) -> Part:
        if isinstance(given, Call):
            call = cast("Call[Any]", given)
            call.take()
            call.is_grouped = True
            return call
        self.run.branched.add(given)
        return Branch(self.run, f"{self.position}.{index}", given)

    def begin(self) -> None:
        """Begin once. A branch that then has not begun never will."""
        try:
            super().begin()
        except BaseException:
            for part in self.parts:
                if isinstance(part, Branch) and not part.is_begun:
                    part.close()
            raise

    def check(self) -> None:
        """Raise NonDeterminismError if another call, or more branches, are recorded at this position."""
        history = self.run.history
        entry = history.at(self.position)
        if entry is not None and entry.kind != self.family:
            raise self.run.mismatch(self.position, entry, self.told)
        last = history.highest(self.position)
        if last >= len(self.parts) or (last >= 0 and not isinstance(self.parts[last], Branch)):
            raise self.run.mismatch(
                self.position, history.first_from(f"{self.position}.{last}", 0), self.told
            )

    def begin_part(self, part: Part) -> None:
        """Begin one part, or take it as it is if it is done already."""
        part.parent = self
        if isinstance(part, Branch):
            part.scope.mark = self.scope.mark
        if part.is_done:
            self.child_done(part)
        elif not part.is_begun:
            part.begin()

    def close(self) -> None:
        """Forget all parts."""
        super().close()
        for part in self.parts:
            if not part.is_done:
                part.close()

    def lose(self) -> None:
        """Lose a race with all parts."""
        super().lose()
        for part in self.parts:
            part.lose()


class Gather(_Group):
    """Waits for all of its parts."""

    __slots__ = ("_keeps_errors", "_left")

    family = "gather"
    is_recorded = False

    def __init__(self, run: CodeRun, scope: Scope, given: Sequence[Any], *, keeps_errors: bool) -> None:
        """With `keeps_errors`, errors are values, as asyncio has it with `return_exceptions`."""
        super().__init__(run, scope, given, "gather")
        self._keeps_errors = keeps_errors
        self._left = len(self.parts)

    def start(self, begun: Record | None) -> None:
        """Begin all parts."""
        del begun
        if not self.parts:
            self.settle([])
        for part in self.parts:
            self.begin_part(part)

    def child_done(self, child: Part) -> None:
        """Be done with the last part."""
        del child
        self._left -= 1
        if self._left:
            return
        error = next((part.error for part in self.parts if part.error is not None), None)
        if error is None or self._keeps_errors:
            self.settle([part.value if part.error is None else part.error for part in self.parts])
        else:
            note_beside(error, (part.error for part in self.parts))
            self.settle(error=error)

    @property
    def mark(self) -> Mark:
        """How far the last of its parts has come."""
        mark = self.scope.mark
        for part in self.parts:
            mark = mark.merged(part.mark)
        return mark


class Race(_Group):
    """Waits for the first of its parts."""

    __slots__ = ("_won",)

    family = "race"

    def __init__(self, run: CodeRun, scope: Scope, given: Sequence[Any]) -> None:
        """Raises UsageError without parts, because nothing would win."""
        if not given:
            raise UsageError("ctx.race needs at least one call or coroutine")
        super().__init__(run, scope, given, "race")
        self._won: Part | None = None

    def start(self, begun: Record | None) -> None:
        """Begin all parts; the run decides who wins."""
        del begun
        for part in self.parts:
            self.begin_part(part)

    def recall(self) -> Record | None:
        """Return the recorded decision. One that a retry has kept counts if it is of these calls."""
        history = self.run.history
        return history.recall(self.position, self.family, self.name, fits=self._fits)

    def _fits(self, entry: Entry) -> bool:
        """Tell whether the winner of a race is recorded as the same call or branch of this one."""
        places = entry.steps[int(bytes(entry.result))].split()
        won = self.parts[int(bytes(entry.result))] if len(entry.steps) == len(self.parts) else None
        if won is None or won.position != places[0] or isinstance(won, Branch) is not _is_branch(places[0]):
            return False
        return isinstance(won, _Group) or not isinstance(won, Call) or won.recall() is not None

    def end(self, record: Record) -> None:
        """Begin the winner alone."""
        self.record = record
        index = int(bytes(record.entry.result))
        if index >= len(self.parts):
            raise self.run.mismatch(self.position, record.entry, f"a race of {len(self.parts)} calls")
        self._won = self.parts[index]
        for part in self.parts:
            if part is not self._won:
                part.lose()
        self.begin_part(self._won)

    def child_done(self, child: Part) -> None:
        """Let the run decide, unless the winner is recorded."""
        if self.record is None:
            self.run.races[self.position] = self
        elif child is self._won:
            self._finish()

    def decide(self) -> Entry:
        """Return the entry of the decision: of those that are done, the one with the lowest number wins."""
        index = next(index for index, part in enumerate(self.parts) if part.is_done)
        return Entry(
            kind="race",
            place=self.position,
            name=self.name,
            result=msgspec.Raw(str(index).encode()),
            steps=tuple(" ".join(_places_of(part)) for part in self.parts),
            started_ms=self.run.now_ms,
        )

    def decided(self, record: Record) -> None:
        """Take the decision that is recorded: close the others, and be done."""
        self.record: Record | None = record
        self._won = self.parts[int(bytes(record.entry.result))]
        for part in self.parts:
            if part is not self._won:
                part.lose()
        self._finish()

    def _finish(self) -> None:
        won = self._won
        assert won is not None, "a race ends with a winner"  # noqa: S101
        index = self.parts.index(won)
        self.settle(None if won.error is not None else Winner(index, won.value), won.error)

    @property
    def mark(self) -> Mark:
        """How far the winner and the decision have come."""
        return super().mark if self._won is None else super().mark.merged(self._won.mark)

    @property
    def is_decided(self) -> bool:
        """Whether the winner is recorded."""
        return self.record is not None


def _is_branch(position: str) -> bool:
    return position.count(".") % 2 == 1


def _places_of(part: Part) -> list[str]:
    """Return the positions under which a part and what belongs to it is recorded; see `history.losers`.

    The calls in a group have positions beside it, not below it. What is recorded of a gather is its parts; a
    race has an entry of its own.
    """
    if not isinstance(part, _Group):
        return [part.position]
    inner = [place for each in part.parts for place in _places_of(each)[isinstance(each, Gather) :]]
    return [
        part.position,
        *(inner if isinstance(part, Gather) else [f"-{place.lstrip('-')}" for place in inner]),
    ]


def _check_given(run: CodeRun, scope: Scope, given: Sequence[Any], name: str) -> None:
    """Raise UsageError for what cannot be a part of a group, and NonDeterminismError for a call of another
    branch.
    """
    seen: set[int] = set()
    for one in given:
        number, is_call = id(one), isinstance(one, Call)
        if not is_call and not inspect.iscoroutine(one):
            raise UsageError(
                f"expected calls of ctx and coroutines in ctx.{name}, got: {shown(one)}; "
                "write ctx.step(function, ...) for a function"
            )
        if is_call:
            call = cast("Call[Any]", one)
            if call.scope is not scope or call.run is not run:
                raise run.refuse(f"{call.told} was called in another branch; call it where you await it")
            run.check_not_lost(call)
            if call.is_done:
                continue  # it has told its end, and any group may read it
            told, is_taken = (
                f"{call.told} of flow {run.flow_id}, at position {call.position},",
                call.is_grouped,
            )
        else:
            told, is_taken = f"coroutine {shown(one)}", one in run.branched
        if is_taken or number in seen:
            raise UsageError(
                f"{told} belongs to a group already, which alone would learn its end; "
                f"make another call for ctx.{name}"
            )
        seen.add(number)


def _let_go(run: CodeRun, scope: Scope, given: Sequence[Any]) -> None:
    """Let nobody miss what was given to a group that is refused."""
    for one in given:
        if isinstance(one, Call):
            scope.unawaited.pop(cast("Call[Any]", one).position, None)
        elif inspect.iscoroutine(one) and one not in run.branched:
            one.close()
