"""The triggers in the inbox of a machine: those of its transitions, and what a person does by hand.

    !<transition>  fires a transition that waits
    !!retry        runs again what failed
    !!move         goes to another place

What must always hold: the server took the trigger because the place accepted it, and closed the place; so
each one that is read here fires, or is refused on the record, and then the place is open again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from eventbus import PayloadError, UsageError
from eventbus.lowlevel import Signal, describe, get_logger, hidden_around, note_around, shown
from workflows.machines.choosing import MOVE, RETRY, Chooser, Fire, Rest, trigger_name
from workflows.machines.definition import MachineDefinition
from workflows.machines.recording import Recording
from workflows.machines.snapshot import Snapshot, Trouble
from workflows.records.entries import chosen_id

_log = get_logger("workflows.machine")

Come = Callable[[Snapshot], Awaitable[Fire | Rest]]


class MoveTo(msgspec.Struct):
    """The payload of a move by hand."""

    place: str


class Triggers:
    """Reads the triggers of one activation."""

    def __init__(
        self,
        definition: MachineDefinition,
        recording: Recording,
        chooser: Chooser,
        *,
        come: Come,
        facts: Mapping[str, Any],
    ) -> None:
        """`come(snapshot)` chooses what the machine does at a place to which it is moved."""
        self._definition = definition
        self._recording = recording
        self._chooser = chooser
        self._come = come
        self._facts = facts

    async def read(self, signal: Signal) -> Fire | None:
        """Return the transition that a trigger fires; None if it was done with, or refused. Raises what
        `record` raises.
        """
        self._recording.standing.note_closed()
        if signal.name == RETRY:
            await self._retry(signal)
            return None
        if signal.name == MOVE:
            await self._move(signal)
            return None
        snapshot, transition = self._recording.standing.snapshot, None
        for each in self._definition.out_of.get(snapshot.place, ()):
            if each.waits and trigger_name(each.name) == signal.name:
                transition = each
        if transition is None:
            name = signal.name.removeprefix("!")
            await self._refuse(
                signal, UsageError(f"place {snapshot.place!r} has no transition {shown(name)} to trigger")
            )
            return None
        note_around(signal.name, signal.payload, transition.payload)
        try:
            argument = (transition.decode(signal.payload),)
        except PayloadError as error:
            await self._refuse(signal, error)
            return None
        fire = Fire(
            transition=transition,
            argument=argument,
            payload=msgspec.Raw(signal.payload.encode()),
            signal=signal.id,
            chosen=chosen_id(signal.id),
        )
        said = await self._chooser.ask(fire, snapshot, self._recording.standing.state)
        if isinstance(said, BaseException):
            return msgspec.structs.replace(fire, error=said)
        if said:
            return fire
        await self._refuse(signal, UsageError(f"the guard of {transition.where} refuses this payload"))
        return None

    async def _retry(self, signal: Signal) -> None:
        """Have what failed run again now; from an error place the machine goes back to where it failed."""
        snapshot, recording = self._recording.standing.snapshot, self._recording
        trouble = snapshot.trouble
        if trouble is None:
            await self._refuse(signal, UsageError(f"nothing failed at place {snapshot.place!r}"))
            return
        attempts = 0 if trouble.is_over else trouble.attempts
        due = msgspec.structs.replace(trouble, due_ms=max(1, recording.now_ms), attempts=attempts)
        is_back = trouble.origin == snapshot.place
        moved = msgspec.structs.replace(
            snapshot,
            trouble=due,
            place=trouble.origin,
            moves=snapshot.moves + (not is_back),
            entered_ms=snapshot.entered_ms if is_back else recording.now_ms,
        )
        entries = [recording.entry("retry", name=trouble.transition, place=trouble.origin)]
        if not is_back:
            entries.append(recording.entry("move", place=trouble.origin, move=moved.moves))
        await recording.record(recording.standing.change(snapshot=moved), *entries, taken=[signal.id])

    async def _move(self, signal: Signal) -> None:
        """Move the machine to the place that a person has named; what failed before is forgotten."""
        recording, snapshot = self._recording, self._recording.standing.snapshot
        try:
            target = msgspec.json.decode(signal.payload, type=MoveTo).place
        except (msgspec.MsgspecError, UnicodeError) as error:
            await self._refuse(
                signal, PayloadError(f"this names no place: {error}", event=MOVE, role="payload")
            )
            return
        if target not in self._definition.out_of:
            known = ", ".join(map(repr, self._definition.places))
            await self._refuse(
                signal,
                UsageError(f"{self._definition.where} has no place {shown(target)}; its places: {known}"),
            )
            return
        moved = msgspec.structs.replace(
            snapshot,
            place=target,
            moves=snapshot.moves + 1,
            trouble=None,
            entered_ms=recording.now_ms,
            due_ms=0,
        )
        entry = recording.entry("move", place=target, move=moved.moves)
        following = await self._come(moved)
        change = recording.standing.change(snapshot=moved, accepts=offers(self._chooser, moved, following))
        taken = [signal.id, *_held(snapshot.trouble)]
        await recording.record(change, entry, taken=taken)

    async def _refuse(self, signal: Signal, error: Exception) -> None:
        """Record that a trigger was refused, and open the place again."""
        recording, snapshot = self._recording, self._recording.standing.snapshot
        name = signal.name.removeprefix("!")
        _log.warning(
            "trigger refused",
            **self._facts,
            place=snapshot.place,
            transition=name,
            error=hidden_around().shown(str(error)),
        )
        entry = recording.entry(
            "refused",
            name=name,
            place=snapshot.place,
            move=snapshot.moves,
            error=msgspec.Raw(describe(error, attempts=1).encode()),
            signal=chosen_id(signal.id),
        )
        # What fires by itself here had no reason to be chosen: the place was open, so it rests.
        change = recording.standing.change(accepts=offers(self._chooser, snapshot, Rest()))
        await recording.record(change, entry, taken=[signal.id])


def offers(chooser: Chooser, snapshot: Snapshot, following: Fire | Rest) -> list[str]:
    """Return the triggers that a machine accepts that comes to rest; none if something fires."""
    trouble = snapshot.trouble
    by_hand = [] if trouble is None else [RETRY, MOVE]
    if trouble is not None and not trouble.is_over:
        return by_hand if trouble.signal else [*chooser.triggers(snapshot.place), *by_hand]
    if isinstance(following, Fire) and not snapshot.stands:
        return []
    return [*chooser.triggers(snapshot.place), *by_hand]


def _held(trouble: Trouble | None) -> list[str]:
    """Return the trigger that waited in the inbox for another attempt, which nobody makes now."""
    return [trouble.signal] if trouble is not None and trouble.signal else []
