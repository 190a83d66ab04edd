"""The definition of a state machine: its places, its transitions and its types.

What must always hold: a definition that exists can run: each place can be reached and left, each transition
leads to a place that there is, and what fires out of a place does not depend on the order of methods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Union, Unpack

from eventbus import DefinitionError, PayloadError
from eventbus.lowlevel import Codec, shown
from workflows.definition.checks.options import check_most
from workflows.definition.checks.signature import returned_by
from workflows.definition.codecs import MAX_VALUE
from workflows.definition.flow_definition import FlowDefinition, FlowKind
from workflows.definition.keywords import MachineKeywords
from workflows.machines.context import MAX_STATE
from workflows.machines.transition import END, Transition, check_place
from workflows.records.ids import check_workflow_name

_PLACES = "places:"
"""Begins the version of a machine that was given none; no version that is given has a colon."""


MAX_ROLLBACKS = 10_000
"""The moves of one flow that may have a rollback."""


class Edge(NamedTuple):
    """One transition between two places, as plain values: for drawings. `kind` is that of the transition, or
    `error`.

    `priority` is the order in which guards are asked, the highest first; `delay` is in seconds, None for
    none.
    """

    source: str
    target: str
    transition: str
    kind: str
    guarded: bool
    priority: int = 0
    delay: float | None = None


class MachineCodecs(NamedTuple):
    """The codecs of one machine. Its input is its first state."""

    input: Codec
    output: Codec
    state: Codec


class MachineDefinition(FlowDefinition[Any, Any]):
    """One state machine, as a definition. `input` is the type of the state, `output` that of the result."""

    _kind: ClassVar[FlowKind] = "machine"
    _max_input: ClassVar[int | None] = MAX_STATE
    errors: tuple[type[Exception], ...] = ()

    def __init__(
        self,
        machine: type[Any],
        transitions: Mapping[str, Transition[Any]],
        *,
        name: str,
        start: str,
        state: Any,
        **options: Unpack[MachineKeywords],
    ) -> None:
        """Raise DefinitionError for a machine that cannot work. `StateMachine` explains the options."""
        self.machine = machine
        self.name: str = check_workflow_name(name)
        self.start: str = check_place(start, f"start of {self.where}")
        self.transitions: Mapping[str, Transition[Any]] = transitions
        self.input: Any = state
        version = self._take(options, MachineKeywords, self.where)
        self.max_rollbacks: int = check_most(
            options.get("max_rollbacks", MAX_ROLLBACKS), "max_rollbacks", self.where
        )
        _check_graph(self)
        self.is_versioned: bool = version is not None
        self._version: str = version or _PLACES + ",".join(self.places)
        self.output: Any = _output_of(transitions.values())
        self.codecs: MachineCodecs = _codecs_of(self)

    @property
    def where(self) -> str:
        """Its name in messages."""
        return f"state machine {self.name!r}"

    @cached_property
    def places(self) -> tuple[str, ...]:
        """All places but END, sorted."""
        every = self.transitions.values()
        found = {self.start, *(place for each in every for place in (*each.sources, each.target))}
        errors = {each.error_place for each in every if each.error_place is not None}
        return tuple(sorted((found | errors) - {END}))

    @cached_property
    def out_of(self) -> dict[str, list[Transition[Any]]]:
        """The transitions out of each place, in the order in which they are asked: by priority, those without
        a guard last.

        Of those of one rank that have a delay the shortest is the first.
        """
        ranked = sorted(
            self.transitions.values(), key=lambda each: (-each.priority, each.guard is None, each.delay or 0)
        )
        return {place: [each for each in ranked if place in each.sources] for place in self.places}

    @property
    def edges(self) -> list[Edge]:
        """Every transition between two places, and those to error places, in the order of definition."""
        every = self.transitions.values()
        found = [
            Edge(source, each.target, each.name, each.kind, each.guard is not None, each.priority, each.delay)
            for each in every
            for source in each.sources
        ]
        return found + [
            Edge(source, each.error_place, each.name, "error", guarded=False)
            for each in every
            if each.error_place is not None
            for source in each.sources
        ]

    def knows(self, version: str) -> bool:
        """Tell whether it may run a flow of this version: if nobody gave any, the place of the flow
        decides.
        """
        return version == self.version or (not self.is_versioned and is_by_places(version))

    def find(self, name: object) -> Transition[Any]:
        """Return a transition. Raises DefinitionError for a name that none has."""
        found = self.transitions.get(name) if isinstance(name, str) else None
        if found is None:
            known = ", ".join(sorted(self.transitions)) or "none"
            raise DefinitionError(f"{self.where} has no transition {shown(name)}; its transitions: {known}")
        return found

    def find_trigger(self, transition: object) -> Transition[Any]:
        """Return the transition of a trigger, which is a transition or its name. Raises DefinitionError for
        other values.
        """
        return self.find(transition.name if isinstance(transition, Transition) else transition)

    def encode_state(self, state: Any) -> str:
        """Return a state as JSON text. Raises PayloadError for one that does not fit, or is over 256 KiB."""
        try:
            return self.codecs.state.encode(state).decode()
        except PayloadError as error:
            raise PayloadError(
                f"the state of {self.where} cannot be recorded: {error}",
                event=self.name,
                path=error.path,
                role="progress",
            ) from error

    def __repr__(self) -> str:
        return f"MachineDefinition({self.name!r})"


def _codecs_of(machine: MachineDefinition) -> MachineCodecs:
    name = machine.name
    return MachineCodecs(
        Codec(machine.input, role="payload", owner=name, max_bytes=MAX_STATE),
        Codec(machine.output, role="result", owner=name, max_bytes=MAX_VALUE),
        Codec(machine.input, role="progress", owner=name, max_bytes=MAX_STATE),
    )


def _output_of(transitions: Any) -> Any:
    """Return what the transitions to END return, as one type."""
    found = [returned_by(each.function) for each in transitions if each.target == END]
    types = [type(None) if each is None else each for each in found]
    if not types or Any in types or any(isinstance(each, str) for each in types):
        return Any if types else type(None)
    return Union[tuple(types)]  # noqa: UP007  (they are not known before)


def is_by_places(version: str) -> bool:
    """Tell whether this is the version of a machine that was given none: each such machine may run each such
    flow.
    """
    return version.startswith(_PLACES)


def _check_graph(machine: MachineDefinition) -> None:
    """Raise DefinitionError for places that cannot be reached, and for transitions that hide one another."""
    every, where = machine.transitions.values(), machine.where
    if machine.start == END:
        raise DefinitionError(f"{where} starts at END; let it start at a place")
    if not every:
        raise DefinitionError(f"{where} has no transitions; decorate methods with @transition(...)")
    _check_targets(machine)
    reached, left = {machine.start}, [machine.start]
    while left:
        for each in machine.out_of[left.pop()]:
            fresh = {each.target, each.error_place or END} - reached - {END}
            reached |= fresh
            left += fresh
    lost = [place for place in machine.places if place not in reached]
    if lost:
        raise DefinitionError(
            f"{where} never comes to {', '.join(map(repr, lost))} from its start {machine.start!r}; "
            "lead a transition there, or remove it"
        )
    for place in machine.places:
        _check_place(machine, place, machine.out_of[place])


def _check_targets(machine: MachineDefinition) -> None:
    """Raise DefinitionError for a transition to a place that nothing leads out of: mostly the name of
    none.
    """
    every = machine.transitions.values()
    sources = {place for each in every for place in each.sources}
    errors = {each.error_place for each in every}  # one that nothing leads out of waits for a retry
    for each in every:
        if each.target not in (sources | errors | {END}):
            known = ", ".join(map(repr, sorted(sources)))
            raise DefinitionError(
                f"{each.where} of {machine.where} leads to {each.target!r}, "
                f"and no transition leads out of that place; the places with one: {known}"
            )
    if machine.start not in sources:
        raise DefinitionError(f"no transition of {machine.where} leads out of its start {machine.start!r}")


def _check_place(machine: MachineDefinition, place: str, leaving: Sequence[Transition[Any]]) -> None:
    where = f"at place {place!r} of {machine.where}"
    for kind in ("automatic", "delayed", "following"):
        free = [each for each in leaving if each.kind == kind and each.guard is None]
        by_rank = {_rank(each): each for each in free}
        if len(by_rank) < len(free):
            first, second = _same_rank(free)
            what = "priority and delay" if kind == "delayed" else "priority"
            raise DefinitionError(
                f"{where}, transitions {first.name!r} and {second.name!r} have no guard and the same {what}; "
                "give one of them a guard (when=...), or another priority"
            )
    automatic = [each for each in leaving if each.kind == "automatic"]
    always = next((each for each in automatic if each.guard is None), None)
    if always is not None:
        hidden = [each for each in leaving if each.kind != "automatic"]
        hidden += [each for each in automatic if each.priority < always.priority]
        if hidden:
            raise DefinitionError(
                f"{where}, transition {always.name!r} has no guard, so it fires at once and "
                f"{hidden[0].name!r} never does; give it a guard (when=...), or a lower priority than that "
                "of other automatic ones"
            )
    following = [each for each in leaving if each.kind == "following"]
    heard = max((each for each in following if each.guard is None), key=_priority, default=None)
    hidden = [] if heard is None else [each for each in following if each.priority < heard.priority]
    if heard is not None and hidden:
        raise DefinitionError(
            f"{where}, transition {heard.name!r} has no guard, so it fires at the end of the children and "
            f"{hidden[0].name!r} never does; give it a guard (when=...), or a lower priority"
        )


def _priority(transition: Transition[Any]) -> int:
    return transition.priority


def _rank(transition: Transition[Any]) -> tuple[int, float | None]:
    return transition.priority, transition.delay


def _same_rank(free: Sequence[Transition[Any]]) -> tuple[Transition[Any], Transition[Any]]:
    return next(
        (each, other) for each in free for other in free if each is not other and _rank(each) == _rank(other)
    )
