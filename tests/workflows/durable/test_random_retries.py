"""Random programs that fail, tidy up, and are retried by hand, compared with a model of what a retry keeps.

The programs have steps with and without rollbacks, maps here and elsewhere, flows, branches side by side, and
code that records further calls because of an error before it raises that again, or another one because of it.
Each of their runs fails in other places but the last one, which does not fail.

The ledger has each effect by the key of its step, as a service would that is called again with the same key.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import msgspec
from drivers.fleet import Fleet
from drivers.recorded import Died, RecordedFlow
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from eventbus import Retry
from eventbus.lowlevel import Outcome
from workflows import Durable, FlowContext, durable, step_key, task
from workflows.functions.calls.child_call import end_entry
from workflows.functions.calls.kept import kept_entries
from workflows.functions.endings import Asleep, Completed, Ending, Failed
from workflows.functions.history import History
from workflows.records.entries import Entry

RUNS = 4
"""A first run, and three retries by hand."""


class Broken(Exception):
    pass


class Worse(Exception):
    pass


class Effect(msgspec.Struct, frozen=True):
    """What a step did: which one, by which key, and what the code had given to it."""

    node: int
    key: str
    uuid: str = ""
    chance: float = 0


class Node(msgspec.Struct, frozen=True):
    """A piece of a program: its kind, its parts, and what follows an error in them."""

    kind: str
    parts: tuple[Node, ...] = ()
    tidies: tuple[Node, ...] = ()


class Ledger:
    """What the steps of one program have done, and which of it stands."""

    def __init__(self, fails: set[tuple[int, int]], unfails: set[tuple[int, int]]) -> None:
        self.stands: dict[str, int] = {}
        self.fails = fails
        """Which step fails in which run."""
        self.keeps = unfails
        """Which step's rollback fails in which run."""
        self.run = 1

    def do(self, node: int, key: str) -> None:
        if (node, self.run) in self.fails:
            raise Broken(node)
        self.stands[key] = node

    def undo(self, effect: Effect) -> None:
        if (effect.node, self.run) in self.keeps:
            raise Broken(effect.node)
        del self.stands[effect.key]


ledger = Ledger(set(), set())
"""That of the program which runs now: a rollback has nothing but the result of its step."""


@task
async def plain(node: int, uuid: str, chance: float) -> Effect:
    ledger.do(node, step_key())
    return Effect(node, step_key(), uuid, chance)


@task
async def booked(node: int, uuid: str, chance: float) -> Effect:
    ledger.do(node, step_key())
    return Effect(node, step_key(), uuid, chance)


@booked.rollback
async def free(effect: Effect) -> None:
    ledger.undo(effect)


@task
async def item(node: int) -> Effect:
    ledger.do(node, step_key())
    return Effect(node, step_key())


@task
async def booked_item(node: int) -> Effect:
    ledger.do(node, step_key())
    return Effect(node, step_key())


@booked_item.rollback
async def free_item(effect: Effect) -> None:
    ledger.undo(effect)


@durable("inner", errors=[Broken])
async def inner(ctx: FlowContext[int]) -> Effect:
    raise NotImplementedError  # the fleet of the test gives its end


class RunElsewhere(Fleet):
    """Runs the items of maps, and flows, which owe a rollback if their number is even."""

    def __init__(self, flow_id: str) -> None:
        super().__init__(flow_id, self.play)
        self.now = ""

    def end(self, child_id: str) -> None:
        self.now = child_id
        super().end(child_id)

    def play(self, name: str, node: int) -> Any:
        ledger.do(node, self.now)
        return msgspec.json.encode(Effect(node, self.now)).decode()


def nodes() -> st.SearchStrategy[Node]:
    leaf = st.sampled_from(
        [
            "plain",
            "plain",
            "booked",
            "booked",
            "items",
            "owed items",
            "far items",
            "owed far items",
            "flow",
            "sleep",
        ]
    )
    leaves = st.builds(Node, leaf)
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.builds(
                Node,
                st.sampled_from(["row", "gather", "keeping"]),
                st.lists(inner, min_size=1, max_size=3).map(tuple),
            ),
            st.builds(
                Node,
                st.sampled_from(["tidy", "tidy", "worse", "swallow"]),
                st.lists(inner, min_size=1, max_size=2).map(tuple),
                st.lists(inner, max_size=2).map(tuple),
            ),
        ),
        max_leaves=8,
    )


