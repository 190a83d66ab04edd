"""The code of a durable function while it runs: its scopes, the calls that it makes, and what these ask of
the run.

A scope is the function itself or one of its branches. A call is what the code awaits; it has a position from
the moment of the call.

    made -> begun -> done            the record of its end is there, or its end has been recorded
                  -> closed          it lost a race, or the run ends
         -> refused                  it is awaited behind a race that it lost, also if it was done in time

Not here: the kinds of calls (`calls`), what is recorded, and when the code goes on (`function_run`).

What must always hold:
- the code awaits calls of its context alone, and makes them in its own scope: else NonDeterminismError, in
  the first run too;
- a mismatch ends the run, whatever the code does with the error: no call does anything after it;
- code that has ended, or lost a race, makes no call any more;
- the code of one scope is sequential, so its n-th call is the same one in each replay. Its time, its length
  of history, its random numbers and its ids follow from the recorded calls that it has seen, and from its
  name;
- a call is done only after its end is recorded; a recorded call is done as soon as it has begun, so that
  awaiting it does not yield. A call that is refused where it is made, because of what it was given, is not
  made: nobody misses that it is never awaited, and nothing is recorded. `Scope.expect` makes it one that must
  be awaited, once it is whole.
"""

from __future__ import annotations

import contextvars
import random
import uuid
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar
from weakref import WeakSet

from eventbus import PayloadError, UsageError
from workflows.definition.task_context import running_code
from workflows.errors import HistoryFull, NonDeterminismError
from workflows.execution.surroundings import Recorder, Surroundings
from workflows.functions.definition import MAX_HISTORY_BYTES, Durable, DurableCodecs
from workflows.functions.history import History, Record, family_of
from workflows.functions.origin import Origin, note_got, set_origin
from workflows.records.entries import Entry
from workflows.records.records import revive_error

C = TypeVar("C", bound="Call[Any]")
R = TypeVar("R")


class Mark(NamedTuple):
    """How far a scope has come: its time in ms, the number of its last entry, and the bytes of history up to
    there.
    """

    time_ms: int
    number: int = 0
    size: int = 0

    def merged(self, other: Mark) -> Mark:
        """Return the later one of both in each respect."""
        if other.number >= self.number and other.time_ms >= self.time_ms and other.size >= self.size:
            return other  # by far the most frequent case
        return Mark(
            max(self.time_ms, other.time_ms), max(self.number, other.number), max(self.size, other.size)
        )


class Scope:
    """One sequential piece of code. `name` is empty for the function itself, else the position of the
    branch.
    """

    __slots__ = (
        "_ids",
        "_random",
        "count",
        "emissions",
        "has_news",
        "is_ended",
        "is_started",
        "key",
        "mark",
        "name",
        "routine",
        "unawaited",
        "waiting",
    )

    def __init__(self, name: str, routine: Coroutine[Any, Any, Any], mark: Mark, key: str) -> None:
        """Run `routine`; random numbers and ids follow from `key`, which a retry by hand does not change."""
        self.name: str = name
        self.routine: Coroutine[Any, Any, Any] = routine
        self.mark: Mark = mark
        self.key: str = key
        self.count: int = 0
        self.is_started: bool = False
        self.is_ended: bool = False
        self.has_news: bool = False
        """Whether the live state was set since the last recorded call."""
        self.waiting: Call[Any] | None = None
        self.unawaited: dict[str, Call[Any]] = {}
        self.emissions: list[Any] = []
        """Emissions (`calls.emit_call`) that the code has not awaited; they are sent before its next call."""
        self._random: random.Random | None = None
        self._ids = 0

    def position(self, number: int) -> str:
        """Return the position of a call of this scope by its number."""
        return f"{self.name}.{number}" if self.name else str(number)

    def expect(self, call: C) -> C:
        """Return a call of this scope that is made: its code must await it."""
        self.unawaited[call.position] = call
        return call

    def take(self) -> str:
        """Return the position of the next call."""
        self.count += 1
        return self.position(self.count - 1)

    @property
    def random(self) -> random.Random:
        """Random numbers, the same ones in each replay."""
        if self._random is None:
            self._random = random.Random(f"{self.key}/{self.name}")
        return self._random

    def uuid(self) -> uuid.UUID:
        """Return the next id, the same one in each replay."""
        self._ids += 1
        return uuid.uuid5(uuid.NAMESPACE_URL, f"{self.key}/{self.name}/{self._ids}")


class Part:
    """What code or a group waits for: a call, or a branch."""

    __slots__ = ("error", "is_begun", "is_closed", "is_done", "is_lost", "parent", "position", "run", "value")

    def __init__(self, run: CodeRun, position: str) -> None:
        self.run: CodeRun = run
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
    begins_attempts: ClassVar[bool] = False
    """Whether it runs functions of users here."""
    is_recorded: ClassVar[bool] = True

    def __init__(self, run: CodeRun, scope: Scope, name: str, position: str | None = None) -> None:
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
            begun = self.run.history.begun.get(self.position)
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
                f"what flow {self.run.flow_id} recorded for {self.told} at position {self.position} does not "
                f"fit: {error}; read the old type too, or start such flows in another version",
                position=self.position,
                recorded=f"{self.told}, another type",
                asked=self.told,
            ) from error
        self.settle(value, error)

    def read(self, record: Record) -> tuple[Any, BaseException | None]:
        """Return the value or the error in a record. Raises PayloadError if it does not fit its type."""
        raise NotImplementedError


