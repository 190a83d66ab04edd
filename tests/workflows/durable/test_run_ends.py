"""The end of a run of a durable function: what is recorded at a stop, who lost a race, and where `finally`
blocks run.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import pytest
from drivers.recorded import Died, RecordedFlow

from eventbus import Retry
from workflows import FlowContext, Signal, StepError, WorkflowProvider, durable, task
from workflows.functions.calls.kept import kept_entries
from workflows.functions.endings import Asleep, Completed
from workflows.functions.rollbacks import doubts_in
from workflows.records.entries import Entry
from workflows.testing import run_inline

pytestmark = pytest.mark.virtual

MANY = 2_300
go = Signal("go", str)

place: contextvars.ContextVar[str] = contextvars.ContextVar("place", default="outside")
undone: list[str] = []
released = asyncio.Event()


class Stops(BaseException):
    """What was appended is recorded, and the flow stops."""


class StoppedFlow(RecordedFlow):
    """A flow that is stopped while its first append is under way, by the server or by a cancellation of its
    worker.
    """

    is_cancelled = False

    async def append(
        self, entries: Sequence[Entry], *, live: Mapping[str, str] | None = None, taken: Sequence[str] = ()
    ) -> None:
        is_first = not self.appends
        if is_first and self.is_cancelled:
            running.pop().cancel()
        await super().append(entries, live=live, taken=taken)
        if is_first and not self.is_cancelled:
            raise Stops


running: list[asyncio.Task[Any]] = []


@task
async def book(number: int) -> int:
    return number


@book.rollback
async def free(number: int) -> None:
    undone.append(f"free {number}")


@durable("books-many")
async def books_many(ctx: FlowContext[None]) -> list[int]:
    return await ctx.gather(*(ctx.step(book, number) for number in range(MANY)))


async def test_every_step_that_ended_is_recorded_although_the_flow_stops_between_two_appends() -> None:
    flow = StoppedFlow(books_many)
    with pytest.raises(Stops):
        await flow.activate()
    assert [entry.place for entry in flow.entries] == [str(number) for number in range(MANY)]
    assert {entry.kind for entry in flow.entries} == {"step"}


async def test_every_step_that_ended_is_recorded_although_the_worker_is_cancelled_between_two_appends() -> (
    None
):
    flow = StoppedFlow(books_many)
    flow.is_cancelled = True
    running.append(asyncio.create_task(flow.activate()))
    with pytest.raises(asyncio.CancelledError):
        await running[0]
    assert [entry.place for entry in flow.entries] == [str(number) for number in range(MANY)]


async def test_a_part_of_the_last_records_that_is_refused_does_not_lose_the_others() -> None:
    class Refusing(StoppedFlow):
        async def append(
            self,
            entries: Sequence[Entry],
            *,
            live: Mapping[str, str] | None = None,
            taken: Sequence[str] = (),
        ) -> None:
            if any(entry.place == "1500" for entry in entries):
                raise ValueError("refused")
            await super().append(entries, live=live, taken=taken)

    flow = Refusing(books_many)
    with pytest.raises(Stops):
        await flow.activate()
    places = {entry.place for entry in flow.entries}
    assert places == {str(number) for number in (*range(1000), *range(2000, MANY))}


@task
async def hold(name: str) -> str:
    await asyncio.Event().wait()
    return name


@hold.rollback
async def release(name: str) -> None:
    undone.append(f"release {name}")


async def in_branch(ctx: FlowContext[None]) -> str:
    return await ctx.step(hold, "in a branch")


@durable("contests", retry=Retry(attempts=1))
async def contests(ctx: FlowContext[None]) -> int:
    winner = await ctx.race(ctx.step(hold, "alone"), in_branch(ctx), ctx.step(asyncio.sleep, 0.01))
    return winner.number


async def test_the_losers_of_a_race_are_in_doubt_until_their_ends_are_recorded() -> None:
    killed = RecordedFlow(contests)
    killed.dies_at = 4
    with pytest.raises(Died):
        await killed.activate()
    assert [(entry.kind, entry.place, entry.is_lost) for entry in killed.entries] == [
        ("step", "1", False),
        ("cut", "0", True),
        ("cut", "2.1.0", True),
        ("race", "2", False),
    ]
    doubts = [path for path, _ in doubts_in(killed.entries)]
    assert doubts == ["hold@0", "hold@2.1.0"]
    killed.dies_at = None
    again = await killed.activate()
    assert isinstance(again, Completed)
    assert (again.output, len(killed.journal)) == ("2", 4), "no loser runs again"
    lived = RecordedFlow(contests)
    assert await lived.activate() == again
    assert lived.told[-2:] == [("cut", "0", "hold"), ("cut", "2.1.0", "hold")]
    assert doubts_in(lived.entries) == []
    assert await lived.activate() == again


@durable("gathers", retry=Retry(attempts=1))
async def gathers(ctx: FlowContext[None]) -> int:
    both = ctx.gather(ctx.step(hold, "alone"), ctx.gather(in_branch(ctx), ctx.sleep("1h")))
    winner = await ctx.race(both, ctx.race(ctx.step(hold, "in a race")), ctx.step(asyncio.sleep, 0.01))
    return winner.number


async def test_what_is_in_a_group_that_loses_a_race_is_in_doubt_as_well() -> None:
    killed = RecordedFlow(gathers)
    killed.dies_at = 6
    with pytest.raises(Died):
        await killed.activate()
    assert killed.entries[-1].kind == "race"
    assert sorted(path for path, _ in doubts_in(killed.entries)) == ["hold@0", "hold@2.0.0", "hold@4"]
    killed.dies_at = None
    again = await killed.activate()
    assert isinstance(again, Completed)
    assert again.output == "2"


@pytest.mark.parametrize("undone", ["", "book@1"])
async def test_a_gather_that_won_a_race_counts_in_a_retry_as_long_as_all_of_its_parts_do(undone: str) -> None:
    @durable("won")
    async def won(ctx: FlowContext[None]) -> None:
        both = ctx.gather(ctx.step(book, 1), ctx.gather(ctx.step(book, 2)))
        await ctx.race(both, ctx.sleep("1h"))
        raise ValueError("down")

    flow = RecordedFlow(won)
    await flow.activate()
    ended = [Entry(kind="undo", place=undone)] if undone else []
    kept = kept_entries([*flow.entries, *ended, Entry(kind="run")])
    assert ("race" in {entry.kind for entry in kept.entries}) == (not undone)


async def test_a_loser_without_a_rollback_takes_no_entry_more() -> None:
    @durable("plain-contest")
    async def plain(ctx: FlowContext[None]) -> int:
        waits = ctx.step(asyncio.Event().wait)
        return (await ctx.race(waits, ctx.step(asyncio.sleep, 0))).number

    flow = RecordedFlow(plain)
    await flow.activate()
    assert [kind for kind, _, _ in flow.told] == ["step", "race", "cut"]


def _watch(seen: list[tuple[str, bool]]) -> None:
    """Note where this runs, and try to cancel who runs it."""
    running_task = asyncio.current_task()
    seen.append((place.get(), running_task is None))
    if running_task is not None:
        running_task.cancel()


async def test_a_finally_block_runs_in_the_context_of_the_code_and_in_no_task_when_the_flow_sleeps() -> None:
    seen: list[tuple[str, bool]] = []

    @durable("holds")
    async def holds(ctx: FlowContext[None]) -> None:
        place.set("inside")
        try:
            await ctx.sleep("1 hour")
        finally:
            _watch(seen)

    assert isinstance(await RecordedFlow(holds).activate(), Asleep)
    assert (seen, place.get()) == ([("inside", True)], "outside")


async def test_a_finally_block_of_a_branch_that_lost_runs_in_the_context_of_the_code_and_in_no_task() -> None:
    seen: list[tuple[str, bool]] = []

    async def branch(ctx: FlowContext[None]) -> None:
        try:
            await ctx.sleep("1 hour")
        finally:
            _watch(seen)

    @durable("loses")
    async def loses(ctx: FlowContext[None]) -> int:
        place.set("inside")
        return (await ctx.race(branch(ctx), ctx.step(asyncio.sleep, 0))).number

    flow = RecordedFlow(loses)
    first = await flow.activate()
    assert isinstance(first, Completed)
    assert (first.output, seen) == ("1", [("inside", True)])
    assert await flow.activate() == first


@durable("asks", retry=Retry(attempts=2, delay=60, backoff="fixed"))
async def asks(ctx: FlowContext[None]) -> int:
    return (await ctx.race(ctx.step(hold, "alone"), ctx.wait_for(go))).number


@pytest.mark.parametrize("is_rescued", [True, False])
@pytest.mark.parametrize("is_taken", [True, False])
async def test_a_step_in_which_a_worker_died_is_in_doubt_although_its_next_attempt_is_cut(
    *, is_taken: bool, is_rescued: bool
) -> None:
    flow = RecordedFlow(asks)
    if is_taken:
        flow.send("go", "on")
        flow.dies_at = 1
        with pytest.raises(Died):
            await flow.activate()
    else:
        await _die_in_step(flow)
        flow.send("go", "on")
    assert [kind for kind, _, _ in flow.told] == ["signal" if is_taken else "wait"]
    flow.dies_at, flow.is_rescued = None, is_rescued
    ending = await flow.activate()
    assert isinstance(ending, Completed)
    assert [path for path, _ in doubts_in(flow.entries)] == (["hold@0"] if is_rescued else [])
    flow.is_rescued = False
    assert await flow.activate() == ending


async def _die_in_step(flow: RecordedFlow) -> None:
    """Let a worker begin what it can, and die."""
    activation = asyncio.create_task(flow.activate())
    await asyncio.sleep(0.01)
    flow.dies_at = len(flow.journal)
    activation.cancel()
    with pytest.raises(asyncio.CancelledError):
        await activation


async def test_a_doubt_outlives_runs_that_are_cut_and_attempts_that_fail_until_the_step_has_ended() -> None:
    outcomes: list[str] = []

    @task
    async def act(name: str) -> str:
        if not outcomes:
            return await hold(name)
        if (told := outcomes.pop()) == "fails":
            raise ValueError(told)
        return told

    act.rollback(release)

    @durable("acts", retry=Retry(attempts=2, delay=60, backoff="fixed"))
    async def acts(ctx: FlowContext[None]) -> str:
        return await ctx.step(act, "once")

    async def cut(flow: RecordedFlow) -> None:
        activation = asyncio.create_task(flow.activate())
        await asyncio.sleep(0.01)
        activation.cancel()
        with pytest.raises(asyncio.CancelledError):
            await activation

    flow = RecordedFlow(acts)
    flow.is_rescued = True
    await cut(flow)
    flow.is_rescued = False
    for _ in range(2):
        assert [path for path, _ in doubts_in(flow.entries)] == ["act@0"]
        await cut(flow)
    outcomes.append("fails")
    ending = await flow.activate()
    assert isinstance(ending, Asleep)
    assert [path for path, _ in doubts_in(flow.entries)] == ["act@0"]
    flow.clock.now_ms = ending.until_ms or 0
    outcomes.append("done")
    assert isinstance(await flow.activate(), Completed)
    assert doubts_in(flow.entries) == []


@task
async def ignore(name: str) -> str:
    while not released.is_set():
        try:
            await released.wait()
        except asyncio.CancelledError:
            continue
    return name


@ignore.rollback
async def stop_ignoring(name: str) -> None: ...


@durable("part-in-doubt")
async def part_in_doubt(ctx: FlowContext[bool]) -> int:
    return (await ctx.race(ctx.step(ignore, "loser"), ctx.step(asyncio.sleep, 0))).number


@durable("whole-in-doubt", retry=Retry(attempts=1))
async def whole_in_doubt(ctx: FlowContext[bool]) -> None:
    await (ctx.flow(part_in_doubt, True) if ctx.input else part_in_doubt.function(ctx))
    raise ValueError("no")


@pytest.mark.parametrize("is_inline", [True, False])
async def test_a_rollback_names_the_loser_that_ignored_its_cancellation(
    open_flows: Callable[..., Awaitable[WorkflowProvider]], *, is_inline: bool
) -> None:
    global released
    released = asyncio.Event()

    async def outcome() -> None:
        if is_inline:
            return await run_inline(whole_in_doubt, False)
        flows = await open_flows(whole_in_doubt, part_in_doubt)
        return await (await flows.execute(whole_in_doubt, True)).result(240)

    try:
        with pytest.raises(StepError) as caught:
            await outcome()
    finally:
        released.set()
    label = "ignore@0" if is_inline else "part-in-doubt@0/ignore@0"
    assert (caught.value.rollback, [each.step for each in caught.value.rollback_errors]) == (
        "incomplete",
        [label],
    )
