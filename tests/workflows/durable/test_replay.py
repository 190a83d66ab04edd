"""The run of a durable function: what is recorded is not done again, and comes back as it was."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from drivers.counting import count_lines
from drivers.recorded import RecordedFlow

from eventbus import HandlerError, Retry
from workflows import FlowContext, Signal, durable, task
from workflows.functions.endings import Asleep, Completed, Failed

DAY_MS = 86_400_000
go = Signal("go", str)


class OutOfStock(Exception):
    pass


def _output(ending: object) -> Any:
    assert isinstance(ending, Completed), ending
    return msgspec.json.decode(ending.output)


async def test_a_recorded_step_is_not_run_again_and_a_run_of_records_alone_appends_nothing() -> None:
    did: list[int] = []

    async def double(number: int) -> int:
        did.append(number)
        return number * 2

    @durable("double")
    async def function(ctx: FlowContext[int]) -> list[int]:
        return [await ctx.step(double, number) for number in range(ctx.input)]

    flow = RecordedFlow(function, 3)
    assert _output(await flow.activate()) == [0, 2, 4]
    assert flow.told == [("step", "0", "double"), ("step", "1", "double"), ("step", "2", "double")]
    appends = flow.appends
    assert _output(await flow.activate()) == [0, 2, 4]
    assert (did, flow.appends) == ([0, 1, 2], appends)


async def test_positions_are_taken_at_the_call_and_each_branch_has_its_own() -> None:
    async def work(name: str) -> str:
        await asyncio.sleep(0.02 if name == "slow" else 0)
        return name

    async def branch(ctx: FlowContext[None], name: str) -> list[str]:
        return [await ctx.step(work, name), *await ctx.gather(ctx.step(work, name), inner(ctx))]

    async def inner(ctx: FlowContext[None]) -> str:
        return await ctx.step(work, "inner")

    @durable("positions")
    async def function(ctx: FlowContext[None]) -> Any:
        first = ctx.step(work, "slow")
        return await ctx.gather(first, ctx.step(work, "b"), branch(ctx, "c"), branch(ctx, "d"))

    flow = RecordedFlow(function)
    wanted = ["slow", "b", ["c", "c", "inner"], ["d", "d", "inner"]]
    assert _output(await flow.activate()) == wanted
    places = {entry.place for entry in flow.entries}
    assert places == {"0", "1"} | {f"2.{n}.{p}" for n in (2, 3) for p in ("0", "1", "2.1.0")}
    assert flow.entries[-1].place != "1", "the slow one is recorded late, at its own position"
    assert _output(await flow.activate()) == wanted


async def test_what_a_step_raises_is_what_its_record_revives_also_the_first_time() -> None:
    seen: list[str] = []

    def refuse(kind: str) -> None:
        raise OutOfStock("none left") if kind == "declared" else ValueError("odd")

    @durable("errors", errors=[OutOfStock], retry=Retry(attempts=1))
    async def function(ctx: FlowContext[None]) -> str:
        try:
            await ctx.step(refuse, "declared")
        except OutOfStock as error:
            seen.append(repr(error))
        try:
            await ctx.step(refuse, "other")
        except ValueError:
            seen.append("ValueError")
        except HandlerError as error:
            seen.append(f"{type(error).__name__} {error.type_name} {error.remote_message}")
        return "done"

    flow = RecordedFlow(function)
    assert _output(await flow.activate()) == "done"
    first = list(seen)
    seen.clear()
    assert _output(await flow.activate()) == "done"
    assert first == seen == ["OutOfStock('none left')", "HandlerError ValueError odd"]


async def test_an_uncaught_error_names_its_step_and_one_of_the_code_names_the_function() -> None:
    async def fail() -> None:
        raise ValueError("odd")

    @durable("fails", retry=Retry(attempts=2, delay=0))
    async def function(ctx: FlowContext[bool]) -> None:
        if ctx.input:
            await ctx.step(fail)
        raise KeyError("mine")

    ending = await RecordedFlow(function, given=True).activate()
    assert isinstance(ending, Failed)
    assert ending.step == "fail@0"
    assert msgspec.json.decode(ending.failure)["attempts"] == 2
    ending = await RecordedFlow(function, given=False).activate()
    assert isinstance(ending, Failed)
    assert (ending.step, msgspec.json.decode(ending.failure)["type"]) == ("__function__", "KeyError")


async def test_gather_waits_for_all_and_raises_the_error_of_the_lowest_position() -> None:
    ended: list[str] = []

    async def work(name: str, wait: float) -> str:
        await asyncio.sleep(wait)
        ended.append(name)
        if name.startswith("bad"):
            raise OutOfStock(name)
        return name

    @durable("all", errors=[OutOfStock])
    async def function(ctx: FlowContext[bool]) -> list[str]:
        calls = [ctx.step(work, name, wait) for name, wait in (("bad1", 0.03), ("bad2", 0.0), ("good", 0.04))]
        if ctx.input:
            values = await ctx.gather(*calls, return_exceptions=True)
            return [value if isinstance(value, str) else repr(value) for value in values]
        return await ctx.gather(*calls)

    flow = RecordedFlow(function, given=False)
    ending = await flow.activate()
    assert isinstance(ending, Failed)
    assert (ending.step, ended) == ("work@0", ["bad2", "bad1", "good"])
    assert await flow.activate() == ending
    flow = RecordedFlow(function, given=True)
    wanted = ["OutOfStock('bad1')", "OutOfStock('bad2')", "good"]
    assert _output(await flow.activate()) == _output(await flow.activate()) == wanted


async def test_a_race_records_its_winner_cancels_the_others_and_does_not_run_them_again() -> None:
    cancelled: list[str] = []
    ran: list[str] = []

    async def wait_long(name: str) -> str:
        ran.append(name)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(name)
            raise
        return name

    async def be_quick() -> str:
        return "quick"

    async def branch(ctx: FlowContext[None]) -> str:
        try:
            await ctx.step(wait_long, "in a branch")
        finally:
            with pytest.raises(BaseException, match="won the race"):
                await ctx.step(be_quick)
        return "never"

    @durable("race")
    async def function(ctx: FlowContext[None]) -> Any:
        first = await ctx.race(ctx.step(wait_long, "call"), branch(ctx), ctx.step(be_quick), ctx.wait_for(go))
        return [first.number, first.value, await ctx.step(be_quick)]

    flow = RecordedFlow(function)
    assert _output(await flow.activate()) == [2, "quick", "quick"]
    assert sorted(cancelled) == sorted(ran) == ["call", "in a branch"]
    assert ("race", "3", "race") in flow.told
    assert ("cut", "0", "wait_long") in flow.told
    assert _output(await flow.activate()) == [2, "quick", "quick"]
    assert len(ran) == 2


async def test_a_sleep_is_recorded_when_it_begins_and_ends_at_that_time() -> None:
    times: list[str] = []

    @durable("sleeps")
    async def function(ctx: FlowContext[None]) -> str:
        before = ctx.now()
        await ctx.sleep(timedelta(days=3))
        times.append(str(ctx.now() - before))
        return "awake"

    flow = RecordedFlow(function)
    assert await flow.activate() == Asleep(1_000_000 + 3 * DAY_MS, listens=False)
    flow.clock.now_ms += 2 * DAY_MS
    assert await flow.activate() == Asleep(1_000_000 + 3 * DAY_MS, listens=False)
    flow.clock.now_ms += DAY_MS
    assert _output(await flow.activate()) == "awake"
    flow.clock.now_ms += DAY_MS
    assert _output(await flow.activate()) == "awake"
    assert times == ["3 days, 0:00:00"] * 2, "the time of the record, not the wall's"
    assert flow.told == [("sleep", "0", "sleep"), ("due", "0", "sleep")]


async def test_a_signal_may_be_early_late_or_wrong_and_each_wait_takes_one() -> None:
    @durable("waits")
    async def function(ctx: FlowContext[None]) -> list[str]:
        return [await ctx.wait_for(go), *await ctx.gather(ctx.wait_for(go), ctx.wait_for(go))]

    flow = RecordedFlow(function)
    flow.send("other", 1)
    flow.send("go", "early")
    assert await flow.activate() == Asleep(None, listens=True)
    flow.send("go", 7)
    assert await flow.activate() == Asleep(None, listens=True)
    assert flow.told[-1] == ("refused", "", "go")
    flow.send("go", "second")
    flow.send("go", "third")
    assert _output(await flow.activate()) == ["early", "second", "third"]
    assert [signal.name for signal in flow.inbox] == ["other"]


async def test_a_wait_past_its_timeout_raises_and_a_signal_goes_before_the_time() -> None:
    @durable("limit")
    async def function(ctx: FlowContext[None]) -> str:
        try:
            return await ctx.wait_for(go, timeout="1 minute")
        except TimeoutError as error:
            return str(error)

    late, both = RecordedFlow(function), RecordedFlow(function)
    for flow in (late, both):
        assert await flow.activate() == Asleep(1_060_000, listens=True)
        flow.clock.now_ms += 60_000
    both.send("go", "in time")
    assert _output(await late.activate()) == _output(await late.activate())
    assert _output(await late.activate()) == "signal 'go' did not come in time"
    assert _output(await both.activate()) == "in time"


async def test_a_late_retry_sleeps_and_a_near_one_does_not() -> None:
    tries: list[int] = []

    async def fail_twice() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise ValueError("odd")
        return "at last"

    @durable("retries")
    async def function(ctx: FlowContext[float]) -> str:
        retry = Retry(attempts=3, delay=ctx.input, backoff="fixed")
        return await ctx.step(task(retry=retry)(fail_twice))

    flow = RecordedFlow(function, 0.5)
    assert _output(await flow.activate()) == "at last"
    assert flow.told == [("try", "0", "fail_twice")] * 2 + [("step", "0", "fail_twice")]
    assert [entry.attempts for entry in flow.entries] == [1, 2, 2]
    tries.clear()
    flow = RecordedFlow(function, 60)
    ending = await flow.activate()
    assert isinstance(ending, Asleep)
    assert (flow.told, flow.entries[0].attempts) == ([("try", "0", "fail_twice")], 1)
    assert (await flow.activate(), len(tries)) == (ending, 1)
    flow.clock.now_ms = ending.until_ms or 0
    await flow.activate()
    flow.clock.now_ms += 60_000
    assert _output(await flow.activate()) == "at last"
    assert [entry.attempts for entry in flow.entries] == [1, 2, 2]


async def test_to_replay_ten_times_as_many_calls_costs_ten_times_as_much() -> None:
    async def nothing() -> int:
        return 1

    async def cost(count: int) -> int:
        @durable("long")
        async def function(ctx: FlowContext[None]) -> int:
            return sum([await ctx.step(nothing) for _ in range(count)])

        flow = RecordedFlow(function)
        flow.journal = [
            f'{{"k":"step","p":"{number}","n":"nothing","r":1,"t":1000000,"d":1}}' for number in range(count)
        ]
        with count_lines() as lines:
            assert _output(await flow.activate()) == count
        return lines.count

    few, many = await cost(1000), await cost(10_000)
    assert many < 12 * few, (few, many)