class TimedCall(Call[R]):
    """A call that the run holds as pending, until `due_ms` at the latest (None: without limit)."""

    __slots__ = ("due_ms", "is_fresh")

    def __init__(self, run: CodeRun, scope: Scope, name: str, position: str | None = None) -> None:
        super().__init__(run, scope, name, position)
        self.due_ms: int | None = None
        self.is_fresh: bool = False

    def close(self) -> None:
        """Wait no longer."""
        super().close()
        self.run.pending.pop(self.position, None)


class CodeRun:
    """The scopes of one run of the code, and the calls that they have made and that are not done."""

    def __init__(
        self,
        durable: Durable[Any, Any],
        codecs: DurableCodecs,
        history: History,
        recorder: Recorder,
        around: Surroundings,
    ) -> None:
        self.durable = durable
        self.codecs = codecs
        self.history = history
        self.recorder = recorder
        self.around = around
        self.flow_id: str = around.flow_id
        self.key: str = f"{around.flow_id}/{around.run}"
        self.seed: str = f"{around.flow_id}/{around.seed or around.run}"
        self.max_bytes: int = codecs.max_bytes
        self.fresh: list[Any] = []
        """Steps (`calls.step_call`) that have not begun."""
        self.pending: dict[str, TimedCall[Any]] = {}
        self.ended: list[tuple[Call[Any] | None, Entry]] = []
        """Steps and children that have ended, with the entries that say so and are not recorded yet."""
        self.begun_children: list[Any] = []
        """Children (`calls.child_call`) whose beginning is recorded, or will be with the next append, and
        whose end nobody awaits yet.
        """
        self.has_fresh_children: bool = False
        """Whether the beginning of a child is yet to be recorded."""
        self.races: dict[str, Any] = {}
        """Races (`calls.group`) by position."""
        self.branched: WeakSet[Coroutine[Any, Any, Any]] = WeakSet()
        """Coroutines that belong to a group."""
        self.outbox: list[Entry] = []
        """Entries of calls that the code does not await; they are recorded before anything else begins."""
        self.live: dict[str, str] = {}
        self.ending: BaseException | None = None
        """What calls of the context raise since the run ends."""
        self.refusal: NonDeterminismError | None = None
        self.result: tuple[Any, BaseException | None] | None = None
        """What the function returned or raised."""
        self.ready: deque[Scope] = deque()
        self.scopes: dict[str, tuple[Scope, Part | None]] = {}
        self.context: contextvars.Context = contextvars.copy_context()
        self._current: Scope | None = None
        self.context.run(around.enter)
        self.context.run(running_code.set, self.flow_id)

    def end_with(self, why: BaseException) -> None:
        """Let calls of the context raise `why` from now on, unless they raise something else already."""
        self.ending = self.ending or why

    # What calls ask.

    @property
    def now_ms(self) -> int:
        """The time of the recorder's clock in ms."""
        return self.recorder.clock.now_ms

    @property
    def is_leaving(self) -> bool:
        """Whether the worker stops: then no attempt of a step begins here, and the flow goes on in another
        worker.
        """
        return self.around.own.stopping == "stop"

    def may_begin(self, call: Call[Any]) -> bool:
        """Tell whether a call that is due may go on in this worker."""
        return not (call.begins_attempts and self.is_leaving)

    def scope(self, what: str) -> Scope:
        """Return the scope whose code runs now. Raises what ends the run, and NonDeterminismError in foreign
        tasks.
        """
        if self.ending is not None:
            raise self.ending
        if self._current is None:
            raise self.refuse(
                f"ctx.{what} was called in a task or thread that is not the code of flow {self.flow_id}; "
                "use ctx.gather instead of asyncio.gather and create_task, and ctx.step for what waits for "
                "others"
            )
        return self._current

    def enter(self, call: Call[Any]) -> None:
        """Begin a call that the code awaits."""
        scope = self.scope(call.name)
        if call.scope is not scope:
            raise self.refuse(f"{call.told} was called in another branch; call it where you await it")
        self.check_not_lost(call)
        for emission in [emission for emission in scope.emissions if emission is not call]:
            emission.send()
        call.begin()

    def check_not_lost(self, call: Call[Any]) -> None:
        """Raise UsageError for a call that lost a race: a replay takes the winner, and does not wait
        for it.
        """
        if call.is_lost:
            raise UsageError(
                f"{call.told} of flow {self.flow_id}, at position {call.position}, lost a race, "
                "so a replay would not wait for it; use the outcome of the race, or make another call"
            )

    def full(self, scope: Scope) -> HistoryFull | None:
        """Return the error of a further call if the history is full."""
        mark = scope.mark
        if mark.number < self.durable.max_history and mark.size < MAX_HISTORY_BYTES:
            return None
        return HistoryFull(flow_id=self.flow_id, entries=mark.number, size=mark.size)

    def is_long(self, scope: Scope) -> bool:
        """Tell whether a scope has seen 80 % of what a history may have."""
        mark = scope.mark
        return mark.number >= self.durable.max_history * 0.8 or mark.size >= MAX_HISTORY_BYTES * 0.8

    def has_news(self) -> bool:
        """Tell whether live state was set behind the last recorded call."""
        return bool(self.live) and any(scope.has_news for scope, _ in self.scopes.values())

    def is_repeating(self, scope: Scope) -> bool:
        """Tell whether the code of a scope repeats what is recorded: a later call of it is."""
        return self.history.highest(scope.name) >= scope.count

    def step_key(self, position: str) -> str:
        """Return the idempotency key of the step at a position."""
        return f"{self.key}/{position}"

    def revive(self, failure: str, label: str) -> Exception:
        """Return the error that the record of a failed step represents."""
        owner = f"{self.durable.name}.{label}"
        error = revive_error(failure, owner=owner, job=self.flow_id, errors=self.durable.errors)
        set_origin(error, Origin(label, failure))
        return error

    def refuse(
        self, message: str, *, position: str = "", recorded: str = "", asked: str = ""
    ) -> NonDeterminismError:
        """End the run, and return the error to raise in the code."""
        error = NonDeterminismError(
            message, flow_id=self.flow_id, position=position, recorded=recorded, asked=asked
        )
        self.refusal = self.refusal or error
        return error

    def mismatch(self, position: str, entry: Entry | None, asked: str) -> NonDeterminismError:
        """End the run, because the flow recorded another call than the code makes."""
        recorded = "nothing" if entry is None else f"{family_of(entry)} {entry.name!r}"
        place = "" if entry is None or entry.place == position else f" at {entry.place}"
        return self.refuse(
            f"flow {self.flow_id} recorded {recorded}{place} where its code now has {asked or 'no call'}, at "
            f"position {position}; run the code that recorded it, or guard the change with ctx.patched(name)",
            position=position,
            recorded=recorded,
            asked=asked or "no call",
        )

    # The code.

    def start_scope(self, scope: Scope, branch: Part | None) -> None:
        """Let the code of a scope begin."""
        self.scopes[scope.name] = (scope, branch)
        self.ready.append(scope)

    def wake(self, scope: Scope, call: Part) -> None:
        """Let the code of a scope go on behind the call that it waits for."""
        if scope.waiting is call and not scope.is_ended:
            scope.waiting = None
            self.ready.append(scope)

    def advance(self) -> None:
        """Run the code until all of its scopes wait."""
        while self.ready and self.refusal is None:
            scope = self.ready.popleft()
            if not scope.is_ended:
                self._resume(scope, lambda routine=scope.routine: routine.send(None))

    def _resume(self, scope: Scope, enter: Callable[[], Any]) -> None:
        """Run the code of a scope up to its next wait, or to its end."""
        before, self._current = self._current, scope
        scope.is_started = True
        try:
            awaited = enter()
            if isinstance(awaited, Call):
                scope.waiting = awaited
                return
            error = self.refuse(
                f"the code of flow {self.flow_id} awaits {type(awaited).__name__}, which is no call of its "
                "context, so it could not be repeated; do it in a step, "
                "and use ctx.gather and ctx.sleep instead of asyncio's"
            )
            scope.routine.throw(error)
        except StopIteration as stop:
            self._leave(scope, stop.value, None)
        except BaseException as error:  # noqa: BLE001  (whatever the code raises)
            self._leave(scope, None, error)
        finally:
            self._current = before

    def _leave(self, scope: Scope, value: Any, error: BaseException | None) -> None:
        """Take the end of a scope's code."""
        scope.is_ended = True
        if self.ending is not None or self.refusal is not None:
            return
        if self.history.highest(scope.name) >= scope.count:
            position = scope.position(scope.count)
            self.mismatch(position, self.history.first_from(scope.name, scope.count), "")
            return
        if scope.unawaited and error is None:
            call = next(iter(scope.unawaited.values()))
            self.refuse(
                f"{call.told} of flow {self.flow_id}, at position {call.position}, was called and never "
                "awaited; await it, or leave it out",
                position=call.position,
            )
            return
        try:
            for emission in list(scope.emissions):
                emission.send()
        except NonDeterminismError:  # the run knows
            return
        branch = self.scopes[scope.name][1]
        if branch is not None:
            branch.settle(value, error)
        else:
            self.result = (value, error)

    def unwind(self, scope: Scope, why: BaseException) -> None:
        """End the code of a scope: its `finally` blocks run, and calls of the context in them raise `why`."""
        if scope.is_ended:
            return
        scope.is_ended = True
        if not scope.is_started:
            scope.routine.close()
            return
        before, ending = self._current, self.ending
        self._current, self.ending = scope, why
        try:
            scope.routine.throw(why)
            scope.routine.close()  # it waits for something in a `finally` block
        except BaseException:  # noqa: BLE001, S110  (its own, or `why` again)
            pass
        finally:
            self._current, self.ending = before, ending
