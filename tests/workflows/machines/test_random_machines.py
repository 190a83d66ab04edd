"""Random machines against a small model, each worker killed before or behind each of its records: they come
to the same.
"""

from __future__ import annotations

import asyncio
import types
from typing import Any

import msgspec
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from eventbus import Retry
from eventbus.lowlevel import Signal
from workflows import END, MachineContext, StateMachine, transition
from workflows.execution.environment import Environment
from workflows.functions.endings import Completed
from workflows.inline.machine_flow import InlineMachine
from workflows.inline.memory_recorder import MemoryRecorder
from workflows.inline.start import open_code
from workflows.machines.choosing import Rest, trigger_name
from workflows.machines.snapshot import ACCEPTS, read_snapshot

_MOST = 40  # moves of a machine that goes round for ever


class State(msgspec.Struct):
    """`log` has the names of the transitions that were recorded."""

    log: list[str] = msgspec.field(default_factory=list[str])


class Edge(msgspec.Struct, frozen=True):
    """One transition of a random machine. It is open if the length of the log has the rest `guard`, and fails
    with the rest `fails`.
    """

    source: int
    target: int  # -1: END
    waits: bool
    guard: int | None
    fails: int | None
    error: int | None
    attempts: int
    priority: int

    def is_open(self, log: list[str]) -> bool:
        return self.guard is None or len(log) % 3 == self.guard

    def is_broken(self, log: list[str]) -> bool:
        return self.fails is not None and len(log) % 4 == self.fails


edges = st.builds(
    Edge,
    source=st.integers(0, 3),
    target=st.integers(-1, 3),
    waits=st.booleans(),
    guard=st.none() | st.integers(0, 2),
    fails=st.none() | st.integers(0, 3),
    error=st.none() | st.integers(0, 3),
    attempts=st.integers(1, 2),
    priority=st.integers(0, 2),
)


def place_of(number: int) -> str:
    return END if number < 0 else f"p{number}"


def make_method(name: str, edge: Edge) -> Any:
    async def body(self: Any, ctx: MachineContext[State]) -> None:
        ctx.state.log.append(name)
        ctx.save(name, len(ctx.state.log))
        if edge.is_broken(ctx.state.log[:-1]):
            raise ValueError(name)

    async def triggered(self: Any, ctx: MachineContext[State], payload: None) -> None:
        await body(self, ctx)

    def is_open(ctx: MachineContext[State], *_: Any) -> bool:
        return edge.is_open(ctx.state.log)

    method = triggered if edge.waits else body
    method.__name__ = name
    options: dict[str, Any] = {"wait": None} if edge.waits else {}
    return transition(
        place_of(edge.source),
        to=place_of(edge.target),
        when=None if edge.guard is None else is_open,
        priority=edge.priority,
        retry=Retry(attempts=edge.attempts, delay=0),
        error_place=None if edge.error is None else place_of(edge.error),
        **options,
    )(method)


def make_machine(every: list[Edge]) -> type[StateMachine[State]]:
    """Make the machine of some edges."""
    methods = {f"t{number}": make_method(f"t{number}", edge) for number, edge in enumerate(every)}
    bases: Any = (StateMachine[State],)
    return types.new_class("Made", bases, {"start": "p0"}, lambda space: space.update(methods))


class Model:
    """What a machine does, in few lines: moves are `(from, to)`, and what is recorded of the bodies is the
    log.
    """

    def __init__(self, every: list[Edge]) -> None:
        self.edges = [(f"t{number}", edge) for number, edge in enumerate(every)]
        self.place, self.moves, self.stands = 0, 0, False
        self.log: list[str] = []

    def offers(self) -> list[str]:
        return [name for name, edge in self.edges if edge.waits and edge.source == self.place]

    def fire(self, name: str, edge: Edge) -> None:
        if not edge.is_broken(self.log):
            self.log.append(name)
            self.place, self.stands = edge.target, False
        elif edge.error is None:
            self.stands = True
            return
        else:
            self.place, self.stands = edge.error, False
        self.moves += 1

    def run(self) -> None:
        while self.place >= 0 and not self.stands and self.moves < _MOST:
            leaving = [
                (name, edge) for name, edge in self.edges if edge.source == self.place and not edge.waits
            ]
            leaving.sort(key=lambda each: (-each[1].priority, each[1].guard is None))
            chosen = next((each for each in leaving if each[1].is_open(self.log)), None)
            if chosen is None:
                return
            self.fire(*chosen)

    def trigger(self, name: str) -> bool:
        """Return whether the place accepts the trigger."""
        if self.place < 0 or name not in self.offers():
            return False
        edge = dict(self.edges)[name]
        if edge.is_open(self.log):
            self.fire(name, edge)
            self.run()
        return True


