"""Random programs of nested calls: killed after each entry they end the same, and no recorded step runs
twice.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
from drivers.fleet import Fleet
from drivers.recorded import Died, RecordedFlow
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from eventbus import Retry
from workflows import Durable, FlowContext, Signal, durable, step_key, task
from workflows.distributed.functions.doubtful_steps import find_doubtful
from workflows.functions.endings import Asleep, Completed, Ending, Failed
from workflows.functions.rollbacks import doubts_in

go = Signal("go", int)


_TIMED = ("race", "derived", "signal", "limited")
"""What may turn out otherwise when it happens at another time."""


class Broken(Exception):
    pass


@durable("inner", errors=[Broken])
async def inner(ctx: FlowContext[int]) -> int:
    raise NotImplementedError  # the fleet of the test gives its end


@task
async def item(number: int) -> int:
    raise NotImplementedError


@item.rollback
async def forget(number: int) -> None: ...


@task
async def booked(program: Program, number: int) -> int:
    key = step_key()
    program.booked[key] += 1
    try:
        for _ in range(3 * number):  # so that it may still run when a race is decided
            await asyncio.sleep(0)
    except asyncio.CancelledError:
        program.booked[key] -= not program.is_dead
        raise
    return await program.step(number)


@booked.rollback
async def free(number: int) -> None: ...


def run_elsewhere(name: str, number: int) -> int:
    if number % 4 == 3:
        raise Broken(f"{name} {number}")
    return number + 1


class Node(msgspec.Struct, frozen=True):
    """A piece of a program: its kind, a number, and its parts."""

    kind: str
    number: int = 0
    parts: tuple[Node, ...] = ()


def nodes() -> st.SearchStrategy[Node]:
    leaves = st.one_of(
        st.builds(Node, st.just("step"), st.integers(0, 9)),
        st.builds(Node, st.just("fail"), st.integers(0, 9)),
        st.builds(Node, st.just("sleep"), st.integers(0, 5000)),
        st.builds(Node, st.just("signal")),
        st.builds(Node, st.just("limited"), st.integers(0, 5000)),
        st.builds(Node, st.just("patch"), st.integers(0, 3)),
        st.builds(Node, st.just("derived")),
        st.builds(Node, st.just("state"), st.integers(0, 9)),
        st.builds(Node, st.just("booked"), st.integers(0, 9)),
        st.builds(Node, st.just("child"), st.integers(0, 11)),
        st.builds(Node, st.just("map"), st.integers(0, 11)),
    )
    return st.recursive(
        leaves,
        lambda inner: st.builds(
            Node,
            st.sampled_from(["row", "gather", "race", "catch"]),
            st.just(0),
            st.lists(inner, min_size=1, max_size=3).map(tuple),
        ),
        max_leaves=8,
    )


class Program:
    """A program as a durable function, with a count of the runs of each step."""

    def __init__(self, tree: Node) -> None:
        self.tree = tree
        self.ran: Counter[str] = Counter()
        self.booked: Counter[str] = Counter()
        self._flow: RecordedFlow | None = None

        @durable("random", errors=[Broken], retry=Retry(attempts=1))
        async def function(ctx: FlowContext[None]) -> Any:
            return await self.play(ctx, tree)

        self.function: Durable[None, Any] = function

    def open(self, kind: type[RecordedFlow] = RecordedFlow) -> RecordedFlow:
        """Return a flow of the program, with a fleet that runs its children."""
        flow = kind(self.function)
        flow.fleet = Fleet(flow.flow_id, run_elsewhere)
        self._flow = flow
        return flow

    @property
    def is_dead(self) -> bool:
        """Whether the worker has died that runs the steps now."""
        return self._flow is not None and self._flow.is_dead

    async def step(self, number: int) -> int:
        self.ran[step_key()] += 1
        for _ in range(number % 3):
            await asyncio.sleep(0)
        return number

    async def fail(self, number: int) -> int:
        await self.step(number)
        raise Broken(number)

    async def play(self, ctx: FlowContext[None], node: Node) -> Any:
        kind, number = node.kind, node.number
        if kind == "step":
            return await ctx.step(self.step, number)
        if kind == "fail":
            return await ctx.step(self.fail, number)
        if kind == "sleep":
            return await ctx.sleep(number / 1000)
        if kind == "signal":
            return await ctx.wait_for(go)
        if kind == "limited":
            return await self.limited(ctx, number)
        if kind == "patch":
            return ctx.patched(f"patch-{number}")
        if kind == "derived":
            return [str(ctx.now()), ctx.random.random(), str(ctx.uuid())]
        if kind == "state":
            ctx.state = number
            return number
        if kind == "booked":
            return await ctx.step(booked, self, number)
        if kind == "child":
            return await ctx.flow(inner, number)
        if kind == "map":
            return await ctx.map(item, range(number, number + 3), limit=2)
        return await self.play_parts(ctx, kind, node.parts)

    async def limited(self, ctx: FlowContext[None], limit: int) -> Any:
        try:
            return await ctx.wait_for(go, timeout=limit / 1000)
        except TimeoutError as error:
            return str(error)

    async def play_parts(self, ctx: FlowContext[None], kind: str, parts: Sequence[Node]) -> Any:
        if kind == "row":
            return [await self.play(ctx, part) for part in parts]
        if kind == "gather":
            return await ctx.gather(*(self.play(ctx, part) for part in parts))
        if kind == "race":
            return await ctx.race(*(self.play(ctx, part) for part in parts))
        try:
            return [await self.play(ctx, part) for part in parts]
        except Broken as error:
            return str(error)


async def play_until(flow: RecordedFlow, program: Program, kill: int) -> bool:
    """Run a flow until it has so many entries and its worker dies; return whether it ended before."""
    flow.dies_at = kill
    for _ in range(2000):
        try:
            if (ending := await flow.activate(program.function)) and not isinstance(ending, Asleep):
                return True
        except Died:
            flow.is_rescued = True
            return False
        flow.is_rescued = False
        pass_time(flow, ending)
    raise AssertionError("it does not end")


def pass_time(flow: RecordedFlow, ending: Asleep) -> None:
    """Let happen what a sleeping flow waits for: the end of a child, a time, a signal."""
    assert isinstance(flow.fleet, Fleet)
    if open_ones := [child for child in ending.children if child in flow.fleet.open]:
        flow.fleet.end(open_ones[flow.sent % len(open_ones)])
        return
    if ending.until_ms is not None:
        flow.clock.now_ms = max(flow.clock.now_ms, ending.until_ms)
    if ending.listens:
        flow.send("go", flow.sent)


async def play(flow: RecordedFlow, program: Program, *, kills: bool) -> Ending:
    """Run a flow to its end. With `kills`, each worker dies when it wants to record a second time."""
    for _ in range(2000):
        flow.dies_at = len(flow.journal) + 1 if kills else None
        try:
            ending = await flow.activate(program.function)
        except Died:
            continue
        if not isinstance(ending, Asleep):
            _check_children(flow, ending)
            return ending
        pass_time(flow, ending)
    raise AssertionError("it does not end")


def _check_children(flow: RecordedFlow, ending: Ending) -> None:
    """Check that each child began and ended once, and that a function which completed has left none
    behind.
    """
    assert isinstance(flow.fleet, Fleet)
    begun = Counter(entry.place for entry in flow.entries if entry.kind == "child")
    ended = Counter(entry.place for entry in flow.entries if entry.kind != "child" and entry.child)
    assert set(begun.values()) | set(ended.values()) <= {1}, flow.told
    assert set(ended) <= set(begun), flow.told
    if isinstance(ending, Completed):
        assert (set(ended), flow.fleet.open) == (set(begun), []), flow.told


class _Slow(RecordedFlow):
    """Records one entry at a time, so that each place between two entries is a place to die."""

    async def append(self, entries: Sequence[Any], **options: Any) -> None:
        if self.dies_at is not None and len(self.journal) >= self.dies_at:
            raise Died
        if self.dies_at is not None and len(entries) > 1:
            self.dies_at = len(self.journal) + len(entries)
        await super().append(entries, **options)


@settings(max_examples=60)
@given(nodes())
def test_a_program_that_is_killed_after_each_record_ends_and_repeats_nothing_that_is_recorded(
    tree: Node,
) -> None:
    async def check() -> None:
        program = Program(tree)
        flow = program.open(_Slow)
        ending = await play(flow, program, kills=True)
        assert isinstance(ending, (Completed, Failed)), ending
        recorded = {f"flow~1/1/{entry.place}" for entry in flow.entries if entry.kind in ("step", "failed")}
        before = Counter(program.ran)
        flow.dies_at = None
        assert await flow.activate(program.function) == ending, "a replay of all ends the same"
        again = {key for key, times in program.ran.items() if times > before[key]}
        assert again & recorded == set(), "no recorded step runs twice"

    asyncio.run(check())


@settings(max_examples=60)
@given(nodes(), st.data())
def test_a_replay_from_any_place_of_the_journal_does_only_what_is_not_recorded(tree: Node, data: Any) -> None:
    async def check() -> None:
        program = Program(tree)
        flow = program.open()
        ending = await play(flow, program, kills=False)
        journal, sent = flow.journal, flow.sent
        cut = program.open()
        cut.fleet = flow.fleet  # what was started is there, also if the start is not recorded any more
        cut.journal = journal[: data.draw(st.integers(0, 1000)) * (len(journal) + 1) // 1001]
        cut.sent, cut.clock.now_ms = sent, flow.clock.now_ms
        kept = {f"flow~1/1/{entry.place}" for entry in cut.entries if entry.kind in ("step", "failed")}
        program.ran.clear()
        again = await play(cut, program, kills=False)
        assert set(program.ran) & kept == set(), "no recorded step runs twice"
        if not any(kind in str(tree) for kind in _TIMED):
            assert _plain(again) == _plain(ending)

    asyncio.run(check())


@settings(max_examples=60)
@given(nodes())
def test_without_races_and_clocks_a_killed_program_ends_as_one_that_is_not_killed(tree: Node) -> None:
    assume(not any(kind in str(tree) for kind in _TIMED))

    async def check() -> None:
        whole, killed = Program(tree), Program(tree)
        wanted = await play(whole.open(), whole, kills=False)
        assert _plain(await play(killed.open(_Slow), killed, kills=True)) == _plain(wanted)

    asyncio.run(check())


@settings(max_examples=60)
@given(nodes(), st.lists(st.integers(0, 4), min_size=1, max_size=3))
def test_a_stop_behind_kills_knows_each_step_that_may_have_taken_effect(tree: Node, kills: list[int]) -> None:
    async def check() -> None:
        program = Program(tree)
        flow = program.open()
        for kill in kills:
            if await play_until(flow, program, len(flow.journal) + kill):
                return
        found = await find_doubtful(flow.prepare, flow.clock.now_ms)
        assert found is not None
        entries = [*flow.entries, *found]
        told = {path.rpartition("@")[2] for path, _ in doubts_in(entries)}
        told |= {entry.place for entry in entries if entry.kind == "step"}
        booked_ones = {key.rpartition("/")[2] for key in +program.booked}
        assert booked_ones <= told, flow.told

    asyncio.run(check())


def _plain(ending: Ending) -> Any:
    """Return an ending without the traceback of its error."""
    if isinstance(ending, Failed):
        failure = msgspec.json.decode(ending.failure)
        return (ending.step, failure["type"], failure["message"])
    return ending
