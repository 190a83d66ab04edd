"""Calls of a context: what the code awaits. Each has a position from the moment of the call.

    made -> begun -> done            the record of its end is there, or its end has been recorded
                  -> closed          it lost a race, or the run ends
         -> refused                  it is awaited behind a race that it lost, also if it was done in time

What must always hold: a call is done only after its end is recorded; a recorded call is done as soon as it
has begun, so that awaiting it does not yield. A call that is refused where it is made, because of what it was
given, is not made: nobody misses that it is never awaited, and nothing is recorded. `Scope.expect` makes it
one that must be awaited, once it is whole.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from eventbus import PayloadError
from workflows.functions.calls.scope import Mark, Scope
from workflows.functions.history import Record, family_of
from workflows.functions.origin import note_got

if TYPE_CHECKING:
    from workflows.functions.function_run import FunctionRun

__all__ = ["Call", "Part"]

R = TypeVar("R")


class Part:
    """What code or a group waits for: a call, or a branch."""

    __slots__ = ("error", "is_begun", "is_closed", "is_done", "is_lost", "parent", "position", "run", "value")

    def __init__(self, run: FunctionRun, position: str) -> None:
        self.run: FunctionRun = run
        self.position: str = position
        self.is_begun: bool = False
        self.is_closed: bool = False
        self.is_done: bool = False
        self.is_lost: bool = False
        self.value: Any = None
        self.error: BaseException | None = None
        self.parent: Part | Scope | None = None

    def begin(self) -> None:
        """Begin once: find out what is recorded, and ask the run for the rest."""
        raise NotImplementedError

    def close(self) -> None:
        """Forget it: its outcome is not wanted any more."""
        self.is_closed = True

    def lose(self) -> None:
        """Lose a race: what a replay does not wait for cannot be awaited any more."""
        self.is_lost = True
        if not self.is_done and not self.is_closed:
            self.close()

    @property
    def mark(self) -> Mark:
        """How far the history had come when it was done."""
        raise NotImplementedError

    def child_done(self, child: Part) -> None:
        """Note that a part of this one is done."""
        raise NotImplementedError

    def settle(self, value: Any = None, error: BaseException | None = None) -> None:
        """Be done, and tell who waits."""
        if self.is_done or self.is_closed:
            return
        self.value, self.error, self.is_done = value, error, True
        parent = self.parent
        if isinstance(parent, Scope):
            self.run.wake(parent, self)
        elif parent is not None:
            parent.child_done(self)


class Call(Part, Generic[R]):
    """One call of a context. `name` is the name of what is called."""

    __slots__ = ("is_grouped", "name", "record", "scope")

    family: ClassVar[str] = ""
    is_recorded: ClassVar[bool] = True

    def __init__(self, run: FunctionRun, scope: Scope, name: str, position: str | None = None) -> None:
        """Take the next position of `scope`, or have that of a part of another call."""
        super().__init__(run, scope.take() if position is None else position)
        self.scope: Scope = scope
        self.name: str = name
        self.record: Record | None = None
        self.is_grouped: bool = False

    @property
    def label(self) -> str:
        """The name and the position, as reports and errors have it."""
        return f"{self.name}@{self.position}"

    @property
    def told(self) -> str:
        """What it is, in messages."""
        return f"{self.family} {self.name!r}" if self.name != self.family else f"a {self.family}"

    def __await__(self) -> Generator[Any, Any, R]:
        """Wait until it is done. Raises the recorded error.

        Raises NonDeterminismError in another task than the code's, and UsageError if it lost a race.
        """
        self.run.enter(self)
        if not self.is_done:
            self.parent: Part | Scope | None = self.scope
            yield self
        return self.outcome()

    def outcome(self) -> R:
        """Return the value of a call that is done, or raise its error."""
        self.scope.mark = self.scope.mark.merged(self.mark)
        self.scope.has_news = False
        if self.error is not None:
            note_got(self.error, self.scope)
            raise self.error.with_traceback(None)
        return self.value

    @property
    def mark(self) -> Mark:
        """How far the history had come with its end."""
        record = self.record
        return self.scope.mark if record is None else Mark(record.time_ms, record.number, record.size)

    def take(self) -> None:
        """Belong to a group, which awaits it."""
        self.scope.unawaited.pop(self.position, None)

    def begin(self) -> None:
        """Begin once: find out what is recorded, and ask the run for the rest."""
        if self.is_begun:
            return
        self.is_begun = True
        self.take()
        ended = self.recall()
        if ended is None or ended.entry.name != self.name or family_of(ended.entry) != self.family:
            self.check()
        if ended is not None:
            self.end(ended)
        elif self.is_recorded and (full := self.run.full(self.scope)) is not None:
            self.settle(error=full)
        else:
            begun = self.run.history.begun(self.position)
            if begun is not None:
                self.scope.has_news = False
            self.start(begun)

    def recall(self) -> Record | None:
        """Return the record of its end. What a retry has kept counts if it is of this call."""
        return self.run.history.recall(self.position, self.family, self.name)

    def check(self) -> None:
        """Raise NonDeterminismError if another call is recorded at this position."""
        history = self.run.history
        entry = history.at(self.position)
        if entry is not None and (family_of(entry), entry.name) != (self.family, self.name):
            raise self.run.mismatch(self.position, entry, self.told)
        if entry is None and history.highest(self.position) >= 0:
            raise self.run.mismatch(self.position, history.first_from(f"{self.position}.0", 0), self.told)

    def start(self, begun: Record | None) -> None:
        """Ask the run for what is not recorded; `begun` is the record of the beginning."""
        raise NotImplementedError

    def end(self, record: Record) -> None:
        """Be done with what is recorded."""
        self.record = record
        try:
            value, error = self.read(record)
        except PayloadError as error:
            raise self.run.refuse(
                f"what flow {self.run.flow_id} recorded for {self.told} at position {self.position} does not fit: "
                f"{error}; read the old type too, or start such flows in another version",
                position=self.position,
                recorded=f"{self.told}, another type",
                asked=self.told,
            ) from error
        self.settle(value, error)

    def read(self, record: Record) -> tuple[Any, BaseException | None]:
        """Return the value or the error in a record. Raises PayloadError if it does not fit its type."""
        raise NotImplementedError