class Died(BaseException):
    """The worker was killed."""


class DyingRecorder(MemoryRecorder):
    """Dies at one of two moments of each record: before it, or behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.dies: bool = False
        self.moment = 0

    async def append(self, entries: Any, *, live: Any = None, taken: Any = ()) -> None:
        self.moment += 1
        if self.dies and self.moment % 3 == 1:
            raise Died
        await super().append(entries, live=live, taken=taken)
        if self.dies and self.moment % 3 == 2:
            raise Died


async def play(machine: type[StateMachine[State]], triggers: list[str], *, dies: bool) -> InlineMachine:
    """Run a machine with the triggers that it accepts, to its end or its last rest."""
    flow = open_code(machine.definition, State(), environment=Environment())
    assert isinstance(flow, InlineMachine)
    recorder = flow.recorder = DyingRecorder()
    recorder.dies = dies
    left = [*triggers]
    while True:
        try:
            ending = await flow._make_run(flow._standing()).run()
        except Died:
            continue
        if isinstance(ending, Completed):
            return flow
        assert isinstance(ending, Rest)
        if ending.until_ms is not None:
            await recorder.wait_until(ending.until_ms)
            continue
        snapshot = read_snapshot("made", recorder.live)
        assert snapshot is not None
        if not left or snapshot.moves >= _MOST:
            return flow
        name = trigger_name(left.pop(0))
        if name in recorder.live.get(ACCEPTS, "").split():  # as the server does it
            recorder.live.pop(ACCEPTS)
            recorder.inbox.append(Signal(f"s{len(left)}", len(triggers) - len(left), name, "null"))


def whole(some: list[Edge]) -> list[Edge]:
    """Return the edges with a way through all places; what fires by itself is guarded, because each place has
    a trigger.
    """
    way = [
        Edge(
            source,
            source + 1 if source < 3 else -1,
            waits=True,
            guard=None,
            fails=None,
            error=None,
            attempts=1,
            priority=0,
        )
        for source in range(4)
    ]
    some = [msgspec.structs.replace(edge, error=None) if edge.error == edge.source else edge for edge in some]
    guarded = [
        edge if edge.waits or edge.guard is not None else msgspec.structs.replace(edge, guard=0)
        for edge in some
    ]
    return [*way, *guarded]


@settings(suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(st.lists(edges, min_size=1, max_size=8).map(whole), st.lists(st.integers(0, 11), max_size=12))
def test_a_machine_whose_workers_die_at_each_record_comes_to_what_the_model_says(
    every: list[Edge], numbers: list[int]
) -> None:
    machine = make_machine(every)
    model, triggers = Model(every), [f"t{number}" for number in numbers]
    model.run()
    for name in triggers:
        model.trigger(name)
    assume(model.moves < _MOST)
    for dies in (False, True):
        flow = asyncio.run(play(machine, triggers, dies=dies))
        snapshot = read_snapshot("made", flow.recorder.live)
        assert snapshot is not None
        assert snapshot.place == place_of(model.place)
        assert snapshot.moves == model.moves
        assert snapshot.stands == model.stands
        assert msgspec.json.decode(flow.recorder.live["state"], type=State).log == model.log
        moved = [entry for entry in flow.recorder.entries if entry.kind == "move" and entry.move]
        assert [entry.move for entry in moved] == list(range(1, model.moves + 1))
        assert [entry.name for entry in moved if not entry.is_lost] == model.log
        documents = {name.removeprefix("doc/") for name in flow.recorder.live if name.startswith("doc/")}
        assert documents == set(model.log), "those of bodies that failed are not there"
