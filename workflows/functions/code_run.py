"""The code of a durable function while it runs: its scopes, and what calls of its context ask of the run.

Not here: what is recorded, and when the code goes on (`functions.function_run`).

What must always hold:
- the code awaits calls of its context alone, and makes them in its own scope: else NonDeterminismError, in the first run too;
- a mismatch ends the run, whatever the code does with the error: no call does anything after it;
- code that has ended, or lost a race, makes no call any more.
"""

from __future__ import annotations

import contextvars
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from eventbus import UsageError
from workflows.errors import HistoryFull, NonDeterminismError
from workflows.functions.calls.call import Call, Part
from workflows.functions.calls.scope import Scope
from workflows.functions.definition import MAX_HISTORY_BYTES, Durable
from workflows.functions.history import History, family_of
from workflows.functions.origin import Origin, set_origin
from workflows.functions.step_key import running_code
from workflows.records.entries import Entry
from workflows.records.records import revive_error

if TYPE_CHECKING:
    from workflows.functions.calls.child_call import ChildCall
    from workflows.functions.calls.group import Branch, Race
    from workflows.functions.calls.step_call import StepCall
    from workflows.functions.calls.wait_call import TimedCall
    from workflows.functions.definition import DurableCodecs
    from workflows.functions.surroundings import Recorder, Surroundings

__all__ = ["CodeRun"]


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
        self.fresh: list[StepCall[Any]] = []
        self.pending: dict[str, TimedCall[Any]] = {}
        self.begun_children: list[ChildCall[Any]] = []
        """Children whose beginning is recorded, or will be with the next append, and whose end nobody awaits
        yet.
        """
        self.has_fresh_children: bool = False
        """Whether the beginning of a child is yet to be recorded."""
        self.races: dict[str, Race] = {}
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
        self.scopes: dict[str, tuple[Scope, Branch | None]] = {}
        self.context: contextvars.Context = contextvars.copy_context()
        self._current: Scope | None = None
        self.context.run(around.enter)
        self.context.run(running_code.set, self.flow_id)

    def end_with(self, why: BaseException) -> None:
        """Let calls of the context raise `why` from now on, unless they raise something else already."""
        self.ending = self.ending or why

    def take_fresh(self) -> list[StepCall[Any]]:
        """Return the steps that have not begun, which then count as begun."""
        fresh, self.fresh = self.fresh, []
        return fresh

    # What calls ask.

    @property
    def now_ms(self) -> int:
        """The time of the recorder's clock in ms."""
        return self.recorder.now_ms

    def scope(self, what: str) -> Scope:
        """Return the scope whose code runs now. Raises what ends the run, and NonDeterminismError in foreign
        tasks.
        """
        if self.ending is not None:
            raise self.ending
        if self._current is None:
            raise self.refuse(
                f"ctx.{what} was called in a task or thread that is not the code of flow {self.flow_id}; "
                "use ctx.gather instead of asyncio.gather and create_task, and ctx.step for what waits for others"
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
                f"{call.told} of flow {self.flow_id}, at position {call.position}, lost a race, so a replay would not wait "
                "for it; use the outcome of the race, or make another call"
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
            f"flow {self.flow_id} recorded {recorded}{place} where its code now has {asked or 'no call'}, at position "
            f"{position}; run the code that recorded it, or guard the change with ctx.patched(name)",
            position=position,
            recorded=recorded,
            asked=asked or "no call",
        )

    # The code.

    def start_scope(self, scope: Scope, branch: Branch | None) -> None:
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
                f"the code of flow {self.flow_id} awaits {type(awaited).__name__}, which is no call of its context, so "
                "it could not be repeated; do it in a step, and use ctx.gather and ctx.sleep instead of asyncio's"
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
                f"{call.told} of flow {self.flow_id}, at position {call.position}, was called and never awaited; "
                "await it, or leave it out",
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