class Program:
    """A program as a durable function."""

    def __init__(self, tree: Node) -> None:
        self.tree = tree
        self.numbers: dict[int, int] = {}
        self.tidies: set[int] = set()
        """The steps that run because of an error, which is raised again."""
        self.got: list[tuple[int, Effect, str, float]] = []
        """What the code got in its last run, with what it had given."""
        self.count = 0
        self._number(tree, is_tidy=False)

        @durable("random", errors=[Broken, Worse], retry=Retry(attempts=1))
        async def function(ctx: FlowContext[None]) -> None:
            self.got.clear()
            await self.play(ctx, tree)

        self.function: Durable[None, Any] = function

    def _number(self, node: Node, *, is_tidy: bool) -> None:
        self.numbers[id(node)] = self.count
        if is_tidy:
            self.tidies |= {self.count, self.count + 1, self.count + 2}
        self.count += 3  # items of a map have numbers, too
        for part in node.parts:
            self._number(part, is_tidy=is_tidy)
        for part in node.tidies:
            self._number(part, is_tidy=is_tidy or node.kind != "swallow")

    async def play(self, ctx: FlowContext[None], node: Node) -> None:
        kind, number = node.kind, self.numbers[id(node)]
        if kind in ("plain", "booked"):
            called = plain if kind == "plain" else booked
            uuid, chance = str(ctx.uuid()), ctx.random.random()
            effect = await ctx.step(called.using(name=f"{kind}{number}"), number, uuid, chance)
            self.got.append((number, effect, uuid, chance))
        elif kind.endswith("items"):
            called = booked_item if "owed" in kind else item
            items = [number, number + 1, number + 2]
            found = await ctx.map(called, items, limit=2, local="far" not in kind)
            self.got += [(place, effect, "", 0) for place, effect in zip(items, found, strict=True)]
        elif kind == "flow":
            self.got.append((number, await ctx.flow(inner, number), "", 0))
        elif kind == "sleep":
            await ctx.sleep(1)
        else:
            await self.play_parts(ctx, node)

    async def play_parts(self, ctx: FlowContext[None], node: Node) -> None:
        if node.kind == "row":
            for part in node.parts:
                await self.play(ctx, part)
        elif node.kind in ("gather", "keeping"):
            keeps = node.kind == "keeping"
            await ctx.gather(*(self.play(ctx, part) for part in node.parts), return_exceptions=keeps)
        else:
            await self.guard(ctx, node)

    async def guard(self, ctx: FlowContext[None], node: Node) -> None:
        try:
            for part in node.parts:
                await self.play(ctx, part)
        except (Broken, Worse) as error:
            for part in node.tidies:
                await self.play(ctx, part)
            if node.kind == "worse":
                raise Worse from error
            if node.kind == "tidy":
                raise


class Flow(RecordedFlow):
    """Dies between any two entries, and has the rollbacks of flows that it started, as in a worker."""

    async def append(self, entries: Any, **options: Any) -> None:
        if self.dies_at is not None and len(self.journal) >= self.dies_at:
            raise Died
        if self.dies_at is not None and len(entries) > 1:
            self.dies_at = len(self.journal) + len(entries)
        await super().append(entries, **options)

    async def fail(self, ending: Failed) -> None:
        assert isinstance(self.fleet, RunElsewhere)
        kept = kept_entries(self.entries)
        for begun in History(kept.entries).open_children.values():
            end = self.fleet.ends.get(begun.child, Outcome(begun.child, "unknown", ""))
            await self.append(
                [end_entry(begun, end, flow_id=self.flow_id, now_ms=self.clock.now_ms, is_wanted=False)]
            )
        await super().fail(ending)
        for entry in reversed(kept.entries):
            if entry.kind == "step" and entry.name == "inner":
                effect = msgspec.json.decode(entry.result, type=Effect)
                if effect.node % 2 == 0:
                    ledger.undo(effect)
                    await self.append([Entry(kind="undo", place=f"inner@{entry.place}/free@0")])


def open_flow(program: Program) -> Flow:
    flow = Flow(program.function)
    flow.fleet = RunElsewhere(flow.flow_id)
    return flow


async def play(flow: Flow, *, kills: bool) -> Ending:
    """Run a flow to the end of its run. With `kills`, each worker dies when it would record twice."""
    assert isinstance(flow.fleet, RunElsewhere)
    for _ in range(2000):
        flow.dies_at = len(flow.journal) + 1 if kills else None
        try:
            ending = await flow.activate()
        except Died:
            continue
        finally:
            flow.dies_at = None
        if not isinstance(ending, Asleep):
            return ending
        if open_ones := [child for child in ending.children if child in flow.fleet.open]:
            flow.fleet.end(open_ones[len(flow.journal) % len(open_ones)])
        elif ending.until_ms is not None:
            flow.clock.now_ms = max(flow.clock.now_ms, ending.until_ms)
    raise AssertionError("it does not end")


def check(program: Program, ending: Ending) -> None:
    """Check what must hold behind each run, whose rollbacks are done if it failed."""
    assert isinstance(ending, (Completed, Failed)), ending
    for number, effect, uuid, chance in program.got:
        assert effect.node == number
        if isinstance(ending, Completed):
            assert effect.key in ledger.stands, "what the code got is in effect"
        if effect.uuid and "swallow" not in str(program.tree):
            assert (effect.uuid, effect.chance) == (uuid, chance), "values stay the same"
    if "swallow" in str(program.tree):
        return  # code that goes on behind an error makes other calls at the same places
    for number, times in Counter(ledger.stands.values()).items():
        if number not in program.tidies:
            assert times == 1, f"step {number} took effect {times} times"


@settings(max_examples=150, deadline=None)
@given(nodes(), st.data(), st.booleans())
def test_a_retry_keeps_what_it_kept_and_runs_again_what_was_undone_or_failed(
    tree: Node, data: Any, kills: bool
) -> None:
    global ledger  # rollbacks find it there
    program = Program(tree)
    numbers = st.sets(st.tuples(st.integers(0, program.count - 1), st.integers(1, RUNS - 1)), max_size=8)
    ledger = Ledger(data.draw(numbers), data.draw(numbers))
    assume(ledger.fails)

    async def run() -> None:
        flow = open_flow(program)
        for number in range(1, RUNS + 1):
            ledger.run = number
            ending = await play(flow, kills=kills)
            if isinstance(ending, Failed):
                await flow.fail(ending)
            check(program, ending)
            if isinstance(ending, Completed):
                return
            assert number < RUNS, "the last run does not fail"
            await flow.retry()

    asyncio.run(run())
