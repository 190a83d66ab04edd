"""Groups of calls: which calls may be given to them, and which may be awaited behind them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from drivers.recorded import RecordedFlow

from eventbus import UsageError
from workflows import Durable, FlowContext, durable, task
from workflows.functions.endings import Completed, Ending, Failed

Code = Callable[[FlowContext[None]], Awaitable[Any]]

did: list[str] = []


@pytest.fixture(autouse=True)
def nothing_did() -> None:
    did.clear()


@task
async def quick(name: str) -> str:
    did.append(name)
    return name


@task
async def slow(name: str) -> str:
    did.append(name)
    await asyncio.Event().wait()
    return name


def made(code: Code) -> Durable[None, Any]:
    @durable("grouped")
    async def grouped(ctx: FlowContext[None]) -> Any:
        return await code(ctx)

    return grouped


async def _both(code: Code) -> tuple[RecordedFlow, Ending]:
    """Run the code twice, the second time from what is recorded; return the ending, which must be the same
    one.
    """
    flow = RecordedFlow(made(code))
    first = await asyncio.wait_for(flow.activate(), 240)
    told = list(flow.told)
    assert await asyncio.wait_for(flow.activate(), 240) == first
    assert flow.told == told, "a replay records nothing"
    return flow, first


async def lost_step(ctx: FlowContext[None]) -> Any:
    loser = ctx.step(slow, "loser")
    await ctx.race(ctx.step(quick, "winner"), loser)
    await loser


async def lost_but_done(ctx: FlowContext[None]) -> Any:
    loser = ctx.step(quick, "loser")
    await ctx.race(ctx.step(quick, "winner"), loser)
    await loser


async def lost_sleep(ctx: FlowContext[None]) -> Any:
    loser = ctx.sleep("3 days")
    await ctx.race(ctx.step(quick, "winner"), loser)
    await loser


async def lost_gather(ctx: FlowContext[None]) -> Any:
    loser = ctx.gather(ctx.step(slow, "a"), ctx.step(slow, "b"))
    await ctx.race(ctx.step(quick, "winner"), loser)
    await loser


async def lost_in_a_gather(ctx: FlowContext[None]) -> Any:
    loser = ctx.step(quick, "loser")
    await ctx.race(ctx.step(quick, "winner"), ctx.gather(loser, ctx.step(slow, "b")))
    await loser


async def lost_map(ctx: FlowContext[None]) -> Any:
    loser = ctx.map(slow, ["a", "b"], local=True)
    await ctx.race(ctx.step(quick, "winner"), loser)
    await loser


async def lost_race(ctx: FlowContext[None]) -> Any:
    loser = ctx.step(slow, "loser")
    await ctx.race(ctx.step(quick, "winner"), ctx.race(loser, ctx.step(slow, "b")))
    await loser


async def lost_and_grouped(ctx: FlowContext[None]) -> Any:
    loser = ctx.step(slow, "loser")
    await ctx.race(ctx.step(quick, "winner"), loser)
    await ctx.gather(loser)


@pytest.mark.parametrize(
    "code",
    [
        lost_step,
        lost_but_done,
        lost_sleep,
        lost_gather,
        lost_in_a_gather,
        lost_map,
        lost_race,
        lost_and_grouped,
    ],
)
async def test_a_call_that_lost_a_race_cannot_be_awaited_behind_it(code: Code) -> None:
    flow, ending = await _both(code)
    assert isinstance(ending, Failed)
    assert '"type":"UsageError"' in ending.failure
    assert "lost a race" in ending.failure
    assert sum(place == "race" for place, _, _ in flow.told) == 1


async def test_code_that_catches_the_refusal_of_a_loser_goes_on() -> None:
    async def code(ctx: FlowContext[None]) -> list[str]:
        loser = ctx.step(slow, "loser")
        winner = ctx.step(quick, "winner")
        await ctx.race(winner, loser)
        with pytest.raises(UsageError, match=r"step 'slow' of flow flow~1, at position 0, lost a race"):
            await loser
        return [await winner, await ctx.step(quick, "behind")]

    flow, ending = await _both(code)
    assert ending == Completed('["winner","behind"]')
    assert [name for name in did if name != "loser"] == ["winner", "behind"]
    assert ("step", "3", "quick") in flow.told


async def twice_in_a_gather(ctx: FlowContext[None]) -> Any:
    call = ctx.step(quick, "a")
    await ctx.gather(call, call)


async def twice_in_a_race(ctx: FlowContext[None]) -> Any:
    call = ctx.step(quick, "a")
    await ctx.race(call, call)


async def in_two_gathers(ctx: FlowContext[None]) -> Any:
    call = ctx.step(quick, "a")
    await ctx.gather(ctx.gather(call), ctx.gather(call))


async def in_a_gather_and_a_race(ctx: FlowContext[None]) -> Any:
    call = ctx.step(quick, "a")
    await ctx.gather(ctx.race(call, ctx.step(quick, "b")), call)


async def a_group_twice(ctx: FlowContext[None]) -> Any:
    group = ctx.gather(ctx.step(quick, "a"))
    await ctx.gather(group, group)


async def a_coroutine_twice(ctx: FlowContext[None]) -> Any:
    async def branch() -> str:
        return await ctx.step(quick, "a")

    one = branch()
    await ctx.gather(one, one)


@pytest.mark.parametrize(
    "code",
    [
        twice_in_a_gather,
        twice_in_a_race,
        in_two_gathers,
        in_a_gather_and_a_race,
        a_group_twice,
        a_coroutine_twice,
    ],
)
async def test_a_call_is_given_to_one_group_once(code: Code) -> None:
    flow, ending = await _both(code)
    assert isinstance(ending, Failed)
    assert '"type":"UsageError"' in ending.failure
    assert "belongs to a group" in ending.failure
    assert (did, flow.told) == ([], []), "nothing has begun"


async def test_a_group_that_is_refused_takes_no_position_and_its_calls_are_not_missed() -> None:
    async def branch(ctx: FlowContext[None]) -> str:
        return await ctx.step(quick, "never")

    async def code(ctx: FlowContext[None]) -> str:
        call, other = ctx.step(quick, "a"), ctx.step(quick, "b")
        with pytest.raises(
            UsageError, match=r"step 'quick' of flow flow~1, at position 0, belongs to a group"
        ):
            ctx.gather(branch(ctx), call, other, call)
        with pytest.raises(UsageError, match=r"expected calls of ctx"):
            ctx.gather(branch(ctx), "c")  # type: ignore[call-overload]
        return await ctx.step(quick, "d")

    flow, ending = await _both(code)
    assert ending == Completed('"d"')
    assert (did, flow.told) == (["d"], [("step", "2", "quick")])


async def test_the_group_that_was_first_keeps_what_a_second_one_is_refused() -> None:
    async def branch(ctx: FlowContext[None]) -> str:
        return await ctx.step(quick, "b")

    async def code(ctx: FlowContext[None]) -> Any:
        call, routine = ctx.step(quick, "a"), branch(ctx)
        group = ctx.gather(call, routine)
        for one in (call, routine):
            with pytest.raises(UsageError, match="belongs to a group"):
                ctx.race(one)
        return await group

    _, ending = await _both(code)
    assert ending == Completed('["a","b"]')


async def test_a_call_that_is_done_may_be_given_to_a_further_group() -> None:
    async def code(ctx: FlowContext[None]) -> Any:
        calls = [ctx.step(quick, "a"), ctx.step(quick, "b")]
        await ctx.gather(*calls)
        return [*await ctx.gather(*calls), (await ctx.race(*calls)).value]

    _, ending = await _both(code)
    assert ending == Completed('["a","b","a"]')
