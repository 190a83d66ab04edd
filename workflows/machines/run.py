"""The run of a machine in one activation: it fires transitions until the machine rests or has come to its
end.

    look at the inbox -> choose -> close the place -> body on a copy -> one append -> choose -> ... -> Rest |
    Completed | Leaving

The design stands in the package. What must always hold:
- nothing begins before what came before it is recorded; after `append` has raised, the run ends;
- each append says what is accepted behind it, and what that is was chosen before;
- what a body came to is recorded, whatever happens meanwhile: a cancellation, or an error of the look at
  what follows, only ends that look, and is raised behind the record. The move then accepts nothing, and the
  next activation looks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import msgspec

from eventbus import Later, UsageError
from eventbus.lowlevel import describe, get_logger, log_failure, note_around
from workflows.definition.codecs import MAX_VALUE
from workflows.execution.attempt import outlast
from workflows.execution.step_runner import judge
from workflows.execution.surroundings import Recorder, Surroundings
from workflows.functions.endings import Completed
from workflows.machines.choosing import Chooser, Fire, MachineChildren, Rest
from workflows.machines.context import MachineContext, key_of
from workflows.machines.definition import MachineDefinition
from workflows.machines.firing import BodyFailure, Cut, Firing, Moved
from workflows.machines.recording import Recording
from workflows.machines.snapshot import NOTHING, Awaited, Obligation, Snapshot, Trouble, write_obligation
from workflows.machines.standing import Standing
from workflows.machines.transition import END, Transition
from workflows.machines.triggers import Triggers, offers
from workflows.records.entries import Entry
from workflows.records.ids import member_id, nested_flow_id
from workflows.records.records import error_text

T = TypeVar("T")

_log = get_logger("workflows.machine")


class Leaving(msgspec.Struct, frozen=True):
    """The worker stops, so another one goes on."""


class MachineRun:
    """One run of a machine. Await `run` only once."""

    def __init__(
        self,
        definition: MachineDefinition,
        standing: Standing,
        recorder: Recorder,
        around: Surroundings,
        children: MachineChildren,
        *,
        number: int,
        load: Callable[[str], Awaitable[str | None]],
    ) -> None:
        """`number` is that of the flow's run, and `load(name)` reads a document."""
        self._definition = definition
        self._standing = standing
        self._recording = Recording(recorder, standing)
        self._around = around
        self._children = children
        self._number = number
        self._load = load
        self._chooser = Chooser(
            definition.out_of, children, self._guard_context, lambda: recorder.clock.now_ms
        )
        self._firing = Firing(definition, around, self._body_context)
        self._triggers = Triggers(
            definition, self._recording, self._chooser, come=self._come, facts=around.facts
        )
        self._decided: Fire | Rest | None = None
        """What the machine does at its place, chosen before the move there was recorded."""
        self._broken: BaseException | None = None
        """What ended this run before what a body came to was recorded; it is raised behind that."""

    async def run(self) -> Completed | Rest | Leaving:
        """Fire until nothing fires here. Raises what the recorder and the children raise, and CancelledError.

        A cancellation cuts the body that runs, records what it came to, and is raised at the end.
        """
        await self._begin()
        while True:
            following = await self._next()
            if isinstance(following, Rest):
                snapshot = self._standing.snapshot
                if snapshot.place == END and not following.children:
                    return Completed(bytes(snapshot.result).decode() or "null")
                await self._open(following)
                return following
            if self._around.own.stopping == "stop":
                return Leaving()
            if await self._close(following):
                await self._fire(following)

    async def _begin(self) -> None:
        """Begin the run of a retry by hand: what failed before it does not count any more."""
        snapshot, recorder = self._standing.snapshot, self._recording.recorder
        if not self._standing.is_recorded:
            return
        if snapshot.run != self._number:
            fresh = msgspec.structs.replace(snapshot, run=self._number, trouble=None)
            entry = Entry(kind="run", run=self._number, started_ms=self._recording.now_ms)
            await self._recording.record(self._standing.change(snapshot=fresh), entry)
        elif not self._standing.accepts:  # a trigger may have closed the place after this claim
            await recorder.refresh()

    async def _next(self) -> Fire | Rest:
        snapshot = self._standing.snapshot
        held = "" if snapshot.trouble is None else snapshot.trouble.signal
        for signal in list(self._recording.recorder.signals):
            if signal.id != held:
                fire = await self._triggers.read(signal)
                self._decided = None
                return fire or await self._next()
        if snapshot.trouble is not None and not snapshot.trouble.is_over:
            return await self._try_again(snapshot.trouble)
        if snapshot.stands:
            return Rest()
        decided, self._decided = self._decided, None
        standing = self._standing
        return decided or await self._chooser.choose(snapshot, standing.state, standing.awaited, is_new=False)

    async def _try_again(self, trouble: Trouble) -> Fire | Rest:
        """Return the transition that failed before, once it is due; if a release has taken it away, go on
        without it.
        """
        transition = self._definition.transitions.get(trouble.transition)
        standing = self._standing
        if transition is None or trouble.origin not in transition.sources:
            forgotten = msgspec.structs.replace(standing.snapshot, trouble=None)
            entry = self._recording.entry("refused", name=trouble.transition, place=trouble.origin)
            await self._recording.record(standing.change(snapshot=forgotten), entry, taken=_held(trouble))
            return await self._next()
        if trouble.due_ms > self._recording.now_ms:
            return Rest(until_ms=trouble.due_ms)
        fire = Fire(
            transition=transition,
            attempts=trouble.attempts,
            payload=trouble.payload,
            signal=trouble.signal,
            chosen=trouble.chosen,
        )
        try:
            if transition.waits:
                return msgspec.structs.replace(fire, argument=(transition.decode(bytes(trouble.payload)),))
            if transition.after is not None:
                chosen = await self._chooser.choose(
                    standing.snapshot, standing.state, standing.awaited, is_new=False
                )
                if isinstance(chosen, Rest):
                    return chosen
                is_same = chosen.transition is transition
                return msgspec.structs.replace(chosen, attempts=trouble.attempts) if is_same else chosen
        except Exception as error:  # noqa: BLE001  (a payload that does not fit the type of a later release)
            return msgspec.structs.replace(fire, error=error)
        return fire

    async def _open(self, rest: Rest) -> None:
        """Record what is accepted here, and until when it rests, if the server does not have it."""
        snapshot = self._standing.snapshot
        if snapshot.place == END:
            return
        if snapshot.trouble is None and snapshot.due_ms != (rest.until_ms or 0):
            snapshot = msgspec.structs.replace(snapshot, due_ms=rest.until_ms or 0)
        accepts = offers(self._chooser, snapshot, rest)
        await self._recording.record(self._standing.change(snapshot=snapshot, accepts=accepts))

    async def _close(self, fire: Fire) -> bool:
        """Accept nothing while a body runs; return False if a trigger came before that."""
        if not self._standing.accepts:
            return True
        await self._recording.record(self._standing.change())
        recorder = self._recording.recorder
        await recorder.refresh()
        if all(signal.id == fire.signal for signal in recorder.signals):
            return True
        self._decided = None
        return False

    async def _fire(self, fire: Fire) -> None:
        began = self._recording.now_ms
        standing = self._standing
        came = self._refuse(fire.transition) or await self._firing.fire(
            fire, standing.snapshot, standing.state
        )
        self._broken = self._firing.cancellation
        if isinstance(came, Cut):
            await self._note_cut(fire, is_lost=came.is_lost)
        else:
            await self._come_to(fire, came, began)
        if self._broken is not None:
            raise self._broken

    async def _come_to(self, fire: Fire, came: Moved | BodyFailure, began: int) -> None:
        """Record what a body came to."""
        if isinstance(came, Moved):
            try:
                new = self._awaited(fire.transition, came)
            except Exception as error:  # noqa: BLE001  (an id that would be too long)
                came = BodyFailure(error=error)
            else:
                too_much = await self._move(fire, came, new, began)
                if too_much is None:
                    return
                came = too_much
        await self._fail(fire, came, began)

    async def _note_cut(self, fire: Fire, *, is_lost: bool) -> None:
        """Record that a transition with a rollback may have taken effect, because its body was given up
        on.
        """
        transition, standing = fire.transition, self._standing
        if transition.undo is None or not is_lost:
            return
        doubt = Obligation(transition.name, standing.snapshot.moves + 1)
        change = standing.change(doubts=(*self._other_doubts(transition), doubt))
        await outlast(self._recording.record(change))

    def _other_doubts(self, transition: Transition[Any]) -> list[Obligation]:
        """Return the transitions in doubt but for one that has ended in this activation."""
        return [each for each in self._standing.doubts if each.transition != transition.name]

    async def _look_ahead(self, look: Awaitable[T], instead: T) -> T:
        """Return what a look finds; `instead`, if it is cut, or fails for a reason that ends the run."""
        if self._broken is not None:
            if asyncio.iscoroutine(look):
                look.close()
            return instead
        try:
            return await look
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001  (`_fire` raises it)
            self._broken = error
            return instead

    def _refuse(self, transition: Transition[Any]) -> BodyFailure | None:
        """Return why a transition may not fire: with its rollback the flow would owe more than it may. A
        warning comes before.
        """
        owed, most = self._standing.snapshot.owed, self._definition.max_rollbacks
        if transition.undo is None or owed < most:
            return None
        error = UsageError(
            f"flow {self._around.flow_id} owes {owed} rollbacks, as many as {self._definition.where} may; "
            "give the class a larger max_rollbacks, or leave out the rollbacks of transitions that fire for "
            "years, then retry the flow"
        )
        return BodyFailure(error=error, is_final=True)

    async def _move(self, fire: Fire, came: Moved, new: list[Awaited], began: int) -> BodyFailure | None:
        """Record a move with all that belongs to it, then start its children; if one append cannot take that,
        return so.
        """
        transition, standing, recording = fire.transition, self._standing, self._recording
        moved = self._moved_to(transition.target)
        moved.result = came.result
        kept = () if transition.after is not None else standing.awaited
        awaited = (*await self._look_ahead(self._still_awaited(transition, is_new=bool(new)), kept), *new)
        entry = recording.entry(
            "move",
            name=transition.name,
            place=transition.target,
            move=moved.moves,
            result=fire.payload if bytes(fire.payload) else msgspec.Raw(b"null"),
            attempts=fire.attempts,
            started_ms=began,
            took_ms=max(0, recording.now_ms - began),
            traceparent=came.traceparent,
        )
        texts = dict(came.documents)
        if transition.undo is not None:
            texts |= write_obligation(Obligation(transition.name, moved.moves, traceparent=came.traceparent))
            moved.owed += 1
            if moved.owed == self._definition.max_rollbacks * 4 // 5:
                _log.warning("many rollbacks are owed", **self._around.facts, rollbacks=moved.owed)
        following = await self._look_ahead(
            self._chooser.choose(moved, came.state, awaited, is_new=bool(new)), None
        )
        moved.due_ms = (following.until_ms or 0) if isinstance(following, Rest) else 0
        change = standing.change(
            snapshot=moved,
            state=came.state,
            awaited=awaited,
            accepts=()
            if following is None or moved.place == END
            else offers(self._chooser, moved, following),
            doubts=self._other_doubts(transition),
        )
        try:
            await outlast(
                recording.record(change, entry, texts=texts, taken=[fire.signal] if fire.signal else ())
            )
        except UsageError as error:  # raised before anything is sent
            return BodyFailure(error=error)
        self._decided = following
        if new and self._broken is None:  # else whoever goes on finds them recorded, and adds them
            await self._children.start(new, rests=isinstance(following, Rest))
        return None

    async def _fail(self, fire: Fire, came: BodyFailure, began: int) -> None:
        """Record a failed attempt, and what follows: another one, the error place, or nothing until somebody
        helps.
        """
        transition, standing, recording = fire.transition, self._standing, self._recording
        delay, error, attempts = self._judge(fire, came)
        failure = self._told(fire, error, attempts, delay)
        facts: dict[str, Any] = {
            "name": transition.name,
            "move": standing.snapshot.moves,
            "attempts": attempts,
            "started_ms": began,
            "took_ms": max(0, recording.now_ms - began),
        }
        if bytes(failure):
            facts["error"] = failure
        place = standing.snapshot.place
        trouble = Trouble(transition.name, place, attempts, failure, payload=fire.payload, chosen=fire.chosen)
        if delay is not None:
            trouble.due_ms, trouble.signal = recording.now_ms + round(delay * 1000), fire.signal
            stays = msgspec.structs.replace(standing.snapshot, trouble=trouble)
            change = standing.change(snapshot=stays, accepts=offers(self._chooser, stays, Rest()))
            await outlast(
                recording.record(change, recording.entry("try", place=place, due_ms=trouble.due_ms, **facts))
            )
            return
        entries = [recording.entry("failed", place=place, signal=fire.chosen, **facts)]
        following = None
        stands = msgspec.structs.replace(standing.snapshot, trouble=trouble)
        if transition.error_place is not None:
            stands = self._moved_to(transition.error_place)
            stands.trouble = trouble
            following = await self._look_ahead(self._come(stands), None)
            entries.append(
                recording.entry(
                    "move", name=transition.name, place=stands.place, move=stands.moves, is_lost=True
                )
            )
        awaited = standing.awaited
        if transition.after is not None:
            awaited = tuple(msgspec.structs.replace(each, is_heard=True) for each in awaited)
        accepts = () if self._broken is not None else offers(self._chooser, stands, following or Rest())
        change = standing.change(
            snapshot=stands, awaited=awaited, accepts=accepts, doubts=self._other_doubts(transition)
        )
        await outlast(recording.record(change, *entries, taken=[fire.signal] if fire.signal else ()))
        self._decided = following

    def _judge(self, fire: Fire, came: BodyFailure) -> tuple[float | None, BaseException, int]:
        """Return the seconds until the next attempt (None: that was the last one), the error that counts, and
        how many failed.
        """
        if isinstance(came.error, Later):
            return came.error.delay, came.error, fire.attempts
        attempts = fire.attempts + 1
        if came.is_final:
            return None, came.error, attempts
        delay, error = judge(fire.transition.retry, attempts, came.error)
        return delay, error, attempts

    def _told(self, fire: Fire, error: BaseException, attempts: int, delay: float | None) -> msgspec.Raw:
        """Log the error of an attempt, and return its record; an attempt that was put off has none."""
        if isinstance(error, Later):
            return NOTHING
        owner = f"{self._definition.name}.{fire.transition.name}"
        failure = describe(error, attempts=attempts, event=owner)
        self._tell(fire.transition, failure, attempts, delay)
        if len(failure) + len(bytes(fire.payload)) > MAX_VALUE:  # the snapshot has both, and is one text
            kind = type(error).__name__
            shorter = RuntimeError(f"{kind}, whose text is too long beside a payload of that size")
            failure = describe(shorter, attempts=attempts, event=owner)
        return msgspec.Raw(failure.encode())

    def _tell(self, transition: Transition[Any], failure: str, attempts: int, delay: float | None) -> None:
        log_failure(
            _log,
            "transition failed" if delay is None else "attempt failed, trying again",
            failure,
            {
                **self._around.facts,
                "place": self._standing.snapshot.place,
                "transition": transition.name,
                "attempt": attempts,
                "max_attempts": transition.retry.attempts,
            },
            retry_in=delay,
        )

    def _moved_to(self, place: str) -> Snapshot:
        snapshot = self._standing.snapshot
        return Snapshot(
            place, snapshot.moves + 1, self._recording.now_ms, run=self._number, owed=snapshot.owed
        )

    async def _come(self, snapshot: Snapshot) -> Fire | Rest:
        """Choose what the machine does at a place to which it comes with the state that it has."""
        standing = self._standing
        return await self._chooser.choose(snapshot, standing.state, standing.awaited, is_new=False)

    async def _still_awaited(self, transition: Transition[Any], *, is_new: bool) -> Sequence[Awaited]:
        """Return the children of earlier moves that the machine awaits behind a move; `is_new`: it starts
        others.
        """
        awaited = self._standing.awaited
        if transition.after is not None:
            return ()
        if not is_new or not awaited:
            return awaited
        if any(each.after for each in self._definition.transitions.values()):
            return [child for child in awaited if not child.is_heard]
        ends = await self._children.ends(
            awaited
        )  # nobody hears of them, so that they would only grow in number
        return [child for child in awaited if child.id not in ends]

    def _awaited(self, transition: Transition[Any], came: Moved) -> list[Awaited]:
        """Return the children of a move. Raises DefinitionError for an id that would be too long."""
        step = f"{transition.name}-{self._standing.snapshot.moves + 1}"
        flow_id = self._around.flow_id
        return [
            Awaited(
                nested_flow_id(member_id(flow_id, self._number, step, index), child.definition.name),
                child.definition.name,
                msgspec.Raw(child.given),
                child.definition.version,
            )
            for index, child in enumerate(came.children)
        ]

    def _guard_context(
        self, snapshot: Snapshot, state: str, transition: Transition[Any]
    ) -> MachineContext[Any]:
        return self._context(snapshot, state, transition, 1, may_change=False)

    def _body_context(
        self, snapshot: Snapshot, state: str, transition: Transition[Any], attempt: int
    ) -> MachineContext[Any]:
        return self._context(snapshot, state, transition, attempt, may_change=True)

    def _context(
        self, snapshot: Snapshot, state: str, transition: Transition[Any], attempt: int, *, may_change: bool
    ) -> MachineContext[Any]:
        trouble = snapshot.trouble
        note_around("state", state, self._definition.input)
        return MachineContext(
            self._around,
            self._definition.codecs.state.decode(state),
            place=snapshot.place,
            moves=snapshot.moves,
            key=key_of(self._around, snapshot.moves + 1, transition.name),
            load=self._load,
            check=self._children.check,
            attempt=attempt,
            error="" if trouble is None else error_text(trouble.failure),
            may_change=may_change,
        )


def _held(trouble: Trouble) -> Sequence[str]:
    return [trouble.signal] if trouble.signal else ()
