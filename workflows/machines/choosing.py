"""Choosing what a machine does next at its place: the first transition whose guard is true.

    triggers in the inbox -> an attempt that is due -> guards of the place, by priority -> rest

What must always hold: each guard gets a copy of the state, so that nothing it does to that is recorded, or
seen by another guard; a guard that raises, whatever that is, is a failed attempt of its transition; a machine
waits for children that have not ended and for no others, because one that has ended would release it at once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec

from eventbus.lowlevel import Outcome
from workflows.definition.flow_definition import AnyDefinition
from workflows.execution.attempt import AttemptRun
from workflows.machines.context import MachineContext
from workflows.machines.settled import ChildEnd, Settled
from workflows.machines.snapshot import NOTHING, Awaited, Snapshot
from workflows.machines.transition import END, Transition

RETRY, MOVE = "!!retry", "!!move"
"""The triggers that every machine knows: run what failed again, and move it by hand."""


class Fire(msgspec.Struct, frozen=True, kw_only=True):
    """A transition that fires. `argument` is what its method gets beside the context, in a tuple; `error` is
    that of its guard.

    `payload` is that of its trigger, as JSON, `signal` the id of that, if the inbox has it, and `chosen` the
    one that its sender chose, if so.
    """

    transition: Transition[Any]
    argument: tuple[Any, ...] = ()
    attempts: int = 0
    payload: msgspec.Raw = NOTHING
    signal: str = ""
    chosen: str = ""
    error: BaseException | None = None


class Rest(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing fires here before the time `until_ms`, or a trigger, or the end of `children` (with `first`: of
    one of them).
    """

    until_ms: int | None = None
    children: tuple[str, ...] = ()
    first: bool = False


class MachineChildren(Protocol):
    """What starts the children of a machine, and learns their ends."""

    def check(self, workflow: AnyDefinition) -> None:
        """Raise DefinitionError if flows of this definition cannot be started here."""
        ...

    async def start(self, children: Sequence[Awaited], *, rests: bool) -> None:
        """Start children that are recorded; if the machine `rests` now, with its wait at the latest."""
        ...

    async def ends(self, children: Sequence[Awaited]) -> Mapping[str, Outcome]:
        """Return the ends of those that have ended, by id; start those that are not there."""
        ...

    def read(self, child: Awaited, end: Outcome) -> ChildEnd:
        """Return the end of a child with its result or its error."""
        ...

    async def cancel(self, child_id: str, reason: str) -> None:
        """Stop a child."""
        ...


class Chooser:
    """Asks the guards of a machine."""

    def __init__(
        self,
        out_of: Mapping[str, Sequence[Transition[Any]]],
        children: MachineChildren,
        make_context: Callable[[Snapshot, str, Transition[Any]], MachineContext[Any]],
        clock_ms: Callable[[], int],
    ) -> None:
        """`make_context(snapshot, state, transition)` makes the context of a guard; `clock_ms` tells the
        time.
        """
        self._out_of = out_of
        self._children = children
        self._make_context = make_context
        self._clock_ms = clock_ms

    def triggers(self, place: str) -> list[str]:
        """Return the names of the triggers that a place takes."""
        return [trigger_name(each.name) for each in self._out_of.get(place, ()) if each.waits]

    async def choose(
        self, snapshot: Snapshot, state: str, awaited: Sequence[Awaited], *, is_new: bool
    ) -> Fire | Rest:
        """Return what a machine does that has come to a place with this state; of children that are `is_new`
        none has ended.
        """
        if snapshot.place == END:
            return await self._end(awaited, is_new=is_new)
        leaving = [each for each in self._out_of.get(snapshot.place, ()) if not each.waits]
        follows = [each for each in leaving if each.kind == "following"]
        settled: Settled | None = None
        open_ones: Sequence[Awaited] = awaited
        if follows and not (is_new and awaited):
            settled, open_ones = await self._settle(awaited, follows)
        later: list[int] = []
        for each in leaving:
            if each.kind == "following" and settled is None:
                continue
            if each.delay is not None:
                due_ms = snapshot.entered_ms + round(each.delay * 1000)
                if due_ms > self._clock_ms():
                    later.append(due_ms)
                    continue
            fire = Fire(transition=each, argument=(settled,) if each.kind == "following" else ())
            said = await self.ask(fire, snapshot, state)
            if isinstance(said, BaseException):
                return msgspec.structs.replace(fire, error=said)
            if said:
                return fire
        until_ms = min(later, default=None)
        if not follows or settled is not None:
            return Rest(until_ms=until_ms)
        return Rest(
            until_ms=until_ms,
            children=tuple(child.id for child in open_ones),
            first=any(each.after == "all" for each in follows),
        )

    async def ask(self, fire: Fire, snapshot: Snapshot, state: str) -> bool | BaseException:
        """Return what the guard of a transition says, or what it raised; true without a guard."""
        transition = fire.transition
        if transition.guard is None:
            return True
        try:
            said = transition.guard(self._make_context(snapshot, state, transition), *fire.argument)
            if not inspect.isawaitable(said):
                return bool(said)
        except BaseException as error:  # noqa: BLE001  (nothing was awaited: it is its own)
            return error
        ended = await AttemptRun(
            partial(_await, said), what=f"the guard of {transition.where}", timeout=transition.timeout
        ).run()
        return bool(ended.value) if ended.error is None else ended.error

    async def _end(self, awaited: Sequence[Awaited], *, is_new: bool) -> Rest:
        """Return the children that a machine at END still waits for: it ends after them."""
        ends: Mapping[str, Outcome] = {} if is_new or not awaited else await self._children.ends(awaited)
        return Rest(children=tuple(child.id for child in awaited if child.id not in ends))

    async def _settle(
        self, awaited: Sequence[Awaited], follows: Sequence[Transition[Any]]
    ) -> tuple[Settled | None, Sequence[Awaited]]:
        """Return the ends of all children; without them those that have not ended, cancelled if one failed
        and that is enough.
        """
        ends: Mapping[str, Outcome] = await self._children.ends(awaited) if awaited else {}
        open_ones = [child for child in awaited if child.id not in ends]
        if not open_ones:
            return Settled(tuple(self._children.read(child, ends[child.id]) for child in awaited)), ()
        is_lost = any(end.state != "completed" for end in ends.values())
        if is_lost and all(each.after == "all" for each in follows):
            for child in open_ones:
                await self._children.cancel(child.id, "another child of the machine failed")
        return None, open_ones


def trigger_name(transition: str) -> str:
    """Return the name of the signal that triggers a transition."""
    return f"!{transition}"


async def _await(said: Any) -> Any:
    return await said
